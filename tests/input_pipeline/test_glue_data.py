import pytest

from input_pipeline import glue_data
from input_pipeline.errors import UserError

XNLI_COLUMNS = "language\tgold_label\tparse1\tparse2\tp1\tp2\tsentence1\tsentence2\tpairID\n"


def read(tmp_path, task, split, text, **options):
    path = tmp_path / "file.tsv"
    path.write_text(text, encoding="utf-8", newline="")
    return glue_data.read(task, split, str(path), **options)


def short(data):
    return [(one.id, one.text, one.text_pair, one.label) for one in data.examples]


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_tasks():
    assert list(glue_data.TASKS) == "cola sst2 mrpc qqp stsb mnli qnli rte wnli ax xnli".split()
    assert glue_data.TASKS["mnli"].labels == ("contradiction", "entailment", "neutral")
    assert glue_data.TASKS["ax"].labels == glue_data.TASKS["xnli"].labels == glue_data.TASKS["mnli"].labels
    assert glue_data.TASKS["qnli"].labels == glue_data.TASKS["rte"].labels == ("entailment", "not_entailment")
    kinds = {task.name: task.kind for task in glue_data.TASKS.values()}
    assert [name for name, kind in kinds.items() if kind != "classification"] == ["stsb"]
    submitted = {file for task in glue_data.TASKS.values() for file in task.submission.values()}
    names = "CoLA SST-2 MRPC QQP STS-B MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    assert submitted == {f"{name}.tsv" for name in names}
    assert len(glue_data.LANGUAGES) == 15


def test_quotes_are_text(tmp_path):
    data = read(tmp_path, "cola", "train", 'a\t1\t\t"Hello he said\na\t0\t*\tplain row\na\t1\t\tsay ""hi"" now\n')
    assert short(data) == [
        ("0", '"Hello he said', None, "1"),
        ("1", "plain row", None, "0"),
        ("2", 'say ""hi"" now', None, "1"),
    ]
    assert data.examples[1].where == f"{tmp_path}/file.tsv, line 2"
    assert data.notes == ()


def test_files_to_predict_need_no_label(tmp_path):
    assert short(read(tmp_path, "cola", "test", "index\tsentence\n7\ta b\n")) == [("7", "a b", None, None)]
    assert short(read(tmp_path, "cola", "test", "c\t1\t\ta b\n")) == [("0", "a b", None, None)]
    header = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    assert short(read(tmp_path, "mrpc", "test", header + "3\t1\t2\ta\tb\n")) == [("3", "a", "b", None)]
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    assert short(read(tmp_path, "mrpc", "test", header + "?\t1\t2\ta\tb\n")) == [("0", "a", "b", None)]
    assert short(read(tmp_path, "qqp", "test", "id\tquestion1\tquestion2\n5\ta\tb\n")) == [("5", "a", "b", None)]
    data = read(tmp_path, "ax", "test", "index\tsentence1\tsentence2\n0\ta\tb\n")
    assert short(data) == [("0", "a", "b", None)]
    assert read(tmp_path, "mnli", "diagnostic", "index\tsentence1\tsentence2\n0\ta\tb\n") == data


def test_ids_with_labels_are_numbers_of_rows(tmp_path):
    data = read(tmp_path, "rte", "dev", "index\tsentence1\tsentence2\tlabel\n9\ta\tb\tentailment\n")
    assert short(data) == [("0", "a", "b", "entailment")]


def test_marks_and_spaces_around_labels(tmp_path):
    text = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n 1 \t1\t2\ta\tb\r\n"
    assert short(read(tmp_path, "mrpc", "train", text)) == [("0", "a", "b", "1")]


def test_scores(tmp_path):
    header = "index\tsentence1\tsentence2\tscore\n"
    data = read(tmp_path, "stsb", "train", header + "0\ta\tb\t4.750\n1\ta\tb\t0\n")
    assert [one.label for one in data.examples] == [4.75, 0.0]
    for wrong in ("5.01", "-1", "nan", "high", ""):
        with pytest.raises(UserError, match=rf"--train_file: .*file.tsv, line 2: the score '{wrong}' is no number"):
            read(tmp_path, "stsb", "train", header + f"0\ta\tb\t{wrong}\n", flag="--train_file")


