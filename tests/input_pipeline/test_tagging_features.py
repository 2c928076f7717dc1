"""Sequences of words with tags: which token carries a label, and windows over long texts."""

import json

import numpy as np
import pytest

from input_pipeline.errors import UserError
from input_pipeline.tagging_features import Window, documents, tagging_features, windows
from input_pipeline.task_examples import TaggedExample
from input_pipeline.task_features import NO_LABEL, Features, concatenate
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d ##x ##y".split()
TOKENIZER = WordPieceTokenizer(PIECES)
LABELS = ("O", "B-LOC", "I-LOC")


def sentence(text: str, tags: str | None = None, document: int = 0) -> TaggedExample:
    words = tuple(text.split(" "))
    return TaggedExample("0", words, tags if tags is None else tuple(tags.split()), document, "f.txt, line 3")


def features(*examples: TaggedExample, **options) -> Features:
    options = {"tokenizer": TOKENIZER, "max_length": 16, "labels": LABELS} | options
    return tagging_features(examples, **options)


def sequences(found: Features) -> list[str]:
    ends = np.cumsum(found.lengths)[:-1]
    return [" ".join(TOKENIZER.convert_ids_to_tokens(ids)) for ids in np.split(found.input_ids, ends)]


def test_the_first_token_carries_the_label():
    found = features(sentence("ax b cxy", "B-LOC I-LOC O"))
    assert sequences(found) == ["[CLS] a ##x b c ##x ##y [SEP]"]
    assert found.labels.tolist() == [-1, 1, -1, 2, 0, -1, -1, -1]
    assert found.token_info["word"].tolist() == [-1, 0, -1, 1, 2, -1, -1, -1]
    assert found.token_info["sentence"].tolist() == [0] * 8
    assert found.segment_ids.tolist() == [0] * 8
    assert found.labels.dtype == found.token_info["word"].dtype == np.int32


def test_tags_become_those_of_the_labels():
    assert features(sentence("a b c", "I-LOC B-LOC O")).labels.tolist() == [-1, 1, 1, 0, -1]
    assert features(sentence("a b c", "B-LOC E-LOC O")).labels.tolist() == [-1, 1, 2, 0, -1]


def test_words_without_tokens_are_left_out_but_do_not_shift_labels():
    found = features(sentence("a \u200b \x07 b", "B-LOC O O B-LOC"))
    assert sequences(found) == ["[CLS] a b [SEP]"]
    assert found.labels.tolist() == [-1, 1, 1, -1]
    assert found.token_info["word"].tolist() == [-1, 0, 3, -1]


def test_words_without_tokens_are_unknown_where_no_label_is_outside():
    found = features(sentence("a \u200b b", "X Y X"), labels=("X", "Y"))
    assert sequences(found) == ["[CLS] a [UNK] b [SEP]"]
    assert found.labels.tolist() == [-1, 0, 1, 0, -1]


def test_sentences_without_words_or_tokens():
    found = features(TaggedExample("0", (), (), 0, ""), sentence("\u200b", "O"))
    assert sequences(found) == ["[CLS] [SEP]"] * 2
    assert found.examples.tolist() == [0, 1]
    assert found.labels.tolist() == [NO_LABEL] * 4


def test_no_examples():
    found = features()
    assert found.input_ids.shape == found.labels.shape == found.token_info["word"].shape == (0,)


def test_without_tags():
    found = features(sentence("a b"))
    assert found.labels is None
    assert found.token_info["word"].tolist() == [-1, 0, 1, -1]


def test_an_unknown_tag_is_named():
    with pytest.raises(UserError) as error:
        features(sentence("a b", "O B-PER"))
    assert str(error.value) == (
        "f.txt, line 3: word 2 of the sentence, 'b', has the tag 'B-PER'; the model's labels are O, B-LOC, I-LOC"
    )


def test_no_room():
    with pytest.raises(UserError, match="2 tokens has no room"):
        features(sentence("a"), max_length=2)


def test_long_sentences_are_cut_into_windows():
    found = features(sentence("a b c d a b c", "O B-LOC I-LOC O O B-LOC O"), max_length=6, overlap=2)
    assert sequences(found) == ["[CLS] a b c d [SEP]", "[CLS] c d a b [SEP]", "[CLS] a b c [SEP]"]
    assert found.examples.tolist() == [0, 0, 0]
    assert found.token_info["word"].tolist() == [-1, 0, 1, 2, -1, -1, -1, -1, 3, 4, -1, -1, -1, -1, 5, 6, -1]
    assert found.labels.tolist() == [-1, 0, 1, 2, -1, -1, -1, -1, 0, 0, -1, -1, -1, -1, 1, 0, -1]
    assert found.num_cut == 0


def test_a_word_longer_than_a_sequence_loses_its_end():
    found = features(sentence("b axyxy c", "O B-LOC O"), max_length=5)
    assert sequences(found) == ["[CLS] b [SEP]", "[CLS] a ##x ##y [SEP]", "[CLS] c [SEP]"]
    assert found.labels[found.labels != NO_LABEL].tolist() == [0, 1, 0]
    assert found.num_cut == 1


