"""The names and shapes of all parameters here, in Hugging Face's files and in Google's: one table for both ways."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from bert_jax.config import BertConfig
from bert_jax.heads import TaskHead
from input_pipeline.errors import UserError

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
POSITION_EMBEDDINGS = "bert.embeddings.position_embeddings.weight"
OUTPUT_BIAS = "cls.predictions.bias"


PART_NAMES = {
    "pooler": "pooler",
    "predictions": "masked-LM head",
    "seq_relationship": "next-sentence head",
    "classifier": "head of the task",
}
# What a task leaves aside of a pretrained model, in files of Hugging Face and of Google.
_PRETRAINING_HEAD = re.compile(r"cls[./](predictions|seq_relationship)[./]")


class Weight(NamedTuple):
    """One parameter under its three names; dense kernels are [out, in] in PyTorch and [in, out] here."""

    name: str  # Hugging Face's, with the prefix "bert." and LayerNorm.weight / LayerNorm.bias
    path: tuple[str, ...]  # in the tree of parameters
    torch_shape: tuple[int, ...]
    shape: tuple[int, ...]  # here; with the padding rows of the vocabulary

    @property
    def part(self) -> str:
        """What a file has all or nothing of: "encoder" (with the embeddings), "pooler", or one of the heads."""
        scope, part = self.path[:2]
        if part in ("embeddings", "encoder"):
            return "encoder"
        return scope if scope == "classifier" else part

    @property
    def google_name(self) -> str:
        """The variable's name in a TF1 checkpoint."""
        *scope, leaf = self.name.split(".")
        scope = "/".join(scope).replace("layer/", "layer_")
        if scope in ("classifier", "qa_outputs", "cls/seq_relationship"):  # variables of their own, not tf.layers.dense
            scope = {"classifier": "", "qa_outputs": "cls/squad/"}.get(scope, f"{scope}/")
            return scope + {"weight": "output_weights", "bias": "output_bias"}[leaf]
        if self.name == OUTPUT_BIAS:
            return "cls/predictions/output_bias"
        if scope.endswith("_embeddings"):
            return scope
        names = {"weight": "gamma", "bias": "beta"} if scope.endswith("LayerNorm") else {"weight": "kernel"}
        return f"{scope}/{names.get(leaf, leaf)}"

    @property
    def google_transposes(self) -> bool:
        """Whether the TF1 variable is the transpose of PyTorch's: [in, out]."""
        return self.google_name.endswith("/kernel")


class Tensor(NamedTuple):
    """One tensor of a file, not read yet; `read` gives it in PyTorch's layout, of shape `shape`, as float32."""

    name: str  # in the file
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class ImportReport(NamedTuple):
    """What became of the tensors of a file, by their names there, and of the model's parameters."""

    used: tuple[str, ...]
    unused: tuple[str, ...]
    initialized: tuple[str, ...]  # parameters that the file does not have: fresh ones in training, none elsewhere
    missing_parts: tuple[str, ...]  # what these belong to, of PART_NAMES
    notes: tuple[str, ...]

    def lines(self, fresh: bool = False) -> list[str]:
        """For the log; `fresh` says that what the file lacks was newly initialised."""
        line = f"{len(self.used)} tensors used, {len(self.unused)} not used, {len(self.initialized)} "
        line += "newly initialised" if fresh else "not in the file"
        if self.initialized:
            line += f" ({', '.join(self.missing_parts)})"
        lines = [line]
        if self.unused:
            matches = ((name, _PRETRAINING_HEAD.match(name)) for name in self.unused)
            parts = dict.fromkeys(PART_NAMES[match[1]] if match else name for name, match in matches)
            lines.append(f"not used: {listed(parts)}")
        return lines + list(self.notes)


