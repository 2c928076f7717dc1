import numpy as np
import pytest

from input_pipeline.choice_features import choice_features
from input_pipeline.errors import UserError
from input_pipeline.task_examples import ChoiceExample
from input_pipeline.tokenization import WordPieceTokenizer

PAD, UNK, CLS, SEP, MASK, A, B, C, S, T, E, F, G = range(13)
TOKENIZER = WordPieceTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b c s t e f g".split())


def example(text, stem, *endings, label=None):
    return ChoiceExample("0", text, stem, endings, label, "file.csv, line 2")


def features(*examples, max_length=10):
    return choice_features(examples, tokenizer=TOKENIZER, max_length=max_length)


def sequences(built):
    starts = np.cumsum(built.lengths)[:-1]
    return [
        (ids.tolist(), "".join(map(str, segments)))
        for ids, segments in zip(np.split(built.input_ids, starts), np.split(built.segment_ids, starts))
    ]


def test_a_sequence_for_each_ending():
    built = features(example("a b", "s", "e", "f g", label=1), example("c", "", "", "e", label=0))
    assert sequences(built) == [
        ([CLS, A, B, SEP, S, E, SEP], "0000111"),
        ([CLS, A, B, SEP, S, F, G, SEP], "00001111"),
        ([CLS, C, SEP], "000"),
        ([CLS, C, SEP, E, SEP], "00011"),
    ]
    assert built.examples.tolist() == [0, 0, 1, 1]
    assert (built.labels.tolist(), built.labels.dtype, built.num_cut) == ([1, 0], np.int32, 0)


def test_without_all_labels_there_are_none():
    assert features(example("a", "", "e", "f", label=1), example("a", "", "e", "f")).labels is None


def test_the_context_is_cut_before_stem_and_ending():
    def cut(max_length, *endings):
        return features(example("a b c", "s t", *endings), max_length=max_length)

    built = cut(8, "e f", "e")
    assert sequences(built)[0] == ([CLS, A, SEP, S, T, E, F, SEP], "00011111")
    assert sequences(built)[1] == ([CLS, A, B, SEP, S, T, E, SEP], "00001111")
    assert built.num_cut == 2
    assert sequences(cut(7, "e f")) == [([CLS, SEP, S, T, E, F, SEP], "0011111")]
    assert sequences(cut(6, "e f")) == [([CLS, SEP, T, E, F, SEP], "001111")]
    assert sequences(cut(5, "e f g")) == [([CLS, SEP, E, F, SEP], "00111")]
    assert sequences(cut(9, "e f")) == [([CLS, A, B, SEP, S, T, E, F, SEP], "000011111")]
    whole = cut(10, "e f")
    assert (whole.num_cut, whole.lengths.tolist()) == (0, [10])


def test_a_context_alone_may_be_longer():
    built = features(example("a b c", "", "\u200b"), max_length=4)
    assert (sequences(built), built.num_cut) == ([([CLS, A, B, SEP], "0000")], 1)
    assert features(example("a b", "", ""), max_length=4).num_cut == 0


def test_no_room():
    with pytest.raises(UserError, match="has no room"):
        features(example("a", "s", "e"), max_length=1)
