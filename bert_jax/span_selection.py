"""Scores of tokens as start and as end of an answer -> its text, by the rules of google-research/bert (run_squad.py).

The tokens that were best in each of a question's windows are combined, what cannot be an answer is left out, and the
rest is ordered by the sum of both scores. The text is taken from the context, not put together from the pieces.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.basic_tokenization import split_raw_word, split_raw_words
from input_pipeline.question_features import Words
from input_pipeline.tokenization import Tokenizer

_FAR = 1e30  # stands for infinity in what is written: JSON has none
_SPACE_OF_SENTENCEPIECE = "\u2581"


class Window(NamedTuple):
    """One window of a context, with its scores.

    Attributes:
        input_ids: int [tokens].
        word: int [tokens], number of the context's word that each token is part of; -1 for all other tokens.
        max_context: bool [tokens], whether the token may start an answer here.
        start_logits, end_logits: [tokens], or longer: as in the reference, what is padding may be among the best.
    """

    input_ids: np.ndarray
    word: np.ndarray
    max_context: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


class Candidate(NamedTuple):
    """A possible answer.

    Attributes:
        text: "" for no answer.
        probability: among the candidates of its question.
        word: number of the context's word in which it starts; -1 for no answer.
    """

    text: str
    probability: float
    start_logit: float
    end_logit: float
    word: int


class SpanPrediction(NamedTuple):
    """The answer to a question.

    Attributes:
        text: "" for no answer.
        nbest: at least one candidate, the best first; at most n_best_size, and no answer besides.
        null_odds: score of no answer minus that of the best answer; None where there is always an answer.
    """

    text: str
    nbest: list[Candidate]
    null_odds: float | None


class _Spans(NamedTuple):
    """Spans of tokens of several windows: number of the window, first and last token, scores of these; all [spans]."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


def select_answer(
    words: Words,
    windows: Sequence[Window],
    tokenizer: Tokenizer,
    *,
    n_best_size: int,
    max_answer_length: int,
    version_2: bool,
    null_score_diff_threshold: float = 0.0,
) -> SpanPrediction:
    """The answer to one question, and the next best ones.

    Where no span can be an answer, or there is no window, it is "": with null odds as if an answer scored 0.

    Arguments:
        words: of the context.
        max_answer_length: in tokens.
        version_2: whether there may be no answer; its score is the lowest that the windows give to [CLS].
        null_score_diff_threshold: null odds above it mean no answer.
    """
    windows = [_finite(window) for window in windows]
    spans = _join([_spans_of(number, window, n_best_size, max_answer_length) for number, window in enumerate(windows)])
    null = _null_scores(windows)
    if version_2:
        spans = _join([spans, _Spans(*(np.array([value]) for value in (-1, -1, -1, *null)))])
    found: dict[str, Candidate] = {}
    for index in np.argsort(-(spans.start_logit + spans.end_logit), kind="stable"):
        if len(found) >= n_best_size:
            break
        text, word = "", -1
        if spans.window[index] >= 0:
            text, word = _text_of(words, windows[spans.window[index]], spans.start[index], spans.end[index], tokenizer)
        scores = float(spans.start_logit[index]), float(spans.end_logit[index])
        found.setdefault(text, Candidate(text, 0.0, *scores, word))
    if version_2:
        found.setdefault("", Candidate("", 0.0, *null, -1))
    nbest = _with_probabilities(list(found.values()) or [Candidate("", 1.0, 0.0, 0.0, -1)])
    if not version_2:
        return SpanPrediction(nbest[0].text, nbest, None)
    best = next((candidate for candidate in nbest if candidate.text), Candidate("", 0.0, 0.0, 0.0, -1))
    null_odds = sum(null) - best.start_logit - best.end_logit
    return SpanPrediction("" if null_odds > null_score_diff_threshold else best.text, nbest, null_odds)


