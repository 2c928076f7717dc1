"""From flags to examples: which files are meant, how labels come about, and what is missing."""

import json

import pytest

from bert_jax import task_data
from bert_jax.main import parse
from input_pipeline import tfds_tasks
from input_pipeline.errors import UserError
from input_pipeline.glue_data import LANGUAGES
from input_pipeline.task_examples import DataSet, TextExample

ALL = ("train", "dev", "test")
NLI = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n1\tc\td\tentailment\n"


def flags(mode="finetune", **values):
    return parse(["bert_jax", f"--mode={mode}", *(f"--{name}={value}" for name, value in values.items())])


def opened(name, wanted=ALL, labels=None, **values):
    return task_data.open_data(flags(task_name=name, **values), name, wanted, labels)


def put(folder, **contents):
    """Writes files: "name" is name.tsv, and "__" in it a dot."""
    for name, text in contents.items():
        path = folder / (name.replace("__", ".") if "__" in name else f"{name}.tsv")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("given", "name"),
    [("MRPC", "mrpc"), ("SST-2", "sst2"), ("STS-B", "stsb"), ("multi-label", "multi_label"), ("NER", "conll2003")],
)
def test_names_of_tasks_as_people_write_them(given, name):
    assert task_data.task_name(flags(task_name=given)) == name


def test_all_of_glue_is_for_training_only():
    assert task_data.task_name(flags(task_name="glue")) == "glue"
    for values in (flags("predict", task_name="GLUE"), flags(task_name="sst3"), flags()):
        with pytest.raises(UserError, match=r"--task_name.* one of cola, sst2, mrpc"):
            task_data.task_name(values)


def test_the_splits_of_mnli_and_the_diagnostic_set(tmp_path):
    names = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
    put(tmp_path / "MNLI", **dict.fromkeys(names, NLI))
    put(tmp_path / "diagnostic", diagnostic=NLI)
    data = opened("mnli", data_dir=tmp_path)
    assert tuple(data.splits) == (*names, "diagnostic")
    assert data.labels == ("contradiction", "entailment", "neutral") and data.kind == "classification"
    assert [e.label for e in data.splits["dev_matched"].examples] == ["neutral", "entailment"]
    assert [e.label for e in data.splits["diagnostic"].examples] == [None, None]
    assert data.submission["diagnostic"] == "AX.tsv"
    assert [task_data.is_labelled(split) for split in data.splits] == [True, True, True, False, False, False]
    assert tuple(opened("mnli", ("dev",), data_dir=tmp_path).splits) == ("dev_matched", "dev_mismatched")
    assert tuple(opened("ax", ("test",), data_dir=tmp_path).splits) == ("test",)


def test_a_named_file_stands_for_all_that_a_folder_has_of_its_kind(tmp_path):
    put(tmp_path / "MNLI", **dict.fromkeys(("train", "dev_matched", "dev_mismatched"), NLI))
    put(tmp_path, own=NLI + "2\te\tf\tneutral\n")
    data = opened("mnli", data_dir=tmp_path, eval_file=tmp_path / "own.tsv")
    assert {split: len(examples.examples) for split, examples in data.splits.items()} == {"train": 2, "dev": 3}


def test_xnli_is_evaluated_by_language(tmp_path):
    row = "{}\tneutral\ta\tb\n"
    dev = "language\tgold_label\tsentence1\tsentence2\n" + "".join(map(row.format, [*LANGUAGES, "de"]))
    put(tmp_path, xnli__dev__tsv=dev, multinli__train__en__tsv="premise\thypo\tlabel\na\tb\tcontradictory\n")
    data = opened("xnli", data_dir=tmp_path)
    assert tuple(data.splits) == ("train", *(f"dev_{language}" for language in LANGUAGES))
    assert len(data.splits["dev_de"].examples) == 2 and len(data.splits["dev_zh"].examples) == 1
    assert data.splits["train"].examples[0].label == "contradiction"
    assert tuple(opened("xnli", ("dev",), data_dir=tmp_path, language="sw").splits) == ("dev_sw",)
    assert not any(examples.notes for examples in data.splits.values())
    with pytest.raises(UserError, match="--train_language: 'xx' is no language of XNLI"):
        opened("xnli", data_dir=tmp_path, train_language="xx")


