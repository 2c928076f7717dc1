"""Where the right and the predicted answer stand in a context, marked for a person to read."""

import itertools
import re
from collections.abc import Iterable
from typing import Any

from input_pipeline.question_features import split_words
from input_pipeline.task_examples import Answer

EXCERPT_CHARACTERS = 600
_LEAST_AROUND = 60  # characters that are shown on each side of an answer, however long it is
_GAP = " \u2026 "

Span = tuple[int, int]  # first character, and the one after the last


def place_of(text: str, context: str, word: int) -> Span | None:
    """The characters of a predicted text that starts in a word of `split_words(context)`, whatever the white space."""
    pattern = r"\s+".join(map(re.escape, text.split()))
    found = re.compile(pattern).search(context, split_words(context).starts[word]) if pattern else None
    return found and found.span()


def place_of_answer(answer: Answer, context: str) -> Span | None:
    """The characters of an answer; None where its text does not stand there."""
    if answer.text and context.startswith(answer.text, answer.start):
        return answer.start, answer.start + len(answer.text)
    found = split_words(context).of(answer)
    return found and place_of(answer.text, context, found[0])


def marked_excerpt(context: str, right: Span | None, predicted: Span | None) -> dict[str, Any]:
    """The context with marks where the answers are, each [first character, end, "right", "predicted" or "both", ""].

    Of a long context about EXCERPT_CHARACTERS are shown around the answers.
    """
    marks = list(_marks(right, predicted))
    text, shown = "", []
    for start, end in _shown(context, [span for span in (right, predicted) if span]):
        text += _GAP.lstrip() if start and not text else _GAP if text else ""
        shift = len(text) - start
        text += context[start:end]
        shown += [[a + shift, b + shift, kind, ""] for a, b, kind in marks if start <= a < end]
    if end < len(context):
        text += _GAP.rstrip()
    return {"title": "context", "text": text, "marks": shown}


def _marks(right: Span | None, predicted: Span | None) -> Iterable[tuple[int, int, str]]:
    edges = sorted({edge for span in (right, predicted) if span for edge in span})
    for start, end in itertools.pairwise(edges):
        kinds = [kind for kind, span in (("right", right), ("predicted", predicted)) if _holds(span, start)]
        if kinds:
            yield start, end, "both" if len(kinds) == 2 else kinds[0]


def _holds(span: Span | None, character: int) -> bool:
    return span is not None and span[0] <= character < span[1]


def _shown(context: str, spans: list[Span]) -> list[Span]:
    """The parts of a context to show, in order and apart from each other."""
    if len(context) <= EXCERPT_CHARACTERS:
        return [(0, len(context))]
    if not spans:
        return [(0, EXCERPT_CHARACTERS)]
    room = EXCERPT_CHARACTERS - sum(end - start for start, end in spans)
    around = max(room // (2 * len(spans)), _LEAST_AROUND)
    parts: list[Span] = []
    for start, end in sorted(spans):
        start, end = max(start - around, 0), min(end + around, len(context))
        if parts and start <= parts[-1][1]:
            start, end = parts[-1][0], max(end, parts.pop()[1])
        parts.append((start, end))
    return parts
