"""Heads of tasks in Hugging Face's weights: what they are for, their labels, and when they are read."""

import functools

import numpy as np
import pytest
from huggingface_folders import FILE, without, write_folder
from safetensors.numpy import load_file

from bert_jax.convert.huggingface import find_head, load_huggingface
from bert_jax.heads import TaskHead
from input_pipeline.errors import UserError

HEAD = {"classifier.weight": np.ones((3, 24), np.float32), "classifier.bias": np.arange(3, dtype=np.float32)}
SPAN = {"qa_outputs.weight": np.ones((2, 24), np.float32), "qa_outputs.bias": np.zeros(2, np.float32)}
ONE = {"classifier.weight": np.ones((1, 24), np.float32), "classifier.bias": np.zeros(1, np.float32)}
NAMES = {"id2label": {"0": "O", "1": "B", "2": "I"}}
MULTI = {"problem_type": "multi_label_classification"}


@pytest.fixture(scope="module")
def tensors(data):
    """49 tensors of both heads, with the prefix, a repeated decoder and position_ids."""
    return load_file(data / "random_tiny.safetensors")


@pytest.fixture
def save(data, tmp_path):
    """See write_folder."""
    return functools.partial(write_folder, tmp_path, data)


@pytest.mark.parametrize(
    ("more", "absent", "settings", "expected"),
    [
        ({}, (), {}, None),
        (HEAD, (), {}, TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))),
        (HEAD, (), NAMES, TaskHead("classification", ("O", "B", "I"))),
        (HEAD, (), {"id2label": {"0": "no", "1": "yes"}}, TaskHead("classification", ("no", "yes", "LABEL_2"))),
        (HEAD, (), {"id2label": ["a", "b"]}, TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))),
        (HEAD, ("bert.pooler",), NAMES, TaskHead("tagging", ("O", "B", "I"))),
        (HEAD, (), NAMES | {"architectures": ["BertForTokenClassification"]}, TaskHead("tagging", ("O", "B", "I"))),
        (ONE, (), {}, TaskHead("regression", ("value",))),
        (ONE, (), {"id2label": {"0": "LABEL_0"}}, TaskHead("regression", ("value",))),
        (ONE, (), {"id2label": {"0": "toxicity"}}, TaskHead("regression", ("toxicity",))),
        (ONE, (), MULTI | {"id2label": {"0": "toxicity"}}, TaskHead("multi_label", ("toxicity",))),
        (HEAD, (), NAMES | MULTI, TaskHead("multi_label", ("O", "B", "I"))),
        (HEAD, (), NAMES | {"architectures": 3}, TaskHead("classification", ("O", "B", "I"))),
        (
            HEAD,
            (),
            NAMES | MULTI | {"architectures": ["BertForTokenClassification"]},
            TaskHead("tagging", tuple("OBI")),
        ),
        (ONE, (), {"architectures": ["BertForMultipleChoice"]}, TaskHead("multiple_choice", ("choice",))),
        (SPAN, (), {}, TaskHead("span", ("start", "end"))),
        (SPAN, ("bert.pooler",), {"architectures": ["BertForQuestionAnswering"]}, TaskHead("span", ("start", "end"))),
        ({"classifier.weight": np.ones((3, 96), np.float32)}, (), {}, None),  # reads something else than one vector
    ],
)
def test_heads_are_found_with_their_labels(tensors, save, more, absent, settings, expected):
    folder = save(without(tensors, "cls.", *absent) | more, **settings)
    assert find_head(folder, "--flag") == expected


def test_heads_of_damaged_or_absent_configurations(tensors, save):
    folder = save(tensors | HEAD)
    expected = TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))
    for content in ("[]", "{", "[" * 100_000):
        (folder / "config.json").write_text(content)
        assert find_head(folder, "--flag") == expected
    (folder / "config.json").unlink()
    assert find_head(folder / FILE, "--flag") == expected


@pytest.mark.parametrize(
    ("names", "labels"),
    [("O O I", "O O_1 I"), ("a a a_1", "a a_2 a_1"), ("a_1 a a", "a_1 a a_2"), ("a a a", "a a_1 a_2")],
)
def test_labels_of_the_same_name_are_told_apart(tensors, save, names, labels):
    names = {str(i): name for i, name in enumerate(names.split())}
    folder = save(tensors | HEAD, id2label=names, problem_type="regression")
    assert find_head(folder, "--flag") == TaskHead("classification", tuple(labels.split()))


def test_a_head_is_read_in_place_of_those_of_pretraining(tensors, save):
    folder = save(tensors | HEAD, **NAMES)
    head = find_head(folder, "--flag")
    _, params, report = load_huggingface(folder, head=head)
    assert params.keys() == {"bert", "classifier"}
    np.testing.assert_array_equal(params["classifier"]["kernel"], HEAD["classifier.weight"].T)
    np.testing.assert_array_equal(params["classifier"]["bias"], HEAD["classifier.bias"])
    assert set(report.unused) == {name for name in tensors if name.startswith("cls.")}
    _, params, report = load_huggingface(folder)
    assert params.keys() == {"bert", "cls"}
    assert set(report.unused) == HEAD.keys()


def test_a_head_of_another_size_is_skipped_and_told(tensors, save):
    head = TaskHead("classification", ("no", "yes"))
    _, params, report = load_huggingface(save(without(tensors, "cls.") | HEAD), head=head)
    assert "classifier" not in params
    assert "classifier.weight [3, 24] skipped: this task has 2 outputs" in report.notes
    assert set(report.unused) == HEAD.keys()
    assert report.initialized == ("classifier.weight", "classifier.bias")


def test_a_head_without_its_bias_is_an_error(tensors, save):
    head = TaskHead("classification", ("a", "b", "c"))
    with pytest.raises(UserError, match=r"tensors are missing: classifier\.bias$"):
        load_huggingface(save(tensors | {"classifier.weight": HEAD["classifier.weight"]}), head=head)
