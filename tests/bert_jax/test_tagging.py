"""The tagging family: loss, tags of words, scores, the file of predictions and the review."""

import functools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads import TaskHead
from bert_jax.tasks.tagging import Tagging
from input_pipeline import conll_data, tag_schemes
from input_pipeline.errors import UserError
from input_pipeline.tagging_features import tagging_features
from input_pipeline.task_examples import TaggedExample
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

TOKENIZER = WordPieceTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b c d ##x ##y".split())
LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def family(labels=LABELS, strict=False, tokenizer=TOKENIZER, **options) -> Tagging:
    settings = {"tokenizer": tokenizer, "max_length": 16, "labels": labels} | options
    return Tagging(TaskHead("tagging", labels), functools.partial(tagging_features, **settings), strict)


def sentence(text: str, tags: str | None, document: int = 0) -> TaggedExample:
    return TaggedExample(
        "7", tuple(text.split(" ")), None if tags is None else tuple(tags.split()), document, "f, line 3"
    )


def right_logits(features, outputs: int) -> list[np.ndarray]:
    """Logits that are surely right where there is a label."""
    logits = np.eye(outputs, dtype=np.float32)[features.labels] * 9
    return np.split(logits, np.cumsum(features.lengths)[:-1])


def perfect(tagging: Tagging, examples: list) -> list:
    features = tagging.features_of(examples)
    return tagging.predictions(examples, features, right_logits(features, len(tagging.head.labels)))


def test_loss():
    logits = jnp.array([[[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 9.0], [-1e9, -1e9, -1e9]]])
    losses = family(LABELS[:3]).losses(logits, jnp.array([[0, 1, -1, -1]]))
    assert losses.weights.tolist() == [[1, 1, 0, 0]]
    assert losses.losses[0, :2].tolist() == pytest.approx([math.log(math.exp(2) + 2) - 2, math.log(3)], abs=1e-6)
    assert losses.right[0, :2].tolist() == [True, False]
    assert np.isfinite(losses.losses).all()
    assert losses.losses.dtype == losses.weights.dtype == jnp.float32


def test_every_word_has_a_tag():
    words = ("ax", "\x97", "\u200b", "b")
    example = TaggedExample("0", words, ("B-LOC", "O", "O", "B-PER"), 0, "")
    assert perfect(family(), [example]) == [("B-LOC", "O", "O", "B-PER")]


@pytest.mark.parametrize("document_context", [False, True])
def test_windows_and_documents_come_back_by_sentence(document_context):
    examples = [
        sentence("a b c d a b", "B-LOC I-LOC O O B-PER I-PER"),
        TaggedExample("1", (), (), 0, ""),
        sentence("axy b", "O B-LOC"),
        sentence("c axyxyxy", "B-PER O", document=1),
    ]
    predictions = perfect(family(max_length=6, document_context=document_context, overlap=2), examples)
    assert predictions == [example.tags for example in examples]


def test_documents_stay_together_where_they_are_context():
    examples = [sentence("a", "O"), sentence("b", "O"), sentence("c", "O", document=1)]
    assert family().groups is None
    assert family(document_context=True).groups(examples) == [examples[:2], examples[2:]]


def test_predictions_without_tags():
    tagging, examples = family(), [sentence("a b", None)]
    features = tagging.features_of(examples)
    assert tagging.predictions(examples, features, [np.eye(5)[[0, 3, 4, 0]]]) == [("B-PER", "I-PER")]
    assert tagging.predictions([], tagging.features_of([]), []) == []


@pytest.mark.parametrize(
    ("predicted", "conlleval", "strict"),
    [
        ("I-PER I-PER O B-LOC", 1.0, 2 / 3),
        ("B-PER I-LOC O B-LOC", 0.4, 0.5),
        ("O O O O", 0.0, 0.0),
    ],
)
def test_metrics(predicted, conlleval, strict):
    examples = [sentence("a b c d", "B-PER I-PER O B-LOC")]
    for name, wanted in (("conlleval", conlleval), ("strict IOB2", strict)):
        found = family(strict=name != "conlleval").metrics(examples, [tuple(predicted.split())])
        assert found["f1"] == pytest.approx(wanted)
        assert found["scheme"] == name
        assert {"precision", "recall", "accuracy", "f1_LOC", "f1_PER"} <= set(found)
    json.dumps(found, allow_nan=False)


def test_metrics_without_entities():
    found = family().metrics([sentence("a b", "O O")], [("O", "O")])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0, "scheme": "conlleval"}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("tags", ["I-PER I-PER B-PER I-LOC", "B-PER E-PER S-PER S-LOC"])
