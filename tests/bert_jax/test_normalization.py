"""Layer normalisation against the formula in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_formulas import assert_close, random_gradient, value_and_gradients

from bert_jax.normalization import layer_norm

EPSILON = 1e-12
ROWS, SIZE = 3, 64


def inputs(mean):
    """Input of deviation 1, scale and bias, f32."""
    keys = jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(keys[0], (ROWS, SIZE)) + mean
    return x, 1.0 + 0.3 * jax.random.normal(keys[1], (SIZE,)), 0.3 * jax.random.normal(keys[2], (SIZE,))


def ours(x, scale, bias):
    return layer_norm(x, scale, bias, EPSILON)


def formula(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * scale + bias


def exact(*arrays):
    """The value and gradients of the formula in float64, by steps into the complex plane, which lose no digits."""
    arrays = [np.asarray(array, np.float64) for array in arrays]
    gradient = np.asarray(random_gradient(arrays[0].shape), np.float64)
    found = [formula(*arrays)]
    for number, array in enumerate(arrays):
        found.append(np.zeros(array.shape))
        for index in np.ndindex(array.shape):
            moved = [array.astype(complex) for array in arrays]
            moved[number][index] += 1e-30j
            found[-1][index] = np.sum(formula(*moved).imag * gradient) / 1e-30
    return found


@pytest.mark.parametrize("mean", [0.0, 100.0, 1000.0])
def test_f32_keeps_its_digits_however_far_from_zero(mean):
    found = value_and_gradients(ours, *inputs(mean))
    assert {array.dtype for array in found} == {jnp.dtype(jnp.float32)}
    # The mean is as exact as f32 holds it.
    assert_close(found, exact(*inputs(mean)), 1e-5 + mean * 2e-7)


@pytest.mark.parametrize("mean", [0.0, 10.0, 100.0])
def test_bf16_loses_less_than_its_input_has_lost(mean):
    x, scale, bias = inputs(mean)
    rounded = x.astype(jnp.bfloat16)
    found = value_and_gradients(ours, rounded, scale, bias)
    assert [array.dtype for array in found] == [jnp.bfloat16, jnp.bfloat16, jnp.float32, jnp.float32]
    best, before = exact(rounded, scale, bias), exact(x, scale, bias)
    for ours_, best_, before_ in zip(found, best, before):
        lost_before = np.abs(best_ - before_).max()
        lost_here = np.abs(np.asarray(ours_, np.float64) - best_).max()
        result = 2**-8 * np.abs(best_).max()  # of which half is the rounding of the result itself
        assert lost_here < max(lost_before, result)
    # What the shorter form of the variance loses is little beside that rounding too.
    assert_close(found, best, 2**-8 if mean < 100 else 2**-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("level", [0.0, 1.0, 3.140625, 1000.0, -65536.0])
def test_constant_rows_are_finite(dtype, level):
    _, scale, bias = inputs(0.0)
    found = value_and_gradients(ours, jnp.full((ROWS, SIZE), level, dtype), scale, bias)
    assert all(np.isfinite(np.asarray(array, np.float32)).all() for array in found)
    if level in (0.0, 1.0):  # whose mean has no error
        np.testing.assert_array_equal(found[0], jnp.broadcast_to(bias, (ROWS, SIZE)).astype(dtype))


def test_constant_rows_of_bf16_give_the_bias_though_their_mean_is_rounded():
    levels = jax.random.uniform(jax.random.key(0), (500, 1), minval=-300.0, maxval=300.0)
    x = jnp.broadcast_to(levels, (500, 1000)).astype(jnp.bfloat16)
    found = layer_norm(x, jnp.ones(1000), jnp.zeros(1000), EPSILON)
    np.testing.assert_allclose(np.asarray(found, np.float32), 0.0, atol=0.01)
