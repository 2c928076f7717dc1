"""BERT (Devlin et al., 2018) as pure functions: modules are used through `init` and `apply` only.

Dropout is on exactly when `apply` is given a "dropout" random key. Parameters are f32 and carry logical axis names
(see partitioning.py); `dtype` is the dtype of the computation.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax import products
from bert_jax.attention import attend, attention_mask, mask_at
from bert_jax.config import BertConfig, activation
from bert_jax.layers import Dense, Dropout, Embedding, LayerNorm
from bert_jax.partitioning import constrain

REMAT_POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.save_only_these_names("product"),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class BertOutput(NamedTuple):
    """hidden_states: layers + 1 arrays [batch, length, hidden], the embedding block first; pooled: [batch, hidden]."""

    hidden_states: tuple[jax.Array, ...]
    pooled: jax.Array


class PreTrainingOutput(NamedTuple):
    """masked_lm_logits: f32 [batch, predictions, padded vocabulary]; next_sentence_logits: f32 [batch, 2]."""

    masked_lm_logits: jax.Array
    next_sentence_logits: jax.Array


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised (section 3, figure 2)."""

    config: BertConfig
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.word_embeddings = Embedding(c, self.dtype, c.padded_vocab_size, c.vocab_size, "vocab")
        self.position_embeddings = Embedding(
            c, self.dtype, c.max_position_embeddings, c.max_position_embeddings, "position"
        )
        self.token_type_embeddings = Embedding(c, self.dtype, c.type_vocab_size, c.type_vocab_size)
        self.layer_norm = LayerNorm(c)
        self.dropout = Dropout(c.hidden_dropout_prob)

    def __call__(
        self, input_ids: jax.Array, segment_ids: jax.Array, position_ids: jax.Array | None = None
    ) -> jax.Array:
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(segment_ids)
        if position_ids is None:
            x = x + self.position_embeddings.first(input_ids.shape[1])
        else:
            x = x + self.position_embeddings(position_ids)
        return constrain(self.dropout(self.layer_norm(x)), "batch", "length", None)


class SelfAttention(nn.Module):
    """Attention, output projection, dropout, residual, LayerNorm."""

    config: BertConfig
    dtype: jnp.dtype
    kernel: str

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        c = self.config
        size = c.hidden_size
        queries = x
        if positions is not None:
            queries, mask = products.at_positions(x, positions), mask_at(mask, positions)

        def project(x, name):
            return Dense(c, size, size, "embed", "heads", self.dtype, "out", name=name)(x)

        rate, key = c.attention_probs_dropout_prob, None
        if rate and self.has_rng("dropout"):
            key = self.make_rng("dropout")
        y = attend(project(queries, "query"), project(x, "key"), project(x, "value"), mask, rate, key, self.kernel)
        y = Dense(c, size, size, "heads", "embed", self.dtype, "in", name="output")(y)
        return LayerNorm(c, name="layer_norm")(queries + Dropout(c.hidden_dropout_prob)(y))


