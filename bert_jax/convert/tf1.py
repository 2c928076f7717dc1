"""Google's TensorFlow 1 checkpoints: finding one, and reading its parameters."""

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from bert_jax.config import BertConfig
from bert_jax.convert.weights import ImportReport, Tensor, Weight, assemble, listed, weight_table
from bert_jax.heads import HEAD_FILE, TaskHead, make_head, read_head
from input_pipeline import files
from input_pipeline.errors import UserError

CONFIG_FILE = "bert_config.json"

# The key of our own in bert_config.json, for what Google's hidden_act cannot tell apart; Google's code ignores it.
ACTIVATION_KEY = "bert_jax_hidden_act"

_PARTS = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# TensorFlow takes local paths with them for patterns when it reads.
GLOB_CHARACTERS = re.compile(r"[*?\[\\]")

# What optimizers keep for each variable, in a scope of the variable's name, and what training counts besides.
_SLOTS = re.compile(
    r"/(adam|lamb|momentum|rmsprop|adagrad|adadelta|adafactor|lars|sgd|ftrl)\w*$|/([mv]|v[rc]|exponentialmovingaverage)$",
    re.IGNORECASE,
)
_COUNTERS = re.compile(
    r"(^|/)((global|local|accum)_step|beta[12]_power|learning_rate|(current_)?loss_scale|(good|bad)_steps)(_\d+)?$"
)

_POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
_WORDS = "bert/embeddings/word_embeddings"
_ALBERT = ("bert/encoder/transformer/", "bert/encoder/embedding_hidden_mapping_in/")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OUTPUTS = ("output_weights", "cls/squad/output_weights")


def find_prefix(path: str | os.PathLike, flag: str = "--init_checkpoint") -> str | None:
    """The prefix ("…/bert_model.ckpt") of the TF1 checkpoint at `path`; None where there is none.

    Args:
        path: the prefix, one of the files that begin with it (.index, .meta, .data-00000-of-00001), or the folder of a
            checkpoint; of several in a folder that which TensorFlow's file named `checkpoint` calls the latest.
        flag: named in errors.

    Raises:
        UserError: a folder with several checkpoints, a checkpoint without its index, or a path that cannot be reached.
    """
    place = files.reach(path, flag)
    with files.user_errors(place, flag):
        if place.is_dir():
            return _prefix_in(place, flag)
        name = _PARTS.sub("", place.name)
        prefix = os.fspath(place.parent / name)
        if files.as_path(f"{prefix}.index").exists():
            return prefix
        if (name == place.name and place.exists()) or not place.parent.is_dir():
            return None
        if any(child.name.startswith(f"{name}.data-") for child in place.parent.iterdir()):
            raise UserError(f"{flag}: {prefix}.index is missing; a TF1 checkpoint is {name}.index and {name}.data-*")
        return None


def google_activation(config: BertConfig, folder: str | os.PathLike | None = None) -> tuple[BertConfig, list[str]]:
    """What a "gelu" in Google's bert_config.json means, with lines for the user: its code computes the tanh form.

    Args:
        config: as the file says, with the hidden_act "gelu".
        folder: that of the checkpoint; a bert_config.json there that was exported from here says which "gelu" it was.

    Raises:
        UserError: it says something that is no "gelu".
    """
    if folder is not None and (file := files.as_path(folder) / CONFIG_FILE).exists():
        values = {}
        with contextlib.suppress(ValueError, RecursionError):  # said where the configuration itself is read
            values = json.loads(files.read_text(file, "--init_checkpoint"))
        name = values.get(ACTIVATION_KEY) if isinstance(values, dict) else None
        if name is not None:
            if not str(name).startswith("gelu"):
                raise UserError(f"{file}: {ACTIVATION_KEY} must be a form of gelu, not {name!r}")
            try:
                return dataclasses.replace(config, hidden_act=name), []
            except UserError as error:
                raise UserError(f"{file}: {ACTIVATION_KEY}: {error}") from None
    note = (
        'hidden_act "gelu" is the tanh form in Google\'s code, so it is gelu_new here; give --hidden_act=gelu for '
        "weights that were trained with the erf form"
    )
    return dataclasses.replace(config, hidden_act="gelu_new"), [note]


def find_head(prefix: str, flag: str = "--init_checkpoint") -> TaskHead | None:
    """The head of a task that the checkpoint has; None for one of pretraining.

    cls/squad is Google's head of question answering. Its other one, output_weights, is a classifier, or a regression
    where it has one output: taggers of other authors look the same. A task_head.json beside it says more: labels too.

    Raises:
        UserError: the checkpoint cannot be read, or has other outputs than task_head.json names.
    """
    _, shapes = _open(prefix, flag)
    outputs = [name for name in _OUTPUTS if len(shapes.get(name, ())) == 2]
    if not outputs:
        return None
    name, count = outputs[-1], shapes[outputs[-1]][0]
    described = read_head(os.path.dirname(prefix) or ".", flag)
    if described:
        kind, labels = described.kind, described.labels
    elif name == "output_weights":
        kind = "regression" if count == 1 else "classification"
        labels = [f"LABEL_{i}" for i in range(count)] if count > 1 else None
    else:
        kind, labels = "span", None
    head = make_head(kind, labels, f"{flag}: {prefix}")
    if len(head.labels) != count or (head.kind == "span") != (name != "output_weights"):
        source = f"{HEAD_FILE} beside it describes" if described else "this task has"
        raise UserError(
            f"{flag}: {prefix}: {name} has {count} outputs, but {source} {head.kind} with {len(head.labels)} outputs"
        )
    return head


