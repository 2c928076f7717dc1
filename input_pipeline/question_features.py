"""Questions about a context -> windows of tokens, by the rules of google-research/bert (run_squad.py).

A window is [CLS] question [SEP] part of the context [SEP]. A context that is too long becomes several windows, which
overlap. Each of its tokens counts as the start of an answer only in the window where it has the most context.
"""

import bisect
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import PAIR_SPECIAL
from input_pipeline.task_examples import Answer, QuestionExample
from input_pipeline.task_features import NO_LABEL, Features
from input_pipeline.tokenization import Tokenizer

# What the reference takes for white space between the words of a context; all else is left to the tokenizer.
_WORD = re.compile("[^ \t\r\n\u202f]+")

# Both ends of the answer in a window that does not hold it: [CLS].
_NO_ANSWER = 0, 0


class Words(NamedTuple):
    """The words of a context, as they stand between white space, and the character at which each starts."""

    texts: list[str]
    starts: list[int]

    def number_at(self, character: int) -> int:
        """The word that holds a character; of white space the word before, or the first."""
        return max(bisect.bisect_right(self.starts, character) - 1, 0)

    def of(self, answer: Answer) -> tuple[int, int] | None:
        """First and last word of an answer; None where its text does not stand there, whatever the white space.

        The test is the reference's: the answer's words, one space between them, are a part of these words.
        """
        text = " ".join(answer.text.split())
        if not text or answer.start < 0 or not self.texts:
            return None
        first, last = self.number_at(answer.start), self.number_at(answer.start + len(answer.text) - 1)
        return (first, last) if text in " ".join(self.texts[first : last + 1]) else None


def split_words(context: str) -> Words:
    """Cuts a context at space, tab, the ends of lines and U+202F."""
    found = list(_WORD.finditer(context))
    return Words([match[0] for match in found], [match.start() for match in found])


class Windows(NamedTuple):
    """The windows over the tokens of one context.

    Attributes:
      spans: first token and number of tokens of each.
      max_context: for each, bool [its tokens], whether a token has more context here than in any other window.
    """

    spans: tuple[tuple[int, int], ...]
    max_context: tuple[np.ndarray, ...]


@functools.lru_cache(maxsize=4096)
def make_windows(num_tokens: int, room: int, stride: int) -> Windows:
    """Windows of at most `room` tokens, each `stride` after the one before; at most its length, so none is skipped.

    The context of a token in a window is the smaller of its distances to both ends, and a hundredth of the window's
    length; of equals the first counts.
    """
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        spans.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    best, owner = np.full(num_tokens, -1.0), np.zeros(num_tokens, np.int32)
    for number, (start, length) in enumerate(spans):
        here = slice(start, start + length)
        context = np.minimum(np.arange(length), np.arange(length)[::-1]) + 0.01 * length
        owner[here] = np.where(context > best[here], number, owner[here])
        best[here] = np.maximum(context, best[here])
    most = tuple(owner[start : start + length] == number for number, (start, length) in enumerate(spans))
    return Windows(tuple(spans), most)


class _Context(NamedTuple):
    """A tokenized context: its words, ids int32 [tokens], and the word int32 [tokens] that each is a part of."""

    words: Words
    ids: np.ndarray
    word: np.ndarray


class _Window(NamedTuple):
    """One sequence to be laid out: [CLS], question, [SEP] in front of `length` tokens of the context from `start`."""

    example: int
    front: np.ndarray
    context: _Context
    start: int
    length: int
    max_context: np.ndarray


