"""The losses at their edges, and the unigram model they are compared with."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bert_jax import modeling, pretraining
from bert_jax.config import BertConfig

CONFIG = BertConfig.named(
    "tiny", vocab_size=50, hidden_size=16, num_attention_heads=2, intermediate_size=32, max_position_embeddings=8
)
MODULE = modeling.BertForPreTraining(CONFIG)
TASK = pretraining.PretrainingTask(MODULE)


@pytest.fixture(scope="module")
def params():
    return nn.unbox(modeling.initialize(MODULE, jax.random.key(0)))


def batch(rows=4, masked=(2, 1, 2, 0)):
    rng = np.random.default_rng(0)
    return {
        "input_ids": rng.integers(5, 50, (rows, 8)).astype(np.int32),
        "input_mask": np.ones((rows, 8), np.int32),
        "segment_ids": np.zeros((rows, 8), np.int32),
        "masked_lm_positions": np.tile(np.array([1, 4], np.int32), (rows, 1)),
        "masked_lm_ids": rng.integers(5, 50, (rows, 2)).astype(np.int32),
        "masked_lm_weights": np.array([[m > 0, m > 1] for m in masked], np.float32),
        "next_sentence_labels": np.array([0, 1, 1, 0], np.int32)[:rows],
        "example_weights": np.ones(rows, np.float32),
    }


def loss(params, rows, normalizers=None):
    normalizers = TASK.normalizers(rows) if normalizers is None else normalizers
    return TASK.loss(params, rows, normalizers, jax.random.key(0))


def test_shapes_are_those_of_the_batch():
    for name, shape in pretraining.batch_shapes(4, 8, 2).items():
        assert (shape.shape, shape.dtype) == (batch()[name].shape, batch()[name].dtype)


def test_losses_and_right_predictions_are_those_of_log_softmax_and_argmax():
    logits = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    labels = np.array([[0, 3, 6], *logits[1:].argmax(-1)], np.int32)
    losses, right = pretraining.score(jnp.asarray(logits), jnp.asarray(labels))
    expected = -np.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_array_equal(right, logits.argmax(-1) == labels)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_equal_or_undefined_logits_predict_nothing(value):
    losses, right = pretraining.score(jnp.full((2, 4), value), jnp.array([0, 3]))
    np.testing.assert_allclose(losses, np.log(4.0) + value, rtol=1e-6)
    assert not right.any()


ROWS = np.random.default_rng(1).normal(size=(6, 3000)).astype(np.float32)
ROWS[1] += 59.0  # near where the plain sum is given up, on both sides
ROWS[2] -= 69.0
ROWS[3] += 1e4  # beyond what has an exponential
ROWS[4] -= 1e4
ROWS[5, 7], ROWS[5, 8:] = 300.0, -1e9  # a sure word, and padding of the vocabulary


@pytest.mark.parametrize("rows", [ROWS, 30 * ROWS, np.zeros((2, 4), np.float32), np.full((2, 4), -1e9, np.float32)])
@pytest.mark.parametrize("function", [pretraining.log_sum_exp, pretraining._log_sum_exp_in_one_pass])
def test_log_sum_exp_is_exact_for_numbers_of_any_size(function, rows):
    exact = scipy.special.logsumexp(rows.astype(np.float64), axis=-1)
    np.testing.assert_allclose(jax.jit(function)(rows), exact, rtol=2e-6)


def test_the_gradient_of_log_sum_exp_is_softmax():
    weights = np.arange(1.0, 7.0, dtype=np.float32)
    found = jax.grad(lambda rows: jnp.sum(pretraining.log_sum_exp(rows) * weights))(ROWS)
    expected = weights[:, None] * scipy.special.softmax(ROWS.astype(np.float64), axis=-1)
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-4, atol=1e-9)  # digits of the logits themselves
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-9)


def test_nothing_masked_is_loss_zero_and_finite_gradients(params):
    rows = batch(masked=(0, 0, 0, 0))
    (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(params, rows)
    assert float(metrics["masked_lm_loss"]) == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_parts_of_a_batch_add_up_however_the_masks_are_spread(params):
    rows = batch()
    normalizers = TASK.normalizers(rows)
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    still = pretraining.PretrainingTask(modeling.BertForPreTraining(config))
    _, whole = still.loss(params, rows, normalizers, jax.random.key(0))
    parts = [
        still.loss(params, {k: v[i : i + 2] for k, v in rows.items()}, normalizers, jax.random.key(0))[1]
        for i in (0, 2)
    ]
    for name in whole:
        np.testing.assert_allclose(parts[0][name] + parts[1][name], whole[name], rtol=1e-6)


def test_gradients_are_float32_also_where_the_computation_is_not(params):
    """Parts of a batch are summed as they are."""
    task = pretraining.PretrainingTask(modeling.BertForPreTraining(CONFIG, jnp.bfloat16))
    gradient = jax.grad(lambda p, b: task.loss(p, b, task.normalizers(b), jax.random.key(0)), has_aux=True)
    gradients, metrics = jax.eval_shape(gradient, params, batch())
    assert {leaf.dtype for leaf in jax.tree.leaves((gradients, metrics))} == {np.dtype(np.float32)}


def test_a_padding_example_adds_nothing(params):
    rows = batch()
    padded = {name: np.concatenate([value, np.zeros_like(value[:2])]) for name, value in rows.items()}
    a, b = TASK.eval_sums(params, rows), TASK.eval_sums(params, padded)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-6)
    assert TASK.eval_results({k: float(v) for k, v in b.items()})["examples"] == 4


def test_next_sentence_prediction_can_be_switched_off(params):
    task = pretraining.PretrainingTask(MODULE, next_sentence_prediction=False)
    value, metrics = task.loss(params, batch(), task.normalizers(batch()), jax.random.key(0))
    assert float(value) == float(metrics["masked_lm_loss"])
    assert not [name for name in metrics if name.startswith("next_sentence")]
    results = task.eval_results({name: float(x) for name, x in task.eval_sums(params, batch()).items()})
    assert not [name for name in results if name.startswith("next_sentence")]


def test_unigram_loss_is_that_of_the_frequencies():
    losses = pretraining.unigram_losses(np.array([3, 0, 1]))
    np.testing.assert_allclose(losses, -np.log(np.array([4, 1, 2]) / 7), rtol=1e-6)
