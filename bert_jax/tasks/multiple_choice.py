"""A context and its possible endings -> the right one, as in SWAG (section 4.4 of the paper).

Each ending makes a sequence with the context. The product of a vector, which is all that is new, and the pooled vector
of [CLS] is the score of an ending; a softmax over the endings of an example makes probabilities of the scores.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax import metrics
from bert_jax.heads import TaskHead
from bert_jax.prediction_tables import probability_columns, write_table
from bert_jax.tasks.classification import softmax
from bert_jax.tasks.family import Losses, cross_entropy, mistakes_first
from input_pipeline.task_examples import ChoiceExample
from input_pipeline.task_features import Features


class Prediction(NamedTuple):
    """The number of the most probable ending from 0, and the probability of each, f32 [choices]."""

    label: int
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True)
class MultipleChoice:
    """See family.Family; num_choices is the number of endings, the same for all examples."""

    head: TaskHead
    features_of: Callable[[list], Features]
    num_choices: int
    main_metric: str = "accuracy"

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Cross-entropy of each example, f32 [batch], of logits [batch, choices] and labels [batch]."""
        return cross_entropy(logits, labels)

    def predictions(
        self, examples: list[ChoiceExample], features: Features, logits: Sequence[np.ndarray]
    ) -> list[Prediction]:
        return [Prediction(int(row.argmax()), row) for row in softmax(logits, self.num_choices)]

    def metrics(self, examples: list[ChoiceExample], predictions: list[Prediction]) -> dict[str, Any]:
        labels = [example.label for example in examples]
        return {"accuracy": metrics.accuracy(labels, [prediction.label for prediction in predictions])}

    def write(
        self, folder: str | os.PathLike, stem: str, examples: list[ChoiceExample], predictions: list[Prediction]
    ) -> list[str]:
        """<stem>.tsv: id, prediction (the number of the ending, from 0) and the probability of each ending."""
        rows = (
            (example.id, prediction.label, *prediction.probabilities)
            for example, prediction in zip(examples, predictions, strict=True)
        )
        columns = ["id", "prediction", *probability_columns(self._names)]
        write_table(os.path.join(folder, f"{stem}.tsv"), columns, rows)
        return [f"{stem}.tsv"]

    def review(self, examples: list[ChoiceExample], predictions: list[Prediction]) -> dict[str, Any]:
        right = [example.label for example in examples]
        predicted = [prediction.label for prediction in predictions]
        mistakes = [
            _mistake(example, prediction)
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label != prediction.label
        ]
        return {
            "confusion": {
                "labels": self._names,
                "counts": metrics.confusion(right, predicted, self.num_choices).tolist(),
            },
            "examples": len(examples),
            "wrong": len(mistakes),
            "mistakes": mistakes_first(mistakes),
        }

    @property
    def _names(self) -> list[str]:
        return [str(number) for number in range(self.num_choices)]


def _mistake(example: ChoiceExample, prediction: Prediction) -> dict[str, Any]:
    endings = [
        {"title": f"ending {number} ({probability:.3f})", "text": f"{example.stem} {ending}".strip(), "marks": []}
        for number, (ending, probability) in enumerate(zip(example.endings, prediction.probabilities))
    ]
    return {
        "id": example.id,
        "where": example.where,
        "right": f"{example.label}: {example.endings[example.label]}",
        "predicted": f"{prediction.label}: {example.endings[prediction.label]}",
        "confidence": float(prediction.probabilities.max()),
        "texts": [{"title": "context", "text": example.text, "marks": []}, *endings],
    }
