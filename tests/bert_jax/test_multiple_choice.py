import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads import make_head
from bert_jax.tasks.multiple_choice import MultipleChoice
from input_pipeline.choice_features import choice_features
from input_pipeline.task_examples import ChoiceExample
from input_pipeline.task_features import NO_LABEL

FAMILY = MultipleChoice(make_head("multiple_choice", None, "test"), functools.partial(choice_features), num_choices=4)
EXAMPLES = [ChoiceExample(f"x{i}", "A b.", "She", ("a", "b", "c", "d"), i, f"val.csv, line {i + 2}") for i in range(3)]
LOGITS = np.array([[2, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]], np.float32).reshape(-1, 1)


def test_losses():
    losses = FAMILY.losses(jnp.zeros((3, 4)), jnp.array([0, 3, NO_LABEL]))
    np.testing.assert_allclose(losses.losses[:2], math.log(4), rtol=1e-6)
    assert losses.weights.tolist() == [1, 1, 0]
    assert losses.right.tolist() == [True, False, False]
    logits = jnp.array([[1.0, 2.0, 0.0, -1.0]])
    (loss,) = FAMILY.losses(logits, jnp.array([1])).losses
    assert loss == pytest.approx(-math.log(math.exp(2) / sum(map(math.exp, (1, 2, 0, -1)))), rel=1e-6)


def test_what_has_no_label_has_no_gradient():
    def loss(logits):
        losses = FAMILY.losses(logits, jnp.array([NO_LABEL]))
        return jnp.sum(losses.losses * losses.weights)

    assert not jax.grad(loss)(jnp.ones((1, 4))).any()


def test_predictions_are_of_the_endings_of_one_example():
    predictions = FAMILY.predictions(EXAMPLES, None, list(LOGITS))
    assert [prediction.label for prediction in predictions] == [0, 2, 3]
    np.testing.assert_allclose([prediction.probabilities.sum() for prediction in predictions], 1, rtol=1e-6)
    assert predictions[0].probabilities[0] == pytest.approx(math.exp(2) / (math.exp(2) + 3), rel=1e-6)
    assert FAMILY.metrics(EXAMPLES, predictions) == {"accuracy": pytest.approx(1 / 3)}


def test_writing(tmp_path):
    unlabelled = [example._replace(label=None) for example in EXAMPLES]
    predictions = FAMILY.predictions(unlabelled, None, list(LOGITS))
    assert FAMILY.write(tmp_path, "predictions", unlabelled, predictions) == ["predictions.tsv"]
    header, *rows = (line.split("\t") for line in (tmp_path / "predictions.tsv").read_text().splitlines())
    assert header == ["id", "prediction", "probability_0", "probability_1", "probability_2", "probability_3"]
    assert [row[:2] for row in rows] == [["x0", "0"], ["x1", "2"], ["x2", "3"]]
    assert np.float32(rows[1][4]) == predictions[1].probabilities[2]


def test_review():
    predictions = FAMILY.predictions(EXAMPLES, None, list(LOGITS))
    review = json.loads(json.dumps(FAMILY.review(EXAMPLES, predictions), allow_nan=False))
    assert review["confusion"]["labels"] == ["0", "1", "2", "3"]
    assert review["confusion"]["counts"] == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert (review["examples"], review["wrong"]) == (3, 2)
    first, second = review["mistakes"]
    assert [first["id"], second["id"]] == ["x1", "x2"]
    assert (first["right"], first["predicted"], first["where"]) == ("1: b", "2: c", "val.csv, line 3")
    assert first["confidence"] == pytest.approx(math.exp(3) / (math.exp(3) + 3), rel=1e-6)
    assert first["texts"][0] == {"title": "context", "text": "A b.", "marks": []}
    assert first["texts"][3]["text"] == "She c"
    assert len(first["texts"]) == 5
