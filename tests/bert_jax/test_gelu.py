"""Both forms of GELU, and their slopes, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from bert_jax.gelu import gelu, gelu_tanh


def erf_form(x):
    return x * special.ndtr(x), special.ndtr(x) + x * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


def tanh_form(x):
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    tanh, of_inner = np.tanh(inner), np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * of_inner


# With the error of the slope: that of tanh in f32, 1e-7, counts for up to twenty times as much in it.
FORMS = {"gelu": (gelu, erf_form, 1e-6), "gelu_tanh": (gelu_tanh, tanh_form, 5e-6)}
POINTS = np.concatenate([np.linspace(-8, 8, 1601), [0.0, 1e-20, -1e-20, 50.0, -50.0, 1e4, -1e4, 1e9, -1e9]])


def value_and_slope(function, x):
    value, transposed = jax.vjp(function, x)
    return value, transposed(jnp.ones_like(value))[0]


@pytest.mark.parametrize("name", FORMS)
def test_f32(name):
    function, formula, error = FORMS[name]
    x = jnp.asarray(POINTS, jnp.float32)
    value, slope = value_and_slope(function, x)
    expected_value, expected_slope = formula(np.asarray(x, np.float64))
    assert value.dtype == slope.dtype == jnp.float32
    np.testing.assert_allclose(value, expected_value, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-6, atol=error)


@pytest.mark.parametrize("name", FORMS)
def test_bf16_is_the_exact_value_rounded(name):
    function, formula, error = FORMS[name]
    x = jnp.asarray(POINTS, jnp.bfloat16)
    value, slope = value_and_slope(function, x)
    expected_value, expected_slope = formula(np.asarray(x, np.float64))
    assert value.dtype == slope.dtype == jnp.bfloat16
    half_a_step = 2**-8 * 1.01
    np.testing.assert_allclose(np.asarray(value, np.float64), expected_value, rtol=half_a_step, atol=1e-6)
    np.testing.assert_allclose(np.asarray(slope, np.float64), expected_slope, rtol=half_a_step, atol=error)


@pytest.mark.parametrize("name", FORMS)
def test_the_gradient_is_that_of_what_follows_times_the_slope(name):
    function, formula, _ = FORMS[name]
    x = jnp.array([-1.5, 0.25, 2.0])
    gradient = jax.grad(lambda x: jnp.sum(jnp.array([3.0, -1.0, 0.5]) * function(x)))(x)
    slopes = formula(np.asarray(x, np.float64))[1]
    np.testing.assert_allclose(gradient, slopes * [3.0, -1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [30.0, 1e10, 1e20, 1e38])
def test_far_out_it_is_the_ramp(name, size):
    value, slope = value_and_slope(FORMS[name][0], jnp.array([-size, size]))
    np.testing.assert_allclose(value, [0.0, size], rtol=1e-6)
    np.testing.assert_allclose(slope, [0.0, 1.0], atol=1e-6)
