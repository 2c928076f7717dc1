"""What a model says to the examples of a split: predictions, metrics, files, and what a person wants to look at."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax import glue_submission, processes
from bert_jax.finetuning import BEYOND, FinetuningTask, predict_logits
from bert_jax.metrics import one_class_warning
from bert_jax.rate_display import RateDisplay
from bert_jax.task_data import TaskData, is_labelled
from bert_jax.tasks.family import Family
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.feature_cache import build_features
from input_pipeline.task_features import NO_LABEL, Features

REVIEW_FILE = "review.json"
_LOSS_SEQUENCES = 256


class Split(NamedTuple):
    """Examples to predict, and their features."""

    name: str
    examples: list
    features: Features

    @property
    def labelled(self) -> bool:
        return is_labelled(self.name)


def make_splits(flags: Any, family: Family, data: TaskData, cache: Path | None) -> list[Split]:
    """Builds the features of all splits, in their order, and says how many sequences were too long.

    Args:
        flags: max_seq_length, num_workers.
        cache: see build_features.
    """
    splits = []
    for name, one in data.splits.items():
        groups = getattr(family, "groups", None)
        features = build_features(
            family.features_of, one.examples, cache=cache, groups=groups, num_workers=flags.num_workers
        )
        if features.num_cut:
            processes.say(
                f"{name}: {features.num_cut:,} of {len(features.lengths):,} sequences were longer than "
                f"--max_seq_length={flags.max_seq_length}, and were cut"
            )
        splits.append(Split(name, one.examples, features))
    return splits


class Answers(NamedTuple):
    """What was predicted of a split, and how good that is (None where nobody knows)."""

    split: Split
    predictions: list[Any]
    metrics: dict[str, Any] | None


class Predictor:
    """Predicts with a task's model; what is compiled serves all calls."""

    def __init__(self, task: FinetuningTask, mesh: Mesh, batch_size: int | None = None):
        self.task, self.mesh, self.batch_size = task, mesh, batch_size
        self._function = lambda params, batch: task.logits(params, batch)

    def __call__(
        self, params: Any, split: Split, shown: bool = True, on_sequence: Callable[[int], None] | None = None
    ) -> Answers:
        """Predictions for all examples, and their metrics.

        Args:
            shown: whether progress goes to standard error, as far as on_sequence does not take it.
        """
        family, features = self.task.family, split.features
        with RateDisplay("sequences", len(features.lengths), shown=shown and processes.is_first()) as display:
            logits = predict_logits(
                self._function,
                params,
                features,
                mesh=self.mesh,
                of_tokens=family.head.of_tokens,
                batch_size=self.batch_size,
                on_sequence=on_sequence or (lambda count: display.advance()),
            )
        predictions = family.predictions(split.examples, features, logits)
        if not split.labelled:
            return Answers(split, predictions, None)
        results = family.metrics(split.examples, predictions)
        loss = _mean_loss(family, features, logits)
        return Answers(split, predictions, {**results, **loss, "examples": len(split.examples)})


def joined_metrics(answers: Iterable[Answers]) -> dict[str, Any]:
    """The metrics of all labelled splits: those of the first under their own names, all of several with the split's."""
    labelled = [answer for answer in answers if answer.metrics is not None]
    if not labelled:
        return {}
    joined = dict(labelled[0].metrics)
    if len(labelled) > 1:
        for answer in labelled:
            suffix = answer.split.name.partition("_")[2]
            joined |= {f"{name}_{suffix}": value for name, value in answer.metrics.items()}
    return joined


def stem_of(split: str, splits: Iterable[str]) -> str:
    """What the prediction files of a split are called: "predictions", with what tells it from the other splits.

    Those of a set that people labelled are "eval_predictions" where another one is predicted too.
    """
    splits = list(splits)
    stem = "predictions"
    if split.startswith("dev") and any(not other.startswith("dev") for other in splits):
        stem = "eval_predictions"
    same_kind = [other for other in splits if other.partition("_")[0] == split.partition("_")[0]]
    if split == "diagnostic":
        return f"{stem}_diagnostic"
    return f"{stem}_{split.partition('_')[2]}" if len(same_kind) > 1 else stem


