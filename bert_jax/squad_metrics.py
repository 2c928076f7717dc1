"""How SQuAD counts: exact match and F1 of answers, by the official scripts of versions 1.1 and 2.0; percentages.

Both compare words after normalisation: lower case, no ASCII punctuation, no English articles, single spaces. Of several
right answers the best counts. They differ where nothing is left of a text: in version 1.1 its F1 is always 0; in
version 2.0 it means that there is no answer, and its F1 is that of the exact match.

The rule was made for English. Words are what stands between white space, so that of a language without it, such as
Chinese or Japanese, a sentence is one word, and F1 is hardly ever different from the exact match; other punctuation
than that of ASCII stays, and so do other articles.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """What is compared of an answer."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(prediction: str, answers: Sequence[str], version_2: bool) -> tuple[float, float]:
    """Exact match and F1, 0 to 1, each by the answer that is best for it.

    Arguments:
        answers: the right ones; version 1.1 needs one. In version 2.0 those of which normalisation leaves nothing are
            left out; where none remains, the right answer is the empty text.
    """
    right = [normalized(answer) for answer in answers]
    if version_2:
        right = list(filter(None, right)) or [""]
    predicted = normalized(prediction)
    return float(predicted in right), max(_f1(predicted, answer, version_2) for answer in right)


def scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], version_2: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Exact matches and F1, 0 to 1, float64 [questions]."""
    pairs = [score(prediction, right, version_2) for prediction, right in zip(predictions, answers, strict=True)]
    exact, f1 = np.array(pairs, np.float64).reshape(-1, 2).T
    return exact, f1


def version_1_metrics(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float | int | None]:
    """exact_match and f1 over the questions that have answers, and their total; None where there are none."""
    pairs = [(prediction, right) for prediction, right in zip(predictions, answers, strict=True) if right]
    exact, f1 = scores(*(zip(*pairs) if pairs else ((), ())), version_2=False)
    return {"exact_match": _percent(exact), "f1": _percent(f1), "total": len(exact)}


def version_2_metrics(
    predictions: Sequence[str],
    answers: Sequence[Sequence[str]],
    null_odds: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float | int | None]:
    """exact, f1 and total of all questions, and with HasAns_ and NoAns_ in front of those with and without answers.

    Arguments:
        answers: empty for questions that have none.
        null_odds: how much better no answer looked than the best one. Above `threshold` (1.0 in the official script)
            no answer is what was predicted. Without, the predictions count as they are.
    """
    exact, f1 = scores(predictions, answers, version_2=True)
    has_answer = np.array([bool(right) for right in answers], bool)
    if null_odds is not None:
        is_null = np.asarray(null_odds) > threshold
        exact, f1 = np.where(is_null, ~has_answer, exact), np.where(is_null, ~has_answer, f1)
    metrics: dict[str, float | int | None] = {}
    parts = {"": np.ones(len(exact), bool), "HasAns_": has_answer, "NoAns_": ~has_answer}
    for prefix, part in parts.items():
        if part.any() or not prefix:
            metrics[f"{prefix}exact"], metrics[f"{prefix}f1"] = _percent(exact[part]), _percent(f1[part])
            metrics[f"{prefix}total"] = int(part.sum())
    return metrics


def best_thresholds(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], null_odds: Sequence[float]
) -> dict[str, float | None]:
    """The best exact and f1 that a threshold of the null odds could reach, and the thresholds.

    As in the official script, a question whose prediction is empty stays without an answer at every threshold.
    """
    if not len(predictions):
        return dict.fromkeys(("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"))
    exact, f1 = scores(predictions, answers, version_2=True)
    has_answer = np.array([bool(right) for right in answers], bool)
    answered = np.array([bool(prediction) for prediction in predictions], bool)
    odds = np.asarray(null_odds, np.float64)
    order = np.argsort(odds, kind="stable")
    best: dict[str, float | None] = {}
    for name, each in (("exact", exact), ("f1", f1)):
        # Starting from no answer to any question, one more is answered at each step.
        gains = np.where(has_answer, each, -answered.astype(np.float64))[order]
        reached = np.cumsum(np.concatenate([[np.sum(~has_answer)], gains]))
        step = int(np.argmax(reached))
        best[f"best_{name}"] = 100.0 * float(reached[step]) / len(predictions)
        best[f"best_{name}_thresh"] = float(odds[order[step - 1]]) if step else 0.0
    return best


def _f1(predicted: str, right: str, version_2: bool) -> float:
    predicted_words, right_words = predicted.split(), right.split()
    if version_2 and not (predicted_words and right_words):
        return float(predicted_words == right_words)
    common = sum((Counter(predicted_words) & Counter(right_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted_words), common / len(right_words)
    return 2 * precision * recall / (precision + recall)


def _percent(values: np.ndarray) -> float | None:
    return 100.0 * float(values.sum()) / len(values) if len(values) else None
