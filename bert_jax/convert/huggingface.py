"""Weights in Hugging Face's form: a folder with config.json and safetensors files, or one safetensors file."""

import contextlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes  # noqa: F401  (its import teaches NumPy, and so safetensors, the dtype bfloat16)
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError, safe_open

from bert_jax.config import BertConfig
from input_pipeline import files
from input_pipeline.errors import UserError

_WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
_POSITION_EMBEDDINGS = "bert.embeddings.position_embeddings.weight"
_OUTPUT_BIAS = "cls.predictions.bias"
# A model may repeat the tied output layer under these names.
_REPEATED_OUTPUT_BIAS = "cls.predictions.decoder.bias"
_REPEATED = {"cls.predictions.decoder.weight": _WORD_EMBEDDINGS, _REPEATED_OUTPUT_BIAS: _OUTPUT_BIAS}
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
_DTYPES = ("F64", "F32", "F16", "BF16")
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Weight(NamedTuple):
    """One parameter under both names; dense kernels are [out, in] in PyTorch and [in, out] here, heads split."""

    name: str  # Hugging Face's, with the prefix "bert." and LayerNorm.weight / LayerNorm.bias
    path: tuple[str, ...]  # in the tree of parameters
    torch_shape: tuple[int, ...]
    shape: tuple[int, ...]  # here; with the padding rows of the vocabulary

    @property
    def part(self) -> str:
        """What a file has all or nothing of: "encoder" (with the embeddings), "pooler", or a head of cls."""
        return "encoder" if self.path[1] in ("embeddings", "encoder") else self.path[1]


class _Tensor(NamedTuple):
    slice: Any  # of safetensors, not yet read
    file: Path


class ImportReport(NamedTuple):
    """What became of the tensors of a file, by their names there, and of the model's parameters."""

    used: tuple[str, ...]
    unused: tuple[str, ...]
    initialized: tuple[str, ...]  # parameters that the file does not have: they keep their fresh values
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For the log."""
        lines = [f"{len(self.used)} tensors used"]
        if self.unused:
            lines.append(f"not used: {_listed(self.unused)}")
        if self.initialized:
            lines.append(f"not in the file, newly initialised: {_listed(self.initialized)}")
        return lines + list(self.notes)


def weight_table(config: BertConfig) -> list[Weight]:
    """All parameters of BERT with both pretraining heads, with their names and shapes in both worlds."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.padded_vocab_size
    heads = (config.num_attention_heads, config.head_dim)

    def dense(name, path, n_in, n_out, in_shape=None, out_shape=None):
        in_shape, out_shape = in_shape or (n_in,), out_shape or (n_out,)
        return [
            Weight(f"{name}.weight", (*path, "kernel"), (n_out, n_in), in_shape + out_shape),
            Weight(f"{name}.bias", (*path, "bias"), (n_out,), out_shape),
        ]

    def norm(name, path):
        return [
            Weight(f"{name}.LayerNorm.weight", (*path, "layer_norm", "scale"), (hidden,), (hidden,)),
            Weight(f"{name}.LayerNorm.bias", (*path, "layer_norm", "bias"), (hidden,), (hidden,)),
        ]

    def embedding(kind, rows, padded_rows):
        path = ("bert", "embeddings", kind, "embedding")
        return [Weight(f"bert.embeddings.{kind}.weight", path, (rows, hidden), (padded_rows, hidden))]

    table = embedding("word_embeddings", config.vocab_size, vocab)
    table += embedding("position_embeddings", *2 * (config.max_position_embeddings,))
    table += embedding("token_type_embeddings", *2 * (config.type_vocab_size,))
    table += norm("bert.embeddings", ("bert", "embeddings"))
    for i in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{i}"
        attention = ("bert", "encoder", f"layer_{i}", "attention")
        feed_forward = ("bert", "encoder", f"layer_{i}", "feed_forward")
        for role in ("query", "key", "value"):
            table += dense(f"{name}.attention.self.{role}", (*attention, role), hidden, hidden, out_shape=heads)
        table += dense(f"{name}.attention.output.dense", (*attention, "output"), hidden, hidden, in_shape=heads)
        table += norm(f"{name}.attention.output", attention)
        table += dense(f"{name}.intermediate.dense", (*feed_forward, "intermediate"), hidden, inner)
        table += dense(f"{name}.output.dense", (*feed_forward, "output"), inner, hidden)
        table += norm(f"{name}.output", feed_forward)
    table += dense("bert.pooler.dense", ("bert", "pooler"), hidden, hidden)
    predictions = ("cls", "predictions")
    table += dense("cls.predictions.transform.dense", (*predictions, "transform"), hidden, hidden)
    table += norm("cls.predictions.transform", predictions)
    table += [Weight(_OUTPUT_BIAS, (*predictions, "output_bias", "bias"), (config.vocab_size,), (vocab,))]
    return table + dense("cls.seq_relationship", ("cls", "seq_relationship"), hidden, 2)


