"""Heads of tasks: kinds, labels, and the file that describes them."""

import pytest

from bert_jax.heads import HEAD_FILE, KINDS, TaskHead, make_head, read_head
from input_pipeline.errors import UserError


@pytest.mark.parametrize("kind", KINDS)
def test_saved_heads_come_back(kind, tmp_path):
    head = make_head(kind, ["no", "yes"] if kind != "regression" else ["stars"], "source")
    head.save(tmp_path)
    assert read_head(tmp_path, "--flag") == head
    assert head.of_tokens is (kind in ("tagging", "span"))


@pytest.mark.parametrize(
    ("kind", "labels"), [("regression", ("value",)), ("multiple_choice", ("choice",)), ("span", ("start", "end"))]
)
def test_fixed_outputs_need_no_labels(kind, labels):
    assert make_head(kind, None, "source") == make_head(kind, list(labels), "source") == TaskHead(kind, labels)
    own = ("x",) if kind == "regression" else labels
    assert make_head(kind, ["x"], "source") == TaskHead(kind, own)


def test_no_file_is_no_head(tmp_path):
    assert read_head(tmp_path, "--flag") is None


@pytest.mark.parametrize(
    ("kind", "labels", "complaint"),
    [
        ("ranking", ["a"], "the kind of the task is 'ranking', not one of classification, multi_label, "),
        (["span"], ["a"], r"the kind of the task is \['span'\]"),
        ("classification", None, "classification needs a list of label names"),
        ("classification", [], "needs a list of label names"),
        ("classification", "yes", "needs a list of label names"),
        ("tagging", ["O", 1], "tagging needs a list of label names"),
        ("tagging", ["O", "B", "O"], "the label 'O' stands there twice"),
        ("regression", ["a", "b"], "a regression has one output, not 2"),
    ],
)
def test_bad_heads_are_named(kind, labels, complaint):
    with pytest.raises(UserError, match=rf"^source: .*{complaint}"):
        make_head(kind, labels, "source")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "span"}', "5", "[" * 100_000])
def test_damaged_files_are_named(content, tmp_path):
    (tmp_path / HEAD_FILE).write_text(content)
    with pytest.raises(UserError, match=r"^--flag: .*task_head\.json is damaged"):
        read_head(tmp_path, "--flag")
