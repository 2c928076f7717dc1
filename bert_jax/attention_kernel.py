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
LONGEST = 1024  # of the scores of one head a few f32 copies are in memory at a time

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


def _keep(keys_ref, batch, head, length: int, rate: float):
    """Which elements [keys, queries] dropout keeps: dropout.random_bits of [batch, heads, queries, keys]."""
    queries = jax.lax.broadcasted_iota(jnp.uint32, (length, length), 1)
    keys = jax.lax.broadcasted_iota(jnp.uint32, (length, length), 0)
    index = (head.astype(jnp.uint32) * jnp.uint32(length) + queries) * jnp.uint32(length) + keys
    return mix(mix(index + keys_ref[batch, 0]) ^ keys_ref[batch, 1]) < keep_threshold(rate)


def _forward_kernel(keys_ref, query_ref, key_ref, value_ref, mask_ref, output_ref, peak_ref, total_ref, *, rate):
    query, key, value = query_ref[0, 0], key_ref[0, 0], value_ref[0, 0]
    scores = _scores(query, key, mask_ref[0] > 0)
    peak = jnp.max(scores, axis=0, keepdims=True)
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=0, keepdims=True)
    if rate:
        keep = _keep(keys_ref, pl.program_id(0), pl.program_id(1), query.shape[1], rate)
        exponentials = jnp.where(keep, exponentials * (1.0 / (1.0 - rate)), 0.0)
    products = jax.lax.dot_general(value, exponentials.astype(value.dtype), _NN, preferred_element_type=jnp.float32)
    output_ref[0, 0] = (products / total).astype(output_ref.dtype)
    peak_ref[0, 0], total_ref[0, 0] = peak, total


def _backward_kernel(
    keys_ref, query_ref, key_ref, value_ref, mask_ref, output_ref, peak_ref, total_ref, gradient_ref,
    query_gradient_ref, key_gradient_ref, value_gradient_ref, *, rate,
):  # fmt: skip
    query, key, value, gradient = query_ref[0, 0], key_ref[0, 0], value_ref[0, 0], gradient_ref[0, 0]
    mask = mask_ref[0] > 0
    weights = jnp.exp(_scores(query, key, mask) - peak_ref[0, 0]) / total_ref[0, 0]
    of_weights = jax.lax.dot_general(value, gradient, _TN, preferred_element_type=jnp.float32)
    dropped = weights
    if rate:
        keep = _keep(keys_ref, pl.program_id(0), pl.program_id(1), query.shape[1], rate)
        dropped = jnp.where(keep, weights * (1.0 / (1.0 - rate)), 0.0)
        of_weights = jnp.where(keep, of_weights * (1.0 / (1.0 - rate)), 0.0)
    of_values = jax.lax.dot_general(gradient, dropped.astype(value.dtype), _NT, preferred_element_type=jnp.float32)
    value_gradient_ref[0, 0] = of_values.astype(value.dtype)
    # Of a softmax p with gradient g the scores get p (g - sum(g p)), and that sum is also that of gradient x output.
    shift = jnp.sum(gradient.astype(jnp.float32) * output_ref[0, 0], axis=0, keepdims=True)
    of_scores = weights * (of_weights - shift) * (query.shape[0] ** -0.5)
    of_scores = jnp.where(mask, of_scores, 0.0).astype(query.dtype)
    of_queries = jax.lax.dot_general(key, of_scores, _NN, preferred_element_type=jnp.float32)
    query_gradient_ref[0, 0] = of_queries.astype(query.dtype)
    of_keys = jax.lax.dot_general(query, of_scores, _NT, preferred_element_type=jnp.float32)
    key_gradient_ref[0, 0] = of_keys.astype(key.dtype)


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
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=64 * 2**20),
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
