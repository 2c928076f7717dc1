"""Heads of tasks: kinds, labels, and the file that describes them."""

import json

import numpy as np
import pytest

from bert_jax.heads import HEAD_FILE, KINDS, TaskHead, make_head, read_head, rescale
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


NUMBER = TaskHead("regression", ("value",), mean=300_000.5, deviation=120_000.25)


def test_the_scale_of_a_regression_is_saved_where_there_is_one(tmp_path):
    NUMBER.save(tmp_path)
    assert read_head(tmp_path, "--flag") == NUMBER and NUMBER.is_scaled
    NUMBER.without_scale().save(tmp_path)
    assert json.loads((tmp_path / HEAD_FILE).read_text()) == {"kind": "regression", "labels": ["value"]}
    assert read_head(tmp_path, "--flag") == TaskHead("regression", ("value",))


@pytest.mark.parametrize("scale", [{"deviation": 0}, {"deviation": -1.0}, {"mean": "x"}, {"mean": float("nan")}])
def test_a_scale_that_is_none_is_damage(scale, tmp_path):
    (tmp_path / HEAD_FILE).write_text(json.dumps({"kind": "regression", "labels": ["value"]} | scale))
    with pytest.raises(UserError, match=r"^--flag: .*task_head\.json is damaged"):
        read_head(tmp_path, "--flag")


@pytest.mark.parametrize("after", [NUMBER.without_scale(), NUMBER._replace(mean=-4.0, deviation=0.5), NUMBER])
def test_rescaled_parameters_give_the_same_outputs(after):
    rng = np.random.default_rng(0)
    x, kernel, bias = rng.normal(size=(5, 3)), rng.normal(size=(3, 1)), rng.normal(size=1)
    params = {"bert": 1, "classifier": {"kernel": kernel, "bias": bias}}
    new = rescale(params, NUMBER, after)
    assert new["bert"] == 1 and params["classifier"]["kernel"] is kernel
    outputs = [
        (x @ one["classifier"]["kernel"] + one["classifier"]["bias"]) * head.deviation + head.mean
        for one, head in ((params, NUMBER), (new, after))
    ]
    np.testing.assert_allclose(*outputs, rtol=1e-12)
