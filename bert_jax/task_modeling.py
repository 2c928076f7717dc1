"""BERT with the output layer of a task (section 4 of the paper), and what its ablations put between the two."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig
from bert_jax.heads import TaskHead
from bert_jax.layers import Dense, Dropout, weight_initializer
from bert_jax.modeling import Bert, WithEncoder


class BertForTask(WithEncoder):
    """BERT with the output layer that `head` describes."""

    config: BertConfig
    head: TaskHead
    dtype: jnp.dtype = jnp.float32
    scan_layers: bool = False
    remat: str = "none"

    def setup(self):
        c, head = self.config, self.head
        self.bert = Bert(c, self.dtype, self.scan_layers, self.remat)
        self.dropout = Dropout(c.hidden_dropout_prob)
        if head.features.startswith("weighted"):
            self.layer_mix = LayerMix(c.num_hidden_layers if head.features == "weighted_all" else 4)
        width = c.hidden_size * (4 if head.features == "concat_last_4" else 1)
        lstms = []
        for size in head.lstm:
            lstms.append(BidirectionalLSTM(c, width, size, self.dtype))
            width = 2 * size
        self.lstm = lstms
        in_axis = None if lstms or head.features == "concat_last_4" else "embed"
        self.classifier = Dense(c, width, len(head.labels), in_axis, None, self.dtype)

    def __call__(self, input_ids: jax.Array, input_mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Scores the outputs of the head.

        Args:
            input_ids, input_mask, segment_ids: int32 [batch, length]; each choice of a multiple choice is a row.

        Returns:
            f32 logits [batch, length, outputs] of a head of tokens, else [batch, outputs].
        """
        lengths = jnp.sum(input_mask, axis=1, keepdims=True)
        starts = jnp.zeros_like(lengths)
        hidden_states = self.encode_for_head(input_ids, input_mask, segment_ids, None, starts, lengths)
        return self.score(hidden_states, input_mask, starts, lengths)

    def encode_for_head(
        self,
        input_ids: jax.Array,
        input_mask: jax.Array,
        segment_ids: jax.Array,
        position_ids: jax.Array | None,
        starts: jax.Array,
        lengths: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """The hidden states that `score` takes: those of Bert.encode, the last ones only where the head reads them."""
        positions = self._summary_places(starts, lengths) if self._reads_summary_only else None
        return self.encode(input_ids, input_mask, segment_ids, position_ids, positions)

    def score(
        self, hidden_states: tuple[jax.Array, ...], sequence_ids: jax.Array, starts: jax.Array, lengths: jax.Array
    ) -> jax.Array:
        """Scores the outputs from hidden states; rows may be packed (see Bert.encode).

        Args:
            hidden_states: of encode_for_head.
            sequence_ids: int32 [rows, width], numbers the sequences of a row from 1; 0 is padding.
            starts, lengths: int32 [rows, slots], where each sequence begins and how many tokens it has.

        Returns:
            f32 logits [rows, width, outputs] of a head of tokens, else [rows * slots, outputs].
        """
        x = self._features(hidden_states)
        for lstm in self.lstm:
            x = lstm(self.dropout(x), sequence_ids)
        if not self.head.of_tokens:
            x = self._summary(x, starts, lengths)
        logits = self.classifier(self.dropout(x)).astype(jnp.float32)
        return logits * self.head.deviation + self.head.mean if self.head.is_scaled else logits

    def _features(self, hidden_states):
        match self.head.features:
            case "embeddings":
                return hidden_states[0]
            case "second_to_last":
                return hidden_states[-2]
            case "concat_last_4":
                return jnp.concatenate(hidden_states[-4:], axis=-1)
            case "weighted_last_4":
                return self.layer_mix(hidden_states[-4:])
            case "weighted_all":
                return self.layer_mix(hidden_states[1:])
        return hidden_states[-1]

    @property
    def _reads_summary_only(self):
        return self.head.is_plain and not self.head.of_tokens

    def _summary_places(self, starts, lengths):
        # In a left-to-right model [CLS] sees nothing but itself, and the last token all.
        return _last(starts, lengths) if self.config.attention == "left_to_right" else starts

    def _summary(self, x, starts, lengths):
        """One vector for each sequence [rows * slots, ...]: the pooled one, or both ends of the LSTM."""
        if self.head.lstm:
            forward, backward = jnp.split(x, 2, axis=-1)
            ends = _at(_last(starts, lengths), forward), _at(starts, backward)
            return jnp.concatenate(ends, axis=-1).reshape(-1, x.shape[-1])
        if not self._reads_summary_only:
            x = _at(self._summary_places(starts, lengths), x)
        return self.pool(x.reshape(-1, 1, x.shape[-1]))


def _last(starts, lengths):
    """The place of the last token of each sequence."""
    return jnp.maximum(starts + lengths - 1, 0)


def _at(places, x):
    """[rows, width, ...] at places [rows, slots]."""
    return jnp.take_along_axis(x, places[:, :, None], axis=1, mode="clip")


def initialize(module: BertForTask, key: jax.Array) -> Any:
    """Makes fresh parameters: a plain nested dict whose leaves are boxed with their logical axis names."""
    ids = jnp.ones((1, 8), jnp.int32)
    return module.init(key, ids, ids, ids)["params"]


class LayerMix(nn.Module):
    """A weighted sum of layers with weights that are learned; they are positive and sum to 1."""

    count: int

    @nn.compact
    def __call__(self, layers: tuple[jax.Array, ...]) -> jax.Array:
        weights = jax.nn.softmax(self.param("scale", nn.initializers.zeros, (self.count,)))
        return sum(weight.astype(layer.dtype) * layer for weight, layer in zip(weights, layers, strict=True))


class BidirectionalLSTM(nn.Module):
    """An LSTM (Hochreiter and Schmidhuber, 1997) in each direction, side by side: [rows, width, 2 * size]."""

    config: BertConfig
    in_size: int
    size: int
    dtype: jnp.dtype

    def setup(self):
        self.forward = LSTM(self.config, self.in_size, self.size, self.dtype)
        self.backward = LSTM(self.config, self.in_size, self.size, self.dtype)

    def __call__(self, x: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        backward = self.backward(x[:, ::-1], sequence_ids[:, ::-1])[:, ::-1]
        return jnp.concatenate([self.forward(x, sequence_ids), backward], axis=-1)


class LSTM(nn.Module):
    """Runs from left to right over packed rows; each sequence begins with an empty memory."""

    config: BertConfig
    in_size: int
    size: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        c, size = self.config, self.size
        gates = Dense(c, self.in_size, 4 * size, None, None, self.dtype, name="input")(x)
        recurrent = RecurrentKernel(c, size, name="recurrent")().astype(self.dtype)
        begins = jnp.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], ((0, 0), (1, 0)), constant_values=True)

        def step(carry, inputs):
            gate, begin = inputs
            hidden, cell = (jnp.where(begin[:, None], 0, value) for value in carry)
            take, forget, new, give = jnp.split(gate + hidden @ recurrent, 4, axis=-1)
            # A forget gate that is open at first (Gers et al., 2000) lets gradients through.
            cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(give) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((x.shape[0], size), self.dtype)
        _, outputs = jax.lax.scan(step, (zeros, zeros), (gates.swapaxes(0, 1), begins.T))
        return outputs.swapaxes(0, 1)


class RecurrentKernel(nn.Module):
    """What the hidden state of an LSTM is multiplied by."""

    config: BertConfig
    size: int

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", weight_initializer(self.config, None, None), (self.size, 4 * self.size))
