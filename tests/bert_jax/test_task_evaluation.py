"""What is said, written and counted of the predictions of several splits."""

import json
import os
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import partitioning
from bert_jax.heads import TaskHead
from bert_jax.span_selection import SpanPrediction
from bert_jax.task_evaluation import Answers, Predictor, Split, joined_metrics, stem_of, warnings_of, write_answers
from bert_jax.tasks.classification import Classification, Prediction
from bert_jax.tasks.regression import Regression
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import make_features

MATCHINGS = ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched", "diagnostic")
HEAD = TaskHead("classification", ("entailment", "contradiction", "neutral"))
FAMILY = Classification(HEAD, None, ("accuracy",))


@pytest.mark.parametrize(
    ("splits", "stems"),
    [
        (["dev"], ["predictions"]),
        (["test"], ["predictions"]),
        (["dev", "test"], ["eval_predictions", "predictions"]),
        (["dev_en", "dev_de"], ["predictions_en", "predictions_de"]),
        (["dev_en", "test_en"], ["eval_predictions", "predictions"]),
        (
            MATCHINGS,
            [
                "eval_predictions_matched",
                "eval_predictions_mismatched",
                "predictions_matched",
                "predictions_mismatched",
                "predictions_diagnostic",
            ],
        ),
    ],
)
def test_each_split_has_files_of_its_own(splits, stems):
    assert [stem_of(split, splits) for split in splits] == stems


def answers(name, labels, predicted, metrics=None):
    examples = [TextExample(str(n), f"t{n}", None, label, f"a.tsv, line {n}") for n, label in enumerate(labels)]
    rows = [np.eye(3, dtype=np.float32)[HEAD.labels.index(label)] for label in predicted]
    return Answers(Split(name, examples, None), [Prediction(*pair) for pair in zip(predicted, rows)], metrics)


def test_metrics_of_several_sets():
    one = answers("dev_matched", ["neutral"], ["neutral"], {"accuracy": 1.0, "loss": 0.5})
    other = answers("dev_mismatched", ["neutral"], ["entailment"], {"accuracy": 0.0, "loss": 2.5})
    test = answers("test_matched", [None], ["neutral"])
    assert joined_metrics([one, test]) == {"accuracy": 1.0, "loss": 0.5}
    assert joined_metrics([test]) == {}
    assert joined_metrics([one, other, test]) == {
        "accuracy": 1.0,
        "loss": 0.5,
        "accuracy_matched": 1.0,
        "loss_matched": 0.5,
        "accuracy_mismatched": 0.0,
        "loss_mismatched": 2.5,
    }


def test_a_model_that_tells_nothing_apart_is_warned_of():
    same = answers("dev", ["neutral"] * 8 + ["entailment"], ["entailment"] * 9)
    assert warnings_of(same)[0].startswith("dev: all 9 predictions are entailment")
    assert not warnings_of(answers("dev", ["neutral"] * 9, ["entailment"] * 8 + ["neutral"]))
    assert not warnings_of(same._replace(predictions=[0.5] * 9))
    assert not warnings_of(same._replace(predictions=[]))
    assert not warnings_of(answers("dev", ["entailment"] * 9, ["entailment"] * 9))
    assert warnings_of(answers("test", [None] * 2, ["neutral"] * 2))


def test_a_model_that_answers_no_question_is_warned_of():
    questions = Answers(Split("dev", [], None), [SpanPrediction("", [], 0.0)] * 3, None)
    assert warnings_of(questions)[0].startswith("dev: all 3 answers are empty")
    assert not warnings_of(questions._replace(predictions=[*questions.predictions, SpanPrediction("yes", [], 0.0)]))