def warnings_of(answers: Answers) -> list[str]:
    """Lines about a model that has learned nothing."""
    right = {getattr(example, "label", None) for example in answers.split.examples}
    if len(right) == 1 and None not in right:
        return []  # there is nothing to tell apart
    if (empty := [getattr(p, "text", None) == "" for p in answers.predictions]) and all(empty):
        return [
            f"{answers.split.name}: all {len(empty):,} answers are empty; try more steps or a larger --learning_rate"
        ]
    labels = [getattr(prediction, "label", None) for prediction in answers.predictions]
    if not labels or any(label is None for label in labels):
        return []
    several = [" and ".join(label) or "no label" if isinstance(label, tuple) else label for label in labels]
    warning = one_class_warning(several)
    return [f"{answers.split.name}: {warning}"] if warning else []


def write_answers(
    folder: str | os.PathLike, family: Family, answers: list[Answers], submission: Mapping[str, str]
) -> list[str]:
    """Writes predictions, tables for the leaderboard and the review of all splits.

    Args:
        submission: split -> name of the leaderboard's file.

    Returns:
        The names of the files. That examples are not those of the leaderboard is said, and no table written for it.
    """
    names, tables, review = [], [], {}
    for answer in answers:
        split = answer.split
        names += family.write(folder, stem_of(split.name, [other.split.name for other in answers]), *_two(answer))
        if split.name in submission:
            labels = [getattr(prediction, "label", prediction) for prediction in answer.predictions]
            ids = [example.id for example in split.examples]
            try:
                tables.append(glue_submission.write(folder, submission[split.name], ids, labels))
            except UserError as error:
                processes.say(f"no table for the leaderboard: {error}")
        if answer.metrics is not None:
            review[split.name] = {"metrics": answer.metrics, "review": family.review(*_two(answer))}
    if tables:
        tables.append(glue_submission.zip_folder(folder)[0])
    if review:
        files.write_bytes_atomic(
            files.as_path(folder) / REVIEW_FILE, json.dumps(_plain(review), allow_nan=False).encode()
        )
    return [os.path.basename(name) for name in (*names, *tables)]


def _two(answer: Answers) -> tuple[list, list]:
    return answer.split.examples, answer.predictions


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _mean_loss(family: Family, features: Features, logits: list[np.ndarray]) -> dict[str, float]:
    """The loss as training counts it, where all labels are known."""
    labels = features.labels
    if labels is None or not logits:
        return {}
    total = weight = 0.0
    width = int(features.lengths.max())
    starts = np.concatenate([[0], np.cumsum(features.lengths)])
    k = family.num_choices
    for first in range(0, len(logits), _LOSS_SEQUENCES * k):
        part = logits[first : first + _LOSS_SEQUENCES * k]
        numbers = range(first, first + len(part))
        if family.head.of_tokens:
            part = [np.pad(x, ((0, width - len(x)), (0, 0)), constant_values=BEYOND) for x in part]
        batch = np.stack(part)
        if k > 1:
            batch = batch.reshape(-1, k)
        if family.head.of_tokens and labels.ndim == 1:
            rows = [labels[starts[number] : starts[number + 1]] for number in numbers]
            wanted = np.stack([np.pad(row, (0, width - len(row)), constant_values=NO_LABEL) for row in rows])
        else:
            wanted = labels[first // k : (first + len(part)) // k]
        losses = family.losses(jnp.asarray(batch), jnp.asarray(wanted))
        total += float(jnp.sum(losses.losses * losses.weights))
        weight += float(jnp.sum(losses.weights))
    return {"loss": total / weight} if weight else {}