def question_features(
    examples: Sequence[QuestionExample],
    *,
    tokenizer: Tokenizer,
    max_length: int,
    doc_stride: int,
    max_query_length: int,
    training: bool,
) -> Features:
    """The windows of questions, as sequences of at most `max_length` tokens.

    The question loses what is beyond `max_query_length` tokens. A context without tokens has no window.

    Arguments:
      doc_stride: tokens between the starts of two windows.
      training: give labels: first and last token of the question's first answer; [CLS] for both in a window that does
        not hold it all, and where there is no answer; NO_LABEL where it is unknown or has no tokens.

    Returns:
      Features; token_info has "word", int32: the word of `split_words(context)` that a token is part of, else -1; and
      "max_context", bool: whether this is the window where the token may start an answer.

    Raises:
      UserError: a question leaves no room for the context.
    """
    if doc_stride < 1:
        raise UserError(f"--doc_stride={doc_stride}: windows need a distance of at least 1 token")
    contexts: dict[str, _Context] = {}
    sep, after = np.array([tokenizer.sep_id], np.int32), []
    windows: list[_Window] = []
    labels: list[tuple[int, int]] = []
    num_cut = 0
    for number, example in enumerate(examples):
        context = contexts.get(example.context)
        if context is None:
            context = contexts[example.context] = _tokenize(example.context, tokenizer)
        question = tokenizer.encode(example.question)
        was_cut = len(question) > max_query_length
        question = question[:max_query_length]
        room = max_length - len(question) - PAIR_SPECIAL
        if room < 1:
            raise UserError(
                f"{example.where}: a question of {len(question)} tokens leaves no room for the context in "
                f"--max_seq_length={max_length}; give more, or a smaller --max_query_length"
            )
        made = make_windows(len(context.ids), room, doc_stride)
        front = np.array([tokenizer.cls_id, *question, tokenizer.sep_id], np.int32)
        for (start, length), max_context in zip(*made):
            windows.append(_Window(number, front, context, start, length, max_context))
            after += (front, context.ids[start : start + length], sep)
        if training:
            labels += _labels(example, context, made, len(front), tokenizer)
        num_cut += was_cut * len(made.spans)
    input_ids = np.concatenate(after) if after else np.zeros(0, np.int32)
    return _lay_out(windows, input_ids, np.array(labels, np.int32).reshape(-1, 2) if training else None, num_cut)


def _lay_out(windows: list[_Window], input_ids: np.ndarray, labels: np.ndarray | None, num_cut: int) -> Features:
    segment_ids = np.ones(len(input_ids), np.int8)
    word = np.full(len(input_ids), -1, np.int32)
    max_context = np.zeros(len(input_ids), bool)
    lengths = np.array([len(window.front) + window.length + 1 for window in windows], np.int32)
    position = 0
    for window, length in zip(windows, lengths.tolist()):
        first = position + len(window.front)
        segment_ids[position:first] = 0
        word[first : first + window.length] = window.context.word[window.start : window.start + window.length]
        max_context[first : first + window.length] = window.max_context
        position += length
    numbers = np.array([window.example for window in windows], np.int32)
    token_info = {"word": word, "max_context": max_context}
    return Features(input_ids, segment_ids, lengths, numbers, labels, token_info, num_cut)


def _tokenize(text: str, tokenizer: Tokenizer) -> _Context:
    words = split_words(text)
    pieces = tokenizer.encode_batch(words.texts)
    counts = [len(ids) for ids in pieces]
    ids = np.fromiter((i for ids in pieces for i in ids), np.int32, sum(counts))
    return _Context(words, ids, np.repeat(np.arange(len(counts), dtype=np.int32), counts))


def _labels(
    example: QuestionExample, context: _Context, windows: Windows, offset: int, tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """First and last token of the answer in each window, whose context begins at token `offset`."""
    if example.is_impossible:
        return [_NO_ANSWER] * len(windows.spans)
    answer = _answer_tokens(example, context, tokenizer)
    if answer is None:
        return [(NO_LABEL, NO_LABEL)] * len(windows.spans)
    first, last = answer
    return [
        (first - start + offset, last - start + offset) if start <= first and last < start + length else _NO_ANSWER
        for start, length in windows.spans
    ]


def _answer_tokens(example: QuestionExample, context: _Context, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """First and last token of the first answer within the context."""
    words = context.words.of(example.answers[0]) if example.answers else None
    if words is None:
        return None
    first = int(np.searchsorted(context.word, words[0], "left"))
    last = int(np.searchsorted(context.word, words[1], "right")) - 1
    if first > last:
        return None
    return _narrowed(context.ids, first, last, tokenizer.encode(example.answers[0].text))


def _narrowed(ids: np.ndarray, first: int, last: int, answer: list[int]) -> tuple[int, int]:
    """The first place within the tokens of the answer's words that is the answer alone, such as 1895 in (1895-1943)."""
    tokens = ids[first : last + 1].tolist()
    for start in range(len(tokens) - len(answer) + 1 if answer else 0):
        if tokens[start : start + len(answer)] == answer:
            return first + start, first + start + len(answer) - 1
    return first, last
