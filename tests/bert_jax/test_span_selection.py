import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.span_selection import Window, final_text, select_answer
from input_pipeline.question_features import question_features, split_words
from input_pipeline.task_examples import QuestionExample
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] who a b c d ##x ( ) 1895 - 1943 .".split()
TOKENIZER = WordPieceTokenizer(PIECES)


def windows_of(context, logits=None, max_length=64, doc_stride=32, tokenizer=TOKENIZER, question="who"):
    """The windows of a context; logits(number, tokens) gives the scores [tokens, 2]."""
    example = QuestionExample("q", question, context, (), None, "")
    features = question_features(
        [example],
        tokenizer=tokenizer,
        max_length=max_length,
        doc_stride=doc_stride,
        max_query_length=12,
        training=False,
    )
    windows, start = [], 0
    for number, length in enumerate(features.lengths):
        here = slice(start, start + length)
        scores = np.zeros((length, 2)) if logits is None else np.asarray(logits(number, length))
        info = features.token_info
        windows.append(
            Window(features.input_ids[here], info["word"][here], info["max_context"][here], scores[:, 0], scores[:, 1])
        )
        start += length
    return windows


def select(context, windows, **options):
    settings = {"n_best_size": 20, "max_answer_length": 30, "version_2": False, **options}
    return select_answer(split_words(context), windows, TOKENIZER, **settings)


def peaks(*scores):
    """Scores of 0 but for (token, start, end)."""

    def logits(number, length):
        found = np.zeros((length, 2))
        for token, start, end in scores:
            found[token] = start, end
        return found

    return logits


def assert_sound(prediction):
    assert prediction.nbest
    assert sum(candidate.probability for candidate in prediction.nbest) == pytest.approx(1)
    numbers = [value for candidate in prediction.nbest for value in candidate[1:4]]
    assert all(map(math.isfinite, numbers))
    assert len({candidate.text for candidate in prediction.nbest}) == len(prediction.nbest)


@pytest.mark.parametrize(
    ("predicted", "original", "do_lower_case", "text"),
    [
        ("steve smith", "Steve Smith's", True, "Steve Smith"),
        ("smith", "Steve Smith's", True, "Smith"),
        ("cafe", "(Caf\u00e9)", True, "Caf\u00e9"),
        ("caf\u00e9", "(Caf\u00e9)", False, "(Caf\u00e9)"),  # a lone accent is no letter of its own
        ("1895", "(1895-1943).", True, "1895"),
        ("don ' t", "don't!", True, "don't"),
        ("u . s .", "U.S.-led", True, "U.S."),
        ("missing", "Something else", True, "Something else"),
        ("ss", "stra\u00dfe", True, "stra\u00dfe"),
        ("fi", "\ufb01sh", True, "\ufb01sh"),
        ("", "a b", True, "a b"),
    ],
)
def test_final_text(predicted, original, do_lower_case, text):
    decomposed = original if do_lower_case else original.replace("\u00e9", "e\u0301")
    expected = text if do_lower_case else text.replace("\u00e9", "e\u0301")
    assert final_text(predicted, decomposed, do_lower_case) == expected


def test_the_best_span_of_the_context_is_the_answer():
    context = "Born in (1895-1943) a b."
    windows = windows_of(context, peaks((6, 5, 5)))
    assert windows[0].input_ids[6] == TOKENIZER.convert_tokens_to_ids(["1895"])[0]
    prediction = select(context, windows)
    assert prediction.text == "1895" and prediction.null_odds is None
    assert prediction.nbest[0].word == 2
    assert (prediction.nbest[0].start_logit, prediction.nbest[0].end_logit) == (5, 5)
    assert_sound(prediction)


def test_equal_scores_keep_the_earlier_token_and_texts_come_once():
    context = "a b a"
    prediction = select(context, windows_of(context), max_answer_length=2)
    assert [candidate.text for candidate in prediction.nbest] == ["a", "a b", "b", "b a"]
    assert [candidate.word for candidate in prediction.nbest] == [0, 0, 1, 1]
    assert [candidate.probability for candidate in prediction.nbest] == pytest.approx([0.25] * 4)


def test_an_answer_starts_where_its_token_has_most_context():
    context = "a b c d a b c ("

    def scores(number, length):  # the fourth token of the context is in both windows, first in the second
        return peaks((6, 1, 1))(number, length) if number == 0 else peaks((3, 9, 9))(number, length)

    windows = windows_of(context, scores, max_length=10, doc_stride=3)
    assert windows[0].word[6] == windows[1].word[3] == 3
    best = select(context, windows).nbest[0]
    assert (best.text, best.start_logit, best.end_logit) == ("d", 1, 1)


def test_null_odds_decide():
    context = "a b"
    windows = windows_of(context, peaks((0, 1.0, 2.0), (3, 0.5, 1.0)))
    assert windows[0].word[3] == 0
    for threshold, text in ((1.0, ""), (1.5, "a"), (2.0, "a")):
        prediction = select(context, windows, version_2=True, null_score_diff_threshold=threshold)
        assert (prediction.text, prediction.null_odds) == (text, 1.5)
        assert [candidate.text for candidate in prediction.nbest[:2]] == ["", "a"]
        assert_sound(prediction)


def test_no_answer_is_a_candidate_beyond_n_best_size():
    context = "a b c d"
    prediction = select(context, windows_of(context, peaks((3, 3, 3), (4, 2, 2))), version_2=True, n_best_size=2)
    assert [candidate.text for candidate in prediction.nbest] == ["a", "a b", ""]