def test_xnli_with_some_of_the_languages(tmp_path):
    head, row = "language\tgold_label\tsentence1\tsentence2\n", "{}\tneutral\ta\tb\n"
    put(tmp_path, some=head + "".join(map(row.format, ["zh", "de", "zh", "xx"])), none=head + row.format("xx"))
    put(tmp_path, plain="sentence1\tsentence2\na\tb\n")
    data = opened("xnli", ("dev",), eval_file=tmp_path / "some.tsv")
    assert {split: len(one.examples) for split, one in data.splits.items()} == {"dev_de": 1, "dev_zh": 2}
    said = []
    task_data.tell_of(data, said.append)
    assert said[1:3] == [
        "dev: of the 15 languages of XNLI there are de, zh",
        f"dev_zh: 2 examples from {tmp_path}/some.tsv",
    ]
    with pytest.raises(UserError, match=r"^--eval_file: .*none.tsv has no row of a language of XNLI; there are: xx$"):
        opened("xnli", ("dev",), eval_file=tmp_path / "none.tsv")
    with pytest.raises(UserError, match="has no row of language 'fr'; there are: de, xx, zh"):
        opened("xnli", ("dev",), eval_file=tmp_path / "some.tsv", language="fr")
    data = opened("xnli", ("test",), predict_file=tmp_path / "plain.tsv")
    assert {split: len(one.examples) for split, one in data.splits.items()} == {"test": 1}


@pytest.mark.parametrize(
    ("name", "given", "asked"),
    [
        ("mrpc", {"data_dir": "tfds"}, [("mrpc", s, None, None) for s in ALL]),
        ("mrpc", {"data_dir": "tfds:glue/mrpc:2.0.0"}, [("mrpc", s, "glue/mrpc:2.0.0", None) for s in ALL]),
        ("squad", {"data_dir": "tfds"}, [("squad", s, None, None) for s in ALL[:2]]),
        (
            "squad",
            {"data_dir": "tfds", "version_2_with_negative": "true"},
            [("squad/v2.0", s, None, None) for s in ALL[:2]],
        ),
        ("squad", {"data_dir": "tfds:squad/v2.0"}, [("squad/v2.0", s, "squad/v2.0", None) for s in ALL[:2]]),
        (
            "xnli",
            {"data_dir": "tfds", "language": "de", "train_language": "en"},
            [("xnli", "train", None, "en"), ("xnli", "dev_de", None, None), ("xnli", "test_de", None, None)],
        ),
    ],
)
def test_what_is_read_out_of_tensorflow_datasets(monkeypatch, name, given, asked):
    calls = []

    def read(task, split, source, *, language=None, flag):
        calls.append((task, split, source, language))
        return DataSet([TextExample("0", "a", None, "0", "")], f"tfds:{split}")

    monkeypatch.setattr(tfds_tasks, "read", read)
    data = opened(name, **given)
    assert calls == asked and data.version_2 == ("squad/v2.0" in str(asked))


def test_labels_are_those_of_the_training_examples(tmp_path):
    put(tmp_path, train="text\tlabel\na\t10\nb\t9\n", dev="text\tlabel\na\t9\nb\t11\n")
    with pytest.raises(
        UserError, match=r"--eval_file: .*dev.tsv, line 3: field 'label' .* is '11', none of the labels 9, 10"
    ):
        opened("classification", train_file=tmp_path / "train.tsv", eval_file=tmp_path / "dev.tsv")
    data = opened("classification", ("dev",), ("9", "10", "11"), eval_file=tmp_path / "dev.tsv")
    assert data.labels == ("9", "10", "11")
    put(tmp_path, one="text\tlabel\na\tx\nb\tx\n")
    with pytest.raises(UserError, match="all that there is has the label 'x': there is nothing to tell apart"):
        opened("classification", train_file=tmp_path / "one.tsv")
    assert opened("multi_label", train_file=tmp_path / "one.tsv").labels == ("x",)


def test_tags_come_from_all_that_is_labelled(tmp_path):
    put(tmp_path, train="EU B-ORG\n", dev="Bonn B-LOC\n", test="Rome B-XXX\n")
    data = opened("tagging", **{f"{task_data.FILE_FLAGS[s]}": tmp_path / f"{s}.tsv" for s in ALL})
    assert data.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")


def test_tags_that_tell_nothing_apart(tmp_path):
    put(tmp_path, train="1\tEU\tB-ORG\tO\n2\tBonn\tB-LOC\tO\n")
    with pytest.raises(UserError, match=r"has the label 'O': there is nothing to tell apart .--label_field"):
        opened("tagging", train_file=tmp_path / "train.tsv")
    (tmp_path / "none.jsonl").write_text('{"words": [], "tags": []}')
    with pytest.raises(UserError, match=r"none.jsonl: it holds no labels: there is nothing to tell apart"):
        opened("tagging", train_file=tmp_path / "none.jsonl")


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_one_column_is_not_two_parts_of_an_example(tmp_path, name):
    put(tmp_path, train="text\tlabel\na\tx\nb\ty\n")
    with pytest.raises(UserError, match="--label_field=2: this is --text_field already"):
        opened(name, train_file=tmp_path / "train.tsv", text_field="2", label_field="2")


