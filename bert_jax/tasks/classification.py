"""Texts and pairs of texts -> labels (section 4.1): the pooled vector of [CLS], one dense layer, softmax.

Where any number of labels may hold (multi_label) each output is a logistic regression of its own.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import metrics
from bert_jax.heads import TaskHead
from bert_jax.prediction_tables import probability_columns, write_table
from bert_jax.tasks.family import Losses, cross_entropy, mistakes_first
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import Features

MULTI_LABEL_THRESHOLD = 0.5


class Prediction(NamedTuple):
    """The name of the label, or the names of all that hold, and the probability of each, f32 [labels]."""

    label: str | tuple[str, ...]
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True)
class Classification:
    """See family.Family.

    Attributes:
        metric_names: of metrics.CLASSIFICATION_METRICS; None for those that suit the labels.
        positive_label: the one that precision, recall and F1 are about, of two; by default the second.
    """

    head: TaskHead
    features_of: Callable[[list], Features]
    metric_names: tuple[str, ...] | None = None
    positive_label: str | None = None
    num_choices: int = 1

    @property
    def main_metric(self) -> str:
        if self.head.kind == "multi_label":
            return "f1_micro"
        return self.metric_names[-1] if self.metric_names else "accuracy"

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Cross-entropy of each example, f32 [batch]; with any number of labels that of each label [batch, labels]."""
        if self.head.kind == "multi_label":
            losses = jax.nn.softplus(logits) - labels * logits
            right = (logits > 0) == (labels > 0.5)
            return Losses(losses, right, (labels >= 0).astype(jnp.float32))
        return cross_entropy(logits, labels)

    def predictions(
        self, examples: list[TextExample], features: Features, logits: Sequence[np.ndarray]
    ) -> list[Prediction]:
        labels = self.head.labels
        if self.head.kind == "multi_label":
            probabilities = 1 / (1 + np.exp(-np.asarray(logits).reshape(-1, len(labels))))
            return [
                Prediction(tuple(name for name, p in zip(labels, row) if p > MULTI_LABEL_THRESHOLD), row)
                for row in probabilities
            ]
        return [Prediction(labels[int(row.argmax())], row) for row in softmax(logits, len(labels))]

    def metrics(self, examples: list[TextExample], predictions: list[Prediction]) -> dict[str, Any]:
        names = self.head.labels
        if self.head.kind == "multi_label":
            right = [[name in example.label for name in names] for example in examples]
            predicted = [[name in prediction.label for name in names] for prediction in predictions]
            return metrics.multi_label_metrics(right, predicted)
        places = {name: place for place, name in enumerate(names)}
        right = [places[example.label] for example in examples]
        predicted = [places[prediction.label] for prediction in predictions]
        chosen = self.metric_names
        if chosen is None and len(names) > 2:
            chosen = ("accuracy", "f1_macro", "matthews_correlation")
        positive = places[self.positive_label] if self.positive_label else 1
        return metrics.classification_metrics(right, predicted, chosen, positive)

    def write(
        self, folder: str | os.PathLike, stem: str, examples: list[TextExample], predictions: list[Prediction]
    ) -> list[str]:
        """<stem>.tsv: id, prediction and the probability of each label; several labels are separated by "|"."""
        rows = (
            (
                example.id,
                prediction.label if isinstance(prediction.label, str) else "|".join(prediction.label),
                *prediction.probabilities,
            )
            for example, prediction in zip(examples, predictions, strict=True)
        )
        columns = ["id", "prediction", *probability_columns(self.head.labels)]
        write_table(os.path.join(folder, f"{stem}.tsv"), columns, rows)
        return [f"{stem}.tsv"]

    def review(self, examples: list[TextExample], predictions: list[Prediction]) -> dict[str, Any]:
        names = list(self.head.labels)
        multi_label = self.head.kind == "multi_label"
        mistakes = []
        for example, prediction in zip(examples, predictions, strict=True):
            if multi_label:
                right, predicted = (", ".join(sorted(label)) for label in (example.label, prediction.label))
                confidence = float(np.abs(prediction.probabilities - MULTI_LABEL_THRESHOLD).mean() * 2)
            else:
                right, predicted, confidence = example.label, prediction.label, float(prediction.probabilities.max())
            if right != predicted:
                mistakes.append(text_mistake(example, right, predicted, confidence))
        review = {"examples": len(examples), "wrong": len(mistakes), "mistakes": mistakes_first(mistakes)}
        if not multi_label:
            places = {name: place for place, name in enumerate(names)}
            right = [places[example.label] for example in examples]
            predicted = [places[prediction.label] for prediction in predictions]
            counts = metrics.confusion(right, predicted, len(names)).tolist()
            review["confusion"] = {"labels": names, "counts": counts}
        return review


def softmax(logits: Sequence[np.ndarray], outputs: int) -> np.ndarray:
    """Probabilities f32 [examples, outputs] of logits."""
    logits = np.asarray(logits, np.float32).reshape(-1, outputs)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=1, keepdims=True)


def text_mistake(example: TextExample, right: str, predicted: str, confidence: float | None) -> dict[str, Any]:
    """What the report shows of a wrong answer about a text or a pair of texts."""
    texts = [{"title": "text", "text": example.text, "marks": []}]
    if example.text_pair is not None:
        texts.append({"title": "second text", "text": example.text_pair, "marks": []})
    return {
        "id": example.id,
        "where": example.where,
        "right": right,
        "predicted": predicted,
        "confidence": confidence,
        "texts": texts,
    }