class FeedForward(nn.Module):
    """Two dense layers with the activation between, dropout, residual, LayerNorm."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        inner, outer = c.intermediate_size, c.hidden_size
        y = Dense(c, outer, inner, "embed", "mlp", self.dtype, name="intermediate")(x)
        y = activation(c.hidden_act)(y)
        y = Dense(c, inner, outer, "mlp", "embed", self.dtype, name="output")(y)
        return LayerNorm(c, name="layer_norm")(x + Dropout(c.hidden_dropout_prob)(y))


class EncoderLayer(nn.Module):
    """One post-LayerNorm transformer block."""

    config: BertConfig
    dtype: jnp.dtype
    attention_kernel: str

    def setup(self):
        self.attention = SelfAttention(self.config, self.dtype, self.attention_kernel)
        self.feed_forward = FeedForward(self.config, self.dtype)

    def __call__(self, x: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """The output [batch, length, hidden], or at `positions` [batch, count] only: [batch, count, hidden]."""
        y = self.feed_forward(self.attention(x, mask, positions))
        return constrain(y, "batch", "length" if positions is None else None, None)


class _ScannedLayer(EncoderLayer):
    """The block in the form of a scan body: it hands its output on and out."""

    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = super().__call__(x, mask)
        return x, x


class Encoder(nn.Module):
    """The stack of blocks, unrolled (layer_0, layer_1, ...) or scanned (layers, with a leading axis)."""

    config: BertConfig
    dtype: jnp.dtype
    scan_layers: bool
    remat: str
    attention_kernel: str

    def setup(self):
        layer = _ScannedLayer if self.scan_layers else EncoderLayer
        if self.remat != "none":
            layer = nn.remat(layer, policy=REMAT_POLICIES[self.remat], prevent_cse=not self.scan_layers)
        if self.scan_layers:
            scanned = nn.scan(
                layer,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=self.config.num_hidden_layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            self.layers = scanned(self.config, self.dtype, self.attention_kernel)
        else:
            arguments = (self.config, self.dtype, self.attention_kernel)
            self.layer = [layer(*arguments) for _ in range(self.config.num_hidden_layers)]

    def __call__(self, x: jax.Array, mask: jax.Array, positions: jax.Array | None = None) -> tuple[jax.Array, ...]:
        if self.scan_layers:
            _, outputs = self.layers(x, mask)
            *below, top = (x, *outputs)
            return (*below, top if positions is None else products.at_positions(top, positions))
        hidden_states = [x]
        *below, last = self.layer
        for layer in below:
            hidden_states.append(layer(hidden_states[-1], mask))
        return (*hidden_states, last(hidden_states[-1], mask, positions))


class Bert(nn.Module):
    """Embeddings, encoder and pooler."""

    config: BertConfig
    dtype: jnp.dtype = jnp.float32
    scan_layers: bool = False
    remat: str = "none"
    attention_kernel: str = "xla"

    def setup(self):
        c = self.config
        self.embeddings = Embeddings(c, self.dtype)
        self.encoder = Encoder(c, self.dtype, self.scan_layers, self.remat, self.attention_kernel)
        self.pooler = Dense(c, c.hidden_size, c.hidden_size, "embed", None, self.dtype)

    def __call__(self, input_ids: jax.Array, input_mask: jax.Array, segment_ids: jax.Array) -> BertOutput:
        """Encodes a batch.

        Args:
            input_ids, input_mask, segment_ids: int32 [batch, length]; the mask is 1 on real tokens.
        """
        hidden_states = self.encode(input_ids, input_mask, segment_ids)
        return BertOutput(hidden_states, self.pool(hidden_states[-1]))

    def encode(
        self,
        input_ids: jax.Array,
        input_mask: jax.Array,
        segment_ids: jax.Array,
        position_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        """The hidden states of BertOutput; needs no parameters of the pooler.

        With position_ids, int32 [batch, length], a row holds several sequences, which input_mask numbers from 1: each
        attends to itself only, and has its own positions.

        With positions, int32 [batch, count], the last hidden states are those at these places of a row only,
        [batch, count, hidden], and unless layers are scanned the last layer computes no others: from its keys and
        values on, all that it does for a token is for that token alone.
        """
        mask = attention_mask(input_mask, self.config.attention, packed=position_ids is not None)
        return self.encoder(self.embeddings(input_ids, segment_ids, position_ids), mask, positions)

    def pool(self, hidden: jax.Array) -> jax.Array:
        """The pooled vectors [batch, hidden] of the last hidden states [batch, length, hidden]: those of [CLS]."""
        return jnp.tanh(self.pooler(hidden[:, 0]))


class MaskedLanguageModelHead(nn.Module):
    """Dense, activation, LayerNorm, then the word embeddings as output weights with a bias of their own."""

    config: BertConfig
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.transform = Dense(c, c.hidden_size, c.hidden_size, "embed", None, self.dtype)
        self.layer_norm = LayerNorm(c)
        self.output_bias = OutputBias(c)

    def __call__(self, hidden: jax.Array, word_embeddings: jax.Array) -> jax.Array:
        c = self.config
        rows = hidden.reshape(-1, c.hidden_size)  # one axis, as products._sum_over_rows has it
        x = self.layer_norm(activation(c.hidden_act)(self.transform(rows)))
        logits = products.logits(x, word_embeddings, self.output_bias())
        # The rows that only pad the table take no part in the softmax and can never be predicted.
        logits = jnp.where(jnp.arange(c.padded_vocab_size) < c.vocab_size, logits, -1e9)
        return logits.reshape(*hidden.shape[:-1], -1)


class OutputBias(nn.Module):
    """One bias a vocabulary row, f32."""

    config: BertConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        return self.param("bias", zeros, (self.config.padded_vocab_size,))


class PreTrainingHeads(nn.Module):
    """The masked-LM and next-sentence heads (section 3.1)."""

    config: BertConfig
    dtype: jnp.dtype

    def setup(self):
        c = self.config
        self.predictions = MaskedLanguageModelHead(c, self.dtype)
        self.seq_relationship = Dense(c, c.hidden_size, 2, "embed", None, self.dtype)


class WithEncoder(nn.Module):
    """What the models have in common: their encoder `bert`, without their heads."""

    def encode(
        self,
        input_ids: jax.Array,
        input_mask: jax.Array,
        segment_ids: jax.Array,
        position_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, ...]:
        """See Bert.encode."""
        return self.bert.encode(input_ids, input_mask, segment_ids, position_ids, positions)

    def pool(self, hidden: jax.Array) -> jax.Array:
        """See Bert.pool."""
        return self.bert.pool(hidden)


class BertForPreTraining(WithEncoder):
    """BERT with both pretraining heads; the masked-LM head runs at the masked positions only."""

    config: BertConfig
    dtype: jnp.dtype = jnp.float32
    scan_layers: bool = False
    remat: str = "none"
    attention_kernel: str = "xla"

    def setup(self):
        self.bert = Bert(self.config, self.dtype, self.scan_layers, self.remat, self.attention_kernel)
        self.cls = PreTrainingHeads(self.config, self.dtype)

    def __call__(
        self, input_ids: jax.Array, input_mask: jax.Array, segment_ids: jax.Array, masked_lm_positions: jax.Array
    ) -> PreTrainingOutput:
        """Scores words at the masked positions and whether B follows A (0 = is next, 1 = random).

        Args:
            input_ids, input_mask, segment_ids: int32 [batch, length].
            masked_lm_positions: int32 [batch, predictions]; unused slots point anywhere and get weight 0 in the loss.
        """
        positions = jnp.pad(masked_lm_positions, ((0, 0), (1, 0)))  # that of [CLS] first
        hidden = self.encode(input_ids, input_mask, segment_ids, positions=positions)[-1]
        return PreTrainingOutput(self.masked_lm(hidden[:, 1:]), self.next_sentence(self.pool(hidden)))

    def masked_lm(self, hidden: jax.Array, positions: jax.Array | None = None) -> jax.Array:
        """The masked_lm_logits of PreTrainingOutput, from the last hidden states [batch, predictions, hidden].

        With positions [batch, predictions] from those of all tokens, [batch, length, hidden].
        """
        masked = hidden if positions is None else products.at_positions(hidden, positions)
        return self.cls.predictions(masked, self.bert.embeddings.word_embeddings.whole())

    def next_sentence(self, pooled: jax.Array) -> jax.Array:
        """The next_sentence_logits of PreTrainingOutput, from the pooled vectors [batch, hidden]."""
        return self.cls.seq_relationship(pooled).astype(jnp.float32)


def initialize(module: BertForPreTraining, key: jax.Array, length: int = 8):
    """Makes fresh parameters: a plain nested dict whose leaves are boxed with their logical axis names."""
    ids = jnp.zeros((1, length), jnp.int32)
    return module.init(key, ids, ids, ids, jnp.zeros((1, 1), jnp.int32))["params"]