def test_what_is_written_of_all_splits(tmp_path):
    several = [
        answers("dev_matched", ["neutral", "entailment"], ["neutral", "neutral"], {"accuracy": 0.5, "loss": np.nan}),
        answers("test_matched", [None, None], ["contradiction", "entailment"]),
        answers("diagnostic", [None], ["neutral"]),
    ]
    submission = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"}
    names = write_answers(tmp_path, FAMILY, several, submission)
    assert names == [
        "eval_predictions.tsv",
        "predictions.tsv",
        "predictions_diagnostic.tsv",
        "MNLI-m.tsv",
        "AX.tsv",
        "submission.zip",
    ]
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "review.json"])
    assert (tmp_path / "MNLI-m.tsv").read_text() == "index\tprediction\n0\tcontradiction\n1\tentailment\n"
    review = json.loads((tmp_path / "review.json").read_text())
    assert list(review) == ["dev_matched"] and review["dev_matched"]["metrics"] == {"accuracy": 0.5, "loss": None}
    assert review["dev_matched"]["review"]["wrong"] == 1
    assert write_answers(tmp_path / "plain", FAMILY, several[1:2], {}) == ["predictions.tsv"]
    assert os.listdir(tmp_path / "plain") == ["predictions.tsv"]


def test_own_examples_are_predicted_without_a_table_for_the_leaderboard(tmp_path, capfd):
    own = answers("test", [None, None], ["neutral", "neutral"])
    own.split.examples[0] = own.split.examples[0]._replace(id="first")
    assert write_answers(tmp_path, FAMILY, [own], {"test": "MNLI-m.tsv"}) == ["predictions.tsv"]
    assert os.listdir(tmp_path) == ["predictions.tsv"]
    assert "no table for the leaderboard: MNLI-m.tsv: the index of an example is 'first'" in capfd.readouterr().err


class Task(NamedTuple):
    """Logits that are a function of the first token: what a model would make of it."""

    family: object

    def logits(self, params, batch):
        first = jnp.take_along_axis(batch["input_ids"], batch["starts"], axis=1).reshape(-1)
        return params[first]


def sequences(ids, labels, dtype):
    return make_features([([number, 1], [0, 0]) for number in ids], range(len(ids)), np.array(labels, dtype))


def test_the_loss_is_the_mean_over_what_has_a_label():
    table = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    labels = ["entailment", "neutral", "contradiction"] * 200
    examples = [TextExample(str(n), "", None, label, "") for n, label in enumerate(labels)]
    numbers = [HEAD.labels.index(label) for label in labels]
    predict = Predictor(Task(FAMILY), partitioning.make_mesh())
    split = Split("dev", examples, sequences(range(600), numbers, np.int32))
    results = predict(table, split, shown=False)
    losses = np.log(np.exp(table).sum(1)) - table[range(600), numbers]
    assert results.metrics["loss"] == pytest.approx(losses.mean(), abs=1e-5)
    assert results.metrics["accuracy"] == np.mean(table.argmax(1) == numbers)
    assert results.metrics["examples"] == 600
    unknown = np.where(np.arange(600) < 300, numbers, -1)
    some = predict(table, split._replace(features=sequences(range(600), unknown, np.int32)), shown=False)
    assert some.metrics["loss"] == pytest.approx(losses[:300].mean(), abs=1e-5)
    assert predict(table, split._replace(name="test"), shown=False).metrics is None


def test_the_loss_of_numbers_is_their_squared_error():
    family = Regression(TaskHead("regression", ("value",)), None)
    predict = Predictor(Task(family), partitioning.make_mesh())
    examples = [TextExample("0", "", None, 1.0, ""), TextExample("1", "", None, 3.0, "")]
    split = Split("dev", examples, sequences([0, 1], [1.0, 3.0], np.float32))
    exact = predict(np.array([[1.0], [3.0]], np.float32), split, shown=False)
    assert exact.predictions == [1.0, 3.0] and exact.metrics["loss"] == 0.0 and exact.metrics["pearson"] == 1.0
    constant = predict(np.array([[2.5], [2.5]], np.float32), split, shown=False)
    assert constant.metrics["loss"] == pytest.approx(1.25) and constant.metrics["pearson"] is None


def test_the_loss_of_standardised_numbers_is_in_deviations():
    head = TaskHead("regression", ("value",), mean=200.0, deviation=100.0)
    losses = Regression(head, None).losses(np.array([[200.0], [450.0]]), np.array([300.0, 400.0]))
    assert losses.losses.tolist() == [1.0, 0.25] and losses.weights.tolist() == [1.0, 1.0]
