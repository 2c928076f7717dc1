"""Attention against a plain NumPy version, and its behaviour at the edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from plain_formulas import assert_close, value_and_gradients

from bert_jax.attention import MASKED_SCORE, attend, attention_mask, dot_product_attention, mask_at
from bert_jax.dropout import dropout


def inputs(scale=1.0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (3, 6, 2, 4)).astype(dtype) * scale for key in keys]


def test_equals_the_formula():
    query, key, value = inputs()
    mask = np.array([[1, 1, 1, 1, 0, 0], [1] * 6, [1, 0, 1, 0, 1, 1]])
    got = dot_product_attention(query, key, value, attention_mask(jnp.asarray(mask), "bidirectional"))
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    scores = np.einsum("bqnd,bknd->bnqk", q, k) / 2.0
    weights = np.exp(scores) * mask[:, None, None, :]
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(got, np.einsum("bnqk,bknd->bqnd", weights, v), atol=1e-6)


def test_left_to_right_sees_nothing_ahead():
    query, key, value = inputs()
    mask = attention_mask(jnp.ones((3, 6), jnp.int32), "left_to_right")
    before = dot_product_attention(query, key, value, mask)
    after = dot_product_attention(query, key.at[:, 4:].set(9.0), value.at[:, 4:].set(9.0), mask)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_fully_masked_row_is_finite_and_touches_no_other(dtype):
    mask = jnp.asarray([[1] * 6, [0] * 6, [1] * 6])

    def total(q, k, v, rows=slice(None)):
        out = dot_product_attention(q, k, v, attention_mask(mask, "bidirectional"))
        return jnp.sum(out[rows].astype(jnp.float32))

    arguments = inputs(4.0, dtype)
    out = dot_product_attention(*arguments, attention_mask(mask, "bidirectional"))
    assert np.isfinite(np.asarray(out, np.float32)).all()
    np.testing.assert_allclose(
        np.asarray(out[1], np.float32), np.asarray(arguments[2][1], np.float32).mean(0)[None].repeat(6, 0), atol=0.05
    )
    gradients = jax.grad(total, argnums=(0, 1, 2))(*arguments)
    assert all(np.isfinite(np.asarray(g, np.float32)).all() for g in gradients)
    others = dot_product_attention(
        *(x[jnp.array([0, 2])] for x in arguments), attention_mask(mask[jnp.array([0, 2])], "bidirectional")
    )
    np.testing.assert_array_equal(out[jnp.array([0, 2])], others)


def softmax_of_scores(query, key, value, mask, rate=0.0, dropout_key=None):
    """The plain formula, for automatic differentiation."""
    scores = jnp.einsum("bqnd,bknd->bnqk", query, key) / jnp.sqrt(query.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED_SCORE))
    weights = weights if dropout_key is None else dropout(weights, rate, dropout_key)
    return jnp.einsum("bnqk,bknd->bqnd", weights, value)


MASKS = {
    "padding": attention_mask(jnp.array([[1, 1, 1, 1, 0, 0], [1] * 6, [1, 0, 1, 0, 1, 1]]), "bidirectional"),
    "nothing to attend to": attention_mask(jnp.array([[1] * 6, [0] * 6, [1, 0, 0, 0, 0, 0]]), "bidirectional"),
    "left to right": attention_mask(jnp.array([[0, 0, 1, 1, 1, 1], [1] * 6, [1] * 6]), "left_to_right"),
    "packed": attention_mask(jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 3, 4, 5, 6], [1] * 6]), "bidirectional", True),
}


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_are_those_of_the_formula(name, rate):
    dropout_key = jax.random.key(5) if rate else None

    def of(function):
        return value_and_gradients(lambda *arrays: function(*arrays, MASKS[name], rate, dropout_key), *inputs())

    assert_close(of(dot_product_attention), of(softmax_of_scores), 1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("name", MASKS)
def test_fewer_queries_than_keys(name, rate):
    dropout_key = jax.random.key(5) if rate else None
    places = jnp.array([[5, 0, 0], [3, 1, 2], [4, 4, 1]])
    mask = mask_at(MASKS[name], places)

    def of(function):
        def at_places(query, key, value):
            query = jnp.take_along_axis(query, places[:, :, None, None], axis=1)
            return function(query, key, value, mask, rate, dropout_key)

        return value_and_gradients(at_places, *inputs())

    assert_close(of(dot_product_attention), of(softmax_of_scores), 1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_bf16_stays_close_to_the_formula(rate):
    dropout_key = jax.random.key(5) if rate else None
    arrays = inputs(dtype=jnp.bfloat16)

    def of(function, *arrays):
        return value_and_gradients(lambda *arrays: function(*arrays, MASKS["padding"], rate, dropout_key), *arrays)

    found = of(dot_product_attention, *arrays)
    assert {x.dtype for x in found} == {jnp.dtype(jnp.bfloat16)}
    assert_close(found, of(softmax_of_scores, *(x.astype(jnp.float32) for x in arrays)), 2**-6)


def test_what_is_masked_gets_no_gradient():
    mask = attention_mask(jnp.array([[1, 1, 1, 1, 0, 0]] * 3), "bidirectional")
    _, _, of_key, of_value = value_and_gradients(lambda *arrays: dot_product_attention(*arrays, mask), *inputs())
    for gradient in (of_key, of_value):
        assert not np.asarray(gradient[:, 4:]).any()
        assert np.asarray(gradient[:, :4]).all()


PADDED = jnp.asarray([[1, 1, 1, 1, 0, 0], [1] * 6, [1, 2, 2, 3, 3, 3]])


@pytest.mark.parametrize("kind", ["padded", "packed", "left_to_right"])
def test_what_cudnn_is_asked_for_is_the_same(kind, monkeypatch):
    """With JAX's own implementation in place of cuDNN's, which only a GPU runs."""
    monkeypatch.setattr(
        jax.nn, "dot_product_attention", functools.partial(_in_place_of_cudnn, jax.nn.dot_product_attention)
    )
    mask = attention_mask(PADDED, "left_to_right" if kind == "left_to_right" else "bidirectional", kind == "packed")
    rows = (PADDED if kind == "packed" else jnp.minimum(PADDED, 1))[:, :, None, None] > 0  # a padded query has no use

    def function(kernel, *arrays):
        return jnp.where(rows, attend(*arrays, mask, 0.1, None, kernel), 0.0)

    ours, theirs = (
        value_and_gradients(functools.partial(function, kernel), *inputs(3.0)) for kernel in ("xla", "cudnn")
    )
    assert_close(theirs, ours, 1e-5)


def _in_place_of_cudnn(function, *arrays, implementation, **arguments):
    assert implementation == "cudnn"
    return function(*arrays, implementation="xla", **arguments)


def test_cudnn_gets_forward_and_backward_pass(monkeypatch):
    """What is lowered for a GPU calls its kernels; there is none here that could run them."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    mask = attention_mask(jnp.ones((4, 128), jnp.int32), "bidirectional")

    def loss(query, key, value):
        return attend(query, key, value, mask, 0.0, None, "cudnn").astype(jnp.float32).sum()

    array = jax.ShapeDtypeStruct((4, 128, 2, 64), jnp.bfloat16)
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    program = gradients.trace(array, array, array).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("@__cudnn$fmha") == 2 and "Backward" in program
