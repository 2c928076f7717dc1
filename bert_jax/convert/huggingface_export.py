"""Weights out to a Hugging Face folder: just the tensors and settings that a class of Transformers has."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import ARCHITECTURES, CONFIG_FILE, INDEX_FILE, PROBLEMS, WEIGHTS_FILE
from bert_jax.convert.weights import Weight, disassemble, unstack_layers, weight_table
from bert_jax.heads import TaskHead
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import Tokenizer
from input_pipeline.vocabulary import SENTENCEPIECE_FILE, SETTINGS_FILE, SPECIAL_TOKENS

SHARD_BYTES = 5 * 10**9

# The parts that each class has besides embeddings and encoder; the first class whose parts are all there is taken.
_CLASSES = {
    "BertForPreTraining": ("pooler", "predictions", "seq_relationship"),
    "BertForMaskedLM": ("predictions",),
    "BertForNextSentencePrediction": ("pooler", "seq_relationship"),
    "BertModel": ("pooler",),
}
_ACTIVATIONS = {"gelu_tanh": "gelu_new"}  # names that Transformers does not know
_SAME_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)


def export_huggingface(
    folder: str | os.PathLike,
    config: BertConfig,
    head: TaskHead | None,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    max_shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Writes what `from_pretrained` of Transformers reads, with no tensor missing and none too many.

    The class is the one that the parts of `params` make up; parts that it does not have are left out, which is noted.
    The output layer of the masked-LM head is tied there as here, so it is not written.

    Args:
        folder: a local folder, empty.
        config, head: of the model.
        params: a nested dict of float32 arrays; layers may be stacked.
        tokenizer: written too, where there is one.
        max_shard_bytes: of one file; larger weights become several files with an index.

    Returns:
        Lines for the user about what differs from the original.

    Raises:
        UserError: Transformers has no such BERT.
    """
    if config.attention != "bidirectional":
        raise UserError(f"Transformers' BERT has no attention {config.attention}: export a bidirectional model")
    params = unstack_layers(params)
    if head and "classifier" not in params:
        head = None
    table = weight_table(config, head)
    present = {path[:3] for path in _leaf_paths(params)}
    parts = {weight.part for weight in table if weight.path[:3] in present}
    architecture, needed = _architecture(head, parts)
    notes = [f"{part} left out: {architecture} has none" for part in sorted(parts - needed - {"encoder"})]
    if missing := needed - parts:
        notes.append(
            f"no {' and no '.join(sorted(missing))} in these weights: Transformers makes fresh ones up, unless it is "
            "told add_pooling_layer=False"
        )
    prefix = "bert." if architecture == "BertModel" else ""  # which has the encoder's names without it
    kept = [weight for weight in table if weight.part in {"encoder", *needed} & parts]
    folder = Path(folder)
    _write_weights(folder, kept, disassemble(config, head, params), prefix, max_shard_bytes)
    pad_id = tokenizer.pad_id if tokenizer else 0
    files.write_json_atomic(folder / CONFIG_FILE, _settings(config, head, architecture, pad_id))
    if other := _ACTIVATIONS.get(config.hidden_act):
        notes.append(f"hidden_act {config.hidden_act} is written as {other}, the name of the same function there")
    if tokenizer:
        notes += _write_tokenizer(folder, tokenizer, config.max_position_embeddings)
    return notes


def _leaf_paths(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaf_paths(value, (*path, name))
        else:
            yield (*path, name)


def _architecture(head: TaskHead | None, parts: set[str]) -> tuple[str, set[str]]:
    """The class, and the parts that it has besides the encoder."""
    if head:
        if not head.of_tokens and "pooler" not in parts:
            raise UserError(f"these weights have no pooler, which {ARCHITECTURES[head.kind]} needs")
        return ARCHITECTURES[head.kind], {"classifier"} if head.of_tokens else {"classifier", "pooler"}
    name = next((name for name, needed in _CLASSES.items() if parts.issuperset(needed)), "BertModel")
    return name, set(_CLASSES[name])


def _write_weights(
    folder: Path, weights: list[Weight], arrays: Iterator[tuple[Weight, np.ndarray]], prefix: str, max_bytes: int
) -> None:
    """Writes `weights`, whose values come from `arrays` in the same order, under names without `prefix`."""
    shards: list[list[Weight]] = [[]]
    size = 0
    for weight in weights:
        size += _bytes(weight)
        if size > max_bytes and shards[-1]:
            shards.append([])
            size = _bytes(weight)
        shards[-1].append(weight)
    wanted = {weight.name for weight in weights}
    arrays = ((weight.name, array) for weight, array in arrays if weight.name in wanted)
    places = {}
    for number, shard in enumerate(shards, start=1):
        name = WEIGHTS_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for _ in shard:
            full_name, array = next(arrays)
            tensors[full_name.removeprefix(prefix)] = np.asarray(array, np.float32)
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(map(_bytes, weights))}, "weight_map": places}
        files.write_json_atomic(folder / INDEX_FILE, index)


def _bytes(weight: Weight) -> int:
    return 4 * int(np.prod(weight.torch_shape))


def _settings(config: BertConfig, head: TaskHead | None, architecture: str, pad_id: int) -> dict[str, Any]:
    """The content of config.json."""
    settings = {
        "architectures": [architecture],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": _ACTIVATIONS.get(config.hidden_act, config.hidden_act),
        "pad_token_id": pad_id,
        **{name: getattr(config, name) for name in _SAME_SETTINGS},
    }
    if head:
        settings["id2label"] = {str(i): label for i, label in enumerate(head.labels)}
        settings["label2id"] = {label: i for i, label in enumerate(head.labels)}
    if problem := PROBLEMS.get(head and head.kind):
        settings["problem_type"] = problem
    return settings


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> list[str]:
    tokenizer.save(folder)
    if tokenizer.kind != "wordpiece":
        return [f"Transformers' BertTokenizer cannot use {SENTENCEPIECE_FILE}: cut text into ids with sentencepiece"]
    tokens = {f"{name[1:-1].lower()}_token": name for name in SPECIAL_TOKENS}
    if tokenizer.mask_id is None:
        tokens["mask_token"] = None
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": max_length,
        **tokens,
    }
    files.write_json_atomic(folder / SETTINGS_FILE, settings)
    return []
