"""Layer normalisation with statistics in f32 and a backward pass that keeps nothing but its input."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Normalises the last axis to mean 0 and variance 1, then scales and shifts it.

    Of f32 input the variance is the mean of squared deviations: the shorter E[x^2] - E[x]^2 loses three digits where
    the mean is a hundred deviations. Of bfloat16 the shorter form is taken, which reads the input once: what it loses
    is always less than what rounding to bfloat16 has lost before.

    Args:
        x: [..., size] of f32 or bfloat16.
        scale, bias: f32 [size].

    Returns:
        An array like `x`.
    """
    return _forward(x, scale, bias, epsilon)[0]


def _forward(x, scale, bias, epsilon):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    if x.dtype == jnp.bfloat16:
        variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True) - jnp.square(mean)
        # Below this it is rounding: of a row without differences, which would be blown up to a large result.
        variance = jnp.maximum(variance, 2.0**-22 * jnp.square(mean))
    else:
        variance = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + epsilon)
    y = (wide - mean) * inverse * scale + bias
    return y.astype(x.dtype), (x, mean, inverse, scale)


def _backward(epsilon, saved, gradient):
    x, mean, inverse, scale = saved
    normal = (x.astype(jnp.float32) - mean) * inverse
    gradient = gradient.astype(jnp.float32)
    rows = tuple(range(x.ndim - 1))
    scale_gradient, bias_gradient = jnp.sum(gradient * normal, axis=rows), jnp.sum(gradient, axis=rows)
    gradient = gradient * scale
    along = jnp.mean(gradient * normal, axis=-1, keepdims=True)
    x_gradient = inverse * (gradient - jnp.mean(gradient, axis=-1, keepdims=True) - normal * along)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient


layer_norm.defvjp(_forward, _backward)