def test_right_tags_of_another_scheme(strict, tags):
    found = family(strict=strict).metrics([sentence("a b c d", tags)], [("B-PER", "I-PER", "B-PER", "B-LOC")])
    assert found["f1"] == found["accuracy"] == 1.0


def test_strict_rules_judge_the_right_tags_too():
    examples = [sentence("a b c", "O I-PER O"), sentence("a", "B-PER")]
    found = family(strict=True).metrics(examples, [("O", "O", "O"), ("B-PER",)])
    assert found["f1"] == 1.0 and found["accuracy"] == 0.75


def test_strict_rules_are_for_iob2():
    with pytest.raises(UserError, match="are IOBES: O, S-PER"):
        family(("O", "S-PER"), strict=True)
    with pytest.raises(UserError, match="are of no scheme: NN, VB"):
        family(("NN", "VB"), strict=True)


def test_tags_of_no_scheme_are_scored_by_word():
    tagging = family(("NN", "VB"))
    assert tagging.main_metric == "accuracy" and family().main_metric == "f1"
    examples = [sentence("a \u200b c", "NN VB NN")]
    assert perfect(tagging, examples) == [("NN", "VB", "NN")]
    assert tagging.metrics(examples, [("NN", "NN", "NN")]) == {"accuracy": pytest.approx(2 / 3)}
    review = tagging.review(examples, [("NN", "NN", "NN")])
    assert review["confusion"] == {"labels": ["NN", "VB"], "counts": [[2, 0], [1, 0]]}
    [mistake] = review["mistakes"]
    assert (mistake["right"], mistake["predicted"]) == ("\u200b: VB", "\u200b: NN")
    assert mistake["texts"][0]["marks"] == [[2, 3, "predicted", "NN"], [2, 3, "right", "VB"]]


def test_the_file_of_predictions(tmp_path):
    source = tmp_path / "in.txt"
    source.write_bytes("-DOCSTART- -X- O\r\n\r\na N B-PER\r\n\u200b N O\r\n\r\nb N O".encode())
    examples = conll_data.read(str(source), needs_tags=True).examples
    assert family().write(tmp_path / "out", "predictions", examples, [("I-PER", "O"), ("B-LOC",)]) == [
        "predictions.conll"
    ]
    assert (tmp_path / "out/predictions.conll").read_bytes().decode() == (
        "-DOCSTART- -X- O O\n\na N B-PER I-PER\n\u200b N O O\n\nb N O B-LOC\n"
    )


def test_review():
    examples = [sentence("a b c d", "B-PER I-PER O B-LOC"), sentence("a", "O")]
    review = family().review(examples, [("B-PER", "O", "O", "B-LOC"), ("O",)])
    assert (review["examples"], review["wrong"]) == (2, 1)
    assert review["confusion"] == {"labels": ["O", "LOC", "PER"], "counts": [[2, 0, 0], [0, 1, 0], [1, 0, 1]]}
    assert review["mistakes"] == [
        {
            "id": "7",
            "where": "f, line 3",
            "right": "a b: PER",
            "predicted": "a: PER",
            "confidence": None,
            "texts": [
                {
                    "title": "text",
                    "text": "a b c d",
                    "marks": [[0, 1, "predicted", "PER"], [0, 3, "right", "PER"], [6, 7, "both", "LOC"]],
                }
            ],
        }
    ]
    json.dumps(review, allow_nan=False)


def test_review_without_mistakes_or_examples():
    assert family().review([sentence("a", "O")], [("O",)])["mistakes"] == []
    assert family().review([], [])["confusion"]["counts"] == [[0] * 3] * 3


def test_mistakes_are_from_all_over_the_file():
    examples = [sentence("a", "B-PER")._replace(id=str(number)) for number in range(1000)]
    review = family().review(examples, [("O",)] * 1000)
    assert review["wrong"] == 1000
    assert [mistake["id"] for mistake in review["mistakes"]] == [str(number) for number in range(0, 1000, 10)]
    review = family().review(examples[:3], [("O",)] * 3)
    assert [mistake["id"] for mistake in review["mistakes"]] == ["0", "1", "2"]


@pytest.mark.parametrize("document_context", [False, True])
@pytest.mark.parametrize("file", ["conll2003/eng.testa", "wnut17/wnut17train.conll"])
def test_real_tags_decode_to_themselves(shared, file, document_context):
    examples = conll_data.read(str(shared / "data/ner" / file), needs_tags=True).examples
    labels = tag_schemes.label_names(examples)
    tokenizer = load_tokenizer(str(shared / "data/vocab/cased"), do_lower_case=False)
    tagging = family(labels, tokenizer=tokenizer, max_length=64, document_context=document_context, overlap=16)
    found = tagging.metrics(examples, perfect(tagging, examples))
    assert found["f1"] == found["accuracy"] == 1.0
