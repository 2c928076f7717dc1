"""Products of activations with parameters, with gradients in the form that the devices are quick at.

Activations may be bfloat16; parameters, and with them their gradients, are f32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_vjp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel in the dtype of x: [..., in], f32 [in, out]."""
    return x @ kernel.astype(x.dtype)


def _product_forward(x, kernel):
    return product(x, kernel), (x, kernel)


def _product_backward(saved, gradient):
    x, kernel = saved
    kernel_gradient = jax.lax.platform_dependent(x, gradient, tpu=_sum_over_batch, default=_sum_over_rows)
    return gradient @ kernel.astype(x.dtype).T, kernel_gradient


product.defvjp(_product_forward, _product_backward)


# Gradients on TPU: the heads lie apart and are narrower than the matrix unit, so that in the gradient of a kernel they
# are rows of the result, not columns. Elsewhere they lie side by side, and XLA on CPU copies no kernel to split it.


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def to_heads(x: jax.Array, kernel: jax.Array, num_heads: int) -> jax.Array:
    """product(x, kernel) as [batch, length, heads, out / heads]."""
    return jnp.einsum("bli,inh->blnh", x, _split_columns(kernel.astype(x.dtype), num_heads))


def _to_heads_forward(x, kernel, num_heads):
    return to_heads(x, kernel, num_heads), (x, kernel)


def _to_heads_backward(num_heads, saved, gradient):
    x, kernel = saved

    def apart(x, kernel, gradient):
        x_gradient = jnp.einsum("blnh,inh->bli", gradient, _split_columns(kernel, num_heads))
        return x_gradient, _einsum("blnh,bli->nhi", gradient, x).reshape(-1, x.shape[-1]).T

    def joined(x, kernel, gradient):
        gradient = _joined(gradient)
        return gradient @ kernel.T, _sum_over_rows(x, gradient)

    return jax.lax.platform_dependent(x, kernel.astype(x.dtype), gradient, tpu=apart, default=joined)


to_heads.defvjp(_to_heads_forward, _to_heads_backward)


@jax.custom_vjp
def from_heads(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """product([batch, length, heads x head_dim], kernel) of x [batch, length, heads, head_dim]."""
    return jnp.einsum("blnh,nho->blo", x, kernel.astype(x.dtype).reshape(*x.shape[2:], -1))


def _from_heads_forward(x, kernel):
    return from_heads(x, kernel), (x, kernel)


def _from_heads_backward(saved, gradient):
    x, kernel = saved

    def apart(x, kernel, gradient):
        x_gradient = jnp.einsum("blo,nho->blnh", gradient, kernel.reshape(*x.shape[2:], -1))
        return x_gradient, _einsum("blnh,blo->nho", x, gradient).reshape(-1, gradient.shape[-1])

    def joined(x, kernel, gradient):
        return (gradient @ kernel.T).reshape(x.shape), _sum_over_rows(_joined(x), gradient)

    return jax.lax.platform_dependent(x, kernel.astype(x.dtype), gradient, tpu=apart, default=joined)


from_heads.defvjp(_from_heads_forward, _from_heads_backward)


def _split_columns(kernel: jax.Array, num_heads: int) -> jax.Array:
    return kernel.reshape(len(kernel), num_heads, -1)


def _joined(x: jax.Array) -> jax.Array:
    """[batch, length, heads, head_dim] as [batch, length, heads x head_dim]."""
    return x.reshape(*x.shape[:2], -1)


def _einsum(names: str, *arrays: jax.Array) -> jax.Array:
    return jnp.einsum(names, *arrays, preferred_element_type=_wide(arrays[0]))


def _wide(x: jax.Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _sum_over_rows(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """The gradient of a kernel, f32 [in, out], as a sum over one axis.

    Over all axes of a batch XLA on CPU transposes an operand and takes twice the time.
    """
    return _einsum("ri,ro->io", x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1]))


def _sum_over_batch(x: jax.Array, gradient: jax.Array) -> jax.Array:
    """The same as a sum over all axes of a batch, of which each may be cut between devices."""
    axes = tuple(range(x.ndim - 1))
    return jax.lax.dot_general(x, gradient, ((axes, axes), ((), ())), preferred_element_type=_wide(x))


@jax.custom_vjp
def logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """x @ table^T + bias in f32, from operands in the dtype of x: [rows, hidden], f32 [vocabulary, hidden]."""
    return _einsum("rh,vh->rv", x, table.astype(x.dtype)) + bias


def _logits_forward(x, table, bias):
    return logits(x, table, bias), (x, table)


def _logits_backward(saved, gradient):
    x, table = saved
    narrow = gradient.astype(x.dtype)
    x_gradient = jnp.einsum("rv,vh->rh", narrow, table.astype(x.dtype))
    return x_gradient, _einsum("rv,rh->vh", narrow, x), jnp.sum(gradient, axis=0)


logits.defvjp(_logits_forward, _logits_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(table: jax.Array, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The rows `ids` of a table, f32 [rows, hidden], in `dtype`."""
    if _is_quicker_by_product(table, dtype):
        return _one_hot(ids, table, dtype) @ table.astype(dtype)
    return jnp.take(table.astype(dtype), ids, axis=0, mode="clip")


def _lookup_forward(table, ids, dtype):
    return lookup(table, ids, dtype), (table, ids)


def _lookup_backward(dtype, saved, gradient):
    table, ids = saved
    if _is_quicker_by_product(table, dtype):
        summed = _sum_over_batch(_one_hot(ids, table, dtype), gradient)
    else:
        summed = jnp.zeros_like(table).at[ids].add(gradient.astype(table.dtype), mode="clip")
    return summed, np.zeros(ids.shape, jax.dtypes.float0)


lookup.defvjp(_lookup_forward, _lookup_backward)


def _is_quicker_by_product(table: jax.Array, dtype: jnp.dtype) -> bool:
    """Whether a lookup is a product with rows of zeros and a one: exact, and without the scatter of the gradient, which
    adds the rows up one after the other."""
    return dtype == jnp.bfloat16 and len(table) <= 16


def _one_hot(ids: jax.Array, table: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return jax.nn.one_hot(jnp.clip(ids, 0, len(table) - 1), len(table), dtype=dtype)


def at_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """The hidden states [batch, predictions, hidden] of [batch, length, hidden] at positions [batch, predictions]."""
    if hidden.dtype != jnp.bfloat16:
        return jnp.take_along_axis(hidden, positions[:, :, None], axis=1, mode="clip")
    # A product with rows of zeros and a one is exact, and quicker than a gather and the scatter of its gradient.
    return jnp.einsum("bpl,blh->bph", jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype), hidden)
