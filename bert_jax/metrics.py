"""Metrics of classes and of numbers, as scikit-learn and SciPy define them, and those that GLUE asks for.

A share with nothing to count is 0; what is not defined at all, such as a correlation with a constant, is None.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

# Section 4.1 of the paper and the GLUE leaderboard; every other task is compared by its accuracy.
_GLUE_METRICS = {
    "cola": ("matthews_correlation",),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "stsb": ("pearson", "spearman"),
}


def glue_metrics(task: str) -> tuple[str, ...]:
    """The names of the metrics of a task of GLUE, such as "mrpc"."""
    return _GLUE_METRICS.get(task, ("accuracy",))


def classification_metrics(
    labels: ArrayLike, predictions: ArrayLike, names: Iterable[str] | None = None, positive: int = 1
) -> dict[str, float | None]:
    """Metrics of predicted classes by name.

    Args:
        labels, predictions: ints [examples], numbers of classes from 0.
        names: of `CLASSIFICATION_METRICS`; None for those that suit the number of classes: F1, precision and recall of
            the positive class need two.
        positive: the class that "f1", "precision" and "recall" are about.
    """
    labels, predictions = _whole_numbers(labels), _whole_numbers(predictions)
    if names is None:
        two_classes = max(labels.max(initial=1), predictions.max(initial=1)) == 1
        names = [name for name in CLASSIFICATION_METRICS if two_classes or name not in _OF_ONE_CLASS]
    return {
        name: CLASSIFICATION_METRICS[name](labels, predictions, *([positive] if name in _OF_ONE_CLASS else []))
        for name in names
    }


def regression_metrics(labels: ArrayLike, predictions: ArrayLike) -> dict[str, float | None]:
    """Pearson's and Spearman's correlation and the mean squared error of predicted numbers [examples]."""
    return {
        "pearson": pearson(labels, predictions),
        "spearman": spearman(labels, predictions),
        "mean_squared_error": mean_squared_error(labels, predictions),
    }


def multi_label_metrics(labels: ArrayLike, predictions: ArrayLike) -> dict[str, float | None]:
    """Metrics of any number of labels an example.

    "accuracy" is the share of examples with exactly the right labels. "f1_micro" counts all labels together, "f1_macro"
    is the mean over the labels, also over those that never occur (F1 0).

    Args:
        labels, predictions: bools or 0 and 1 [examples, labels].
    """
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    if not labels.size:
        return dict.fromkeys(("accuracy", "f1_micro", "f1_macro"))
    right = (labels & predictions).sum(axis=0)
    total = labels.sum(axis=0) + predictions.sum(axis=0)
    return {
        "accuracy": float((labels == predictions).all(axis=1).mean()),
        "f1_micro": _share(2 * right.sum(), total.sum()),
        "f1_macro": float(np.mean(_shares(2 * right, total))),
    }


def confusion(labels: ArrayLike, predictions: ArrayLike, num_labels: int) -> np.ndarray:
    """int64 [num_labels, num_labels]: how often each class (row) was predicted as each class (column)."""
    pairs = _whole_numbers(labels) * num_labels + _whole_numbers(predictions)
    return np.bincount(pairs, minlength=num_labels**2).reshape(num_labels, num_labels)


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """The share of right predictions; None without examples."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    return float((labels == predictions).mean()) if labels.size else None