def weight_table(config: BertConfig, head: TaskHead | None = None) -> list[Weight]:
    """All parameters of BERT with both pretraining heads, or with the head of a task instead."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.padded_vocab_size

    def dense(name, path, n_in, n_out):
        return [
            Weight(f"{name}.weight", (*path, "kernel"), (n_out, n_in), (n_in, n_out)),
            Weight(f"{name}.bias", (*path, "bias"), (n_out,), (n_out,)),
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
            table += dense(f"{name}.attention.self.{role}", (*attention, role), hidden, hidden)
        table += dense(f"{name}.attention.output.dense", (*attention, "output"), hidden, hidden)
        table += norm(f"{name}.attention.output", attention)
        table += dense(f"{name}.intermediate.dense", (*feed_forward, "intermediate"), hidden, inner)
        table += dense(f"{name}.output.dense", (*feed_forward, "output"), inner, hidden)
        table += norm(f"{name}.output", feed_forward)
    table += dense("bert.pooler.dense", ("bert", "pooler"), hidden, hidden)
    if head:
        name = "qa_outputs" if head.kind == "span" else "classifier"
        return table + dense(name, ("classifier",), hidden, len(head.labels))
    predictions = ("cls", "predictions")
    table += dense("cls.predictions.transform.dense", (*predictions, "transform"), hidden, hidden)
    table += norm("cls.predictions.transform", predictions)
    table += [Weight(OUTPUT_BIAS, (*predictions, "output_bias", "bias"), (config.vocab_size,), (vocab,))]
    return table + dense("cls.seq_relationship", ("cls", "seq_relationship"), hidden, 2)


def assemble(
    config: BertConfig,
    head: TaskHead | None,
    tensors: Mapping[str, Tensor],
    source: str,
    extend_positions: bool = False,
    name_of: Callable[[Weight], str] = lambda weight: weight.name,
) -> tuple[dict[str, Any], ImportReport]:
    """The tree of parameters that a file's tensors make up.

    A position table longer than max_position_embeddings is cut, a shorter one repeated if `extend_positions` says so. A
    task head of another size than that of `head` is left out. Everything else has to fit.

    Args:
        config, head: what is wanted.
        tensors: by their names in weight_table; others count as not used.
        source: the flag and the path, for errors.
        name_of: the name of a parameter that is missing, for errors.

    Returns:
        A nested dict of float32 NumPy arrays for the parts that are there (see merge_into), and what was used.

    Raises:
        UserError: tensors that are missing, misshapen, not finite, or in the encoder without a place.
    """
    notes = []
    table = weight_table(config, head)
    outside = {
        weight.part
        for weight in table
        if weight.part == "classifier" and weight.name in tensors and tensors[weight.name].shape != weight.torch_shape
    }
    parts = ({"encoder"} | {weight.part for weight in table if weight.name in tensors}) - outside
    wanted = [weight for weight in table if weight.part in parts]
    for weight in table:
        if weight.part in outside and weight.name in tensors:
            shape = list(tensors[weight.name].shape)
            notes.append(f"{tensors[weight.name].name} {shape} skipped: this task has {len(head.labels)} outputs")
    _check_names_and_shapes(wanted, tensors, config, source, extend_positions, name_of)
    flat = {weight.path: from_torch(weight, _read(tensors[weight.name], source)) for weight in wanted}
    used = [tensors[weight.name].name for weight in wanted]
    rows = tensors[POSITION_EMBEDDINGS].shape[0]
    if rows != config.max_position_embeddings:
        done = "cut" if rows > config.max_position_embeddings else "repeated"
        notes.append(f"the table of {rows} positions is {done} to {config.max_position_embeddings}")
    if head and not head.pools:
        parts.add("pooler")
    missing = [weight for weight in table if weight.part not in parts]
    report = ImportReport(
        used=tuple(used),
        unused=tuple(sorted({tensor.name for tensor in tensors.values()} - set(used))),
        initialized=tuple(weight.name for weight in missing),
        missing_parts=tuple(dict.fromkeys(PART_NAMES[weight.part] for weight in missing)),
        notes=tuple(notes),
    )
    return traverse_util.unflatten_dict(flat), report


def disassemble(
    config: BertConfig, head: TaskHead | None, params: Mapping[str, Any]
) -> Iterator[tuple[Weight, np.ndarray]]:
    """The inverse of assemble: each parameter that `params` (layers not stacked) has, in PyTorch's layout."""
    flat = traverse_util.flatten_dict(params)
    for weight in weight_table(config, head):
        if weight.path in flat:
            yield weight, to_torch(weight, np.asarray(flat[weight.path]))