def test_wrong_labels(tmp_path):
    with pytest.raises(UserError, match=r"--data_dir: .*file.tsv, line 2: the label '2' is none of sst2: 0, 1"):
        read(tmp_path, "sst2", "train", "sentence\tlabel\na\t2\n")
    with pytest.raises(UserError, match=r"line 2: the label '-' is none of rte"):
        read(tmp_path, "rte", "train", "index\tsentence1\tsentence2\tlabel\n9\ta\tb\t-\n")


def test_wrong_columns(tmp_path):
    with pytest.raises(UserError, match=r"file.tsv has no column '#1 String'; there are: sentence, label"):
        read(tmp_path, "mrpc", "train", "sentence\tlabel\na\t1\n")
    with pytest.raises(UserError, match=r"file.tsv has no column 'label'; there are: index, sentence"):
        read(tmp_path, "sst2", "dev", "index\tsentence\n1\ta\n")
    with pytest.raises(UserError, match=r"line 3: 3 fields, where the header line has 6"):
        read(tmp_path, "qqp", "train", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\ta\tb\t0\n\tb\t0\n")


def test_examples_without_an_agreed_label_are_noted(tmp_path):
    text = "index\tsentence1\tsentence2\tlabel1\tgold_label\n" + "".join(
        f"{i}\ta\tb\tx\t{label}\n" for i, label in enumerate(["neutral", "-", "entailment", "-"])
    )
    data = read(tmp_path, "mnli", "dev_matched", text)
    assert short(data) == [("0", "a", "b", "neutral"), ("2", "a", "b", "entailment")]
    path = f"{tmp_path}/file.tsv"
    assert data.notes == (f"{path}: 2 examples have no agreed label (-) and are left out, first {path}, line 3",)


def test_empty_texts_are_noted(tmp_path):
    data = read(tmp_path, "sst2", "train", "sentence\tlabel\n \t1\nb\t0\n")
    assert [one.text for one in data.examples] == [" ", "b"]
    assert data.notes == (f"{tmp_path}/file.tsv: 1 example has an empty text",)


def test_xnli(tmp_path):
    train = read(tmp_path, "xnli", "train", "premise\thypo\tlabel\nа б\tв\tcontradictory\n", language="ru")
    assert short(train) == [("0", "а б", "в", "contradiction")]
    rows = XNLI_COLUMNS + "".join(
        f"{language}\t{label}\t\t\t\t\ta {language}\tb {language}\t9\n"
        for label in ("neutral", "entailment")
        for language in ("de", "zh")
    )
    expected = [("0", "a zh", "b zh", "neutral"), ("1", "a zh", "b zh", "entailment")]
    assert short(read(tmp_path, "xnli", "dev", rows, language="zh")) == expected
    assert short(read(tmp_path, "xnli", "test", rows, language="zh")) == expected
    assert len(read(tmp_path, "xnli", "dev", rows).examples) == 4
    with pytest.raises(UserError, match=r"no row of language 'fr'; there are: de, zh"):
        read(tmp_path, "xnli", "dev", rows, language="fr")
    unlabelled = "sentence1\tsentence2\na\tb\n"
    assert short(read(tmp_path, "xnli", "test", unlabelled, language="zh")) == [("0", "a", "b", None)]


def test_languages_in_a_file(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("language\tx\nzh\t1\nxx\t1\nar\t1\nzh\t1\n")
    assert glue_data.languages_in(path) == ("ar", "zh")
    path.write_text("sentence1\tx\nzh\t1\n")
    assert glue_data.languages_in(path) is None
    path.write_text("language\tx\nyy\t1\nxx\t1\n")
    with pytest.raises(UserError, match=r"^--x: .*x.tsv has no row of a language of XNLI; there are: xx, yy$"):
        glue_data.languages_in(path, "--x")


def test_finding_files(tmp_path):
    make(tmp_path, "glue/MRPC/train.tsv", "glue/MRPC/dev.tsv", "glue/MRPC/msr_paraphrase_test.txt")
    names = {"train": "train.tsv", "dev": "dev.tsv", "test": "msr_paraphrase_test.txt"}
    expected = {split: f"{tmp_path}/glue/MRPC/{name}" for split, name in names.items()}
    assert glue_data.find("mrpc", tmp_path / "glue") == expected
    assert glue_data.find("mrpc", tmp_path / "glue/MRPC") == expected
    assert list(glue_data.find("mrpc", tmp_path / "glue")) == ["train", "dev", "test"]


def test_finding_mnli_and_its_diagnostic_file(tmp_path):
    names = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
    make(tmp_path, *(f"MNLI/{name}.tsv" for name in names), "diagnostic/diagnostic.tsv")
    for folder in (tmp_path, tmp_path / "MNLI"):
        found = glue_data.find("mnli", folder)
        assert list(found) == [*names, "diagnostic"]
        assert found["diagnostic"] == f"{tmp_path}/diagnostic/diagnostic.tsv"
    assert glue_data.find("ax", tmp_path) == {"test": f"{tmp_path}/diagnostic/diagnostic.tsv"}


def test_finding_the_corpus_of_mrpc(tmp_path):
    make(tmp_path, "msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
    found = glue_data.find("mrpc", tmp_path)
    assert found["train"].endswith("msr_paraphrase_train.txt")
    assert found["dev"].endswith("msr_paraphrase_test.txt")
    make(tmp_path, "dev.tsv")
    with pytest.raises(UserError, match=r"holds no train file of mrpc"):  # which would have the examples of dev.tsv
        glue_data.find("mrpc", tmp_path)


def test_finding_xnli(tmp_path):
    make(tmp_path, "XNLI-1.0/xnli.dev.tsv", "XNLI-1.0/xnli.test.tsv", "XNLI-MT-1.0/multinli/multinli.train.zh.tsv")
    assert list(glue_data.find("xnli", tmp_path, train_language="zh")) == ["train", "dev", "test"]
    with pytest.raises(UserError, match=r"holds no train file of xnli: looked for multinli.train.en.tsv, "):
        glue_data.find("xnli", tmp_path)
    with pytest.raises(UserError, match=r"'xx' is no language of XNLI; there are: ar, bg"):
        glue_data.find("xnli", tmp_path, train_language="xx")


def test_what_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"--data_dir: no such file or folder: .*/none"):
        glue_data.find("rte", tmp_path / "none")
    make(tmp_path, "RTE/train.tsv")
    problem = r"--data_dir: .* holds no dev file of rte: looked for dev.tsv in it and in its folders RTE, rte"
    with pytest.raises(UserError, match=problem):
        glue_data.find("rte", tmp_path)
    assert list(glue_data.find("rte", tmp_path, needed=())) == ["train"]
    with pytest.raises(UserError, match=r"holds no file of wnli: looked for train.tsv, dev.tsv, test.tsv"):
        glue_data.find("wnli", tmp_path, needed=())
    with pytest.raises(UserError, match=r"is a file, or lies below one"):
        glue_data.find("rte", tmp_path / "RTE/train.tsv")


def test_real_files(shared):
    counts = {
        "cola": (8551, 1043, 1063),
        "sst2": (67349, 872, 1821),
        "mrpc": (3668, 408, 1725),
        "stsb": (5749, 1500, 1379),
        "rte": (2490, 277),
        "wnli": (635, 71, 146),
        "ax": (1104,),
    }
    for task, expected in counts.items():
        found = glue_data.find(task, shared / "data/glue")
        data = [glue_data.read(task, split, path) for split, path in found.items()]
        assert tuple(len(one.examples) for one in data) == expected
        assert not any(one.notes for one in data)
