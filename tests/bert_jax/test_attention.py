"""Attention against a plain NumPy version, and its behaviour at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.attention import attention_mask, dot_product_attention


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