def test_labels_that_are_given():
    assert task_data.given_labels(flags(labels="x,y"), "classification") == ("x", "y")
    assert task_data.given_labels(flags(labels="1,0"), "sst2") == ("1", "0")
    assert task_data.given_labels(flags(), "sst2") is None
    with pytest.raises(UserError, match="--labels=bad,good: --task_name=sst2 has 0, 1"):
        task_data.given_labels(flags(labels="bad,good"), "sst2")


def test_a_share_of_the_training_examples_is_held_out(tmp_path):
    put(tmp_path, train="text\tlabel\n" + "".join(f"{n}\t{n % 2}\n" for n in range(200)))
    data = opened("classification", train_file=tmp_path / "train.tsv", eval_fraction=0.2)
    parts = [[example.id for example in data.splits[split].examples] for split in ("train", "dev")]
    assert 20 < len(parts[1]) < 60
    assert sorted([*parts[0], *parts[1]], key=int) == [str(n) for n in range(200)]
    assert data.splits["train"].notes[-1].endswith("training examples are held out (--eval_fraction=0.2)")
    again = opened("classification", train_file=tmp_path / "train.tsv", eval_fraction=0.2)
    assert again.splits == data.splits
    with pytest.raises(UserError, match="leaves nothing on one side"):
        opened("classification", train_file=tmp_path / "train.tsv", eval_fraction=1.0)


@pytest.mark.parametrize(
    ("given", "version_2"),
    [({}, True), ({"version_2_with_negative": "true"}, True), ({"version_2_with_negative": "false"}, False)],
)
def test_the_version_of_squad_is_in_the_name_of_the_file(tmp_path, given, version_2):
    question = {"id": "1", "question": "q", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}}
    (tmp_path / "train-v2.0.json").write_text(json.dumps([question]))
    assert opened("squad", train_file=tmp_path / "train-v2.0.json", **given).version_2 == version_2


@pytest.mark.parametrize(
    ("name", "wanted", "given", "message"),
    [
        ("classification", ALL, {}, "--train_file is missing, and so is --data_dir: give one of them"),
        ("classification", ("test",), {}, "--predict_file is missing"),
        ("classification", ALL, {"data_dir": "x"}, "are named by --train_file, --eval_file, --predict_file"),
        ("swag", ALL, {"data_dir": "tfds"}, "--train_file is missing, and --data_dir=tfds has no file for it"),
        ("ax", ALL, {"data_dir": "tfds"}, "--train_file is missing, and --data_dir=tfds has no file for it"),
        ("mrpc", ALL, {"train_file": "a.tsv,b.tsv"}, "--train_file: one file is needed, not 2: a.tsv, b.tsv"),
        ("mrpc", ALL, {"data_dir": "/nowhere"}, "--data_dir: no such file or folder: /nowhere"),
    ],
)
def test_what_is_missing_is_named_by_its_flag(name, wanted, given, message):
    with pytest.raises(UserError) as error:
        opened(name, wanted, **given)
    assert message in str(error.value)


def test_tasks_of_glue_that_a_folder_has(tmp_path):
    rows = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    put(tmp_path / "RTE", train=rows, dev=rows)
    put(tmp_path / "QNLI", dev=rows)
    assert task_data.glue_tasks_in(str(tmp_path)) == ["rte"]
    assert len(task_data.glue_tasks_in("tfds")) == 9
    with pytest.raises(UserError, match="holds no folder of GLUE with train and dev files: CoLA, SST-2"):
        task_data.glue_tasks_in(str(tmp_path / "RTE"))


def test_numbers_of_ones_own_are_standardised_by_those_of_training(tmp_path):
    head = "text\tlabel\n"
    put(tmp_path, train=head + "a\t100000\nb\t300000\n", dev=head + "a\t9\n", same=head + "a\t5\nb\t5\n")
    files = {"train_file": tmp_path / "train.tsv", "eval_file": tmp_path / "dev.tsv"}
    data = opened("regression", **files)
    assert data.scale == (200000.0, 100000.0)
    said = []
    task_data.tell_of(data, said.append)
    assert said[-1] == "regression: labels are standardised by their mean 200000 and standard deviation 100000"
    assert opened("regression", train_file=tmp_path / "same.tsv").scale == (5.0, 1.0)
    assert opened("regression", ("dev",), eval_file=tmp_path / "dev.tsv").scale is None


def test_the_scores_of_stsb_are_as_they_are(tmp_path):
    put(tmp_path, train="sentence1\tsentence2\tscore\na\tb\t1\nc\td\t5\n")
    data = opened("stsb", train_file=tmp_path / "train.tsv")
    assert data.scale is None and data.bounds == (0.0, 5.0)
