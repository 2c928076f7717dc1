"""What a program may pass in, and what is said of anything else."""

import numpy as np
import pytest

from input_pipeline.arguments import list_of_texts, shown_json, texts_of, whole_number, whole_numbers
from input_pipeline.errors import UserError


def test_whole_numbers():
    assert type(whole_number(np.int64(3), "k")) is int
    for values in (-1, np.int32(-1), [-1], (-1,), np.array([-1]), np.array(-1), iter([-1])):
        assert whole_numbers(values, "layers") == (-1,)
    assert whole_numbers([], "layers") == ()


@pytest.mark.parametrize("value", [2.0, "2", None, [2]])
def test_what_is_no_whole_number(value):
    with pytest.raises(UserError, match=r"^k=.* must be a whole number$"):
        whole_number(value, "k")


@pytest.mark.parametrize("values", [1.5, [1.5], ["-1"], "-1", None, np.array([1.0]), np.array(1.0)])
def test_what_are_no_whole_numbers(values):
    with pytest.raises(UserError, match=r"^layers=.* must be whole numbers, such as \(-2, -1\)$"):
        whole_numbers(values, "layers")


def test_lists_of_texts():
    for values in (["a", "b"], ("a", "b"), np.array(["a", "b"]), iter("ab"), {"a": 1, "b": 2}):
        assert list_of_texts(values) == ["a", "b"]
    for values in (None, 3, b"ab", "ab"):
        with pytest.raises(UserError, match=r"^a list of texts is needed, not "):
            list_of_texts(values)


@pytest.mark.parametrize("value", [("a", "b"), ["a", "b"], np.array(["a", "b"])])
def test_pairs_of_any_kind(value):
    assert texts_of(value, "x") == ("a", "b")
    assert texts_of("a", "x") == texts_of(("a",), "x") == ("a", None)


@pytest.mark.parametrize("value", [None, 3, b"a", (), ("a", "b", "c"), ("a", None), np.array([1, 2]), {"a": 1}])
def test_what_is_no_text(value):
    with pytest.raises(UserError, match=r"^text 1 must be a string or a pair of strings, not "):
        texts_of(value, "text 1")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1.5, "1.5"), ("nan", "'nan'"), (["é"], '["é"]'), ([1] * 99, "[1, 1")],
)
def test_values_of_json_look_like_json(value, text):
    assert shown_json(value).startswith(text) and len(shown_json(value)) <= 83


def test_a_long_value_is_shown_in_short():
    with pytest.raises(UserError, match=r"not \[1, 1.{,90}\.\.\.$"):
        texts_of([1] * 1000, "text 1")
