"""What BERT was pretrained for, put to use: words for each [MASK], and whether one sentence follows another."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.inference import Example, encode, map_examples
from bert_jax.loading import LoadedBert
from bert_jax.partitioning import make_mesh
from input_pipeline.arguments import list_of_texts, texts_of, whole_number
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import lay_out

MASK = "[MASK]"  # how a mask is typed, whatever the vocabulary calls it


class Candidate(NamedTuple):
    """A piece of the vocabulary for a [MASK], and its probability there."""

    token: str
    token_id: int
    probability: float


class Text(NamedTuple):
    """A text or a pair of texts; `place` says in errors where it stands."""

    first: str
    second: str | None
    place: str


class Filling(NamedTuple):
    """What the model makes of a text.

    Attributes:
        positions: of each [MASK] among the tokens, [CLS] being 0.
        candidates: for each [MASK], the best first.
        next_sentence_probability: that the second text follows the first; None without a second, or without the head.
    """

    positions: list[int]
    candidates: list[list[Candidate]]
    next_sentence_probability: float | None


def fill_mask(bert: LoadedBert, texts: str | Iterable[str | tuple[str, str]], top_k: int = 5) -> list:
    """The most probable pieces of the vocabulary for each [MASK].

        fill_mask(bert, "Paris is the [MASK] of France.")[0][0].token

    The masks of a text are filled in one at a time: each is predicted while the others stay masked.

    Args:
        bert: a model with a masked-LM head.
        texts: a text, or a list of texts and of pairs (first, second); each with one [MASK] or more.
        top_k: how many pieces.

    Returns:
        For each text a list with, for each [MASK], a list of top_k `Candidate`s, the best first. For a single text, not
        in a list, its list alone.

    Raises:
        UserError: a text without [MASK] or with more tokens than the model has positions, or a model without the head
            or vocabulary that are needed.
    """
    single = isinstance(texts, str)
    parsed = _parse([texts] if single else texts)
    for text in parsed:
        if not has_mask(text):
            raise UserError(f"{text.place} has no {MASK}")
        check_parts(bert, text)
    top_k = check_top_k(bert, top_k)
    examples = [encode_text(bert, text) for text in parsed]
    results = [filling.candidates for _, filling in fill(bert, examples, top_k)]
    return results[0] if single else results


def next_sentence_probability(bert: LoadedBert, pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """The probability that the second text of a pair follows the first.

    Args:
        bert: a model with a next-sentence head.
        pairs: (first, second). "[MASK]" in them stands for a masked token.

    Returns:
        float32 [pairs].

    Raises:
        UserError: what is no pair or has more tokens than the model has positions, or a model without the head, pooler
            or vocabulary that are needed.
    """
    parsed = _parse(pairs)
    for text in parsed:
        if text.second is None:
            raise UserError(f"{text.place} is no pair of two texts")
    _needs_next_sentence(bert)
    examples = [encode_text(bert, text) for text in parsed]
    values = [filling.next_sentence_probability for _, filling in fill(bert, examples, 0)]
    return np.array(values, np.float32)


def check_top_k(bert: LoadedBert, top_k: int, name: str = "top_k") -> int:
    """`top_k` as an int. Raises: UserError, which calls it `name`, when the vocabulary does not have so many pieces."""
    top_k = whole_number(top_k, name)
    known = _vocabulary(bert).vocab_size
    if not 1 <= top_k <= known:
        raise UserError(f"{name}={top_k} must be between 1 and the {known} pieces of the vocabulary")
    return top_k


def has_mask(text: Text) -> bool:
    return MASK in text.first or MASK in (text.second or "")


def check_parts(bert: LoadedBert, text: Text) -> None:
    """Raises: UserError when the model lacks what the text asks for: words for its masks, else whether B follows A."""
    if has_mask(text):
        bert.needs("predictions", f"filling in {MASK}")
    else:
        _needs_next_sentence(bert)


def encode_text(bert: LoadedBert, text: Text, max_seq_length: int | None = None) -> Example:
    """The tokens of a text as `fill` takes them.

    Args:
        max_seq_length: most tokens, [CLS] and [SEP] included; None for as many as the model has positions.

    Raises:
        UserError: too many tokens, a pair that is none for the model, or a mask that the vocabulary does not have.
    """
    tokenizer, config = _vocabulary(bert), bert.config
    if has_mask(text) and tokenizer.mask_id is None:
        raise UserError(f"{text.place}: the vocabulary of these weights has no {MASK}")
    if text.second is not None and config.type_vocab_size < 2:
        raise UserError(f"{text.place} is a pair, but the model has one kind of segment only (type_vocab_size 1)")
    parts = [part for part in (text.first, text.second) if part is not None]
    ids = [tokenizer.encode_with_masks(part) if MASK in part else tokenizer.encode(part) for part in parts]
    if not all(ids):
        raise UserError(f"{text.place}: one of the two texts has no tokens")
    layout = lay_out(tokenizer, *ids)
    limit = max_seq_length or config.max_position_embeddings
    if (length := len(layout.input_ids)) > limit:
        name = f"--max_seq_length={limit}" if max_seq_length else f"the {limit} positions of the model"
        raise UserError(f"{text.place} has {length} tokens with [CLS] and [SEP], more than {name}")
    positions = [i for i, piece in enumerate(layout.input_ids) if piece == tokenizer.mask_id]
    return Example(layout.input_ids, layout.segment_ids, {"positions": positions}, text)


def fill(
    bert: LoadedBert,
    examples: Iterable[Example],
    top_k: int,
    *,
    mesh: jax.sharding.Mesh | None = None,
    batch_size: int | None = None,
    max_seq_length: int | None = None,
) -> Iterator[tuple[Example, Filling]]:
    """Runs the heads that the model has.

    Args:
        examples: of `encode_text`; of any number, they are read a window at a time.
        top_k: candidates for each [MASK]; 0 leaves the masked-LM head out.
        mesh, batch_size: as inference.map_examples takes them; None for all devices.
        max_seq_length: as for `encode_text`.

    Yields:
        Each example with its `Filling`, in order.
    """
    vocabulary, heads = _vocabulary(bert), bert.params.get("cls", {})
    top_k = top_k if "predictions" in heads else 0
    follows = "seq_relationship" in heads and "pooler" in bert.params["bert"]
    results = map_examples(
        _function(bert.module, vocabulary.vocab_size, top_k, follows),
        bert.params,
        examples,
        mesh=mesh or make_mesh(),
        batch_size=batch_size,
        max_length=max_seq_length or bert.config.max_position_embeddings,
    )
    for example, result in results:
        positions, candidates = list(example.extra["positions"]), []
        if top_k:
            for ids, probabilities in zip(result["ids"][: len(positions)], result["probabilities"]):
                tokens = vocabulary.convert_ids_to_tokens(ids.tolist())
                candidates.append(list(map(Candidate, tokens, ids.tolist(), probabilities.tolist())))
        is_pair = follows and example.segment_ids[-1] == 1
        yield example, Filling(positions, candidates, float(result["follows"]) if is_pair else None)


@functools.lru_cache(maxsize=8)
def _function(module: nn.Module, vocab_size: int, top_k: int, follows: bool) -> Callable[[Any, dict], dict]:
    """What `fill` runs on a device; the same one for the same arguments, so that it is compiled once."""

    def function(params, batch):
        def apply(method, *arguments):
            return module.apply({"params": params}, *arguments, method=method)

        hidden = encode(module, params, batch)[0][-1]

        def best(positions):
            logits = apply("masked_lm", hidden, positions[:, None])[:, 0]
            # A model can have more rows than its vocabulary has pieces: what they stand for is not known.
            logits = jnp.where(jnp.arange(logits.shape[-1]) < vocab_size, logits, -jnp.inf)
            values, ids = jax.lax.top_k(logits, top_k)
            return ids, jnp.exp(values - jax.nn.logsumexp(logits, axis=-1, keepdims=True))

        result = {}
        if top_k:
            # One mask after the other: the logits of a whole vocabulary for every mask of a batch take much memory.
            ids, probabilities = jax.lax.map(best, batch["positions"].T)
            result = {"ids": ids.swapaxes(0, 1), "probabilities": probabilities.swapaxes(0, 1)}
        if follows:
            result["follows"] = jax.nn.softmax(apply("next_sentence", apply("pool", hidden)))[:, 0]
        return result

    return function


def _parse(texts: Iterable[Any]) -> list[Text]:
    texts, parsed = list_of_texts(texts), []
    for number, value in enumerate(texts, start=1):
        place = f"text {number} of {len(texts)}" if len(texts) > 1 else "the text"
        parsed.append(Text(*texts_of(value, place), place))
    return parsed


def _vocabulary(bert: LoadedBert) -> Any:
    if bert.tokenizer is None:
        raise UserError("there is no vocabulary beside these weights: give --vocab_file (vocab_file of bert_jax.load)")
    return bert.tokenizer


def _needs_next_sentence(bert: LoadedBert) -> None:
    for part in ("seq_relationship", "pooler"):
        bert.needs(part, "next-sentence prediction")
