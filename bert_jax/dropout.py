"""Dropout from a counter-based hash of the logical element.

`jax.random.bernoulli` costs more than the matrix products of a small layer and stores its mask for the backward pass.
Here an element's bits are a hash of (key, row, index within the row): they do not depend on how the array is split
over devices, fuse into the operation that consumes them, and are computed again in the backward pass.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.partitioning import row_numbers


def mix(bits: jax.Array) -> jax.Array:
    """A bijective 32-bit finaliser with good avalanche (constants of the "lowbias32" search by C. Wellons)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Hashes every element's logical index to 32 bits.

    Args:
        key: uint32 [2].
        shape: at least one axis; the first is the row, so that a row's bits do not depend on the number of rows.

    Returns:
        uint32 array of the given shape.
    """
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for axis in range(len(shape) - 1, 0, -1):
        axis_shape = tuple(shape[axis] if i == axis else 1 for i in range(len(shape)))
        index = index + jax.lax.broadcasted_iota(jnp.uint32, axis_shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    first, second = (x.reshape(-1, *(1,) * (len(shape) - 1)) for x in row_keys(key, shape[0]).T)
    return mix(mix(index + first) ^ second)


def row_keys(key: jax.Array, rows: int) -> jax.Array:
    """Two keys of each row, uint32 [rows, 2].

    Both went through the finaliser: the streams of two rows, or of two keys, are neither shifts nor permutations of
    each other.
    """
    first = mix(row_numbers(rows) * jnp.uint32(0x9E3779B9) + key[0])
    return jnp.stack([first, mix(first ^ key[1])], axis=-1)


def keep_threshold(rate: float) -> np.uint32:
    """Elements whose bits are below this are kept."""
    return np.uint32(min(round((1.0 - rate) * 2**32), 2**32 - 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    keep = random_bits(key, x.shape) < keep_threshold(rate)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))


def _forward(x, rate, key):
    return _dropout(x, rate, key), key


def _backward(rate, key, gradient):
    return _dropout(gradient, rate, key), np.zeros(key.shape, jax.dtypes.float0)


_dropout.defvjp(_forward, _backward)


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate).

    Args:
        x: [rows, ...] of any floating dtype.
        rate: in [0, 1).
        key: a typed JAX key, or its uint32 [2] data.

    Returns:
        An array like `x`.
    """
    if rate == 0.0:
        return x
    return _dropout(x, rate, key_data(key))


def key_data(key: jax.Array | None) -> jax.Array | None:
    """The uint32 [2] of a key, which may be a typed one or none."""
    if key is not None and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(key)
    return key