def is_huggingface(path: str | os.PathLike, flag: str = "--init_checkpoint") -> bool:
    """Whether the path is a safetensors file, or a folder that holds weights as Hugging Face saves them."""
    place = files.reach(path, flag)
    if place.suffix == ".safetensors":
        return True
    return place.is_dir() and any(
        child.suffix == ".safetensors" or child.name in (_INDEX, *_PICKLED) for child in place.iterdir()
    )


def load_huggingface(
    path: str | os.PathLike, config: BertConfig | None = None, flag: str = "--init_checkpoint"
) -> tuple[BertConfig, dict[str, Any], ImportReport]:
    """Reads a BERT of Hugging Face: the encoder, and those of pooler and pretraining heads that it has.

    Names may have the prefix "bert." or not, LayerNorms gamma and beta or weight and bias, and the output layer, which
    is tied to the word embeddings, may be repeated. Half precision becomes float32. A position table longer than
    max_position_embeddings is cut.

    Args:
        path: a folder (one file, or shards with an index) or a .safetensors file, local or remote.
        config: what the weights have to fit; the config.json beside them when None.
        flag: named in errors.

    Returns:
        The configuration, a nested dict of float32 NumPy arrays for the parts that are there (see merge_into), and what
        was used.

    Raises:
        UserError: nothing readable, not BERT, only pickled weights, or tensors that are missing, misshapen, not finite
            or of a kind of BERT that is not supported; the message lists them.
    """
    place = files.as_path(path)
    single = place.suffix == ".safetensors"
    folder = Path(files.local_folder(place.parent if single else place, flag))
    config, notes = _fitting_config(folder, config, flag)
    with contextlib.ExitStack() as stack:
        tensors = {}
        for file in [folder / place.name] if single else _weight_files(folder, path, flag):
            handle = stack.enter_context(_open(file, flag))
            tensors |= {name: _Tensor(handle.get_slice(name), file) for name in handle.keys()}  # noqa: SIM118
        return config, *_convert(config, tensors, notes, f"{flag}: {path}")


def merge_into(initial: Any, loaded: Any) -> Any:
    """The tree of fresh parameters with the loaded ones in place of theirs; layers are stacked if the fresh ones are.

    Raises:
        ValueError: a loaded parameter has no place, or one of another shape.
    """
    if "layers" in initial["bert"]["encoder"]:
        encoder = loaded["bert"]["encoder"]
        layers = [encoder[f"layer_{i}"] for i in range(len(encoder))]
        stacked = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
        loaded = loaded | {"bert": loaded["bert"] | {"encoder": stacked}}
    merged = traverse_util.flatten_dict(initial)
    for key, value in traverse_util.flatten_dict(loaded).items():
        if key not in merged or merged[key].shape != value.shape:
            raise ValueError(f"no place for {'/'.join(key)} {list(value.shape)}")
        merged[key] = value
    return traverse_util.unflatten_dict(merged)


def _fitting_config(folder: Path, config: BertConfig | None, flag: str) -> tuple[BertConfig, list[str]]:
    """The wanted configuration, or that of the folder; what shapes cannot tell is compared here."""
    notes: list[str] = []
    file = folder / "config.json"
    if not file.is_file():
        if config is None:
            raise UserError(f"{flag}: no config.json in {folder}: give --bert_config_file, or --model")
        return config, notes
    found = BertConfig.from_file(file, flag, notes.append)
    if config is None:
        return found, notes
    if found.num_attention_heads != config.num_attention_heads:
        raise UserError(
            f"{flag}: {file} has num_attention_heads {found.num_attention_heads}, "
            f"the configuration of this run {config.num_attention_heads}"
        )
    for name in ("hidden_act", "layer_norm_eps"):
        theirs, ours = getattr(found, name), getattr(config, name)
        if theirs != ours:
            notes.append(f"{file} has {name} {theirs}, this run uses {ours}")
    return config, notes


def _weight_files(folder: Path, path: str | os.PathLike, flag: str) -> list[Path]:
    if (folder / _INDEX).is_file():
        try:
            shards = sorted(set(json.loads(files.read_text(folder / _INDEX, flag))["weight_map"].values()))
            return [folder / shard for shard in shards]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{flag}: {folder / _INDEX} is not the index of a model") from None
    found = sorted(folder.glob("*.safetensors"))
    if folder / "model.safetensors" in found:
        return [folder / "model.safetensors"]
    if len(found) == 1:
        return found
    if found:
        raise UserError(f"{flag}: {path} has several safetensors files and no {_INDEX}: name one of the files")
    if any((folder / name).is_file() for name in _PICKLED):
        raise UserError(
            f"{flag}: {path} has only pickled weights, which can run code when read; convert them once where you trust "
            f"them: python -c \"import transformers as t; t.BertForPreTraining.from_pretrained('{path}')"
            ".save_pretrained('NEW_FOLDER')\""
        )
    raise UserError(f"{flag}: no model.safetensors and no {_INDEX} in {path}")