def test_document_context():
    examples = [sentence("a b", "O B-LOC"), sentence("c", "O"), sentence("d d", "O O", document=1)]
    found = features(*examples, document_context=True)
    assert sequences(found) == ["[CLS] a b c [SEP]", "[CLS] d d [SEP]"]
    assert found.examples.tolist() == [0, 2]
    assert found.labels.tolist() == [-1, 0, 1, 0, -1, -1, 0, 0, -1]
    assert found.token_info["word"].tolist() == [-1, 0, 1, 0, -1, -1, 0, 1, -1]
    assert found.token_info["sentence"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_document_context_cuts_a_document_into_windows():
    examples = [sentence("a b", "O B-LOC"), sentence("c d", "B-LOC O"), sentence("a", "O")]
    found = features(*examples, document_context=True, max_length=5, overlap=1)
    assert sequences(found) == ["[CLS] a b c [SEP]", "[CLS] c d a [SEP]"]
    assert found.examples.tolist() == [0, 0]
    scored = found.token_info["word"] >= 0
    assert found.token_info["sentence"][scored].tolist() == [0, 0, 1, 1, 2]
    assert found.token_info["word"][scored].tolist() == [0, 1, 0, 1, 0]
    assert found.labels[scored].tolist() == [0, 1, 1, 0, 0]


def test_parts_of_the_examples_join_to_the_whole():
    examples = [sentence("a b", "O O"), sentence("c", "O"), sentence("d d", "O B-LOC", document=1), sentence("a", "O")]
    examples[3] = examples[3]._replace(document=2)
    whole = features(*examples, document_context=True)
    parts = [examples[:2], examples[2:]]
    joined = concatenate([features(*part, document_context=True) for part in parts], [2, 2])
    for name in ("input_ids", "lengths", "examples", "labels"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    np.testing.assert_array_equal(joined.token_info["sentence"], whole.token_info["sentence"])


def test_documents():
    examples = [sentence("a"), sentence("b"), sentence("c", document=1)]
    assert documents(examples) == [examples[:2], examples[2:]]
    assert documents([]) == []


def test_windows_by_hand():
    assert windows([1, 1, 1], 3, 1) == [Window(0, 3, 0, 3)]
    assert windows([], 3, 1) == [Window(0, 0, 0, 0)]
    assert windows([0, 0], 3, 1) == [Window(0, 2, 0, 2)]
    assert windows([2, 2, 2], 3, 1) == [Window(0, 1, 0, 1), Window(1, 2, 1, 2), Window(2, 3, 2, 3)]
    assert windows([1] * 6, 4, 2) == [Window(0, 4, 0, 3), Window(2, 6, 3, 6)]


def test_every_word_counts_once_where_it_has_the_most_context():
    random = np.random.default_rng(0)
    for _ in range(300):
        room = int(random.integers(1, 20))
        lengths = np.minimum(random.integers(0, random.integers(2, 9), random.integers(0, 40)), room).tolist()
        found = windows(lengths, room, int(random.integers(0, room // 2 + 1)))
        ends = np.cumsum([0, *lengths])
        assert [word for one in found for word in range(one.first, one.last)] == list(range(len(lengths)))
        assert all(ends[one.end] - ends[one.start] <= room for one in found)
        for word in np.flatnonzero(lengths):
            context = [
                min(ends[word] - ends[one.start], ends[one.end] - 1 - ends[word])
                + 0.01 * (ends[one.end] - ends[one.start])
                if one.start <= word < one.end
                else -1
                for one in found
            ]
            chosen = found[int(np.argmax(context))]
            assert chosen.first <= word < chosen.last


def test_golden_alignment(shared):
    cases = json.loads((shared / "golden/ner_eval.json").read_text())["word_alignment"]["cases"]
    folders = {"multilingual": "multilingual_cased"}
    tokenizers = {}
    for case in cases:
        name = case["vocab"]
        if name not in tokenizers:
            folder = shared / "data/vocab" / folders.get(name, name)
            tokenizers[name] = load_tokenizer(str(folder), do_lower_case=name in ("uncased", "chinese"))
        example = TaggedExample("0", tuple(case["words"]), tuple(case["tags"]), 0, "")
        labels = tuple(dict.fromkeys(["O", *case["tags"], *(f"I{tag[1:]}" for tag in case["tags"] if tag != "O")]))
        found = tagging_features([example], tokenizer=tokenizers[name], max_length=512, labels=labels)
        first = np.cumsum([1, *case["pieces_per_word"]])[:-1]
        seen = [word for word, pieces in enumerate(case["pieces_per_word"]) if pieces]
        assert found.lengths.tolist() == [sum(case["pieces_per_word"]) + 2]
        assert np.flatnonzero(found.labels != NO_LABEL).tolist() == first[seen].tolist()
        assert found.token_info["word"][first[seen]].tolist() == seen
        assert [labels[number] for number in found.labels[first[seen]]] == [case["tags"][word] for word in seen]


def test_the_order_of_the_labels_is_that_of_the_model():
    found = features(sentence("a b", "O B-LOC"), labels=("I-LOC", "B-LOC", "O"))
    assert found.labels.tolist() == [-1, 2, 1, -1]
