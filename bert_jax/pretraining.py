"""The two pretraining losses, and what a held-out set says of them (section 3.1 of the paper)."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.modeling import BertForPreTraining

# The reference divides by the number of masked positions plus this, so a batch without any has loss 0 and not NaN.
EPSILON = 1e-5


def batch_shapes(batch_size: int, length: int, predictions: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of one batch, by name."""
    shapes = {
        "input_ids": (length,),
        "input_mask": (length,),
        "segment_ids": (length,),
        "masked_lm_positions": (predictions,),
        "masked_lm_ids": (predictions,),
        "masked_lm_weights": (predictions,),
        "next_sentence_labels": (),
        "example_weights": (),
    }
    return {
        name: jax.ShapeDtypeStruct((batch_size, *shape), jnp.float32 if name.endswith("weights") else jnp.int32)
        for name, shape in shapes.items()
    }


def score(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scores predictions.

    Args:
        logits: f32 [..., classes].
        labels: int32 [...], each in [0, classes).

    Returns:
        Cross-entropy (nats), f32 [...], and whether no other class scores as high as the label, bool [...].
    """
    rows = logits.reshape(-1, logits.shape[-1])  # the head makes rows too: no copy between
    chosen = jnp.take_along_axis(rows, labels.reshape(-1, 1), axis=-1)
    # Counting is vectorised on CPU, argmax is not and would take a tenth of the step of a small model.
    right = jnp.sum(jnp.where(rows >= chosen, 1.0, 0.0), axis=-1) == 1
    losses = log_sum_exp(rows) - chosen[:, 0]
    return losses.reshape(labels.shape), right.reshape(labels.shape)


@jax.custom_vjp
def log_sum_exp(rows: jax.Array) -> jax.Array:
    """log(sum(exp(rows))) over the classes: f32 [rows, classes] -> f32 [rows]."""
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and not mesh.manual_axes and mesh.shape["tensor"] > 1:
        return jax.nn.logsumexp(rows, axis=-1)  # devices cannot join their parts of a row by a sum of our own
    return jax.lax.platform_dependent(
        rows, tpu=_log_sum_exp_in_one_pass, default=functools.partial(jax.nn.logsumexp, axis=-1)
    )


def _log_sum_exp_forward(rows):
    result = log_sum_exp(rows)
    return result, (rows, result)


def _log_sum_exp_backward(saved, gradient):
    rows, result = saved
    return (jnp.exp(rows - result[:, None]) * gradient[:, None],)


log_sum_exp.defvjp(_log_sum_exp_forward, _log_sum_exp_backward)


def _log_sum_exp_in_one_pass(rows: jax.Array) -> jax.Array:
    """log_sum_exp for the compiler for TPUs, which makes it while it writes the product that `rows` is.

    The usual way needs their maximum first, and so reads them all again. Here the plain sum of exponentials serves as
    long as it is far from overflow; it is as exact. Whether it is, and what holds otherwise, says a sum of logarithms,
    to which no number is too large, but which rounds at each step.
    """
    rough = jax.lax.reduce(rows, jnp.finfo(rows.dtype).min, _log_add_exp, (1,))
    plain = jnp.log(jnp.sum(jnp.exp(rows), axis=-1))
    return jnp.where(jnp.abs(rough) < 60.0, plain, rough)


def _log_add_exp(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.maximum(a, b) + jnp.log(1.0 + jnp.exp(-jnp.abs(a - b)))


@dataclasses.dataclass(frozen=True)
class PretrainingTask:
    """Masked LM, and next-sentence prediction unless switched off.

    With `unigram` (see unigram_losses) evaluation also reports the loss of predicting by frequency.
    """

    module: BertForPreTraining
    next_sentence_prediction: bool = True
    unigram: np.ndarray | None = None
    loss_is_by_row = True

    def _sums(self, params, batch, dropout_key=None) -> dict[str, jax.Array]:
        """Sums over a batch: losses (nats) and right predictions; an example of weight 0 adds exactly 0."""
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        output = self.module.apply(
            {"params": params},
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            batch["masked_lm_positions"],
            rngs=rngs,
        )
        weights = batch["masked_lm_weights"] * batch["example_weights"][:, None]
        losses, right = score(output.masked_lm_logits, batch["masked_lm_ids"])
        sums = {"masked_lm_loss": jnp.sum(losses * weights), "masked_lm_accuracy": jnp.sum(right * weights)}
        if self.next_sentence_prediction:
            labels, weights = batch["next_sentence_labels"], batch["example_weights"]
            losses, right = score(output.next_sentence_logits, labels)
            sums["next_sentence_loss"] = jnp.sum(losses * weights)
            sums["next_sentence_accuracy"] = jnp.sum(right * weights)
        return sums

    def normalizers(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """What the sums are divided by, over the whole global batch."""
        examples = jnp.sum(batch["example_weights"])
        return {
            "masked_lm": jnp.sum(batch["masked_lm_weights"] * batch["example_weights"][:, None]) + EPSILON,
            "next_sentence": jnp.maximum(examples, 1.0),
        }

    def loss(self, params, batch, normalizers, dropout_key) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The part that these rows add to the loss of the global batch, and to every metric of it.

        Because the normalizers are those of the whole batch, parts of one batch (devices, accumulation steps) simply
        add up, however the masked positions are spread over them.
        """
        sums = self._sums(params, batch, dropout_key)
        metrics = {name: value / normalizers[name.rsplit("_", 1)[0]] for name, value in sums.items()}
        loss = sum(value for name, value in metrics.items() if name.endswith("_loss"))
        return loss, {"loss": loss, **metrics}

    def eval_sums(self, params, batch) -> dict[str, jax.Array]:
        """Sums without dropout, with the counts that they are to be divided by."""
        sums = self._sums(params, batch)
        weights = batch["masked_lm_weights"] * batch["example_weights"][:, None]
        sums["masked_positions"] = jnp.sum(weights)
        if self.unigram is not None:
            sums["unigram_loss"] = jnp.sum(jnp.asarray(self.unigram)[batch["masked_lm_ids"]] * weights)
        sums["examples"] = jnp.sum(batch["example_weights"])
        return sums

    def eval_results(self, sums: dict[str, float]) -> dict[str, float | int]:
        """Turns the sums over a whole evaluation set into its metrics."""
        positions, examples = max(sums["masked_positions"], 1.0), max(sums["examples"], 1.0)
        results = {
            "masked_lm_loss": sums["masked_lm_loss"] / positions,
            "masked_lm_accuracy": sums["masked_lm_accuracy"] / positions,
            "perplexity": math.exp(min(sums["masked_lm_loss"] / positions, 700.0)),
        }
        if self.unigram is not None:
            results["unigram_loss"] = sums["unigram_loss"] / positions
        if self.next_sentence_prediction:
            results["next_sentence_loss"] = sums["next_sentence_loss"] / examples
            results["next_sentence_accuracy"] = sums["next_sentence_accuracy"] / examples
        return results | {"masked_positions": round(sums["masked_positions"]), "examples": round(sums["examples"])}


def unigram_losses(counts: np.ndarray) -> np.ndarray:
    """Loss (nats, f32 [vocab_size]) of predicting each word by its frequency in the training text, add-one smoothed.

    This is the plateau that BERT first learns and has to leave.

    Args:
        counts: int64 [vocab_size].
    """
    shares = (counts + 1.0) / (counts + 1.0).sum()
    return -np.log(shares).astype(np.float32)
