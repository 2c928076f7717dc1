"""The two forms of GELU, which keep their slope for the backward pass instead of computing it again from the input."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

_ROOT = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _erf_form(x):
    # 1 + erf(x) and not erfc(-x): that is three times as slow on CPU, and differs only where the result is next to 0.
    cumulative = 0.5 * (1.0 + jax.lax.erf(x * 0.5**0.5))
    density = jnp.exp(-0.5 * jnp.square(x)) * (0.5 * _ROOT)
    return x * cumulative, cumulative + x * density


def _tanh_form(x):
    # (1 + tanh(u)) / 2 is the logistic function of 2u, of which the slope needs nothing else.
    square = jnp.minimum(jnp.square(x), 1e3)  # beyond it the function is a ramp, and its slope would be 0 x infinity
    half = jax.nn.sigmoid(2 * _ROOT * x * (1.0 + _CUBIC * square))
    return x * half, half + x * half * (1.0 - half) * (2 * _ROOT * (1.0 + 3 * _CUBIC * square))


def _with_slope(form: Callable) -> Callable[[jax.Array], jax.Array]:
    """The function of a form, computed in f32 at least."""

    def evaluate(x):
        value, slope = form(x.astype(jnp.promote_types(x.dtype, jnp.float32)))
        return value.astype(x.dtype), slope.astype(x.dtype)

    @jax.custom_vjp
    def function(x):
        return evaluate(x)[0]

    function.defvjp(evaluate, lambda slope, gradient: (gradient * slope,))
    return function


# x times the standard normal's cumulative distribution (Hendrycks and Gimpel, 2016), and its approximation by tanh.
gelu = _with_slope(_erf_form)
gelu_tanh = _with_slope(_tanh_form)
