"""Gradients of a global batch: each part of the data axis takes those of its rows, and they are added up once.

Left to itself XLA adds up the shares of a gradient wherever one comes up: twice for the word embeddings, which are
looked up and are output weights too, and again for every part of an accumulated batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bert_jax import partitioning

# (parameters, rows of a batch, number of the part) -> gradients and metrics, both sums over the rows.
Gradient = Callable[[Any, Any, Any], tuple[Any, dict[str, jax.Array]]]


def accumulated(gradient: Gradient, params: Any, batch: Any, steps: int) -> tuple[Any, dict[str, jax.Array]]:
    """Sums gradients and metrics over `steps` parts of a batch, one after the other."""
    if steps == 1:
        return gradient(params, batch, 0)

    def split(x):
        # Every part takes rows from every device's share, so no row moves between devices.
        x = x.reshape(x.shape[0] // steps, steps, *x.shape[1:])
        return partitioning.constrain(jnp.swapaxes(x, 0, 1), None, "batch", *(None,) * (x.ndim - 2))

    parts = (jax.tree.map(split, batch), jnp.arange(steps))
    first = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(gradient, params, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total, part):
        return jax.tree.map(jnp.add, total, gradient(params, *part)), None

    total, _ = jax.lax.scan(add, zeros, parts)
    return total


def by_rows(
    gradients: Callable[..., tuple[Any, dict[str, jax.Array]]],
    params: Any,
    batch: Any,
    others: Any,
    shardings: Any,
    dtype: jnp.dtype = jnp.float32,
) -> tuple[Any, dict[str, jax.Array]]:
    """The gradients of a task whose loss is a sum over rows, added up over the data axis in one go.

    The mesh in force has no other axis: within this, the compiler of JAX 0.10 does not cut a table over two more.

    Args:
        gradients: (parameters, rows, others) -> gradients and metrics, both sums over the rows; called with the rows of
            one part of the data axis.
        others: arrays that all parts get.
        shardings: tree of NamedShardings; a gradient that lies on the data axis there is left cut.
        dtype: in which the parts are added up.
    """
    dims = jax.tree.map(partitioning.data_dimension, shardings)

    def local(params, batch, others):
        found, metrics = gradients(params, batch, others)
        return jax.tree.map(add_up, found, dims), jax.lax.psum(metrics, "data")

    def add_up(x, dim):
        if dim < 0:
            total = jax.lax.psum(x.astype(dtype), "data")
        else:
            total = jax.lax.psum_scatter(x.astype(dtype), "data", scatter_dimension=dim, tiled=True)
        return total.astype(x.dtype)

    cut = jax.tree.map(lambda dim: PartitionSpec(*(None,) * dim, "data") if dim >= 0 else PartitionSpec(), dims)
    mapped = jax.shard_map(
        local,
        in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec()),
        out_specs=(cut, PartitionSpec()),
        check_vma=False,  # else JAX adds up the gradients of what is the same everywhere, wherever one comes up
    )
    return mapped(params, batch, others)
