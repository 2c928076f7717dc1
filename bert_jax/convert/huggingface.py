"""Weights in Hugging Face's form: a folder with config.json and safetensors files, or one safetensors file."""

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (its import teaches NumPy, and so safetensors, the dtype bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_jax.config import BertConfig
from bert_jax.convert.pickled import open_pickled
from bert_jax.convert.weights import OUTPUT_BIAS, WORD_EMBEDDINGS, ImportReport, Tensor, assemble
from bert_jax.heads import TaskHead, make_head
from input_pipeline import files
from input_pipeline.errors import UserError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Names of the classes that the kinds of heads belong to. A regression is a classification with one output there.
ARCHITECTURES = {
    "classification": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "multiple_choice": "BertForMultipleChoice",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}

_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# A model may repeat the tied output layer under these names.
_REPEATED_OUTPUT_BIAS = "cls.predictions.decoder.bias"
_REPEATED = {"cls.predictions.decoder.weight": WORD_EMBEDDINGS, _REPEATED_OUTPUT_BIAS: OUTPUT_BIAS}
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
_HEADS = ("cls.", "classifier.", "qa_outputs.")
_DTYPES = ("F64", "F32", "F16", "BF16")
# First parts of the names in files of other models, of which some have all that BERT has and more.
_OTHER_MODELS = ("roberta", "distilbert", "albert", "electra", "deberta", "longformer", "mpnet", "xlm", "transformer")


def is_huggingface(path: str | os.PathLike, flag: str = "--init_checkpoint") -> bool:
    """Whether the path is a safetensors or .bin file, or a folder that holds weights as Hugging Face saves them."""
    if has_safetensors(path, flag):
        return True
    place = files.reach(path, flag)
    return place.suffix == ".bin" or (place.is_dir() and any(child.name in _PICKLED for child in place.iterdir()))


def has_safetensors(path: str | os.PathLike, flag: str = "--init_checkpoint") -> bool:
    """Whether the path is a safetensors file, or a folder with one."""
    place = files.reach(path, flag)
    if place.suffix == ".safetensors":
        return True
    return place.is_dir() and any(
        child.suffix == ".safetensors" or child.name == INDEX_FILE for child in place.iterdir()
    )


def load_huggingface(
    path: str | os.PathLike,
    config: BertConfig | None = None,
    flag: str = "--init_checkpoint",
    head: TaskHead | None = None,
    extend_positions: bool = False,
    allow_pickled: bool = False,
) -> tuple[BertConfig, dict[str, Any], ImportReport]:
    """Reads a BERT of Hugging Face: the encoder, and those of pooler and heads that it has.

    Names may have the prefix "bert." or not, LayerNorms gamma and beta or weight and bias, and the output layer, which
    is tied to the word embeddings, may be repeated. Half precision becomes float32.

    Args:
        path: a folder (one file, or shards with an index), a .safetensors file, or a .bin file, local or remote.
        config: what the weights have to fit; the config.json beside them when None.
        flag: named in errors.
        head: the head of a task to read instead of the pretraining heads; see find_head.
        extend_positions: see weights.assemble.
        allow_pickled: read .bin files, with PyTorch's loader for weights only.

    Returns:
        The configuration, a nested dict of float32 NumPy arrays for the parts that are there, and what was used.

    Raises:
        UserError: nothing readable, not BERT, only pickled weights, or tensors that are missing, misshapen, not finite
            or of a kind of BERT that is not supported; the message lists them.
    """
    source = f"{flag}: {path}"
    with _open_tensors(path, flag, allow_pickled) as (folder, raw):
        config, notes = _fitting_config(folder, config, flag)
        tensors = canonical(raw, source)
        for name in _BUFFERS:
            tensors.pop(name, None)
        if OUTPUT_BIAS not in tensors and _REPEATED_OUTPUT_BIAS in tensors:
            tensors[OUTPUT_BIAS] = tensors.pop(_REPEATED_OUTPUT_BIAS)
        repeated = {name: tensors.pop(name) for name in _REPEATED if name in tensors}
        params, report = assemble(config, head, tensors, source, extend_positions)
        used, unused = list(report.used), set(report.unused)
        for name, tensor in repeated.items():
            original = tensors.get(_REPEATED[name])
            if head or original is None:
                unused.add(tensor.name)
            elif np.array_equal(tensor.read(), original.read()):
                used.append(tensor.name)
            else:
                raise UserError(
                    f"{source}: {tensor.name} differs from {original.name}: an untied output layer is not supported"
                )
    return (
        config,
        params,
        report._replace(used=tuple(used), unused=tuple(sorted(unused)), notes=(*report.notes, *notes)),
    )


def find_head(path: str | os.PathLike, flag: str, allow_pickled: bool = False) -> TaskHead | None:
    """The head of a task that the weights at `path` have, with the label names of config.json; None without one.

    Where config.json does not name the class: without a pooler it is a tagger, else a classifier.
    """
    with _open_tensors(path, flag, allow_pickled) as (folder, raw):
        tensors = canonical(raw, f"{flag}: {path}")
        width = tensors[WORD_EMBEDDINGS].shape[1:] if WORD_EMBEDDINGS in tensors else None
        shapes = {name: tensors[name].shape for name in ("classifier.weight", "qa_outputs.weight") if name in tensors}
        shapes = {name: shape for name, shape in shapes.items() if shape[1:] == width}  # one dense layer on the encoder
        has_pooler = "bert.pooler.dense.weight" in tensors
    if not shapes:
        return None
    values: Any = {}
    if (folder / CONFIG_FILE).is_file():
        # What is wrong with it is said where the configuration is read.
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(files.read_text(folder / CONFIG_FILE, flag))
    values = values if isinstance(values, dict) else {}
    classes = values.get("architectures") or []
    kind = next((kind for kind, name in ARCHITECTURES.items() if name in classes), None)
    if "qa_outputs.weight" in shapes:
        kind = "span"
    elif kind is None:
        kind = "classification" if has_pooler else "tagging"
    outputs = next(iter(shapes.values()))[0]
    if kind == "classification" and outputs == 1:
        kind = "regression"
    names = values.get("id2label")
    names = names if isinstance(names, dict) else {}
    labels = [str(names.get(str(i), f"LABEL_{i}")) for i in range(outputs)]
    labels = [f"{label}_{i}" if label in labels[:i] else label for i, label in enumerate(labels)]
    return make_head(kind, labels, f"{flag}: {folder / CONFIG_FILE}")


def canonical(raw: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors of a file by their names in weight_table; names of other things stay as they are.

    Raises:
        UserError: the names are those of another model than BERT.
    """
    names = {name: name.removeprefix("_orig_mod.").removeprefix("module.") for name in raw}  # PyTorch's own wrappers
    for name in names.values():
        if name.partition(".")[0] in _OTHER_MODELS:
            raise UserError(f"{source}: {name} belongs to another model than BERT ({name.partition('.')[0]})")
    prefixed = any(name.startswith("bert.") for name in names.values())
    tensors = {}
    for name, short in names.items():
        full = short if prefixed or short.startswith(_HEADS) else f"bert.{short}"
        full = full.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        tensors[full] = raw[name]
    return tensors


@contextlib.contextmanager
def _open_tensors(path: str | os.PathLike, flag: str, allow_pickled: bool) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """The folder of `path`, and all tensors by their names in the files."""
    place = files.as_path(path)
    single = place.suffix in (".safetensors", ".bin")
    if single:
        files.size_and_mtime(place, flag)
    folder = Path(files.local_folder(place.parent if single else place, flag))
    with contextlib.ExitStack() as stack:
        tensors: dict[str, Tensor] = {}
        for file in [folder / place.name] if single else _weight_files(folder, path, flag, allow_pickled):
            if file.suffix == ".bin":
                if not allow_pickled:
                    raise _pickled_error(path, flag)
                tensors |= open_pickled(file, flag)
                continue
            handle = stack.enter_context(_open(file, flag))
            for name in handle.keys():  # noqa: SIM118
                part = handle.get_slice(name)
                read = functools.partial(_read, part, name, f"{flag}: {file}")
                tensors[name] = Tensor(name, tuple(part.get_shape()), read)
        yield folder, tensors


def _read(part: Any, name: str, source: str) -> np.ndarray:
    if part.get_dtype() not in _DTYPES:
        raise UserError(f"{source}: {name} is of type {part.get_dtype()}, supported are {', '.join(_DTYPES)}")
    with np.errstate(over="ignore"):
        return part[:].astype(np.float32)


def _fitting_config(folder: Path, config: BertConfig | None, flag: str) -> tuple[BertConfig, list[str]]:
    """The wanted configuration, or that of the folder; what shapes cannot tell is compared here."""
    notes: list[str] = []
    file = folder / CONFIG_FILE
    if not file.is_file():
        if config is None:
            raise UserError(f"{flag}: no {CONFIG_FILE} in {folder}: give --bert_config_file, or --model")
        return config, notes
    found = BertConfig.from_file(file, flag, notes.append)
    if config is None:
        return found, notes
    notes = []  # whoever made the wanted configuration has said what there is to say about the file
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


def _weight_files(folder: Path, path: str | os.PathLike, flag: str, allow_pickled: bool) -> list[Path]:
    if (folder / INDEX_FILE).is_file():
        return _shards(folder, INDEX_FILE, flag)
    found = sorted(folder.glob("*.safetensors"))
    if folder / WEIGHTS_FILE in found:
        return [folder / WEIGHTS_FILE]
    if len(found) == 1:
        return found
    if found:
        raise UserError(f"{flag}: {path} has several safetensors files and no {INDEX_FILE}: name one of the files")
    weights, index = _PICKLED
    if (folder / weights).is_file() or (folder / index).is_file():
        if not allow_pickled:
            raise _pickled_error(path, flag)
        return [folder / weights] if (folder / weights).is_file() else _shards(folder, index, flag)
    raise UserError(f"{flag}: no {WEIGHTS_FILE} and no {INDEX_FILE} in {path}")


def _shards(folder: Path, index: str, flag: str) -> list[Path]:
    try:
        names: Iterable[Any] = json.loads(files.read_text(folder / index, flag))["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{flag}: {folder / index} is not the index of a model") from None


def _pickled_error(path: str | os.PathLike, flag: str) -> UserError:
    file = path if os.fspath(path).endswith(".bin") else os.path.join(path, _PICKLED[0])
    convert = (
        f"import torch, safetensors.torch as s; w = torch.load('{file}', weights_only=True); "
        "s.save_file({k: v.contiguous().clone() for k, v in w.items()}, "
        f"'{os.path.join(os.path.dirname(file), WEIGHTS_FILE)}')"
    )
    return UserError(
        f"{flag}: {path} has only pickled weights, which could run code when read: give --allow_pickled_weights to "
        f'read them with PyTorch\'s loader for weights only, or convert them once: python -c "{convert}"'
    )


@contextlib.contextmanager
def _open(file: Path, flag: str):
    with files.user_errors(file, flag):
        try:
            handle = safe_open(file, "numpy")
        except SafetensorError as error:
            raise UserError(f"{flag}: {file} is not a whole safetensors file: {error}") from None
    with handle:
        yield handle
