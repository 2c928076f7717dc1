"""What a document is in JSON lines and in files of text; ids and labels."""

import json

import pytest

from input_pipeline.documents import read_documents
from input_pipeline.errors import UserError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\none\ntwo\n \n\nthree\n")
    return str(path)


def test_lines_paragraphs_and_files(text, tmp_path):
    def ids_and_texts(**arguments):
        return [(document.id, document.text) for document in read_documents([text], **arguments)]

    lines = [(f"{text}:{n}", line) for n, line in enumerate(["", "one", "two", " ", "", "three"], start=1)]
    assert ids_and_texts() == ids_and_texts(documents="line") == lines
    assert ids_and_texts(documents="paragraph") == [(f"{text}:2", "one\ntwo"), (f"{text}:6", "three")]
    assert ids_and_texts(documents="file") == [(text, "\none\ntwo\n \n\nthree")]
    (tmp_path / "b.txt").write_text("four")
    both = read_documents([text, str(tmp_path / "b.txt")])
    assert [document.id for document in both] == [text, str(tmp_path / "b.txt")]


def write_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def test_json_lines_with_ids_and_labels(tmp_path):
    rows = [
        {"id": "a", "body": "x", "kind": "news"},
        {"id": 7, "body": "", "kind": 3},
        {"body": "z", "kind": ["p", 1]},
        {"id": None, "body": "z"},
        {"id": "a", "body": "w", "kind": None},
    ]
    said = []
    paths = write_json(tmp_path / "a.jsonl", rows)
    found = read_documents(paths, text_field="body", label_field="kind", message=said.append)
    assert [document.id for document in found] == ["a", "7", f"{paths[0]}:3", f"{paths[0]}:4", "a"]
    assert [document.label for document in found] == ["news", "3", '["p", 1]', None, None]
    assert said == [
        "--label_field=kind: 2 of 5 documents have no label",
        "1 ids stand there more than once; documents are told apart by their order",
    ]


def test_labels_that_are_nowhere(tmp_path, text):
    paths = write_json(tmp_path / "a.jsonl", [{"text": "x", "class": 1}, {"text": "y", "id": 2}])
    with pytest.raises(UserError, match="--label_field=kind: no document has this field; there are: text, class, id"):
        read_documents(paths, label_field="kind")
    with pytest.raises(UserError, match="only JSON lines have fields"):
        read_documents([text], label_field="kind")
