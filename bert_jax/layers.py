"""What the modules are made of: parameters with their logical axis names, and the products that they go into.

The last path component of a parameter says its role: kernel, embedding, bias or scale.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax import products
from bert_jax.config import BertConfig
from bert_jax.dropout import dropout
from bert_jax.normalization import layer_norm
from bert_jax.partitioning import whole


def weight_initializer(config: BertConfig, *axes: str | None):
    """Truncated normal of the configuration, with the logical names of the axes."""
    # Cut at two standard deviations and not rescaled, as tf.truncated_normal_initializer.
    normal = nn.initializers.truncated_normal(config.initializer_range)
    return nn.with_logical_partitioning(normal, axes)


class Dense(nn.Module):
    """x @ kernel + bias; the axes of the kernel [in_size, out_size] have logical names.

    Attributes:
        heads: with "in" the last two axes of x are heads and what each has; with "out" those of the result.
    """

    config: BertConfig
    in_size: int
    out_size: int
    in_axis: str | None
    out_axis: str | None
    dtype: jnp.dtype
    heads: str | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        initializer = weight_initializer(self.config, self.in_axis, self.out_axis)
        kernel = whole(self.param("kernel", initializer, (self.in_size, self.out_size)), self.in_axis, self.out_axis)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, (self.out_axis,))
        bias = self.param("bias", zeros, (self.out_size,)).astype(self.dtype)
        x = x.astype(self.dtype)
        if self.heads == "out":
            y, bias = (
                products.to_heads(x, kernel, self.config.num_attention_heads),
                bias.reshape(-1, self.config.head_dim),
            )
        else:
            y = (products.from_heads if self.heads == "in" else products.product)(x, kernel)
        return checkpoint_name(y, "product") + bias


class Embedding(nn.Module):
    """A table [rows, hidden]; rows past `used_rows` only pad it and are zero."""

    config: BertConfig
    dtype: jnp.dtype
    rows: int
    used_rows: int
    row_axis: str | None = None

    def setup(self):
        normal = nn.initializers.truncated_normal(self.config.initializer_range)

        def init(key, shape):
            table = normal(key, (self.used_rows, shape[1]))
            return jnp.pad(table, ((0, shape[0] - self.used_rows), (0, 0)))

        init = nn.with_logical_partitioning(init, (self.row_axis, "embed"))
        self.embedding = self.param("embedding", init, (self.rows, self.config.hidden_size))

    def __call__(self, ids: jax.Array) -> jax.Array:
        return products.lookup(self.whole(), ids, self.dtype)

    def first(self, count: int) -> jax.Array:
        """The first rows of the table."""
        return jax.lax.slice_in_dim(self.whole(), 0, count).astype(self.dtype)

    def whole(self) -> jax.Array:
        """The table, see partitioning.whole."""
        return whole(self.embedding, self.row_axis, "embed")


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, in the dtype of its input; see layer_norm."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = (x.shape[-1],)
        scale = self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), size)
        bias = self.param("bias", nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)), size)
        return layer_norm(x, scale, bias, self.config.layer_norm_eps)


class Dropout(nn.Module):
    """Zeroes elements at `rate` when a "dropout" key is at hand."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.rate == 0.0 or not self.has_rng("dropout"):
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))
