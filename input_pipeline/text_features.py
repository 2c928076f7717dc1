"""Texts and pairs of texts with their labels -> one sequence each: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.arguments import shown
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import lay_out
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import Features, make_features
from input_pipeline.tokenization import Tokenizer

_MOST_SHOWN = 20


def text_features(
    examples: Sequence[TextExample], *, tokenizer: Tokenizer, max_length: int, labels: Sequence[str] | None, kind: str
) -> Features:
    """The sequences of texts, laid out and cut as in google-research/bert (run_classifier.py); see `lay_out`.

    A special token that is typed in a text, such as "[SEP]", is text.

    Arguments:
      labels: the names of the outputs; of no use to a regression.
      kind: "classification" (labels int32 [examples]), "multi_label" (float32 [examples, outputs], 0 or 1) or
        "regression" (float32 [examples]).

    Returns:
      Features; labels is None unless all examples have one.

    Raises:
      UserError: a label is none of `labels`, or `max_length` leaves no room for the special tokens.
    """
    firsts = tokenizer.encode_batch(example.text for example in examples)
    seconds = iter(tokenizer.encode_batch(one.text_pair for one in examples if one.text_pair is not None))
    layouts = [
        lay_out(tokenizer, first, None if example.text_pair is None else next(seconds), max_length)
        for example, first in zip(examples, firsts)
    ]
    return make_features(
        [(layout.input_ids, layout.segment_ids) for layout in layouts],
        np.arange(len(layouts)),
        _labels(examples, labels or (), kind),
        num_cut=sum(layout.was_cut for layout in layouts),
    )


def _labels(examples: Sequence[TextExample], names: Sequence[str], kind: str) -> np.ndarray | None:
    if any(example.label is None for example in examples):
        return None
    if kind == "regression":
        return np.array([example.label for example in examples], np.float32)
    numbers = {name: number for number, name in enumerate(names)}
    if kind == "classification":
        return np.array([_number(example.label, example, numbers) for example in examples], np.int32)
    holds = np.zeros((len(examples), len(numbers)), np.float32)
    for row, example in zip(holds, examples):
        row[[_number(name, example, numbers) for name in example.label]] = 1
    return holds


def _number(label: str, example: TextExample, numbers: dict[str, int]) -> int:
    try:
        return numbers[label]
    except KeyError:
        known = ", ".join(list(numbers)[:_MOST_SHOWN]) + (", ..." if len(numbers) > _MOST_SHOWN else "")
        raise UserError(f"{example.where}: the label {shown(label)} is none of those of the model: {known}") from None
