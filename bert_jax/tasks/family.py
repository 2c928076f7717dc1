"""What every task family has: examples -> features -> head -> loss -> predictions -> metrics and files."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads import TaskHead
from input_pipeline.task_features import Features


class Losses(NamedTuple):
    """Of whatever is scored, which may be an example, a token or an end of an answer; all of one shape.

    Attributes:
        losses: float32, in nats (squared differences of a regression).
        right: bool, whether the prediction is the label; None where that has no meaning.
        weights: float32, 1 where there is a label and 0 elsewhere.
    """

    losses: jax.Array
    right: jax.Array | None
    weights: jax.Array


class Family(Protocol):
    """A task with all that is decided about it; examples are those of input_pipeline.task_examples.

    Attributes:
        head: the output layer.
        main_metric: the name of the metric by which runs are compared; more is better.
        features_of: examples -> features; can be pickled, and needs no JAX.
        num_choices: sequences that are scored together, as one example.
    """

    head: TaskHead
    main_metric: str
    features_of: Callable[[list], Features]
    num_choices: int

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Scores a batch on the device.

        Args:
            logits: f32 [batch, outputs], of tokens [batch, width, outputs], of choices [batch, choices].
            labels: as Features has them, [batch, ...], of tokens [batch, width]; what is not there is NO_LABEL.
        """

    def predictions(self, examples: list, features: Features, logits: Sequence[np.ndarray]) -> list[Any]:
        """What is predicted for each example, in order.

        Args:
            features: those of the examples.
            logits: f32 for each sequence, in order: [outputs], or of tokens [its length, outputs].
        """

    def metrics(self, examples: list, predictions: list[Any]) -> dict[str, float | int | None]:
        """The metrics by name; None for what is not defined. All examples have labels."""

    def write(self, folder: str | os.PathLike, stem: str, examples: list, predictions: list[Any]) -> list[str]:
        """Writes prediction files, named <stem>.<ending> or so, and returns their names."""

    def review(self, examples: list, predictions: list[Any]) -> dict[str, Any]:
        """What a person wants to see of an evaluation, for task_report: plain JSON."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> Losses:
    """The losses of one label out of several.

    Args:
        logits: f32 [..., classes].
        labels: int32 [...]; NO_LABEL is not scored. It must not be an index either: -1 would be the last class.
    """
    chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    return Losses(losses, jnp.argmax(logits, axis=-1) == labels, (labels >= 0).astype(jnp.float32))


MOST_MISTAKES = 100


def mistakes_first(mistakes: list[dict[str, Any]], by_confidence: bool = True) -> list[dict[str, Any]]:
    """The mistakes that a report shows: the most confident ones first, or else as they come."""
    if by_confidence:
        mistakes = sorted(mistakes, key=lambda mistake: -mistake["confidence"])
    return mistakes[:MOST_MISTAKES]
