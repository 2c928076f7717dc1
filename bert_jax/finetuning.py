"""Training on a task and predicting with it: packed batches -> logits -> the family's losses or predictions."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax import inference
from bert_jax.task_modeling import BertForTask
from bert_jax.tasks.family import Family, Losses
from input_pipeline.task_features import Features

# What the logits beyond the end of a sequence are: no softmax over tokens sees them.
BEYOND = -1e9


@dataclasses.dataclass(frozen=True)
class FinetuningTask:
    """What training needs to know of a task (see training.Task).

    Attributes:
        freeze_encoder: only what follows the encoder learns, and the encoder has no dropout (section 5.3).
    """

    module: BertForTask
    family: Family
    freeze_encoder: bool = False
    loss_is_by_row = False  # sequences of any row of a batch make up an example

    def logits(self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None) -> jax.Array:
        """Scores the sequences of a packed batch.

        Returns:
            f32 [sequences, outputs], or of tokens [sequences, width, outputs], for all slots of all rows, also those
            that are empty.
        """
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        names = ("input_ids", "sequence_ids", "segment_ids", "position_ids", "starts", "lengths")
        states = self.module.apply(
            {"params": params},
            *(batch[name] for name in names),
            method="encode_for_head",
            rngs=None if self.freeze_encoder else rngs,
        )
        if self.freeze_encoder:
            states = jax.lax.stop_gradient(states)
        places = (batch[name] for name in ("sequence_ids", "starts", "lengths"))
        logits = self.module.apply({"params": params}, states, *places, method="score", rngs=rngs)
        if not self.family.head.of_tokens:
            return logits
        mask = inference.token_mask(batch)[:, :, None]
        return jnp.where(mask > 0, inference.unpack(batch, logits), BEYOND)

    def normalizers(self, batch: dict[str, jax.Array]) -> jax.Array:
        """How much is scored in the whole global batch."""
        head, count = self.family.head, len(batch["labels"])
        shape = (count, len(head.labels))
        if self.family.num_choices > 1:
            shape = (count, self.family.num_choices)
        elif head.of_tokens:
            shape = (count, batch["input_ids"].shape[1], len(head.labels))
        losses = self.family.losses(jnp.zeros(shape), batch["labels"])
        return jnp.maximum(jnp.sum(losses.weights), 1.0)

    def loss(self, params, batch, normalizers, dropout_key) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The part that these examples add to the loss of the global batch, and to every metric of it."""
        losses = self._losses(self.logits(params, batch, dropout_key), batch)
        loss = jnp.sum(losses.losses * losses.weights) / normalizers
        metrics = {"loss": loss}
        if losses.right is not None:
            metrics["accuracy"] = jnp.sum(losses.right * losses.weights) / normalizers
        return loss, metrics

    def _losses(self, logits: jax.Array, batch: dict[str, jax.Array]) -> Losses:
        places = batch["places"]
        of_examples = jnp.take(logits, places.reshape(-1), axis=0, mode="clip")
        if self.family.num_choices > 1:
            of_examples = of_examples.reshape(places.shape)
        return self.family.losses(of_examples, batch["labels"])


def predict_logits(
    function: Callable[[Any, dict[str, jax.Array]], jax.Array],
    params: Any,
    features: Features,
    *,
    mesh: Mesh,
    of_tokens: bool,
    batch_size: int | None = None,
    on_sequence: Callable[[int], None] = lambda count: None,
) -> list[np.ndarray]:
    """The logits of each sequence, f32 [outputs], or of tokens [its length, outputs].

    Args:
        function: FinetuningTask.logits; the same object each time, since what is compiled is kept with it.
        batch_size: see inference.map_examples.
        on_sequence: takes how many are done.
    """
    if not len(features.lengths):
        return []
    results = []
    for example, logits in inference.map_examples(
        function,
        params,
        _sequences(features),
        mesh=mesh,
        max_length=int(features.lengths.max()),
        batch_size=batch_size,
    ):
        results.append(np.array(logits[: len(example.input_ids)]) if of_tokens else logits)
        on_sequence(len(results))
    return results


def _sequences(features: Features) -> Iterator[inference.Example]:
    start = 0
    for length in features.lengths.tolist():
        place = slice(start, start + length)
        yield inference.Example(features.input_ids[place], features.segment_ids[place])
        start += length
