"""Lines of text and of JSON, pairs, and what is no text."""

import gzip
import io
import sys
from types import SimpleNamespace

import pytest

from input_pipeline.errors import UserError
from input_pipeline.text_lines import (
    STANDARD_INPUT,
    count_lines,
    input_paths,
    json_lines_hint,
    pair_of,
    read_lines,
    split_pair,
)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_each_line_is_a_text_with_empty_ones(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffone\r\n\ntwo\u2028\u0085\n \nlast")
    lines = list(read_lines([path]))
    assert [line.text for line in lines] == ["one", "", "two\u2028\u0085", " ", "last"]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert lines[2].where() == f"--input_file: {path}, line 3"
    assert count_lines([path]) == 5


def test_json_lines_keep_their_fields_and_their_order(tmp_path):
    first = write(tmp_path / "a.jsonl.gz", gzip.compress(b'{"body": "x\\ny", "id": 7}\n\n{"body": ""}\n'))
    second = write(tmp_path / "b.txt", "z")
    lines = list(read_lines([first, second], "body"))
    assert [(line.text, line.number) for line in lines] == [("x\ny", 1), ("", 3), ("z", 1)]
    assert lines[0].fields == {"body": "x\ny", "id": 7} and lines[2].fields is None
    assert count_lines([first, second], "body") == 3


def test_pairs_in_json_lines(tmp_path):
    content = '{"text": "a ||| b", "text_pair": " c"}\n{"text": "a ||| b"}\n{"text": "a", "text_pair": ""}\n'
    path = write(tmp_path / "a.jsonl", content)
    assert [pair_of(line) for line in read_lines([path])] == [("a ||| b", " c"), ("a", "b"), ("a", "")]
    assert pair_of(next(read_lines([path], "text_pair")), "text_pair") == ("c", None)
    bad = write(tmp_path / "b.jsonl", '{"text": "a"}\n{"text": "a", "text_pair": null}\n')
    with pytest.raises(UserError, match=r"--input_file: .*b\.jsonl, line 2: field 'text_pair' is no string"):
        count_lines([bad])


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\nb\xff\n")))
    assert count_lines([]) is None
    assert [(line.text, line.path) for line in read_lines([])] == [("a", STANDARD_INPUT), ("b\ufffd", STANDARD_INPUT)]


def test_globs_and_folders_are_expanded(tmp_path):
    (tmp_path / "texts").mkdir()
    for name in ("b.txt", "a.txt", ".hidden"):
        write(tmp_path / "texts" / name, name)
    names = [line.text for line in read_lines(input_paths([str(tmp_path / "texts"), str(tmp_path / "*" / "b.*")]))]
    assert names == ["a.txt", "b.txt", "b.txt"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r"not JSON"),
        ("[1]", "not a JSON object"),
        ('{"title": ""}', r"field 'text' is missing; there are: title \(--text_field\)"),
        ('{"text": 3}', "field 'text' is no string"),
    ],
)
def test_bad_lines_of_json_are_named(tmp_path, line, problem):
    path = write(tmp_path / "a.jsonl", f'{{"text": "x"}}\n{line}\n')
    with pytest.raises(UserError, match=rf"--input_file: .*a\.jsonl, line 2: {problem}"):
        list(read_lines([path]))


@pytest.mark.parametrize(
    ("first", "hint"),
    [
        ("[", "jq -c '.[]' does that"),
        (' [{"text": "a"}]', "jq -c '.[]' does that"),
        ("{ ", "jq -c . does that"),
        ('{"text": ', ""),
        ("text", ""),
    ],
)
def test_one_value_over_several_lines_is_noticed(first, hint):
    assert json_lines_hint(first).endswith(hint) and bool(json_lines_hint(first)) == bool(hint)


def test_what_is_no_text_is_refused(tmp_path):
    path = write(tmp_path / "a.txt", b"\x93NUMPY" + bytes(20))
    with pytest.raises(UserError, match="is a NumPy array"):
        input_paths([path])
    with pytest.raises(UserError, match="--input_file: no such file or folder"):
        input_paths([str(tmp_path / "none.txt")])


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("one text", ("one text", None)),
        (" a ||| b \n", ("a", "b")),
        ("a ||| b ||| c", ("a ||| b", "c")),
        ("a|||b", ("a|||b", None)),
        ("a ||| ", ("a |||", None)),
        ("a  |||  b", ("a ", " b")),
        ("", ("", None)),
    ],
)
def test_pairs_as_the_reference_cuts_them(line, pair):
    assert split_pair(line) == pair