def test_the_window_that_most_expects_an_answer_scores_no_answer():
    context = " ".join("abcdabcd")
    windows = windows_of(context, lambda number, length: peaks((0, 3.0 - number, 1.0))(number, length), 10, 3)
    prediction = select(context, windows, version_2=True, max_answer_length=1)
    assert prediction.null_odds == 3.0 - (len(windows) - 1) + 1.0


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize("context", ["", "   ", "\u200b", "a"])
def test_every_context_has_a_prediction(context, version_2):
    outside = peaks((0, 9, 9), (1, 8, 8), (2, 7, 7))
    prediction = select(context, windows_of(context, outside), version_2=version_2, n_best_size=3)
    assert_sound(prediction)
    assert prediction.text == ""
    assert (prediction.null_odds is not None and math.isfinite(prediction.null_odds)) == version_2


def test_only_no_answer_is_left():
    prediction = select("a", windows_of("a", peaks((0, 4, 5), (1, 6, 6))), version_2=True, n_best_size=2)
    assert prediction.null_odds == 9 and [candidate.text for candidate in prediction.nbest] == [""]


def test_scores_that_are_no_numbers():
    windows = windows_of("a b", lambda number, length: np.full((length, 2), [np.nan, np.inf]))
    for version_2 in (False, True):
        prediction = select("a b", windows, version_2=version_2)
        assert_sound(prediction)
        assert version_2 == (prediction.null_odds is not None and math.isfinite(prediction.null_odds))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_spans_are_those_that_a_plain_loop_finds(seed, n_best_size, max_answer_length, padding):
    rng = np.random.default_rng(seed)
    context = " ".join(rng.choice(list("abcd"), rng.integers(1, 14)))
    windows = [
        window._replace(
            start_logits=rng.integers(-2, 3, len(window.word) + padding).astype(float),
            end_logits=rng.integers(-2, 3, len(window.word) + padding).astype(float),
        )
        for window in windows_of(context, max_length=10, doc_stride=2)
    ]
    found = []
    for window in windows:
        ranked = [
            sorted(range(len(scores)), key=lambda token: -scores[token])[:n_best_size]
            for scores in (window.start_logits, window.end_logits)
        ]
        for start in ranked[0]:
            for end in ranked[1]:
                if max(start, end) >= len(window.word) or window.word[start] < 0 or window.word[end] < 0:
                    continue
                if window.max_context[start] and start <= end < start + max_answer_length:
                    text = " ".join(context.split()[window.word[start] : window.word[end] + 1])
                    found.append((text, window.start_logits[start], window.end_logits[end]))
    found.sort(key=lambda entry: -entry[1] - entry[2])
    expected = {}
    for text, *scores in found:
        if len(expected) < n_best_size:
            expected.setdefault(text, tuple(scores))
    prediction = select(context, windows, n_best_size=n_best_size, max_answer_length=max_answer_length)
    assert [(candidate.text, *candidate[2:4]) for candidate in prediction.nbest] == [
        (text, *scores) for text, scores in (expected or {"": (0.0, 0.0)}).items()
    ]


@pytest.fixture(scope="module")
def golden(shared):
    return json.loads((shared / "golden" / "squad_eval.json").read_text())


def test_final_texts_of_the_reference(golden):
    for case in golden["get_final_text"]["cases"]:
        assert final_text(case["pred_text"], case["orig_text"], case["do_lower_case"]) == case["final_text"]


def reference_predictions(golden, case, shared):
    """Id, our prediction, for each question of a case."""
    tokenizer = load_tokenizer(str(shared / "data" / "vocab" / case.get("vocab", "uncased")), True)
    paragraphs = [
        paragraph for article in golden["features"]["squad_json"]["data"] for paragraph in article["paragraphs"]
    ]
    questions = {
        qa["id"]: (qa["question"], paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]
    }
    for number in case["example_ids_in_order"]:
        question, context = questions[number]
        given_windows = [window for window in case["windows"] if window["id"] == number]
        windows = windows_of(
            context, None, case["max_seq_length"], case["doc_stride"], tokenizer=tokenizer, question=question
        )
        assert len(windows) == len(given_windows)
        windows = [
            window._replace(start_logits=one["start_logits"], end_logits=one["end_logits"])
            for window, one in zip(windows, given_windows)
        ]
        yield (
            number,
            select_answer(
                split_words(context),
                windows,
                tokenizer,
                n_best_size=case["n_best_size"],
                max_answer_length=case["max_answer_length"],
                version_2=case["version_2_with_negative"],
                null_score_diff_threshold=case.get("null_score_diff_threshold", 0),
            ),
        )


def test_predictions_of_the_reference(golden, shared):
    for case in golden["span_selection"]["cases"]:
        assert case["max_query_length"] == 12
        for number, prediction in reference_predictions(golden, case, shared):
            nbest = case["nbest"][number]
            assert prediction.text == case["predictions"][number].replace("empty", "")
            assert [one.text for one in prediction.nbest] == [entry["text"].replace("empty", "") for entry in nbest]
            for name in ("probability", "start_logit", "end_logit"):
                found = [getattr(one, name) for one in prediction.nbest]
                assert found == pytest.approx([entry[name] for entry in nbest], abs=1e-6)
            if case["null_odds"]:
                assert prediction.null_odds == pytest.approx(case["null_odds"][number], abs=1e-6)


def test_questions_at_which_the_reference_crashes(golden, shared):
    for case in golden["span_selection"]["reference_crashes"]:
        for _, prediction in reference_predictions(golden, case, shared):
            assert_sound(prediction)
            assert prediction.text == "" and math.isfinite(prediction.null_odds)
