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

# (parameters, rows of a batch) -> gradients and metrics, both sums over the rows.
Gradient = Callable[[Any, Any], tuple[Any, dict[str, jax.Array]]]


def accumulated(gradient: Gradient, params: Any, batch: Any, steps: int) -> tuple[Any, dict[str, jax.Array]]:
    """Sums gradients and metrics over `steps` parts of a batch, one after the other."""
    if steps == 1:
        return gradient(params, batch)

    parts = jax.tree.map(lambda x: partitioning.split_rows(x, steps), batch)
    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total, part):
        rows, number = part
        with partitioning.part_of_batch(number, steps):
            found = gradient(params, rows)
        return jax.tree.map(jnp.add, total, found), None

    total, _ = jax.lax.scan(add, zeros, (parts, jnp.arange(steps)))
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
