"""Scores of entities: those of conlleval and seqeval, and sentences without any."""

import json

import pytest

from bert_jax.entity_metrics import Scores, entity_scores, token_accuracy
from input_pipeline.errors import UserError

GOLD = [["B-PER", "I-PER", "O", "B-LOC"]]


def as_dict(scores: Scores) -> dict[str, float]:
    return {"precision": scores.precision, "recall": scores.recall, "f1": scores.f1}


def cases(shared):
    found = json.loads((shared / "golden/ner_eval.json").read_text())["sequences"]["cases"]
    assert found
    return found


def test_golden_conlleval(shared):
    for case in cases(shared):
        wanted, found = case["conlleval"], entity_scores(case["gold"], case["pred"])
        assert as_dict(found.all) == pytest.approx({name: wanted[name] for name in as_dict(found.all)}, abs=1e-9)
        assert found.all == (wanted["gold_phrases"], wanted["found_phrases"], wanted["correct_phrases"]), case["name"]
        assert found.by_type.keys() == wanted["by_type"].keys()
        for name, scores in found.by_type.items():
            theirs = wanted["by_type"][name]
            assert scores.found == theirs["found"]
            percent = [100 * scores.precision, 100 * scores.recall, 100 * scores.f1]
            assert percent == pytest.approx([theirs[f"{x}_pct"] for x in ("precision", "recall", "fb1")], abs=0.01)
        accuracy = token_accuracy(case["gold"], case["pred"])
        assert accuracy == pytest.approx(case["token_accuracy"], abs=1e-9)
        assert 100 * accuracy == pytest.approx(wanted["accuracy_pct"], abs=0.01)


@pytest.mark.parametrize("reference", ["seqeval_default", "seqeval_strict_iob2"])
def test_golden_seqeval(shared, reference):
    strict = reference == "seqeval_strict_iob2"
    for case in cases(shared):
        wanted = case[reference]
        if "error" in wanted:
            with pytest.raises(UserError, match="IOB2"):
                entity_scores(case["gold"], case["pred"], strict)
            continue
        found = entity_scores(case["gold"], case["pred"], strict)
        assert as_dict(found.all) == pytest.approx({name: wanted[name] for name in as_dict(found.all)}, abs=1e-9)
        assert found.by_type.keys() == wanted["by_type"].keys(), case["name"]
        for name, scores in found.by_type.items():
            theirs = wanted["by_type"][name]
            theirs = {"precision": theirs["precision"], "recall": theirs["recall"], "f1": theirs["f1-score"]}
            assert as_dict(scores) == pytest.approx(theirs, abs=1e-9), case["name"]
        assert {name: one.true for name, one in found.by_type.items()} == {
            name: one["support"] for name, one in wanted["by_type"].items()
        }


@pytest.mark.parametrize(
    ("predicted", "conlleval", "strict"),
    [
        (["I-PER", "I-PER", "O", "B-LOC"], 1.0, 2 / 3),
        (["B-PER", "I-LOC", "O", "B-LOC"], 0.4, 0.5),
        (["O", "O", "O", "O"], 0.0, 0.0),
    ],
)
def test_tags_that_break_the_rules(predicted, conlleval, strict):
    assert entity_scores(GOLD, [predicted]).all.f1 == pytest.approx(conlleval)
    assert entity_scores(GOLD, [predicted], strict=True).all.f1 == pytest.approx(strict)


@pytest.mark.parametrize("sentences", [[["O", "O"]], [[]], []])
@pytest.mark.parametrize("strict", [False, True])
def test_nothing_to_find(sentences, strict):
    found = entity_scores(sentences, sentences, strict)
    assert as_dict(found.all) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert found.by_type == {}


def test_entities_do_not_go_on_in_the_next_sentence():
    assert entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]]).all == (2, 2, 2)


def test_by_type():
    found = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "B-ORG", "O"]])
    assert found.by_type == {"LOC": (1, 0, 0), "ORG": (0, 1, 0), "PER": (1, 1, 1)}
    assert found.by_type["PER"].f1 == 1.0


def test_token_accuracy():
    assert token_accuracy([["B-PER", "I-PER"], ["O"]], [["I-PER", "I-PER"], ["O"]]) == pytest.approx(2 / 3)
    assert token_accuracy([[]], [[]]) is None


def test_sides_of_different_lengths():
    with pytest.raises(ValueError, match="2 words has 1 predicted"):
        entity_scores([["O", "O"]], [["O"]])