def from_torch(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A float32 array in PyTorch's layout as the parameter: transposed, vocabulary padded with zeros."""
    if weight.path[-1] == "kernel":
        return np.ascontiguousarray(array.T).reshape(weight.shape)
    if weight.name == POSITION_EMBEDDINGS:  # Longer tables are cut; shorter ones repeated (Beltagy et al., 2020).
        return np.resize(array, weight.shape)
    padding = (math.prod(weight.shape) - array.size) // math.prod(array.shape[1:])
    return np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)).reshape(weight.shape)


def to_torch(weight: Weight, array: np.ndarray) -> np.ndarray:
    """The inverse of from_torch."""
    out, *rest = weight.torch_shape
    if weight.path[-1] == "kernel":
        return np.ascontiguousarray(array.reshape(*rest, out).T)
    return np.ascontiguousarray(array.reshape(-1, *rest)[:out])


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


def unstack_layers(params: Any) -> Any:
    """The same parameters with layers of their own (layer_0, layer_1, ...), as weight_table names them."""
    encoder = params["bert"]["encoder"]
    if "layers" not in encoder:
        return params
    count = len(jax.tree.leaves(encoder["layers"])[0])
    layers = {f"layer_{i}": jax.tree.map(lambda x, i=i: x[i], encoder["layers"]) for i in range(count)}
    return params | {"bert": params["bert"] | {"encoder": layers}}


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names for a message, the first ones of many."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _check_names_and_shapes(
    wanted: list[Weight],
    tensors: Mapping[str, Tensor],
    config: BertConfig,
    source: str,
    extend_positions: bool,
    name_of: Callable[[Weight], str],
) -> None:
    """Raises UserError unless the file has all that is wanted, in the right shape, and nothing more in the encoder."""
    if missing := [name_of(weight) for weight in wanted if weight.name not in tensors]:
        if not any(weight.part == "encoder" and weight.name in tensors for weight in wanted):
            names = [tensor.name for tensor in tensors.values()]
            raise UserError(f"{source} is not a BERT model: nothing of its encoder is among {listed(names, 3)}")
        raise UserError(f"{source}: tensors are missing: {listed(missing)}")
    known = {weight.name for weight in wanted}
    inner = ("bert.embeddings.", "bert.encoder.")
    if extra := [tensor.name for name, tensor in tensors.items() if name not in known and name.startswith(inner)]:
        raise UserError(f"{source}: no place in {config.num_hidden_layers} layers of BERT for {listed(extra)}")
    misshapen = []
    for weight in wanted:
        shape, needed = tensors[weight.name].shape, weight.torch_shape
        if shape == needed:
            continue
        if weight.name == POSITION_EMBEDDINGS and shape[1:] == needed[1:] and shape[0] > 0:
            if shape[0] > needed[0] or extend_positions:
                continue
            raise UserError(
                f"{source}: its table has {shape[0]} positions, max_position_embeddings is {needed[0]}: give "
                "--extend_positions to repeat the table, or a smaller number"
            )
        misshapen.append(f"{tensors[weight.name].name} is {list(shape)}, should be {list(needed)}")
    if misshapen:
        raise UserError(f"{source}: shapes do not fit the configuration: {listed(misshapen)}")


def _read(tensor: Tensor, source: str) -> np.ndarray:
    array = tensor.read()
    if not np.isfinite(array).all():
        raise UserError(f"{source}: {tensor.name} has values that are NaN or infinite in float32")
    return array
