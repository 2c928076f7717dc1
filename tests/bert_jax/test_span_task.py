import json
import math
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads import make_head
from bert_jax.tasks.span import SpanTask
from input_pipeline import squad_data
from input_pipeline.task_examples import Answer, QuestionExample
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] what is big paris rome the end near a ( )".split()
TOKENIZER = WordPieceTokenizer(PIECES)


def question(number, context, *answers, impossible=False):
    return QuestionExample(number, "what is big", context, answers, impossible, f"file, data[{number}]")


EXAMPLES = [
    question("0", "Paris is big", Answer("Paris", 0)),
    question("1", "the end is near", Answer("near", 11), Answer("is near", 8)),
    question("2", "Rome", Answer("Rome", 0)),
    question("3", " ", impossible=True),
    question("4", "a " * 40 + "(big) " + "a " * 10, Answer("big", 81)),
    question("5", "Rome is the end", impossible=True),
]


def task(**options):
    return SpanTask(**({"tokenizer": TOKENIZER, "max_length": 24, "doc_stride": 8} | options))


def ideal_logits(features):
    """Scores that point to the labels; those of other windows are less sure."""
    logits = []
    for length, (first, last) in zip(features.lengths, features.labels):
        scores = np.zeros((length, 2), np.float32)
        scores[0] = 2
        scores[[first, last], [0, 1]] = 10 if first else 4
        logits.append(scores)
    return logits


def predicted(family, examples=EXAMPLES):
    features = family.features_of(examples)
    return family.predictions(examples, features, ideal_logits(features))


def test_head_and_features():
    family = task()
    assert family.head == make_head("span", None, "")
    features = pickle.loads(pickle.dumps(family.features_of))(EXAMPLES)
    assert features.labels.dtype == np.int32 and len(features.labels) == len(features.lengths)
    assert np.unique(features.examples).tolist() == [0, 1, 2, 4, 5]
    unknown = [question("0", "Paris", impossible=None)]
    assert family.features_of(unknown).labels.tolist() == [[-1, -1]]


def test_the_loss_is_that_of_both_ends_among_the_tokens():
    logits = np.full((3, 8, 2), -1e9, np.float32)
    logits[:, :5] = 0
    logits[1, 2] = math.log(4), math.log(16)
    found = task().losses(jnp.asarray(logits), jnp.asarray([[0, 4], [2, 2], [-1, -1]]))
    np.testing.assert_allclose(found.losses[0], [math.log(5)] * 2, rtol=1e-6)
    np.testing.assert_allclose(found.losses[1], [math.log(2), math.log(1.25)], rtol=1e-6)
    assert found.weights.tolist() == [[1, 1], [1, 1], [0, 0]]
    assert found.right.tolist()[:2] == [[True, False], [True, True]]
    assert found.losses.dtype == found.weights.dtype == jnp.float32 and np.isfinite(found.losses).all()


def test_ideal_scores_give_the_answers():
    family = task(version_2=True)
    predictions = predicted(family)
    assert [prediction.text for prediction in predictions] == ["Paris", "near", "Rome", "", "big", ""]
    metrics = family.metrics(EXAMPLES, predictions)
    assert (metrics["exact"], metrics["HasAns_f1"], metrics["NoAns_exact"], metrics["best_f1"]) == (100,) * 4
    assert family.main_metric in metrics
    answered = [example for example in EXAMPLES if example.answers]
    assert task().metrics(answered, predicted(task(), answered)) == {"exact_match": 100, "f1": 100, "total": 4}


def test_the_threshold_of_no_answer():
    texts = [one.text for one in predicted(task(version_2=True, null_score_diff_threshold=-30.0))]
    assert texts == [""] * len(EXAMPLES)
    texts = [one.text for one in predicted(task(version_2=True, null_score_diff_threshold=30.0))]
    assert texts[3] == "" and all(texts[:3] + texts[4:])


def test_files_have_the_names_and_form_of_the_reference(tmp_path):
    family = task(version_2=True)
    predictions = predicted(family)
    names = family.write(tmp_path, "eval_predictions", EXAMPLES, predictions)
    assert names == ["eval_predictions.json", "eval_nbest_predictions.json", "eval_null_odds.json"]
    texts, nbest, odds = (json.loads((tmp_path / name).read_text()) for name in names)
    assert texts == {"0": "Paris", "1": "near", "2": "Rome", "3": "", "4": "big", "5": ""}
    assert nbest["0"][0]["text"] == "Paris"
    assert nbest["3"] == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    assert set(odds) == set(texts) and odds["0"] == 4 - 20
    family = task()
    names = family.write(tmp_path / "v1", "predictions", EXAMPLES, predicted(family))
    assert names == ["predictions.json", "nbest_predictions.json"]
    assert task().write(tmp_path, "mine", [], []) == ["mine.json", "mine_nbest_predictions.json"]


def test_review_shows_both_answers_in_the_context():
    family = task(version_2=True)
    predictions = predicted(family)
    assert family.review(EXAMPLES, predictions) == {"examples": 6, "wrong": 0, "mistakes": []}
    wrong = [EXAMPLES[1]._replace(answers=(Answer("end", 4), Answer("is near", 8))), *EXAMPLES[2:4]]
    review = family.review(wrong, predictions[1:4])
    assert (review["examples"], review["wrong"]) == (3, 1)
    mistake = review["mistakes"][0]
    assert (mistake["id"], mistake["right"], mistake["predicted"]) == ("1", "end | is near", "near")
    assert mistake["where"] == "file, data[1]" and 0.9 < mistake["confidence"] <= 1
    assert mistake["texts"][0] == {"title": "question", "text": "what is big", "marks": []}
    assert mistake["texts"][1]["marks"] == [[8, 11, "right", ""], [11, 15, "both", ""]]
    review = family.review([EXAMPLES[0], EXAMPLES[5]._replace(id="6")], [predictions[5], predictions[0]])
    assert [(one["right"], one["predicted"]) for one in review["mistakes"]] == [
        ("Paris", "(no answer)"),
        ("(no answer)", "Paris"),
    ]
    json.dumps(review)


def test_review_spreads_over_the_file():
    family = task()
    examples = [EXAMPLES[0]._replace(id=str(number), answers=(Answer("is", 6),)) for number in range(1000)]
    review = family.review(examples, predicted(family, EXAMPLES[:1]) * 1000)
    assert review["wrong"] == 1000
    assert [int(one["id"]) for one in review["mistakes"]] == list(range(0, 1000, 10))


def test_real_answers_are_found_again(shared):
    """All but those longer than an answer may be, and one that ends within what the tokenizer sees as a word."""
    tokenizer = load_tokenizer(str(shared / "data" / "vocab" / "uncased"))
    path = str(shared / "data" / "squad" / "dev-v2.0.json")
    examples = squad_data.read(path, version_2=True, needs_answers=True).examples
    family = SpanTask(tokenizer, version_2=True, max_answer_length=60)
    metrics = family.metrics(examples, predicted(family, examples))
    assert metrics["total"] - round(metrics["exact"] * metrics["total"] / 100) == 1
    assert metrics["NoAns_exact"] == 100 and metrics["HasAns_f1"] == pytest.approx(99.97, abs=0.01)
