"""Multi-head self-attention as in "Attention Is All You Need", with BERT's padding mask."""

import jax
import jax.numpy as jnp

from bert_jax.dropout import dropout

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
        query, key, value: [batch, length, heads, head_dim].
        mask: bool, broadcastable to [batch, heads, length, length].
        dropout_rate, dropout_key: dropout on the attention probabilities; no key, no dropout.

    Returns:
        [batch, length, heads, head_dim] in the dtype of `value`.
    """
    scores = jnp.einsum("bqnd,bknd->bnqk", query, key, preferred_element_type=jnp.float32)
    scores = scores * (query.shape[-1] ** -0.5)
    scores = jnp.where(mask, scores, MASKED_SCORE)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    if dropout_key is not None:
        probabilities = dropout(probabilities, dropout_rate, dropout_key)
    return jnp.einsum("bnqk,bknd->bqnd", probabilities, value)
