"""Weights in Hugging Face's form: a folder with config.json and safetensors files, or one safetensors file."""

import contextlib
import functools
import itertools
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
    "multi_label": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "multiple_choice": "BertForMultipleChoice",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}

# What tells apart the kinds of one class, under the key problem_type.
PROBLEMS = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
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
# The same for parts of theirs, which lie beside an encoder that may have BERT's names.
_OTHER_PARTS = ("lm_head", "lm_predictions", "embeddings_project", "discriminator_predictions", "sop_classifier")
_OTHER_PARTS += ("generator_predictions", "generator_lm_head", "vocab_projector", "vocab_transform")


def is_huggingface(path: str | os.PathLike, flag: str = "--init_checkpoint") -> bool:
    """Whether the path is a safetensors or .bin file, or a folder that holds weights as Hugging Face saves them."""
    if has_safetensors(path, flag):
        return True
    place = files.reach(path, flag)
    if place.is_dir():
        return any(child.name in _PICKLED and not child.is_dir() for child in place.iterdir())
    return place.suffix == ".bin"


def has_safetensors(path: str | os.PathLike, flag: str = "--init_checkpoint") -> bool:
    """Whether the path is a safetensors file, or a folder with one."""
    place = files.reach(path, flag)
    if not place.is_dir():
        return place.suffix == ".safetensors"
    with files.user_errors(place, flag):
        return any(
            (child.suffix == ".safetensors" or child.name == INDEX_FILE) and not child.is_dir()
            for child in place.iterdir()
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
    classes = values.get("architectures")
    classes = classes if isinstance(classes, list) else []
    kind = next((kind for kind, name in ARCHITECTURES.items() if name in classes), None)
    if "qa_outputs.weight" in shapes:
        kind = "span"
    elif kind is None:
        kind = "classification" if has_pooler else "tagging"
    outputs = next(iter(shapes.values()))[0]
    if kind == "classification":
        if values.get("problem_type") == PROBLEMS["multi_label"]:
            kind = "multi_label"
        elif outputs == 1:
            kind = "regression"
    names = values.get("id2label")
    names = names if isinstance(names, dict) else {}
    labels = _different([str(names.get(str(i), f"LABEL_{i}")) for i in range(outputs)])
    if kind == "regression" and labels == ["LABEL_0"]:  # the name that Transformers makes up
        labels = None
    return make_head(kind, labels, f"{flag}: {folder / CONFIG_FILE}")


def _different(labels: list[str]) -> list[str]:
    """The labels, with a number behind each that is there already."""
    taken, result = set(labels), []
    for i, label in enumerate(labels):
        if label in result:
            label = next(name for n in itertools.count(i) if (name := f"{label}_{n}") not in taken)
            taken.add(label)
        result.append(label)
    return result


def canonical(raw: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors of a file by their names in weight_table; names of other things stay as they are.

    Raises:
        UserError: the names are those of another model than BERT, or two are names of one tensor.
    """
    names = {name: name.removeprefix("_orig_mod.").removeprefix("module.") for name in raw}  # PyTorch's own wrappers
    for name in names.values():
        first = name.partition(".")[0]
        if first in _OTHER_MODELS:
            raise UserError(f"{source}: {name} belongs to another model than BERT ({first})")
        if first in _OTHER_PARTS:
            raise UserError(f"{source}: {name} is part of another model than BERT")
    prefixed = any(name.startswith("bert.") for name in names.values())
    tensors = {}
    for name, short in names.items():
        full = short if prefixed or short.startswith(_HEADS) else f"bert.{short}"
        full = full.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if full in tensors:
            raise UserError(f"{source}: {tensors[full].name} and {name} are names of one tensor")
        tensors[full] = raw[name]
    return tensors


@contextlib.contextmanager
def _open_tensors(path: str | os.PathLike, flag: str, allow_pickled: bool) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """The folder of `path`, and all tensors by their names in the files."""
    place = files.as_path(path)
    single = place.suffix in (".safetensors", ".bin") and not place.is_dir()
    if single:
        files.size_and_mtime(place, flag)
    folder = Path(files.local_folder(place.parent if single else place, flag))
    with contextlib.ExitStack() as stack:
        tensors: dict[str, Tensor] = {}
        places: dict[str, Path] = {}
        for file in [folder / place.name] if single else _weight_files(folder, path, flag, allow_pickled):
            if file.suffix == ".bin":
                if not allow_pickled:
                    raise _pickled_error([file], folder, path, flag)
                found = open_pickled(file, flag)
            else:
                found = _slices(stack.enter_context(_open(file, flag)), f"{flag}: {file}")
            for name, tensor in found.items():
                if name in tensors:
                    raise UserError(f"{flag}: {path}: {name} is both in {places[name].name} and in {file.name}")
                tensors[name], places[name] = tensor, file
        yield folder, tensors


def _slices(handle: Any, source: str) -> dict[str, Tensor]:
    """The tensors of an open safetensors file."""
    slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
    return {
        name: Tensor(name, tuple(part.get_shape()), functools.partial(_read, part, name, source))
        for name, part in slices.items()
    }


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
    found = sorted(file for file in folder.glob("*.safetensors") if not file.is_dir())
    if folder / WEIGHTS_FILE in found:
        return [folder / WEIGHTS_FILE]
    if len(found) == 1:
        return found
    if found:
        raise UserError(f"{flag}: {path} has several safetensors files and no {INDEX_FILE}: name one of the files")
    weights, index = _PICKLED
    if (folder / weights).is_file() or (folder / index).is_file():
        found = [folder / weights] if (folder / weights).is_file() else _shards(folder, index, flag)
        if not allow_pickled:
            raise _pickled_error(found, folder, path, flag)
        return found
    raise UserError(f"{flag}: no {WEIGHTS_FILE} and no {INDEX_FILE} in {path}")


def _shards(folder: Path, index: str, flag: str) -> list[Path]:
    try:
        names: Iterable[Any] = json.loads(files.read_text(folder / index, flag))["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{flag}: {folder / index} is not the index of a model") from None


def _pickled_error(found: list[Path], folder: Path, path: str | os.PathLike, flag: str) -> UserError:
    names = [os.fspath(file) for file in found]
    if len(names) > 1:
        index = os.fspath(folder / _PICKLED[1])
        which = f"{{'{folder}/' + name for name in json.load(open('{index}'))['weight_map'].values()}}"
    else:
        which = str(names)
    convert = (
        f"import json, torch, safetensors.torch as s; files = {which}; "
        "w = {k: v.contiguous().clone() for f in files for k, v in torch.load(f, weights_only=True).items()}; "
        f"s.save_file(w, '{folder / WEIGHTS_FILE}')"
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