def final_text(predicted: str, original: str, do_lower_case: bool) -> str:
    """The part of `original` that a tokenizer's text for it was made of; `original` where that cannot be told.

    As in the reference (get_final_text): `original` is whole words of the context, of which the tokenizer may have
    split off punctuation. Both texts are laid side by side without their spaces; where their lengths differ, as when a
    character became two, nothing can be told.

    Arguments:
        predicted: the pieces as words, such as "steve smith" for "Steve Smith's".
    """
    tokenized = " ".join(filter(None, [_basic_text(word, do_lower_case) for word in original.split(" ")]))
    if predicted == tokenized and original == original.strip(" "):  # most are whole words
        return original
    start = tokenized.find(predicted)
    if start < 0 or not predicted:
        return original
    places = [place for place, character in enumerate(original) if character != " "]
    if len(places) != len(tokenized) - tokenized.count(" "):
        return original
    first = start - tokenized.count(" ", 0, start)
    last = first + len(predicted) - predicted.count(" ") - 1
    return original[places[first] : places[last] + 1]


@functools.lru_cache(maxsize=1 << 16)
def _basic_text(word: str, do_lower_case: bool) -> str:
    return " ".join(part for raw in split_raw_words(word) for part in split_raw_word(raw, do_lower_case))


def _finite(window: Window) -> Window:
    """The window with scores in float64, as the reference adds them, and a number for those that are none."""
    start, end = (
        np.nan_to_num(np.asarray(logits, np.float64), nan=-_FAR, posinf=_FAR, neginf=-_FAR)
        for logits in (window.start_logits, window.end_logits)
    )
    return window._replace(start_logits=start, end_logits=end)


def _null_scores(windows: Sequence[Window]) -> tuple[float, float]:
    """Start and end score of [CLS] in the window where their sum is lowest: there an answer was likest."""
    pairs = ((float(window.start_logits[0]), float(window.end_logits[0])) for window in windows)
    return min(pairs, key=sum, default=(0.0, 0.0))


def _spans_of(number: int, window: Window, n_best_size: int, max_answer_length: int) -> _Spans:
    """Those that can be answers, in the order of the reference: by the rank of the start, then of the end."""
    starts, ends = _best(window.start_logits, n_best_size), _best(window.end_logits, n_best_size)
    in_context = np.zeros(len(window.start_logits), bool)
    in_context[: len(window.word)] = window.word >= 0
    may_start = in_context.copy()
    may_start[: len(window.word)] &= window.max_context
    starts, ends = starts[may_start[starts]], ends[in_context[ends]]
    lengths = ends[None, :] - starts[:, None] + 1
    row, column = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
    start, end = starts[row], ends[column]
    return _Spans(np.full(len(start), number), start, end, window.start_logits[start], window.end_logits[end])


def _best(logits: np.ndarray, count: int) -> np.ndarray:
    """The tokens with the highest scores, the earlier one of equals first."""
    return np.argsort(-logits, kind="stable")[:count]


def _join(parts: Sequence[_Spans]) -> _Spans:
    none = _Spans(*(np.zeros(0, np.int64),) * 3, *(np.zeros(0, np.float64),) * 2)
    return _Spans(*map(np.concatenate, zip(none, *parts)))


def _text_of(words: Words, window: Window, start: int, end: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Text of a span of tokens, and the word in which it starts."""
    first, last = int(window.word[start]), int(window.word[end])
    pieces = tokenizer.convert_ids_to_tokens(window.input_ids[start : end + 1].tolist())
    if tokenizer.kind == "wordpiece":
        predicted = " ".join(pieces).replace(" ##", "").replace("##", "")
    else:
        predicted = "".join(pieces).replace(_SPACE_OF_SENTENCEPIECE, " ")
    original = " ".join(words.texts[first : last + 1])
    return final_text(" ".join(predicted.split()), original, bool(tokenizer.do_lower_case)), first


def _with_probabilities(candidates: list[Candidate]) -> list[Candidate]:
    scores = np.array([candidate.start_logit + candidate.end_logit for candidate in candidates])
    powers = np.exp(scores - scores.max())
    probabilities = (powers / powers.sum()).tolist()
    return [candidate._replace(probability=share) for candidate, share in zip(candidates, probabilities)]
