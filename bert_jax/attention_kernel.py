"""Attention in one kernel a pass for TPU: scores, softmax and dropout never leave the chip's own memory.

It computes what attention.dot_product_attention does, with the same dropout, for masks of keys. Arrays are
[batch, heads, head_dim, length]: so the length fills the lanes and nothing is padded. Scores are [keys, queries], whose
sums over keys are sums of rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.dropout import keep_threshold, mix, row_keys

MASKED_SCORE = -10000.0  # as in attention.py
LONGEST = 1024  # a block of scores is in memory a few times over, in f32, and v4 has 16 MiB for all

_NT = (((1,), (1,)), ((), ()))  # a @ b^T
_TN = (((0,), (0,)), ((), ()))  # a^T @ b
_NN = (((1,), (0,)), ((), ()))

# What an element of the scores costs in operations of the vector unit (hash, exponential, masks, sums), and how many
# of these a chip does in the time of a matrix product's operation: for the estimates that a plan is made of.
_VECTOR_WORK = {"forward": 40, "backward": 50}
_FLOPS_PER_VECTOR_OPERATION = 32


def fits(length: int, head_dim: int) -> bool:
    """Whether the kernel takes sequences of this length."""
    return length % 128 == 0 and length <= LONGEST and head_dim % 8 == 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def attend(query, key, value, input_mask, dropout_key, rate: float, interpret: bool = False):
    """Softmax of the scaled scores, in f32, applied to the values.

    Args:
        query, key, value: [batch, heads, head_dim, length].
        input_mask: bool [batch, length], of the keys.
        dropout_key: uint32 [2], or None for no dropout.
        rate: of dropout.
        interpret: run without a TPU, slowly.

    Returns:
        An array like `query`.
    """
    return _forward(query, key, value, input_mask, dropout_key, rate, interpret)[0]


def _scores(query, key, mask):
    scores = jax.lax.dot_general(key, query, _TN, preferred_element_type=jnp.float32)
    return jnp.where(mask, scores * (query.shape[0] ** -0.5), MASKED_SCORE)


def _blocks(length: int) -> list[slice]:
    """Queries whose scores are in memory together."""
    size = 256 if length % 256 == 0 else 128
    return [slice(start, start + size) for start in range(0, length, size)]


def _dropped(x, keys_ref, queries: slice, rate: float):
    """Dropout of x [keys, queries] of a head, by the bits of dropout.random_bits for [batch, head, query, key]."""
    if not rate:
        return x
    batch, head, length = pl.program_id(0), pl.program_id(1), x.shape[0]
    query = jax.lax.broadcasted_iota(jnp.uint32, x.shape, 1) + jnp.uint32(queries.start)
    key = jax.lax.broadcasted_iota(jnp.uint32, x.shape, 0)
    index = (head.astype(jnp.uint32) * jnp.uint32(length) + query) * jnp.uint32(length) + key
    keep = mix(mix(index + keys_ref[batch, 0]) ^ keys_ref[batch, 1]) < keep_threshold(rate)
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), 0.0)


def _forward_kernel(keys_ref, query_ref, key_ref, value_ref, mask_ref, output_ref, peak_ref, total_ref, *, rate):
    key, value, mask = key_ref[0, 0], value_ref[0, 0], mask_ref[0] > 0
    for queries in _blocks(query_ref.shape[-1]):
        scores = _scores(query_ref[0, 0, :, queries], key, mask)
        peak = jnp.max(scores, axis=0, keepdims=True)
        exponentials = jnp.exp(scores - peak)
        total = jnp.sum(exponentials, axis=0, keepdims=True)
        weights = _dropped(exponentials, keys_ref, queries, rate).astype(value.dtype)
        products = jax.lax.dot_general(value, weights, _NN, preferred_element_type=jnp.float32)
        output_ref[0, 0, :, queries] = (products / total).astype(output_ref.dtype)
        peak_ref[0, 0, :, queries], total_ref[0, 0, :, queries] = peak, total


def _backward_kernel(
    keys_ref, query_ref, key_ref, value_ref, mask_ref, output_ref, peak_ref, total_ref, gradient_ref,
    query_gradient_ref, key_gradient_ref, value_gradient_ref, *, rate,
):  # fmt: skip
    key, value, mask = key_ref[0, 0], value_ref[0, 0], mask_ref[0] > 0
    of_keys = of_values = 0.0
    for queries in _blocks(query_ref.shape[-1]):
        query, gradient = query_ref[0, 0, :, queries], gradient_ref[0, 0, :, queries]
        weights = jnp.exp(_scores(query, key, mask) - peak_ref[0, 0, :, queries]) / total_ref[0, 0, :, queries]
        dropped = _dropped(weights, keys_ref, queries, rate).astype(value.dtype)
        of_values += jax.lax.dot_general(gradient, dropped, _NT, preferred_element_type=jnp.float32)
        of_weights = jax.lax.dot_general(value, gradient, _TN, preferred_element_type=jnp.float32)
        # Of a softmax p with gradient g the scores get p (g - sum(g p)); that sum is also that of gradient x output.
        shift = jnp.sum(gradient.astype(jnp.float32) * output_ref[0, 0, :, queries], axis=0, keepdims=True)
        of_scores = weights * (_dropped(of_weights, keys_ref, queries, rate) - shift)
        of_scores = jnp.where(mask, of_scores * (query.shape[0] ** -0.5), 0.0).astype(query.dtype)
        of_queries = jax.lax.dot_general(key, of_scores, _NN, preferred_element_type=jnp.float32)
        query_gradient_ref[0, 0, :, queries] = of_queries.astype(query.dtype)
        of_keys += jax.lax.dot_general(query, of_scores, _NT, preferred_element_type=jnp.float32)
    key_gradient_ref[0, 0] = of_keys.astype(key.dtype)
    value_gradient_ref[0, 0] = of_values.astype(value.dtype)


def _call(kernel, like, inputs, outputs, keys, rate, products, work, interpret):
    """Runs a kernel for each head of each sequence.

    Args:
        inputs, outputs: lists of arrays or their shapes, [batch, heads, ...] or masks [batch, length, 1].
        keys: uint32 [batch, 2], in scalar memory.
    """
    batch, heads, head_dim, length = like.shape

    def block(x):
        if x.ndim == 3:
            return pl.BlockSpec((1, *x.shape[1:]), lambda b, n, keys: (b, 0, 0))
        return pl.BlockSpec((1, 1, *x.shape[2:]), lambda b, n, keys: (b, n, 0, 0))

    elements = batch * heads * length * length
    moved = sum(x.size * x.dtype.itemsize for x in (*inputs, *outputs))
    # Half of the matrix unit has nothing to do where a head is half as wide.
    flops = max(
        2 * products * elements * max(head_dim, 128), elements * _VECTOR_WORK[work] * _FLOPS_PER_VECTOR_OPERATION
    )
    return pl.pallas_call(
        functools.partial(kernel, rate=rate),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, heads),
            in_specs=[block(x) for x in inputs],
            out_specs=[block(x) for x in outputs],
        ),
        out_shape=outputs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(flops=flops, bytes_accessed=moved, transcendentals=elements),
        interpret=interpret,
        name=f"attention_{work}",
    )(keys, *inputs)


def _forward(query, key, value, input_mask, dropout_key, rate, interpret):
    batch, heads, _, length = query.shape
    mask = input_mask.astype(jnp.float32)[:, :, None]
    keys = jnp.zeros((batch, 2), jnp.uint32) if dropout_key is None else row_keys(dropout_key, batch)
    sums = jax.ShapeDtypeStruct((batch, heads, 1, length), jnp.float32)
    outputs = [jax.ShapeDtypeStruct(query.shape, query.dtype), sums, sums]
    rate = 0.0 if dropout_key is None else rate
    inputs = [query, key, value, mask]
    output, peak, total = _call(_forward_kernel, query, inputs, outputs, keys, rate, 2, "forward", interpret)
    return output, (*inputs, keys, dropout_key, output, peak, total)


def _backward(rate, interpret, saved, gradient):
    query, key, value, mask, keys, dropout_key, output, peak, total = saved
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)]
    inputs = [query, key, value, mask, output, peak, total, gradient]
    rate = 0.0 if dropout_key is None else rate
    gradients = _call(_backward_kernel, query, inputs, outputs, keys, rate, 5, "backward", interpret)
    nothing = None if dropout_key is None else np.zeros(dropout_key.shape, jax.dtypes.float0)
    return *gradients, np.zeros(mask.shape[:2], jax.dtypes.float0), nothing


attend.defvjp(_forward, _backward)