def precision(labels: ArrayLike, predictions: ArrayLike, positive: int = 1) -> float:
    """The share of right ones among what was predicted as `positive`; 0 where nothing was."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    return _share(((labels == positive) & (predictions == positive)).sum(), (predictions == positive).sum())


def recall(labels: ArrayLike, predictions: ArrayLike, positive: int = 1) -> float:
    """The share of the `positive` examples that were predicted as such; 0 where there are none."""
    return precision(predictions, labels, positive)


def f1(labels: ArrayLike, predictions: ArrayLike, positive: int = 1) -> float:
    """The harmonic mean of precision and recall of the class `positive`; 0 where it neither occurs nor is predicted."""
    labels, predictions = np.asarray(labels) == positive, np.asarray(predictions) == positive
    return _share(2 * (labels & predictions).sum(), labels.sum() + predictions.sum())


def f1_macro(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """The mean of the F1 of all classes that occur or are predicted; None without examples."""
    right, true, predicted = _counts(labels, predictions)
    seen = (true + predicted) > 0
    return float(np.mean(_shares(2 * right[seen], (true + predicted)[seen]))) if seen.any() else None


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """Matthews' correlation, for any number of classes; exactly 0 where either side is constant, None without examples.

    Gorodkin (2004): Comparing two K-category assignments by a K-category correlation coefficient.
    """
    right, true, predicted = (counts.tolist() for counts in _counts(labels, predictions))
    total = sum(true)
    if not total:
        return None
    # In Python's integers: the products outgrow 64 bits, and exact ones give exactly 1 for a perfect prediction.
    covariance = sum(right) * total - sum(a * b for a, b in zip(true, predicted))
    spread = (total**2 - sum(a * a for a in true)) * (total**2 - sum(b * b for b in predicted))
    return covariance / math.sqrt(spread) if spread else 0.0


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """Pearson's correlation; None with fewer than two examples, a constant side, or numbers that are not finite."""
    sides = [_unit_vector(np.asarray(side, np.float64)) for side in (labels, predictions)]
    if any(side is None for side in sides):
        return None
    return min(1.0, max(-1.0, float(sides[0] @ sides[1])))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """Spearman's correlation: Pearson's of the ranks, where equal numbers share the mean of theirs; None as there."""
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if not (np.isfinite(labels).all() and np.isfinite(predictions).all()):
        return None
    return pearson(_ranks(labels), _ranks(predictions))


def mean_squared_error(labels: ArrayLike, predictions: ArrayLike) -> float | None:
    """The mean of the squared differences; None without examples or where it is not finite."""
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if not labels.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        error = float(np.mean((labels - predictions) ** 2))
    return error if math.isfinite(error) else None


# Of numbers of classes; of one class an example, micro F1 is the accuracy.
CLASSIFICATION_METRICS: Mapping[str, Callable[..., float | None]] = {
    "accuracy": accuracy,
    "f1": f1,
    "precision": precision,
    "recall": recall,
    "matthews_correlation": matthews_correlation,
    "f1_macro": f1_macro,
    "f1_micro": accuracy,
}
_OF_ONE_CLASS = ("f1", "precision", "recall")


def one_class_warning(predictions: Sequence) -> str | None:
    """What to tell a person whose model predicts the same for every one of several examples; None where it does not.

    Args:
        predictions: classes as names or numbers, [examples].
    """
    if len(predictions) < 2 or any(one != predictions[0] for one in predictions):
        return None
    return (
        f"all {len(predictions):,} predictions are {predictions[0]}: the model tells nothing apart; "
        "try more steps or a larger --learning_rate; if the loss rose or jumped, another --seed or a smaller one"
    )


def _whole_numbers(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, np.int64)


def _counts(labels: ArrayLike, predictions: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each class: right predictions, examples, predictions."""
    labels, predictions = _whole_numbers(labels), _whole_numbers(predictions)
    size = int(max(labels.max(initial=-1), predictions.max(initial=-1))) + 1
    return tuple(np.bincount(some, minlength=size) for some in (labels[labels == predictions], labels, predictions))


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0


def _shares(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    return parts / np.maximum(wholes, 1)


def _unit_vector(values: np.ndarray) -> np.ndarray | None:
    """The values less their mean, of length 1; None where that is not defined."""
    if len(values) < 2 or not np.isfinite(values).all() or (values == values[0]).all():
        return None
    scaled = values / np.abs(values).max()  # their squares can neither overflow nor vanish
    centred = scaled - scaled.mean()
    length = np.linalg.norm(centred)
    return centred / length if length else None


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
