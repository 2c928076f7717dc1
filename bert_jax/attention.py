"""Multi-head self-attention as in "Attention Is All You Need", with BERT's padding mask."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import attention_kernel
from bert_jax.dropout import dropout, key_data

# Google's additive constant: finite in every dtype, so that a row that may attend to nothing gives a uniform
# distribution instead of NaN.
MASKED_SCORE = -10000.0


def attention_mask(input_mask: jax.Array, direction: str, packed: bool = False) -> jax.Array:
    """Says which key positions each query position may attend to.

    Args:
        input_mask: int [batch, length], 1 on real tokens; where rows are packed the number, from 1, of the sequence of
            each token.
        direction: "bidirectional", or "left_to_right" (the LTR model of the paper's section 5.1).
        packed: each token attends to those with the same number only.

    Returns:
        bool [batch, 1, 1 or length, length].
    """
    mask = input_mask[:, None, None, :] > 0
    if packed:
        mask = input_mask[:, None, :, None] == input_mask[:, None, None, :]
    if direction == "left_to_right":
        length = input_mask.shape[1]
        mask = mask & jnp.tril(jnp.ones((length, length), bool))
    return mask


def mask_at(mask: jax.Array, positions: jax.Array) -> jax.Array:
    """The attention mask of the queries at `positions`, int32 [batch, count]: bool [batch, 1, 1 or count, length]."""
    if mask.shape[-2] == 1:
        return mask
    return jnp.take_along_axis(mask, positions[:, None, :, None], axis=2, mode="clip")


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    kernel: str,
) -> jax.Array:
    """As dot_product_attention, by the kernel of attention_kernel.py where it is asked for and can be.

    Args:
        kernel: "xla"; "pallas" for the kernel where the mask is one of keys, it takes the length, and the program is
            that of one device; "interpret" for the same without a TPU; "cudnn" for that of NVIDIA's library, which has
            no dropout like ours.
    """
    (_, count, _, head_dim), length = query.shape, key.shape[1]
    mesh = jax.sharding.get_abstract_mesh()
    of_one_device = mesh.empty or mesh.size == 1 or mesh.are_all_axes_manual
    if kernel == "cudnn" and of_one_device and (dropout_key is None or dropout_rate == 0):
        mask = jnp.broadcast_to(mask, (mask.shape[0], 1, count, length))
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    if (
        kernel in ("xla", "cudnn")
        or mask.shape[-2] > 1
        or count != length
        or not of_one_device
        or not attention_kernel.fits(length, head_dim)
    ):
        return dot_product_attention(query, key, value, mask, dropout_rate, dropout_key)
    arrays = (jnp.transpose(x, (0, 2, 3, 1)) for x in (query, key, value))
    output = attention_kernel.attend(*arrays, mask[:, 0, 0], key_data(dropout_key), dropout_rate, kernel == "interpret")
    return jnp.transpose(output, (0, 3, 1, 2))


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Softmax of the scaled scores, in f32, applied to the values.

    Args:
        query: [batch, queries, heads, head_dim].
        key, value: [batch, length, heads, head_dim].
        mask: bool, broadcastable to [batch, heads, queries, length].
        dropout_rate, dropout_key: dropout on the attention probabilities; no key, no dropout.

    Returns:
        [batch, queries, heads, head_dim] in the dtype of `value`.
    """
    return _attend(query, key, value, mask, key_data(dropout_key), dropout_rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query, key, value, mask, dropout_key, rate):
    return _attend_forward(query, key, value, mask, dropout_key, rate)[0]


def _attend_forward(query, key, value, mask, dropout_key, rate):
    scores = jnp.einsum("bqnd,bknd->bnqk", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores * (query.shape[-1] ** -0.5), MASKED_SCORE)
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    # Dividing the products instead of the probabilities is less work, and rounds no earlier.
    inverse = _rows_of_queries(1.0 / jnp.sum(exponentials, axis=-1))
    exponentials = exponentials.astype(value.dtype)
    products = jnp.einsum("bnqk,bknd->bqnd", _dropped(exponentials, rate, dropout_key), value)
    output = (products * inverse).astype(value.dtype)
    return output, (query, key, value, mask, dropout_key, exponentials, inverse, output)


def _attend_backward(rate, saved, gradient):
    """The gradients, without the probabilities in f32 that automatic differentiation would keep."""
    query, key, value, mask, dropout_key, exponentials, inverse, output = saved
    scaled = (gradient * inverse).astype(value.dtype)
    value_gradient = jnp.einsum("bnqk,bqnd->bknd", _dropped(exponentials, rate, dropout_key), scaled)
    # Of a softmax p with gradient g the scores get p (g - sum(g p)), and that sum is also that of gradient x output.
    shift = jnp.sum(gradient.astype(jnp.float32) * output, axis=-1, keepdims=True) * inverse
    of_weights = jnp.einsum("bqnd,bknd->bnqk", scaled, value, preferred_element_type=jnp.float32)
    of_scores = exponentials * (_dropped(of_weights, rate, dropout_key) - jnp.swapaxes(shift, 1, 2))
    of_scores = jnp.where(mask, of_scores * (query.shape[-1] ** -0.5), 0.0).astype(query.dtype)
    query_gradient = jnp.einsum("bnqk,bknd->bqnd", of_scores, key)
    key_gradient = jnp.einsum("bnqk,bqnd->bknd", of_scores, query)
    return query_gradient, key_gradient, value_gradient, _nothing(mask), _nothing(dropout_key)


_attend.defvjp(_attend_forward, _attend_backward)


def _rows_of_queries(x: jax.Array) -> jax.Array:
    """[batch, heads, queries] as [batch, queries, heads, 1]."""
    return jnp.swapaxes(x, 1, 2)[..., None]


def _dropped(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    return x if key is None else dropout(x, rate, key)


def _nothing(x: jax.Array | None) -> np.ndarray | None:
    """The gradient of what has none."""
    return None if x is None else np.zeros(x.shape, jax.dtypes.float0)
