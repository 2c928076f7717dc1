"""[CLS] A [SEP] B [SEP], and what is cut where it is too long."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import lay_out
from input_pipeline.tokenization import load_tokenizer

TOKENIZER = SimpleNamespace(cls_id=-1, sep_id=-2)


def test_single_and_pair():
    assert lay_out(TOKENIZER, [5, 6]) == ([-1, 5, 6, -2], [0, 0, 0, 0], False)
    assert lay_out(TOKENIZER, [5], [6, 7]) == ([-1, 5, -2, 6, 7, -2], [0, 0, 0, 1, 1, 1], False)
    assert lay_out(TOKENIZER, [5], []) == ([-1, 5, -2], [0, 0, 0], False)
    assert lay_out(TOKENIZER, [], [6]) == ([-1, -2, 6, -2], [0, 0, 1, 1], False)
    assert lay_out(TOKENIZER, [], None, 2) == ([-1, -2], [0, 0], False)


@given(st.integers(0, 12), st.integers(1, 12), st.integers(3, 20))
def test_a_pair_loses_the_tokens_that_the_loop_of_the_reference_takes(first, second, limit):
    a, b = list(range(first)), list(range(100, 100 + second))
    layout = lay_out(TOKENIZER, a, b, limit)
    assert layout.was_cut == (len(a) + len(b) > limit - 3)
    while len(a) + len(b) > limit - 3:
        (a if len(a) > len(b) else b).pop()
    end = [*b, -2] if b else []
    assert layout.input_ids == [-1, *a, -2, *end]
    assert layout.segment_ids == [0] * (len(a) + 2) + [1] * len(end)


def test_a_second_text_of_which_nothing_is_left_has_no_end():
    assert lay_out(TOKENIZER, [5, 6], [7], 4) == ([-1, 5, -2], [0, 0, 0], True)
    assert lay_out(TOKENIZER, [5], [6], 3) == ([-1, -2], [0, 0], True)


def test_a_single_text_loses_its_end():
    assert lay_out(TOKENIZER, [5, 6, 7], None, 4) == ([-1, 5, 6, -2], [0] * 4, True)


def test_no_room_is_an_error():
    with pytest.raises(UserError, match="a sequence of 2 tokens has no room for 3"):
        lay_out(TOKENIZER, [5], [6], 2)


def test_layouts_of_the_reference(shared):
    tokenizer = load_tokenizer(str(shared / "data" / "vocab" / "uncased"), True)
    cases = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["finetuning_layout"]["cases"]
    for case in cases:
        second = None if case["text_b"] is None else tokenizer.encode(case["text_b"])
        layout = lay_out(tokenizer, tokenizer.encode(case["text_a"]), second, case["max_seq_length"])
        length = case["input_mask"].count("1")
        assert layout.input_ids == case["input_ids"][:length]
        assert "".join(map(str, layout.segment_ids)) == case["segment_ids"][:length]
