import pytest

from input_pipeline import own_data
from input_pipeline.errors import UserError
from input_pipeline.own_data import Fields
from input_pipeline.task_examples import DataSet, TextExample


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def read(tmp_path, name, content, kind="classification", **fields_and_options):
    fields = Fields(**{key: fields_and_options.pop(key) for key in Fields._fields if key in fields_and_options})
    return own_data.read(write(tmp_path, name, content), kind, fields, **fields_and_options)


def short(data):
    return [(one.id, one.text, one.text_pair, one.label) for one in data.examples]


def labels(*args, **options):
    return [one.label for one in read(*args, **options).examples]


def test_named_columns(tmp_path):
    expected = [("0", "a, b", None, "x"), ("1", 'c "d"', None, "y")]
    assert short(read(tmp_path, "a.csv", 'label,text\nx,"a, b"\n y ,"c ""d"""\n')) == expected
    assert short(read(tmp_path, "a.tsv", 'text\tlabel\na, b\tx\nc "d"\ty\n')) == expected
    data = read(tmp_path, "a.jsonl", '{"text": "a, b", "label": "x"}\n{"label": "y", "text": "c \\"d\\""}\n')
    assert short(data) == expected
    assert data.examples[1].where == f"{tmp_path}/a.jsonl, line 2"
    data = read(tmp_path, "a.tsv", "s\tt\tl\tn\na\tb\tx\t7\n", text="s", text_pair="t", label="l", id="n")
    assert short(data) == [("7", "a", "b", "x")]


def test_numbered_columns(tmp_path):
    text = 'ham\tSo "early\nspam\tFree\n'
    expected = [("0", 'So "early', None, "ham"), ("1", "Free", None, "spam")]
    assert short(read(tmp_path, "Collection", text, text="2", label="1")) == expected
    assert short(read(tmp_path, "a.txt", "text\n" + "b\n", text="1", needs_label=False))[0][1] == "text"
    # A name among them says that there is a line of names.
    assert short(read(tmp_path, "a.tsv", "l\ts\n" + text, text="2", label="l")) == expected
    # So does a line that has the numbers as names.
    assert short(read(tmp_path, "a.tsv", "2\t1\n" + "a\tx\n", text="2", label="1")) == [("0", "a", None, "x")]


def test_labels_of_json(tmp_path):
    text = "".join(f'{{"text": "a", "label": {label}}}\n' for label in ('" x "', "3", "true", "-1.5"))
    assert labels(tmp_path, "a.jsonl", text) == ["x", "3", "true", "-1.5"]
    text = "".join(f'{{"text": "a", "label": {label}}}\n' for label in ('["b", "a", "b"]', "[]", '"b|c"', "[1, false]"))
    assert labels(tmp_path, "a.jsonl", text, "multi_label") == [("b", "a"), (), ("b|c",), ("1", "false")]


def test_several_labels_in_a_column(tmp_path):
    assert labels(tmp_path, "a.tsv", "text\tlabel\na\tb| c\nb\t\nc\td\n", "multi_label") == [("b", "c"), (), ("d",)]


def test_numbers(tmp_path):
    assert labels(tmp_path, "a.csv", "text,label\na, 4.750\nb,-2e3\n", "regression") == [4.75, -2000.0]
    assert labels(tmp_path, "a.jsonl", '{"text": "a", "label": 3}', "regression") == [3.0]
    for wrong in ("high", "nan", "inf", "", "1_000"):
        with pytest.raises(UserError, match=rf"line 2: field 'label' \(--label_field\) is '{wrong}', no number"):
            read(tmp_path, "a.tsv", f"text\tlabel\na\t{wrong}\n", "regression")


def test_files_to_predict(tmp_path):
    expected = [("0", "a", None, None)]
    assert short(read(tmp_path, "a.csv", "text\na\n", needs_label=False)) == expected
    assert short(read(tmp_path, "a.csv", "text,label\na,\n", needs_label=False, labels=["x"])) == expected
    assert short(read(tmp_path, "a.tsv", "label\ts\n\ta\n", text="2", needs_label=False)) == expected


def test_several_files(tmp_path):
    first = write(tmp_path, "a.csv", "text,label\na,x\n")
    second = write(tmp_path, "b.jsonl", '{"label": "y", "text": ""}\n\n')
    data = own_data.read(f"{first}, {second}", "classification")
    assert short(data) == [("0", "a", None, "x"), ("1", "", None, "y")]
    assert own_data.read([str(tmp_path)], "classification") == data
    assert own_data.read(f"{tmp_path}/*", "classification") == data
    assert data.source == f"{first}, {second}"
    assert data.notes == (f"{second}: 1 blank line was skipped", f"{second}: 1 example has an empty text")


