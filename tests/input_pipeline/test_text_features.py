import functools
import json
import pickle

import numpy as np
import pytest

from input_pipeline.errors import UserError
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import concatenate
from input_pipeline.text_features import text_features
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

PAD, UNK, CLS, SEP, MASK, A, B, C, OPEN, CLOSE, MASK_WORD = range(11)
TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "[", "]", "mask"])


def example(text, text_pair=None, label=None):
    return TextExample("0", text, text_pair, label, "file.tsv, line 7")


def features(*examples, max_length=8, labels=("x", "y"), kind="classification"):
    return text_features(examples, tokenizer=TOKENIZER, max_length=max_length, labels=labels, kind=kind)


def sequences(built):
    starts = np.cumsum(built.lengths)[:-1]
    return [
        (ids.tolist(), "".join(map(str, segments)))
        for ids, segments in zip(np.split(built.input_ids, starts), np.split(built.segment_ids, starts))
    ]


def test_texts_and_pairs():
    built = features(example("a b"), example("a", "b c"), example("", "b"), example("a", "\u200b"), example(" ", ""))
    assert sequences(built) == [
        ([CLS, A, B, SEP], "0000"),
        ([CLS, A, SEP, B, C, SEP], "000111"),
        ([CLS, SEP, B, SEP], "0011"),
        ([CLS, A, SEP], "000"),
        ([CLS, SEP], "00"),
    ]
    assert built.examples.tolist() == [0, 1, 2, 3, 4]
    assert (built.labels, built.num_cut, built.token_info) == (None, 0, {})


def test_typed_special_tokens_are_text():
    assert sequences(features(example("[MASK] a"))) == [([CLS, OPEN, MASK_WORD, CLOSE, A, SEP], "000000")]


def test_the_longer_text_is_cut():
    built = features(example("a " * 10, "b b b"), example("a a", "b " * 20), example("a " * 6))
    assert sequences(built) == [
        ([CLS, A, A, A, SEP, B, B, SEP], "00000111"),
        ([CLS, A, A, SEP, B, B, B, SEP], "00001111"),
        ([CLS, A, A, A, A, A, A, SEP], "00000000"),
    ]
    assert built.num_cut == 2
    with pytest.raises(UserError, match="has no room"):
        features(example("a", "b"), max_length=2)


def test_labels():
    built = features(example("a", label="y"), example("b", label="x"))
    assert (built.labels.tolist(), built.labels.dtype) == ([1, 0], np.int32)
    built = features(
        example("a", label=("y", "x")), example("b", label=()), example("b", label=("y",)), kind="multi_label"
    )
    assert (built.labels.tolist(), built.labels.dtype) == ([[1, 1], [0, 0], [0, 1]], np.float32)
    built = features(example("a", label=4.75), kind="regression", labels=None)
    assert (built.labels.tolist(), built.labels.dtype) == ([4.75], np.float32)


def test_where_a_label_is_missing_there_are_none_at_all():
    known, unknown = features(example("a", label="y")), features(example("a", label="y"), example("b"))
    assert unknown.labels is None
    assert concatenate([known, unknown], [1, 2]).labels is None
    assert concatenate([unknown, known], [2, 1]).labels is None


def test_unknown_labels():
    problem = "file.tsv, line 7: the label 'z' is none of those of the model: x, y"
    with pytest.raises(UserError, match=problem):
        features(example("a", label="z"))
    with pytest.raises(UserError, match=problem):
        features(example("a", label=("x", "z")), kind="multi_label")


def test_no_examples():
    built = features()
    assert (len(built.input_ids), len(built.lengths), len(built.labels)) == (0, 0, 0)


def test_can_be_pickled():
    partial = functools.partial(text_features, tokenizer=TOKENIZER, max_length=8, labels=("x",), kind="classification")
    built = pickle.loads(pickle.dumps(partial))([example("a", label="x")])
    assert built.input_ids.tolist() == [CLS, A, SEP]


def test_layouts_of_the_reference(shared):
    tokenizer = load_tokenizer(str(shared / "data" / "vocab" / "uncased"), True)
    cases = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["finetuning_layout"]["cases"]
    for case in cases:
        built = text_features(
            [example(case["text_a"], case["text_b"])],
            tokenizer=tokenizer,
            max_length=case["max_seq_length"],
            labels=None,
            kind="classification",
        )
        length = case["input_mask"].count("1")
        assert sequences(built) == [(case["input_ids"][:length], case["segment_ids"][:length])]
