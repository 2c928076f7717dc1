"""Text -> vectors: chosen layers of the encoder, for each token or pooled to one vector a text."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import inference, partitioning
from bert_jax.loading import LoadedBert
from input_pipeline.arguments import list_of_texts, texts_of, whole_number, whole_numbers
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import PAIR_SPECIAL, Layout, lay_out

COMBINATIONS = ("concat", "sum", "list")
POOLINGS = ("mean", "max", "cls", "pooled", "none")

# Vectors of tokens are large: the windows of inference.map_examples may have this many bytes of them.
_WINDOW_BYTES = 2**27
_WINDOW_TOKENS = 2**17


class FeatureSpec(NamedTuple):
    """What is made of a text.

    Attributes:
        layers: as they were asked for: 0 the embeddings, 1 to L the layers, -1 the top one.
        indices: the same, counted from 0.
        combination: of COMBINATIONS; what becomes of several layers.
        pooling: of POOLINGS.
    """

    layers: tuple[int, ...]
    indices: tuple[int, ...]
    combination: str
    pooling: str

    @property
    def of_tokens(self) -> bool:
        """Whether there is a vector for each token."""
        return self.pooling == "none"

    def vector_shape(self, hidden_size: int) -> tuple[int, ...]:
        """(dim,), or (layers, hidden) of a list; behind the number of tokens where each has a vector."""
        if self.combination == "list":
            return (len(self.layers), hidden_size)
        return (len(self.layers) * hidden_size,) if self.combination == "concat" else (hidden_size,)


def feature_spec(bert: LoadedBert, layers: int | Iterable[int], combination: str, pooling: str) -> FeatureSpec:
    """A spec that fits the model.

    Raises:
        UserError: an unknown name, a layer that is not there, or a pooler that is not there or is asked for others.
    """
    top = bert.config.num_hidden_layers
    for name, value, known in (("layer_combination", combination, COMBINATIONS), ("pooling", pooling, POOLINGS)):
        if value not in known:
            raise UserError(f"{name}={value} must be one of {', '.join(known)}")
    layers = whole_numbers(layers, "layers")
    if not layers:
        raise UserError("layers: at least one is needed")
    for layer in layers:
        if not -top - 1 <= layer <= top:
            raise UserError(
                f"layers: there is no layer {layer}: this model has 0 (the embeddings) to {top} (the top), or "
                f"{-top - 1} to -1"
            )
    indices = tuple(layer % (top + 1) for layer in layers)
    if pooling == "pooled":
        if indices != (top,):
            raise UserError("layers: pooling=pooled reads the top layer only: use -1")
        bert.needs("pooler", "pooling=pooled")
    return FeatureSpec(layers, indices, combination, pooling)


@functools.lru_cache
def feature_function(module: nn.Module, spec: FeatureSpec) -> Callable[[Any, dict[str, jax.Array]], jax.Array]:
    """The pure function for inference.map_examples: f32 vectors [examples, ...] or [examples, length, ...] of tokens.

    The same arguments give the same function, so that it is compiled once.
    """

    def compute(params, batch):
        states, mask = inference.encode(module, params, batch)
        if spec.pooling == "pooled":
            vectors = [module.apply({"params": params}, states[-1], method="pool").astype(jnp.float32)]
        else:
            vectors = [_pool(states[index].astype(jnp.float32), mask, spec.pooling) for index in spec.indices]
        if spec.combination == "list":
            return jnp.stack(vectors, axis=-2)
        return jnp.concatenate(vectors, axis=-1) if spec.combination == "concat" else sum(vectors)

    def with_precision(params, batch):
        # As devices.start does for the command line: f32 means f32 on TPU and GPU too.
        precision = jax.config.jax_default_matmul_precision
        if precision is None and module.dtype == jnp.float32:
            precision = "highest"
        with jax.default_matmul_precision(precision):
            return compute(params, batch)

    return with_precision


def _pool(states: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """[batch, length, hidden] -> [batch, hidden], over the places where the mask [batch, length] is 1."""
    if pooling == "none":
        return states
    if pooling == "cls":
        return states[:, 0]
    real = mask[:, :, None] == 1
    if pooling == "max":
        return jnp.max(jnp.where(real, states, -jnp.inf), axis=1)
    return jnp.sum(jnp.where(real, states, 0.0), axis=1) / jnp.maximum(jnp.sum(real, axis=1), 1)


def length_limit(bert: LoadedBert, max_seq_length: int | None) -> int:
    """The longest sequence: `max_seq_length`, or else what the model has positions for.

    Raises:
        UserError: the model has fewer positions, or there is no room for a token.
    """
    most = bert.config.max_position_embeddings
    if max_seq_length is None:
        return most
    max_seq_length = whole_number(max_seq_length, "max_seq_length")
    if not PAIR_SPECIAL <= max_seq_length <= most:
        raise UserError(
            f"max_seq_length={max_seq_length} must be between {PAIR_SPECIAL} (the special tokens of a pair) and {most} "
            "(the positions of the model)"
        )
    return max_seq_length


def encode_text(bert: LoadedBert, text: str, second: str | None, limit: int, where: str) -> Layout:
    """The ids of a text or a pair, cut to `limit`.

    Args:
        where: names the text in errors.

    Raises:
        UserError: a pair, for a model that has no segments.
    """
    if second is not None and bert.config.type_vocab_size < 2:
        raise UserError(f"{where}: a pair of texts needs segments, but this model's type_vocab_size is 1")
    ids = bert.tokenizer.encode(text)
    return lay_out(bert.tokenizer, ids, None if second is None else bert.tokenizer.encode(second), limit)


def extract(
    bert: LoadedBert,
    spec: FeatureSpec,
    layouts: Iterable[Layout],
    *,
    mesh: Any,
    limit: int,
    batch_size: int | None = None,
    window_tokens: int = _WINDOW_TOKENS,
) -> Iterator[tuple[Layout, np.ndarray]]:
    """Each text with its vectors, in order: f32 [dim], or [layers, hidden] of a list; behind [tokens] for tokens.

    Args:
        layouts: may be endless: a few thousand are read ahead.
        mesh, batch_size, window_tokens: as inference.map_examples takes them.
        limit: tokens that no text has more of.
    """
    examples = (inference.Example(layout.input_ids, layout.segment_ids, note=layout) for layout in layouts)
    if spec.of_tokens:
        window_tokens = min(_WINDOW_BYTES // (4 * math.prod(spec.vector_shape(bert.config.hidden_size))), window_tokens)
    results = inference.map_examples(
        feature_function(bert.module, spec),
        bert.params,
        examples,
        mesh=mesh,
        max_length=limit,
        batch_size=batch_size,
        window_tokens=window_tokens,
    )
    for example, vectors in results:
        # A copy of the rows that are real, else the whole batch with its padding stays in memory.
        yield example.note, np.array(vectors[: len(example.input_ids)]) if spec.of_tokens else vectors


def encode(
    bert: LoadedBert,
    texts: Iterable[str | tuple[str, str]],
    *,
    layers: int | Sequence[int] = (-1,),
    layer_combination: str = "concat",
    pooling: str = "mean",
    batch_size: int | None = None,
    max_seq_length: int | None = None,
) -> np.ndarray | list[np.ndarray]:
    """Encodes texts with all devices.

        vectors = bert_jax.encode(bert, ["One sentence.", ("A first text,", "and a second.")])

    Args:
        texts: strings, or pairs that are encoded together; what is too long loses its end.
        layers: one or several; 0 the embeddings, 1 to L the layers, -1 the top one.
        layer_combination: of several layers: "concat" puts vectors side by side, "sum" adds them, "list" keeps them.
        pooling: "mean" or "max" over all tokens, [CLS] and [SEP] included; "cls" the vector of [CLS]; "pooled" that of
            the pooler; "none" keeps the vectors of all tokens.
        batch_size: texts of the greatest length in a step; default what suits the devices.
        max_seq_length: tokens in a sequence; default the positions of the model.

    Returns:
        f32 [texts, dim], or [texts, layers, hidden] of a list. With pooling "none" a list of arrays [tokens, dim], or
        [tokens, layers, hidden].

    Raises:
        UserError: the vocabulary or the pooler is missing, or a value does not fit the model.
    """
    if isinstance(texts, str):
        raise UserError("encode takes a list of texts, not one text")
    texts = list_of_texts(texts)
    if batch_size is not None and (batch_size := whole_number(batch_size, "batch_size")) < 1:
        raise UserError(f"batch_size={batch_size} must be 1 or more")
    check_tokenizer(bert)
    spec = feature_spec(bert, layers, layer_combination, pooling)
    limit = length_limit(bert, max_seq_length)
    layouts = (
        encode_text(bert, *texts_of(text, f"text {number}"), limit, f"text {number}")
        for number, text in enumerate(texts)
    )
    results = extract(bert, spec, layouts, mesh=partitioning.make_mesh(), limit=limit, batch_size=batch_size)
    vectors = [vector for _, vector in results]
    if spec.of_tokens:
        return vectors
    return np.array(vectors, np.float32).reshape(len(vectors), *spec.vector_shape(bert.config.hidden_size))


def check_tokenizer(bert: LoadedBert) -> None:
    """Raises UserError where there is no vocabulary."""
    if bert.tokenizer is None:
        raise UserError("no vocabulary lies beside the weights, and text cannot be encoded without: give --vocab_file")
