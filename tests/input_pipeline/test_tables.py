import gzip
import json
from collections import Counter

import pytest

from input_pipeline import tables
from input_pipeline.errors import UserError


def rows(tmp_path, name, data, **options):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(tables.read_rows(str(path), "--train_file", **options))


def values(*args, **options):
    return [row.values for row in rows(*args, **options)]


def test_kinds_by_ending():
    names = ("a.tsv", "a.txt", "Collection", "a.CSV", "a.csv.gz", "a.jsonl", "a.json.gz", "a.ndjson", "csv/a")
    assert [tables.kind_of(name) for name in names] == ["tsv"] * 3 + ["csv"] * 2 + ["jsonl"] * 3 + ["tsv"]


def test_quotes_are_text_in_tsv(tmp_path):
    text = 'gj04\t1\t\t"Hello he said\ngj04\t0\t*\tplain row\ngj04\t1\t\tsay ""hi"" now\n'
    found = rows(tmp_path, "train.tsv", text, is_header=lambda first: False)
    assert [row["4"] for row in found] == ['"Hello he said', "plain row", 'say ""hi"" now']
    assert [row["2"] for row in found] == ["1", "0", "1"]
    assert found[2].where == f"{tmp_path}/train.tsv, line 3"
    assert found[0].columns == ("1", "2", "3", "4")


def test_header_mark_and_line_ends(tmp_path):
    data = "\ufefflabel \ttext\r\n2\ta\u2028b\x85c\rd\r\n1\tno end".encode()
    found = rows(tmp_path, "a.tsv", data)
    assert found[0].columns == ("label", "text")
    assert [row["label"] for row in found] == ["2", "1"]
    assert [row["text"] for row in found] == ["a\u2028b\x85c\rd", "no end"]
    assert [row.line for row in found] == [2, 3]


def test_csv_quotes_commas_and_line_ends(tmp_path):
    data = 'a,b\n"x, ""y""","two\r\n \r\nlines"\n\n,""\n  \n'
    odd = Counter()
    found = rows(tmp_path, "a.csv", data, odd=odd)
    assert [row.values for row in found] == [['x, "y"', "two\n \nlines"], ["", ""]]
    assert [row.line for row in found] == [2, 6]
    assert odd == {"blank": 2}


def test_long_fields(tmp_path):
    assert len(values(tmp_path, "a.csv", "a\n" + "x" * 200_000)[0][0]) == 200_000


def test_json_lines(tmp_path):
    found = rows(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n\n{"label": [true]}\n')
    assert [(row.line, row.columns, row.values) for row in found] == [
        (1, ("text", "label"), ["a", 1]),
        (3, ("label",), [[True]]),
    ]


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.csv.gz", "a.jsonl.gz"])
def test_gzip(tmp_path, name):
    text = {"tsv": "a\tb\n1\t2\n", "csv": "a,b\n1,2\n", "jsonl": json.dumps({"a": "1", "b": "2"})}[tables.kind_of(name)]
    (row,) = rows(tmp_path, name, gzip.compress(text.encode()))
    assert (row["a"], row["b"]) == ("1", "2")


def test_oddities_are_counted(tmp_path):
    odd = Counter()
    found = values(tmp_path, "a.tsv", b"a\tb\n\n \t\n  \r\n\xff\xfe!\t\xef\xbf\xbd\n", odd=odd)
    assert found == [[" ", ""], ["\ufffd\ufffd!", "\ufffd"]]
    assert odd == {"blank": 2, "replaced": 2}
    assert tables.notes_of("a.tsv", odd) == (
        "a.tsv: 2 blank lines were skipped",
        "a.tsv: 2 places are no UTF-8; U+FFFD stands there",
    )
    assert tables.notes_of("a.tsv", Counter()) == ()


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.tsv", "a\tb\n1\t2\n1\n", r"line 3: 1 field, where the header line has 2 \(a, b\); a tab separates"),
        ("a.csv", "a,b\n1,2,3\n", r"line 2: 3 fields, where the header line has 2"),
        ("a.csv", 'a\n"x', r"line 2: not CSV \(unexpected end of data\)"),
        ("a.csv", 'a\nb\n"x" y\n', r"line 3: not CSV"),
        ("a.jsonl", '{"a": 1}\n{', r"line 2: not JSON \(.*\); a line is an object"),
        ("a.jsonl", '{"a": 1', r"line 1: not JSON \(.*\); a line is an object$"),
        ("a.jsonl", "[1]", r"line 1: not a JSON object; an array of objects has to become JSON lines"),
        ("a.json", '[\n{"a": 1}\n]', r"line 1: not JSON .* an array of objects has to become JSON lines"),
        ("a.json", '{\n"a": 1\n}', r"line 1: not JSON .* objects over several lines have to become JSON lines"),
        ("a.jsonl", "[" * 100_000, r"line 1: not JSON"),
        ("a.tsv", "", r"a.tsv is empty"),
        ("a.jsonl", "\n", r"a.jsonl is empty"),
        ("a.tsv", "a\tb\n", r"one line only, which names its columns, and no rows"),
        ("a.tsv", "a\tb\nx\0\ty\n", r"line 2: holds a zero byte"),
        ("a.tsv", b"PK\x03\x04 and so on", r"a.tsv is a zip archive"),
    ],
)
def test_mistakes(tmp_path, name, data, problem):
    with pytest.raises(UserError, match=r"^--train_file: .*" + problem) as error:
        rows(tmp_path, name, data)
    assert "\n" not in str(error.value)


def test_counts_without_a_header(tmp_path):
    with pytest.raises(UserError, match=r"line 2: 3 fields, where the lines before have 2"):
        rows(tmp_path, "a.tsv", "1\t2\n1\t2\t3\n", is_header=lambda first: False)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"--f: no such file or folder: .*none.tsv"):
        list(tables.read_rows(str(tmp_path / "none.tsv"), "--f"))
    with pytest.raises(UserError, match=r"--f: .* is a folder"):
        list(tables.read_rows(str(tmp_path), "--f"))


def test_columns_that_are_not_there(tmp_path):
    (row,) = rows(tmp_path, "a.tsv", "a\tb\tb\n1\t2\t3\n")
    tables.check_columns(row, ["a"], "--f")
    with pytest.raises(UserError, match=r"--f: .*a.tsv has no column 'c'; there are: a, b, b \(--text_field\)"):
        tables.check_columns(row, ["a", "c"], "--f", " (--text_field)")
    with pytest.raises(UserError, match=r"two columns named 'b'"):
        tables.check_columns(row, ["b"], "--f")
