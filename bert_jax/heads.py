"""Output layers of tasks: what kind there is on top of the encoder, and the names of its outputs."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from input_pipeline import files
from input_pipeline.errors import UserError

HEAD_FILE = "task_head.json"

# How the outputs are read off the encoder: from the pooled vector, one for each label, of which one holds or any number
# do; a number; from the pooled vector of each of several choices; from each token, one for each label; from each token,
# its scores as start and as end.
KINDS = ("classification", "multi_label", "regression", "multiple_choice", "tagging", "span")
FIXED_OUTPUTS = {"regression": ("value",), "multiple_choice": ("choice",), "span": ("start", "end")}
TOKEN_KINDS = ("tagging", "span")


# Which hidden states a head of tokens reads (section 5.3, table 7).
FEATURES = ("last", "embeddings", "second_to_last", "weighted_last_4", "concat_last_4", "weighted_all")


class TaskHead(NamedTuple):
    """One dense layer on the encoder (section 4 of the paper).

    Attributes:
        kind: of KINDS.
        labels: the name of each output.
        features: of FEATURES.
        lstm: sizes of bidirectional LSTMs between the encoder and the dense layer, which the paper has in two of its
            ablations (tables 5 and 7); none by default.
        mean, deviation: of a regression, what its output is multiplied by (deviation) and what is added then (mean), so
            that the layer itself learns numbers of unit scale whatever the unit of the labels.
    """

    kind: str
    labels: tuple[str, ...]
    features: str = "last"
    lstm: tuple[int, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    @property
    def of_tokens(self) -> bool:
        """Whether the layer reads each token's hidden state; else it reads one vector of the whole sequence."""
        return self.kind in TOKEN_KINDS

    @property
    def is_plain(self) -> bool:
        """Whether it is but one layer on the last hidden states, as other programs know it."""
        return self.features == "last" and not self.lstm

    @property
    def pools(self) -> bool:
        """Whether it reads the pooled vector."""
        return not self.of_tokens and not self.lstm

    @property
    def is_scaled(self) -> bool:
        """Whether the output is not what the layer gives, but that times `deviation` plus `mean`."""
        return (self.mean, self.deviation) != (0.0, 1.0)

    def without_scale(self) -> "TaskHead":
        """The head whose output is what the layer gives, as other programs know it."""
        return self._replace(mean=0.0, deviation=1.0)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the head's description beside its weights."""
        described = {"kind": self.kind, "labels": list(self.labels)}
        if not self.is_plain:
            described |= {"features": self.features, "lstm": list(self.lstm)}
        if self.is_scaled:
            described |= {"mean": self.mean, "deviation": self.deviation}
        files.write_json_atomic(files.as_path(folder) / HEAD_FILE, described)


def make_head(kind: str, labels: Any, source: str) -> TaskHead:
    """A head of checked kind and labels.

    Args:
        labels: a list of different names; None for kinds whose outputs are fixed. A regression may name its number.
        source: where they are from, for errors.

    Raises:
        UserError: an unknown kind, or labels that are no list of different names, or too many.
    """
    if kind not in KINDS:
        raise UserError(f"{source}: the kind of the task is {kind!r}, not one of {', '.join(KINDS)}")
    if not (kind == "regression" and labels):
        labels = list(FIXED_OUTPUTS.get(kind, ())) or labels
    if not (isinstance(labels, list | tuple) and labels and all(isinstance(label, str) for label in labels)):
        raise UserError(f"{source}: {kind} needs a list of label names")
    if len(set(labels)) < len(labels):
        raise UserError(f"{source}: the label {max(labels, key=labels.count)!r} stands there twice")
    if kind == "regression" and len(labels) > 1:
        raise UserError(f"{source}: a regression has one output, not {len(labels)}")
    return TaskHead(kind, tuple(labels))


def read_head(folder: str | os.PathLike, flag: str) -> TaskHead | None:
    """The head that `save` described in `folder`, which was named by `flag`; None where there is no description."""
    file = files.as_path(folder) / HEAD_FILE
    if not file.exists():
        return None
    try:
        value = json.loads(files.read_text(file, flag))
        kind, labels = value["kind"], value["labels"]
        features, lstm = value.get("features", "last"), tuple(value.get("lstm", ()))
        mean, deviation = float(value.get("mean", 0.0)), float(value.get("deviation", 1.0))
        if features not in FEATURES or not all(type(size) is int and size > 0 for size in lstm):
            raise ValueError
        if not (math.isfinite(mean) and 0 < deviation < math.inf):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{flag}: {file} is damaged; it describes the task's outputs in JSON") from None
    head = make_head(kind, labels, f"{flag}: {file}")
    return head._replace(features=features, lstm=lstm, mean=mean, deviation=deviation)


def rescale(params: Mapping[str, Any], before: TaskHead, after: TaskHead) -> dict[str, Any]:
    """Parameters that give below the scale of `after` the outputs that `params` gives below that of `before`."""
    layer = params["classifier"]
    kernel = layer["kernel"] * (before.deviation / after.deviation)
    bias = (layer["bias"] * before.deviation + (before.mean - after.mean)) / after.deviation
    return {**params, "classifier": {**layer, "kernel": kernel, "bias": bias}}
