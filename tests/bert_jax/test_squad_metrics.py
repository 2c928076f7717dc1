import json

import numpy as np
import pytest

from bert_jax.squad_metrics import (
    best_thresholds,
    normalized,
    score,
    scores,
    version_1_metrics,
    version_2_metrics,
)


@pytest.fixture(scope="module")
def golden(shared):
    return json.loads((shared / "golden" / "squad_eval.json").read_text())


def test_normalisation():
    assert normalized("The U.S.A.,\u00a0an  apple\tA day!") == "usa apple day"
    assert normalized("a/the/an theatre") == "athean theatre"
    assert normalized("\u201cx\u201d \u3002") == "\u201cx\u201d \u3002"


@pytest.mark.parametrize(
    ("prediction", "answers", "version_1", "version_2"),
    [
        ("The Cat", ["cat"], (1, 1), (1, 1)),
        ("x y z", ["z y x"], (0, 1), (0, 1)),
        ("$5", ["5 dollars"], (0, 2 / 3), (0, 2 / 3)),
        ("x x y", ["x y y"], (0, 2 / 3), (0, 2 / 3)),
        ("foo bar", ["foo", "bar", "foo bar baz"], (0, 0.8), (0, 0.8)),
        ("...", ["."], (1, 0), (1, 1)),
        ("", ["the"], (1, 0), (1, 1)),
        ("", ["x", "the"], (1, 0), (0, 0)),
        ("", ["x"], (0, 0), (0, 0)),
        ("", [], None, (1, 1)),
        ("x", [], None, (0, 0)),
    ],
)
def test_pairs_of_prediction_and_answers(prediction, answers, version_1, version_2):
    if version_1:
        assert score(prediction, answers, version_2=False) == pytest.approx(version_1, abs=1e-12)
    assert score(prediction, answers, version_2=True) == pytest.approx(version_2, abs=1e-12)


PREDICTIONS = ["cat", "big dog", "", "x", ""]
ANSWERS = [["cat"], ["dog"], ["bird"], [], []]
ODDS = [-3.0, 0.5, 2.0, 0.0, 1.5]


def test_version_1_counts_questions_with_answers():
    assert version_1_metrics(PREDICTIONS, ANSWERS) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "total": 3,
    }
    assert version_1_metrics(["x"], [[]]) == {"exact_match": None, "f1": None, "total": 0}


def test_version_2_has_parts_with_and_without_answers():
    assert version_2_metrics(PREDICTIONS, ANSWERS) == {
        "exact": pytest.approx(40),
        "f1": pytest.approx(100 * (2 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }
    assert "NoAns_f1" not in version_2_metrics(["x"], [["x"]])
    assert version_2_metrics([], []) == {"exact": None, "f1": None, "total": 0}


def test_null_odds_above_the_threshold_mean_no_answer():
    found = version_2_metrics(PREDICTIONS, ANSWERS, ODDS, -1.0)
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (pytest.approx(100 / 3), 100)
    assert found["f1"] == pytest.approx(60)


def test_best_thresholds():
    assert best_thresholds(PREDICTIONS, ANSWERS, ODDS) == {
        "best_exact": 60,
        "best_exact_thresh": -3,
        "best_f1": 60,
        "best_f1_thresh": -3,
    }
    assert best_thresholds(["x"], [[]], [-9.0])["best_f1_thresh"] == 0.0
    assert best_thresholds([], [], [])["best_f1"] is None


def test_pairs_of_the_official_scripts(golden):
    for case in golden["pairs"]["cases"]:
        for version in ("v1.1", "v2.0"):
            if case[version] is not None:
                found = score(case["prediction"], case["golds"], version == "v2.0")
                assert found == pytest.approx(case[version], abs=1e-9)


def test_totals_of_the_official_scripts(golden):
    case = golden["aggregate"]
    answers = [question["golds"] for question in case["questions"]]
    predictions = [case["predictions"][question["id"]] for question in case["questions"]]
    odds = [case["na_scores"][question["id"]] for question in case["questions"]]
    for threshold, expected in case["v2.0_by_na_threshold"].items():
        assert version_2_metrics(predictions, answers, odds, float(threshold)) == pytest.approx(expected, abs=1e-9)
    assert best_thresholds(predictions, answers, odds) == pytest.approx(case["v2.0_best_thresholds"], abs=1e-9)
    assert version_1_metrics(predictions, answers) == pytest.approx(case["v1.1_on_answerable_only"], abs=1e-9)


def test_scores_are_arrays_of_all_questions():
    exact, f1 = scores(PREDICTIONS, ANSWERS, version_2=True)
    np.testing.assert_array_equal(exact, [1, 0, 0, 0, 1])
    np.testing.assert_allclose(f1, [1, 2 / 3, 0, 0, 1])