def test_ids_that_are_not_unique_are_noted(tmp_path):
    data = read(tmp_path, "a.jsonl", '{"text": "a", "id": 1}\n{"text": "b", "id": "1"}\n', id="id", needs_label=False)
    assert [one.id for one in data.examples] == ["1", "1"]
    assert data.notes == ("1 ids stand there more than once; examples are told apart by their order",)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "a.csv",
            "label,body\nx,a\n",
            r"a.csv has no column 'text'; there are: label, body \(--text_field",
        ),
        ("a.tsv", "ham\tSo\n" * 2, r"no column 'text'; there are: ham, So .* columns are numbers: --text_field=1"),
        ("a.csv", "text\na\n", r"a.csv has no column 'label'; there are: text"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', r"line 2 has no column 'label'; there are: text"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', r"line 1: field 'text' \(--text_field\) is 5, no text"),
        ("a.jsonl", '{"text": "a", "label": null}\n', r"line 1: field 'label' \(--label_field\) is null, no label"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}\n', r"line 1: .* is \[\"x\"\], no label"),
        ("a.csv", "text,label\na, \n", r"line 2: field 'label' \(--label_field\) is empty; a label is needed"),
        ("a.csv", "text,label\na,z\n", r"line 2: field 'label' \(--label_field\) is 'z', none of the labels x, y"),
        ("a.tsv", "text\tlabel\na\tb\tx\n", r"line 2: 3 fields, where the header line has 2 \(text, label\)"),
    ],
)
def test_mistakes(tmp_path, name, text, problem):
    with pytest.raises(UserError, match=r"^--train_file: .*" + problem) as error:
        read(tmp_path, name, text, labels=["x", "y"] if "z" in text else None)
    assert "\n" not in str(error.value)


def test_wrong_ids_and_numbers(tmp_path):
    with pytest.raises(UserError, match=r"line 1: field 'id' \(--id_field\) is \[1\], no id"):
        read(tmp_path, "a.jsonl", '{"text": "a", "id": [1]}', id="id", needs_label=False)
    with pytest.raises(UserError, match=r"has no column '3'; there are: 1, 2"):
        read(tmp_path, "a.tsv", "a\tb\n", text="3", label="1")


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.csv", "text;label\na, b;1\n", r"line 2: 2 fields, .*; it looks as if ';' separated them: save the file"),
        ("a.csv", "text;label\na;1\n", r"has no column 'text'; .*; it looks as if ';' separated them"),
        ("a.csv", "text\tlabel\na\t1\n", r"has no column 'text'; .*: the name of such a file does not end in .csv but"),
        ("a.txt", "text,label\na,1\n", r"has no column 'text'; .*: the name of such a file ends in .csv$"),
    ],
)
def test_other_separators_are_noticed(tmp_path, name, text, hint):
    with pytest.raises(UserError, match=hint):
        read(tmp_path, name, text)


def test_other_separators_are_noticed_without_names_of_columns(tmp_path):
    with pytest.raises(UserError, match=r"has no column '2'; there are: 1 .*; it looks as if ';' separated them"):
        read(tmp_path, "a.csv", "a;x\nb;y\n", text="1", label="2")


def test_no_separator_is_looked_for_where_columns_are_there(tmp_path):
    with pytest.raises(UserError, match=r"there are: a;b, label \(--text_field[^;]*; in a file without|[^;]*\)$"):
        read(tmp_path, "a.csv", "a;b,label\nx,1\n")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_classes_may_be_called_like_numbers_that_are_none(tmp_path, name):
    names = ("nan", "inf", "NA", "-inf", "NaN", "null")
    rows = {
        "a.csv": "text,label\n" + "".join(f"a,{name}\n" for name in names),
        "a.jsonl": "".join(f'{{"text": "a", "label": "{name}"}}\n' for name in names),
    }
    data = read(tmp_path, name, rows[name])
    assert [one.label for one in data.examples] == list(names)
    assert own_data.label_names([data]) == tuple(sorted(names))


def test_names_of_labels():
    def data(*labels):
        return DataSet([TextExample("0", "", None, label, "") for label in labels], "")

    assert own_data.label_names([data("10", "9"), data("-1", "9", None)]) == ("-1", "9", "10")
    assert own_data.label_names([data("10", "9", "b", "B")]) == ("10", "9", "B", "b")
    assert own_data.label_names([data(("b", "a"), ()), data(("c",))]) == ("a", "b", "c")


def test_real_collection(shared):
    fields = Fields(text="2", label="1")
    data = own_data.read(str(shared / "data/spam/SMSSpamCollection"), "classification", fields)
    counts = [sum(one.label == label for one in data.examples) for label in own_data.label_names([data])]
    assert (own_data.label_names([data]), counts) == (("ham", "spam"), [4827, 747])
    assert data.notes == ()


def test_a_label_that_is_no_utf8_is_refused(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(b"text\tlabel\nplain\tham\nodd\th\xe4mm\n")
    with pytest.raises(UserError, match=r"line 3: field 'label' .* is .*: it is no UTF-8"):
        own_data.read([str(path)], "classification")
