"""Words with tags -> sequences of tokens, where the first token of a word carries its label.

Section 5.3 of the paper: the first sub-token of a word stands for it, the others take no part in the loss. A text that
is too long becomes several sequences, which overlap; each word is labelled and predicted in the one where it has the
most context.
"""

from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from typing import NamedTuple

import numpy as np

from input_pipeline import tag_schemes
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import SINGLE_SPECIAL
from input_pipeline.task_examples import TaggedExample
from input_pipeline.task_features import NO_LABEL, Features, make_features
from input_pipeline.tokenization import Tokenizer


class Window(NamedTuple):
    """Words start to end - 1 of a text, of which this window is the one for words first to last - 1."""

    start: int
    end: int
    first: int
    last: int


def tagging_features(
    examples: Sequence[TaggedExample],
    *,
    tokenizer: Tokenizer,
    max_length: int,
    labels: Sequence[str],
    document_context: bool = False,
    overlap: int = 64,
) -> Features:
    """The sequences of sentences, each of at most `max_length` tokens.

    A word without tokens (control characters, say) is left out; it is one unknown token where the labels have no "O"
    that could be its tag. A word with more tokens than a sequence has room for loses those at its end.

    Arguments:
      labels: the model's, whose scheme the tags are turned into.
      document_context: consecutive sentences of a document are one text, so that sequences are as long as can be and
        sentences see their neighbours. Documents must be whole then (`documents`).
      overlap: tokens that the sequences of one text have in common, at most half of what they have room for.

    Returns:
      Features; labels is None unless all examples have tags. A sequence of several sentences belongs to the first of
      its document. token_info has "word", int32: number of the word in its sentence on the token that is to be labelled
      or predicted, -1 elsewhere; and "sentence", int32: how many sentences after the sequence's own it is in.

    Raises:
      UserError: a tag is none of the labels, or `max_length` leaves no room.
    """
    room = max_length - SINGLE_SPECIAL
    if room < 1:
        raise UserError(f"a sequence of {max_length} tokens has no room for a word and {SINGLE_SPECIAL} special tokens")
    tagged = all(example.tags is not None for example in examples)
    numbers = {label: number for number, label in enumerate(labels)}
    scheme = tag_schemes.scheme_of_labels(labels)
    filler = () if tag_schemes.OUTSIDE in numbers else (tokenizer.unk_id,)
    sequences, owners, num_cut = [], [], 0
    of_label, of_word, of_sentence = [], [], []
    first = 0  # sentence of the text
    for text in documents(examples) if document_context else ([example] for example in examples):
        whole = [tuple(ids) or filler for example in text for ids in tokenizer.encode_batch(example.words)]
        pieces = [ids[:room] for ids in whole]
        sentences = [number for number, example in enumerate(text) for _ in example.words]
        words = [number for example in text for number in range(len(example.words))]
        known = [label for example in text for label in _labels(example, numbers, scheme)] if tagged else None
        for window in windows([len(ids) for ids in pieces], room, min(overlap, room // 2)):
            input_ids = [tokenizer.cls_id, *chain.from_iterable(pieces[window.start : window.end]), tokenizer.sep_id]
            places = _first_tokens(pieces, window)
            sequences.append((input_ids, np.zeros(len(input_ids), np.int8)))
            owners.append(first)
            num_cut += any(len(ids) > room for ids in whole[window.first : window.last])
            of_word.append(_on_tokens(len(input_ids), places, words, -1))
            of_sentence.append(_on_tokens(len(input_ids), places, sentences, 0))
            if tagged:
                of_label.append(_on_tokens(len(input_ids), places, known, NO_LABEL))
        first += len(text)
    token_info = {"word": _joined(of_word), "sentence": _joined(of_sentence)}
    return make_features(sequences, owners, _joined(of_label) if tagged else None, token_info, num_cut)


def documents(examples: Sequence[TaggedExample]) -> list[list[TaggedExample]]:
    """The examples of each document, in order."""
    return [list(group) for _, group in groupby(examples, key=lambda example: example.document)]


def windows(lengths: Sequence[int], room: int, overlap: int) -> list[Window]:
    """Windows over words of so many tokens each, with at most `room` tokens, that have about `overlap` in common.

    Each word counts in one window: that where the smaller one of its distances to both ends is greatest, and a
    hundredth of the window's length; the first of equals. No word may be longer than `room`.
    """
    ends = np.array(list(accumulate(lengths)), np.int64)  # tokens up to the end of each word
    starts = ends - np.asarray(lengths, np.int64)
    spans = []
    start = end = 0
    while end < len(lengths) or not spans:
        if end:
            # Not before the overlap, and not before what leaves room for the next word.
            start = int(np.searchsorted(starts, max(ends[end - 1] - overlap, ends[end] - room)))
        end = int(np.searchsorted(ends, starts[start] + room, side="right")) if len(lengths) else 0
        spans.append((start, end))
    if len(spans) == 1:
        return [Window(0, len(lengths), 0, len(lengths))]
    best, owner = np.full(len(lengths), -1.0), np.zeros(len(lengths), np.int64)
    for number, (start, end) in enumerate(spans):
        here = slice(start, end)
        length = ends[end - 1] - starts[start]
        context = np.minimum(starts[here] - starts[start], ends[end - 1] - 1 - starts[here]) + 0.01 * length
        owner[here] = np.where(context > best[here], number, owner[here])
        best[here] = np.maximum(context, best[here])
    firsts = np.searchsorted(owner, np.arange(len(spans) + 1))
    return [Window(*span, int(a), int(b)) for span, a, b in zip(spans, firsts, firsts[1:])]


def _labels(example: TaggedExample, numbers: dict[str, int], scheme: str | None) -> list[int]:
    """The number of each word's label."""
    tags = tag_schemes.in_scheme(example.tags, scheme)
    for place, tag in enumerate(tags):
        if tag not in numbers:
            names = ", ".join(list(numbers)[:20]) + (", ..." if len(numbers) > 20 else "")
            raise UserError(
                f"{example.where}: word {place + 1} of the sentence, {example.words[place]!r}, has the tag "
                f"{example.tags[place]!r}; the model's labels are {names}"
            )
    return [numbers[tag] for tag in tags]


def _first_tokens(pieces: list[tuple[int, ...]], window: Window) -> list[tuple[int, int]]:
    """Of each word that counts in the window and has tokens: where its first one is in the sequence, and its number."""
    places = accumulate((len(ids) for ids in pieces[window.start : window.end]), initial=1)  # after [CLS]
    return [
        (place, word)
        for place, word in zip(places, range(window.start, window.end))
        if window.first <= word < window.last and pieces[word]
    ]


def _on_tokens(length: int, places: list[tuple[int, int]], values: Sequence[int], elsewhere: int) -> np.ndarray:
    """int32 [length]: the value of the word at each place."""
    array = np.full(length, elsewhere, np.int32)
    for place, word in places:
        array[place] = values[word]
    return array


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