def load_tf1(
    prefix: str,
    config: BertConfig,
    flag: str = "--init_checkpoint",
    head: TaskHead | None = None,
    extend_positions: bool = False,
) -> tuple[dict[str, Any], ImportReport]:
    """Reads a BERT of Google's: the encoder, and those of pooler and heads that it has.

    Variables of optimizers and of training (adam_m, global_step, ...) are ignored. Half precision becomes float32. A
    pooler of zeros counts as none: that is how a model without one is exported.

    Args:
        prefix: from find_prefix, local or remote.
        config: what the weights have to fit.
        flag: named in errors.
        head: the head of a task to read instead of the pretraining heads; see find_head.
        extend_positions: see weights.assemble.

    Returns:
        A nested dict of float32 NumPy arrays for the parts that are there, and what was used.

    Raises:
        UserError: nothing readable, not BERT, variables below bert/ that BERT does not have, or tensors that are
            missing, misshapen or not finite; the message lists them.
    """
    source = f"{flag}: {prefix}"
    reader, shapes = _open(prefix, flag)
    dtypes = reader.get_variable_to_dtype_map()
    training = [name for name in shapes if _SLOTS.search(name) or _COUNTERS.search(name)]
    names = sorted(shapes.keys() - set(training))
    known = {weight.google_name: weight for weight in weight_table(config) + weight_table(config, head)}
    _check_names(names, known, config, source)
    tensors = {}
    for name in names:
        weight = known.get(name)
        transposes = weight is not None and weight.google_transposes
        shape = tuple(shapes[name])[::-1] if transposes else tuple(shapes[name])
        read = functools.partial(_read, reader, name, dtypes[name], transposes, prefix, flag)
        tensors[weight.name if weight else name] = Tensor(name, shape, read)
    notes = []
    if all(name in tensors for name in _POOLER) and not any(tensors[name].read().any() for name in _POOLER):
        tensors = {name: tensor for name, tensor in tensors.items() if name not in _POOLER}
        notes.append("its pooler is all zeros, which stands for none")
    params, report = assemble(config, head, tensors, source, extend_positions, lambda weight: weight.google_name)
    if training:
        kinds = sorted({name.rpartition("/")[2] for name in training})
        notes.append(f"{len(training)} variables of training ignored: {listed(kinds)}")
    return params, report._replace(notes=(*report.notes, *notes))


def _prefix_in(folder: epath.Path, flag: str) -> str | None:
    names = {child.name for child in folder.iterdir()}
    found = sorted(name.removesuffix(".index") for name in names if name.endswith(".index"))
    if len(found) > 1 and "checkpoint" in names:
        from input_pipeline.host_tensorflow import tf

        state = None
        with contextlib.suppress(UnicodeDecodeError):
            state = tf.train.get_checkpoint_state(os.fspath(folder))
        latest = state and os.path.basename(state.model_checkpoint_path)  # the folder may have been moved
        found = [latest] if latest in found else found
    if len(found) > 1:
        raise UserError(f"{flag}: {folder} holds several TF1 checkpoints, name one of them: {listed(found)}")
    return os.fspath(folder / found[0]) if found else None


def _open(prefix: str, flag: str) -> tuple[Any, dict[str, list[int]]]:
    """TensorFlow's reader of a checkpoint, which reads a variable when it is asked for it, and the shapes by name."""
    if not files.is_remote(prefix) and (special := GLOB_CHARACTERS.search(prefix)):
        raise UserError(f"{flag}: TensorFlow reads no checkpoint at {prefix}, because of the {special[0]} in its name")
    files.size_and_mtime(f"{prefix}.index", flag)
    from input_pipeline.host_tensorflow import tf

    with _whole(prefix, flag):
        reader = tf.train.load_checkpoint(prefix)
        return reader, reader.get_variable_to_shape_map()


@contextlib.contextmanager
def _whole(prefix: str, flag: str) -> Iterator[None]:
    """Turns what TensorFlow raises about a file (IndexError, OpError and others) into a UserError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{flag}: the TF1 checkpoint {prefix} is damaged or not whole: {reason}") from None


def _read(reader: Any, name: str, dtype: Any, transposes: bool, prefix: str, flag: str) -> np.ndarray:
    if not dtype.is_floating:
        raise UserError(f"{flag}: {prefix}: {name} is of type {dtype.name}, a floating-point type is needed")
    with _whole(f"{prefix}, of which {name} was read,", flag):
        array = reader.get_tensor(name)
    with np.errstate(over="ignore"):  # infinities are found where all values are checked
        array = array.astype(np.float32)
    return array.T if transposes else array


def _check_names(names: list[str], known: dict[str, Weight], config: BertConfig, source: str) -> None:
    """Raises UserError unless these are the names of a BERT, with none below bert/ that it does not have."""
    if any(
        name.startswith(("bert/encoder/transformer/", "bert/encoder/embedding_hidden_mapping_in/")) for name in names
    ):
        raise UserError(f"{source} is an ALBERT, whose layers share their weights, not a BERT")
    if _OBJECT_GRAPH in names:
        raise UserError(
            f"{source} was written by TensorFlow 2 (tf.train.Checkpoint): a TF1 checkpoint of BERT is needed"
        )
    if _WORDS not in names:
        raise UserError(f"{source} is not a BERT: there is no {_WORDS} among {listed(names)}")
    if unknown := [name for name in names if name.startswith("bert/") and name not in known]:
        raise UserError(f"{source}: no place in {config.num_hidden_layers} layers of BERT for {listed(unknown)}")
