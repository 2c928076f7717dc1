"""Metrics: what scikit-learn and SciPy say, and the cases where there is nothing to divide by."""

import json
import math

import numpy as np
import pytest

from bert_jax import metrics

GOLDEN_NAMES = {
    "accuracy": "accuracy",
    "mcc": "matthews_correlation",
    "f1_positive_1": "f1",
    "precision_1": "precision",
    "recall_1": "recall",
    "f1_macro": "f1_macro",
    "f1_micro": "f1_micro",
}


def test_golden_classification(shared):
    cases = json.loads((shared / "golden/ner_eval.json").read_text())["classification"]["cases"]
    assert cases
    for case in cases:
        found = metrics.classification_metrics(case["labels"], case["predictions"])
        wanted = {ours: case[theirs] for theirs, ours in GOLDEN_NAMES.items() if theirs in case}
        assert found == pytest.approx(wanted, abs=1e-9), case["name"]


def test_golden_regression(shared):
    cases = json.loads((shared / "golden/ner_eval.json").read_text())["regression"]["cases"]
    assert cases
    for case in cases:
        found = metrics.regression_metrics(case["labels"], case["predictions"])
        wanted = {"pearson": case["pearson"], "spearman": case["spearman"], "mean_squared_error": case["mse"]}
        assert found == pytest.approx(wanted, abs=1e-6), case["name"]


@pytest.mark.parametrize("classes", [2, 5])
def test_as_scikit_learn(classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(classes)
    labels = random.integers(0, classes, 200)
    predictions = np.where(random.random(200) < 0.6, labels, random.integers(0, classes, 200))
    found = metrics.classification_metrics(labels, predictions, metrics.CLASSIFICATION_METRICS, positive=1)
    assert found["accuracy"] == found["f1_micro"] == sklearn.accuracy_score(labels, predictions)
    assert found["matthews_correlation"] == pytest.approx(sklearn.matthews_corrcoef(labels, predictions), abs=1e-12)
    assert found["f1_macro"] == pytest.approx(sklearn.f1_score(labels, predictions, average="macro"), abs=1e-12)
    assert found["f1"] == pytest.approx(sklearn.f1_score(labels == 1, predictions == 1), abs=1e-12)
    assert found["precision"] == pytest.approx(sklearn.precision_score(labels == 1, predictions == 1), abs=1e-12)
    assert found["recall"] == pytest.approx(sklearn.recall_score(labels == 1, predictions == 1), abs=1e-12)
    np.testing.assert_array_equal(
        metrics.confusion(labels, predictions, classes), sklearn.confusion_matrix(labels, predictions)
    )


def test_multi_label_as_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    labels, predictions = random.random((2, 50, 4)) < 0.4
    labels[:, 3] = predictions[:, 3] = False
    found = metrics.multi_label_metrics(labels, predictions)
    assert found["accuracy"] == sklearn.accuracy_score(labels, predictions)
    for average in ("micro", "macro"):
        wanted = sklearn.f1_score(labels, predictions, average=average, zero_division=0)
        assert found[f"f1_{average}"] == pytest.approx(wanted, abs=1e-12)


def test_multi_label_by_hand():
    found = metrics.multi_label_metrics([[1, 0], [1, 1], [0, 0]], [[1, 0], [1, 0], [0, 0]])
    assert found == pytest.approx({"accuracy": 2 / 3, "f1_micro": 0.8, "f1_macro": 0.5})


@pytest.mark.parametrize("constant", [0, 1])
def test_constant_predictions_have_no_correlation(constant):
    assert metrics.matthews_correlation([0, 1, 1, 0], [constant] * 4) == 0.0


def test_all_positive_predictions():
    labels = [1] * 279 + [0] * 129  # the dev set of MRPC
    found = metrics.classification_metrics(labels, [1] * 408, metrics.glue_metrics("mrpc"))
    assert {name: round(value, 4) for name, value in found.items()} == {"accuracy": 0.6838, "f1": 0.8122}


def test_large_counts_do_not_overflow():
    labels = np.tile([0, 1], 2_000_000)
    assert metrics.matthews_correlation(labels, labels) == 1.0
    assert metrics.matthews_correlation(labels, 1 - labels) == -1.0


def test_positive_class():
    assert metrics.f1([0, 0, 1], [0, 1, 1], positive=0) == pytest.approx(2 / 3)
    assert metrics.classification_metrics([0, 0, 1], [0, 1, 1], ["recall"], positive=0) == {"recall": 0.5}


def test_more_classes_have_no_positive_one():
    assert set(metrics.classification_metrics([0, 1, 2], [0, 1, 2])) == {
        "accuracy",
        "matthews_correlation",
        "f1_macro",
        "f1_micro",
    }


def test_nothing_to_score():
    undefined = {"accuracy": None, "f1_micro": None, "f1_macro": None, "matthews_correlation": None}
    assert metrics.classification_metrics([], [], undefined) == undefined
    assert metrics.classification_metrics([], [], ["f1", "precision", "recall"]) == {
        "f1": 0.0,
        "precision": 0.0,
        "recall": 0.0,
    }
    assert set(metrics.regression_metrics([], []).values()) == {None}
    assert set(metrics.multi_label_metrics(np.zeros((0, 3)), np.zeros((0, 3))).values()) == {None}


@pytest.mark.parametrize("predictions", [[2.0, 2.0, 2.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0]])
def test_undefined_correlations_are_none(predictions):
    assert metrics.pearson([1.0, 2.0, 3.0], predictions) is None
    assert metrics.spearman([1.0, 2.0, 3.0], predictions) is None


def test_correlations_of_extreme_numbers():
    assert metrics.pearson([1.0, 2.0, 3.0], [1e200, 2e200, 3e200]) == pytest.approx(1.0)
    assert metrics.pearson([1.0, 2.0, 3.0], [1e-200, 2e-200, 3e-200]) == pytest.approx(1.0)
    assert metrics.mean_squared_error([1.0], [1e200]) is None


def test_glue_metrics():
    assert metrics.glue_metrics("cola") == ("matthews_correlation",)
    assert metrics.glue_metrics("mrpc") == metrics.glue_metrics("qqp") == ("accuracy", "f1")
    assert metrics.glue_metrics("stsb") == ("pearson", "spearman")
    assert metrics.glue_metrics("mnli") == metrics.glue_metrics("xnli") == ("accuracy",)


def test_one_class_warning():
    assert metrics.one_class_warning(["a", "b", "a"]) is None
    assert metrics.one_class_warning(np.array([1])) is None
    assert metrics.one_class_warning([]) is None
    assert metrics.one_class_warning(["ham"] * 3).startswith("all 3 predictions are ham: ")
    assert metrics.one_class_warning(np.zeros(1200, int)).startswith("all 1,200 predictions are 0: ")
