import json

import pytest

from input_pipeline import choice_data
from input_pipeline.errors import UserError

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


def read(tmp_path, name, text, **options):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return choice_data.read(str(path), **options)


def test_swag(tmp_path):
    text = f'{HEADER},label\n7,v,1,"A, b. She","A, b.",She,gold,runs.,"sits, ""now"".",goes.,eats.,1\n'
    data = read(tmp_path, "val.csv", text)
    (example,) = data.examples
    assert example == (
        "0",
        "A, b.",
        "She",
        ("runs.", 'sits, "now".', "goes.", "eats."),
        1,
        f"{tmp_path}/val.csv, line 2",
    )
    assert (data.source, data.notes) == (f"{tmp_path}/val.csv", ())


def test_files_to_predict_need_no_label(tmp_path):
    row = "7,v,1,A b,A,b,gold,c,d,e,f"
    for text in (f"{HEADER}\n{row}\n", f"{HEADER},label\n{row},\n", f"{HEADER},label\n{row},-1\n"):
        assert read(tmp_path, "test.csv", text, needs_label=False).examples[0].label is None
    with pytest.raises(UserError, match=r"--eval_file: .*test.csv has no column 'label'; there are: , video-id"):
        read(tmp_path, "test.csv", f"{HEADER}\n{row}\n", flag="--eval_file")


def test_the_right_ending_of_full_files_is_put_at_every_place(tmp_path):
    columns = "gold-ending,distractor-0,distractor-1,distractor-2,distractor-3,sent1,sent2\n"
    data = read(tmp_path, "val_full.csv", columns + "right,a,b,c,d,A,b\n" * 5)
    assert [one.label for one in data.examples] == [0, 1, 2, 3, 0]
    assert [one.endings for one in data.examples][2:4] == [("a", "b", "right", "c"), ("a", "b", "c", "right")]
    assert len(data.notes) == 1


def test_json_lines(tmp_path):
    lines = [
        {"text": "A", "endings": ["b", "c"], "label": 1},
        {"id": 9, "text": "A", "stem": "d", "endings": ["", "c"], "label": "0"},
    ]
    data = read(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert [one[:-1] for one in data.examples] == [("0", "A", "", ("b", "c"), 1), ("9", "A", "d", ("", "c"), 0)]
    assert data.notes == (f"{tmp_path}/a.jsonl: 1 example has an empty text",)
    (example,) = read(tmp_path, "b.jsonl", '{"text": "A", "endings": ["b", "c", "d"]}', needs_label=False).examples
    assert example.label is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"text": "A", "endings": ["b", "c", "d"], "label": 0}, "3 endings, where the lines before have 2"),
        ({"text": "A", "endings": ["b", "c"], "label": 2}, "the label 2 is no number of an ending: 0 to 1"),
        ({"text": "A", "endings": ["b", "c"], "label": -1}, "the label -1 is no number"),
        ({"text": "A", "endings": ["b", "c"], "label": True}, "the label true is no number"),
        ({"text": "A", "endings": ["b", "c"], "label": None}, "the label null is no number"),
        ({"text": "A", "endings": ["b", "c"]}, "has no column 'label'; there are: text, endings"),
        ({"text": "A", "endings": "bc", "label": 0}, "field 'endings' is 'bc', no list of texts"),
        ({"text": "A", "endings": ["b", 1], "label": 0}, r"""field 'endings' is \["b", 1\], no list of texts"""),
        ({"text": 1, "endings": ["b", "c"], "label": 0}, "field 'text' is 1, no text"),
        ({"text": "A", "stem": 1, "endings": ["b", "c"], "label": 0}, "field 'stem' is 1, no text"),
    ],
)
def test_mistakes(tmp_path, line, problem):
    good = json.dumps({"text": "A", "endings": ["b", "c"], "label": 1})
    with pytest.raises(UserError, match=r"--data_dir: .*a.jsonl, line 2:? " + problem):
        read(tmp_path, "a.jsonl", f"{good}\n{json.dumps(line)}\n")


def test_wrong_columns(tmp_path):
    with pytest.raises(UserError, match=r"a.csv has no column 'sent1'; there are: text, ending0, ending1, label"):
        read(tmp_path, "a.csv", "text,ending0,ending1,label\na,b,c,0\n")
    with pytest.raises(UserError, match=r"a.csv has no column 'ending0'"):
        read(tmp_path, "a.csv", "sent1,sent2,label\na,b,0\n")
    with pytest.raises(UserError, match=r"line 1: 1 endings; at least two are needed"):
        read(tmp_path, "a.jsonl", '{"text": "A", "endings": ["b"], "label": 0}')


def test_finding_files(tmp_path):
    with pytest.raises(UserError, match=r"--data_dir: .* holds no train and no dev file: looked for train.csv, "):
        choice_data.find(tmp_path)
    with pytest.raises(UserError, match=r"holds no train and no dev and no test file"):
        choice_data.find(tmp_path, needed=())
    with pytest.raises(UserError, match=r"no such file or folder"):
        choice_data.find(tmp_path / "none")
    (tmp_path / "SWAG").mkdir()
    for name in ("test.csv", "train_full.csv", "train.csv", "val.csv"):
        (tmp_path / "SWAG" / name).touch()
    folder = f"{tmp_path}/SWAG"
    expected = {"train": f"{folder}/train.csv", "dev": f"{folder}/val.csv", "test": f"{folder}/test.csv"}
    assert choice_data.find(tmp_path) == choice_data.find(folder) == expected


def test_real_files(shared):
    folder = shared / "data/swag"
    counts = {"codah_train": 1665, "codah_val": 556, "codah_test": 555, "swag_val20": 20, "swag_sample_val": 20}
    for name, count in counts.items():
        data = choice_data.read(folder / f"{name}.csv")
        assert len(data.examples) == count
        assert {len(one.endings) for one in data.examples} == {4}
    assert {one.label for one in data.examples} == {0, 1, 2, 3}
    assert len(choice_data.read(folder / "swag_sample_test.csv", needs_label=False).examples) == 40