@contextlib.contextmanager
def _open(file: Path, flag: str):
    with files.user_errors(file, flag):
        try:
            handle = safe_open(file, "numpy")
        except SafetensorError as error:
            raise UserError(f"{flag}: {file} is not a whole safetensors file: {error}") from None
    with handle:
        yield handle


def _convert(
    config: BertConfig, tensors: dict[str, _Tensor], notes: list[str], source: str
) -> tuple[dict[str, Any], ImportReport]:
    """The tensors of all files, by name, as a tree of parameters and a report."""
    names = _canonical_names(tensors)
    if _WORD_EMBEDDINGS not in names:
        raise UserError(f"{source} is not a BERT model: no {_WORD_EMBEDDINGS} among {_listed(sorted(tensors))}")
    if _OUTPUT_BIAS not in names and _REPEATED_OUTPUT_BIAS in names:
        names[_OUTPUT_BIAS] = names.pop(_REPEATED_OUTPUT_BIAS)
    ignored = [names.pop(name) for name in _BUFFERS if name in names]

    table = weight_table(config)
    parts = {"encoder"} | {weight.part for weight in table if weight.name in names}
    wanted = [weight for weight in table if weight.part in parts]
    _check_names_and_shapes(wanted, names, tensors, config, source)
    flat = {weight.path: from_torch(weight, _read(tensors, names[weight.name], source)) for weight in wanted}
    used = [names[weight.name] for weight in wanted]
    for repeated, original in _REPEATED.items():
        if repeated in names and original in names:
            one, other = names[repeated], names[original]
            if not np.array_equal(_read(tensors, one, source), _read(tensors, other, source)):
                raise UserError(f"{source}: {one} differs from {other}: an untied output layer is not supported")
            used.append(one)
    report = ImportReport(
        used=tuple(used),
        unused=tuple(sorted(tensors.keys() - {*used, *ignored})),
        initialized=tuple(weight.name for weight in table if weight.part not in parts),
        notes=tuple(notes),
    )
    return traverse_util.unflatten_dict(flat), report


def _canonical_names(tensors: Iterable[str]) -> dict[str, str]:
    """Names as in weight_table, each with the name in the file."""
    tensors = list(tensors)
    prefixed = any(name.startswith("bert.") for name in tensors)
    names = {}
    for name in tensors:
        canonical = name if prefixed or name.startswith("cls.") else f"bert.{name}"
        canonical = canonical.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        names[canonical] = name
    return names


def _check_names_and_shapes(
    wanted: list[Weight], names: dict[str, str], tensors: dict[str, _Tensor], config: BertConfig, source: str
) -> None:
    """Raises UserError unless the file has all that is wanted, in the right shape, and nothing more in the encoder."""
    if missing := [weight.name for weight in wanted if weight.name not in names]:
        raise UserError(f"{source}: tensors are missing: {_listed(missing)}")
    known = {weight.name for weight in wanted}
    if extra := [
        names[name] for name in names if name not in known and name.startswith(("bert.embeddings.", "bert.encoder."))
    ]:
        raise UserError(f"{source}: no place in {config.num_hidden_layers} layers of BERT for {_listed(extra)}")
    misshapen = []
    for weight in wanted:
        shape, needed = tuple(tensors[names[weight.name]].slice.get_shape()), weight.torch_shape
        longer = weight.name == _POSITION_EMBEDDINGS and shape[1:] == needed[1:] and shape[0] > needed[0]
        if shape != needed and not longer:
            misshapen.append(f"{names[weight.name]} is {list(shape)}, should be {list(needed)}")
    if misshapen:
        raise UserError(f"{source}: shapes do not fit the configuration: {_listed(misshapen)}")


def from_torch(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A float32 array in PyTorch's layout as the parameter: transposed, heads split, vocabulary padded with zeros."""
    if weight.path[-1] == "kernel":
        return np.ascontiguousarray(array.T).reshape(weight.shape)
    array = array[: weight.torch_shape[0]]  # a longer position table
    padding = (math.prod(weight.shape) - array.size) // math.prod(array.shape[1:])
    return np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)).reshape(weight.shape)


def _read(tensors: dict[str, _Tensor], name: str, source: str) -> np.ndarray:
    """One tensor as float32, all of it finite."""
    dtype = tensors[name].slice.get_dtype()
    if dtype not in _DTYPES:
        raise UserError(f"{source}: {name} is of type {dtype}, supported are {', '.join(_DTYPES)}")
    with np.errstate(over="ignore"):
        array = tensors[name].slice[:].astype(np.float32)
    if not np.isfinite(array).all():
        raise UserError(f"{source}: {name} in {tensors[name].file.name} has values that are NaN or infinite in float32")
    return array


def _listed(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
