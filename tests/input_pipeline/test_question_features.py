import hashlib
import json

import numpy as np
import pytest

from input_pipeline.errors import UserError
from input_pipeline.question_features import make_windows, question_features, split_words
from input_pipeline.task_examples import Answer, QuestionExample
from input_pipeline.task_features import NO_LABEL
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] what is big paris the end near ( ) 1895 1943 - ##s . x".split()
TOKENIZER = WordPieceTokenizer(PIECES)


def question(context, answer=None, start=0, text="what is", impossible=None):
    answers = () if answer is None else (Answer(answer, start),)
    return QuestionExample("q", text, context, answers, impossible, "file, data[0]")


def features(*examples, max_length=32, doc_stride=16, max_query_length=8, training=True):
    return question_features(
        list(examples),
        tokenizer=TOKENIZER,
        max_length=max_length,
        doc_stride=doc_stride,
        max_query_length=max_query_length,
        training=training,
    )


def labelled(found, sequence=0):
    """The pieces between the two labels."""
    start = found.lengths[:sequence].sum()
    first, last = found.labels[sequence]
    return TOKENIZER.convert_ids_to_tokens(found.input_ids[start + first : start + last + 1].tolist())


def test_words_are_cut_at_five_characters_only():
    words = split_words(" a\tb\u202fc\u00a0d\r\n\u2028e ")
    assert words.texts == ["a", "b", "c\u00a0d", "\u2028e"] and words.starts == [1, 3, 5, 10]
    assert [words.number_at(character) for character in (0, 1, 2, 3, 6, 9, 11)] == [0, 0, 0, 1, 2, 2, 3]


def test_an_answer_stands_where_its_words_are_part_of_the_contexts():
    words = split_words("the  end\nis near.")
    assert words.of(Answer("the end", 0)) == (0, 1)
    assert words.of(Answer("nea", 12)) == (3, 3)
    assert words.of(Answer("near", 0)) is None
    assert words.of(Answer(" ", 3)) is None
    assert split_words("").of(Answer("x", 0)) is None


def test_a_sequence_and_what_decoding_needs():
    found = features(question("Paris (1895-1943) is big.", "1895", 7))
    assert TOKENIZER.convert_ids_to_tokens(found.input_ids.tolist()) == (
        "[CLS] what is [SEP] paris ( 1895 - 1943 ) is big . [SEP]".split()
    )
    assert found.segment_ids.tolist() == [0] * 4 + [1] * 10
    assert found.token_info["word"].tolist() == [-1] * 4 + [0, 1, 1, 1, 1, 1, 2, 3, 3, -1]
    assert found.token_info["max_context"].tolist() == [False] * 4 + [True] * 9 + [False]
    assert found.labels.tolist() == [[6, 6]]
    assert (found.lengths.tolist(), found.examples.tolist(), found.num_cut) == ([14], [0], 0)
    assert found.input_ids.dtype == found.labels.dtype == found.token_info["word"].dtype == np.int32


@pytest.mark.parametrize(
    ("context", "answer", "start"),
    [("Paris is big", "Paris", 0), ("the end is near", "near", 11), ("Paris", "Paris", 0), ("(1895-1943).", "1943", 6)],
)
def test_first_and_last_words_are_answers_like_others(context, answer, start):
    found = features(question(context, answer, start))
    assert found.labels.min() > 3
    assert labelled(found) == TOKENIZER.tokenize(answer)


def test_what_is_no_answer_points_to_cls_and_what_is_unknown_has_no_label():
    unknown = [NO_LABEL, NO_LABEL]
    examples = [
        question("x x", impossible=True),
        question("x x"),
        question("x \u200b x", "\u200b", 2),  # no token is left of it
        question("x x", "big", 0),
    ]
    assert features(*examples).labels.tolist() == [[0, 0], unknown, unknown, unknown]
    assert features(*examples, training=False).labels is None


