"""Texts and pairs of texts -> a number, as in STS-B (section 4.1): the pooled vector, one output, squared error.

Where the head has a scale, the loss is that of standardised labels: 1 for a model that always predicts their mean.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import metrics
from bert_jax.heads import TaskHead
from bert_jax.prediction_tables import write_table
from bert_jax.tasks.classification import text_mistake
from bert_jax.tasks.family import Losses, mistakes_first
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import Features

MOST_POINTS = 2000


@dataclasses.dataclass(frozen=True)
class Regression:
    """See family.Family; a prediction is a float.

    Attributes:
        bounds: what predictions are clipped to, or None.
    """

    head: TaskHead
    features_of: Callable[[list], Features]
    bounds: tuple[float, float] | None = None
    num_choices: int = 1
    main_metric: str = "pearson"

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Squared error of each example, f32 [batch], in squares of the head's deviation."""
        return Losses(jnp.square((logits[:, 0] - labels) / self.head.deviation), None, jnp.ones_like(labels))

    def predictions(self, examples: list[TextExample], features: Features, logits: Sequence[np.ndarray]) -> list[float]:
        values = np.asarray(logits, np.float32).reshape(-1)
        return (np.clip(values, *self.bounds) if self.bounds else values).tolist()

    def metrics(self, examples: list[TextExample], predictions: list[float]) -> dict[str, Any]:
        return metrics.regression_metrics([example.label for example in examples], predictions)

    def write(
        self, folder: str | os.PathLike, stem: str, examples: list[TextExample], predictions: list[float]
    ) -> list[str]:
        """<stem>.tsv: id and prediction."""
        rows = ((example.id, number) for example, number in zip(examples, predictions, strict=True))
        write_table(os.path.join(folder, f"{stem}.tsv"), ["id", "prediction"], rows)
        return [f"{stem}.tsv"]

    def review(self, examples: list[TextExample], predictions: list[float]) -> dict[str, Any]:
        """No number is quite right: those that are off most are shown, of which half the range counts as wrong."""
        labels = np.array([example.label for example in examples], np.float64)
        errors = np.abs(labels - np.array(predictions, np.float64))
        wrong = errors > np.ptp(labels) / 2
        worst = np.argsort(-errors, kind="stable")
        mistakes = [
            text_mistake(examples[i], f"{labels[i]:g}", f"{predictions[i]:.3f}", None) for i in worst if wrong[i]
        ]
        step = -(-len(examples) // MOST_POINTS)
        points = [[float(label), number] for label, number in zip(labels[::step], predictions[::step])]
        return {
            "examples": len(examples),
            "wrong": int(wrong.sum()),
            "points": points,
            "mistakes": mistakes_first(mistakes, by_confidence=False),
        }