def test_long_contexts_become_windows_and_the_answer_is_in_those_that_hold_it_all():
    context = " ".join(["x"] * 6 + ["big", "near"] + ["x"] * 6)
    found = features(question(context, "big near", 12), max_length=12, doc_stride=3)
    assert found.lengths.tolist() == [12, 12, 12, 10] and found.examples.tolist() == [0] * 4
    assert found.labels.tolist() == [[0, 0], [7, 8], [4, 5], [0, 0]]
    assert labelled(found, 1) == labelled(found, 2) == ["big", "near"]


def test_questions_are_cut_and_counted():
    found = features(question("x x", text="what is the end"), question("x"), max_query_length=3)
    assert found.input_ids[:5].tolist() == [2, *TOKENIZER.encode("what is the"), 3]
    assert found.num_cut == 1


def test_a_context_without_tokens_has_no_window():
    found = features(*map(question, ["", " \t", "\u200b", "x"]))
    assert found.examples.tolist() == [3]
    assert features(question("")).labels.shape == (0, 2)


def test_no_room_and_no_stride_are_said():
    with pytest.raises(
        UserError, match=r"file, data\[0\]: a question of 2 tokens leaves no room .* --max_seq_length=5"
    ):
        features(question("x"), max_length=5)
    with pytest.raises(UserError, match="--doc_stride=0"):
        features(question("x"), doc_stride=0)


def test_a_stride_beyond_the_window_skips_nothing():
    windows = make_windows(157, 114, 128)
    assert windows.spans == ((0, 114), (114, 43))
    assert all(most.all() for most in windows.max_context)


def test_each_token_has_most_context_in_one_window():
    windows = make_windows(12, 8, 4)
    assert windows.spans == ((0, 8), (4, 8))
    assert [most.tolist() for most in windows.max_context] == [[True] * 6 + [False] * 2, [False] * 2 + [True] * 6]


def test_windows_are_those_of_the_reference(shared):
    for case in json.loads((shared / "golden" / "squad_eval.json").read_text())["windows"]["cases"]:
        room = case["max_seq_length"] - min(case["query_tokens"], case["max_query_length"]) - 3
        if room < 1:
            assert "expect" in case
            continue
        windows = make_windows(case["doc_tokens"], room, case["doc_stride"])
        assert list(map(list, windows.spans)) == case["spans_start_length"]
        owner = np.full(case["doc_tokens"], -1)
        for number, ((start, length), most) in enumerate(zip(*windows)):
            owner[start : start + length][most] = number
        owners = np.repeat(*np.array(case["max_context_span_by_token_run_length"] or [[0, 0]]).T)
        assert owner.tolist() == owners.tolist()


@pytest.mark.parametrize("number", range(3))
def test_features_are_those_of_the_reference(shared, number):
    golden = json.loads((shared / "golden" / "squad_eval.json").read_text())["features"]
    run = golden["runs"][number]
    tokenizer = load_tokenizer(str(shared / "data" / "vocab" / run["vocab"]), run["do_lower_case"])
    examples = [
        QuestionExample(
            qa["id"],
            qa["question"],
            paragraph["context"],
            tuple(Answer(answer["text"], answer["answer_start"]) for answer in qa["answers"]),
            qa["is_impossible"],
            "",
        )
        for article in golden["squad_json"]["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    found = question_features(
        examples,
        tokenizer=tokenizer,
        max_length=run["max_seq_length"],
        doc_stride=run["doc_stride"],
        max_query_length=run["max_query_length"],
        training=True,
    )
    assert len(found.lengths) == len(run["features"])
    ends = np.cumsum(found.lengths)
    for index, window in enumerate(run["features"]):
        here = slice(ends[index] - found.lengths[index], ends[index])
        context = slice(here.start + window["doc_first_token"], here.stop - 1)
        ids = " ".join(map(str, found.input_ids[here].tolist()))
        assert hashlib.sha1(ids.encode()).hexdigest()[:12] == window["ids_sha1"]
        assert examples[found.examples[index]].id == window["id"]
        assert found.token_info["word"][context].tolist() == window["token_to_orig"]
        most = "".join(map(str, found.token_info["max_context"][context].astype(int).tolist()))
        assert most == window["is_max_context"]
        assert found.labels[index].tolist() == [window["start"], window["end"]]
