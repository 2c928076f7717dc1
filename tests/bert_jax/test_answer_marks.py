from bert_jax.answer_marks import EXCERPT_CHARACTERS, marked_excerpt, place_of, place_of_answer
from input_pipeline.task_examples import Answer

CONTEXT = "the cat  and\nthe cat (big)"


def marked(excerpt):
    return [(excerpt["text"][start:end], kind) for start, end, kind, _ in excerpt["marks"]]


def test_a_text_is_found_from_its_word_on_whatever_the_white_space():
    assert place_of("the cat", CONTEXT, 0) == (0, 7)
    assert place_of("the cat", CONTEXT, 3) == (13, 20)
    assert place_of("cat and the", CONTEXT, 1) == (4, 16)
    assert place_of("big", CONTEXT, 5) == (22, 25)
    assert place_of("", CONTEXT, -1) is None


def test_an_answer_is_where_it_says_or_nowhere():
    assert place_of_answer(Answer("cat", 17), CONTEXT) == (17, 20)
    assert place_of_answer(Answer("cat and", 4), CONTEXT) == (4, 12)
    assert place_of_answer(Answer("5", 4), "1895-1995") == (3, 4)  # only the word is known
    assert place_of_answer(Answer("5", 8), "1895-1995") == (8, 9)
    assert place_of_answer(Answer("big", 0), CONTEXT) is None


def test_what_both_answers_share_is_marked_as_such():
    assert marked_excerpt(CONTEXT, (4, 12), (9, 16)) == {
        "title": "context",
        "text": CONTEXT,
        "marks": [[4, 9, "right", ""], [9, 12, "both", ""], [12, 16, "predicted", ""]],
    }
    assert marked(marked_excerpt(CONTEXT, (4, 7), (17, 20))) == [("cat", "right"), ("cat", "predicted")]
    assert marked(marked_excerpt(CONTEXT, (0, 12), (4, 7))) == [
        ("the ", "right"),
        ("cat", "both"),
        ("  and", "right"),
    ]
    assert marked_excerpt("", None, None)["text"] == ""


def test_long_contexts_are_cut_around_the_answers():
    context = "x" * 1000 + "RIGHT" + "y" * 1000 + "WRONG" + "z" * 1000
    right, predicted = (1000, 1005), (2005, 2010)
    excerpt = marked_excerpt(context, right, predicted)
    assert marked(excerpt) == [("RIGHT", "right"), ("WRONG", "predicted")]
    assert excerpt["text"].startswith("\u2026 x") and excerpt["text"].endswith("z \u2026")
    assert "y \u2026 y" in excerpt["text"]
    assert abs(len(excerpt["text"]) - EXCERPT_CHARACTERS) < 20
    near = marked_excerpt(context, right, (1005, 1015))
    assert near["text"].count("\u2026") == 2
    assert marked(near) == [("RIGHT", "right"), ("y" * 10, "predicted")]
    assert marked_excerpt(context, None, None)["text"] == "x" * EXCERPT_CHARACTERS + " \u2026"
    assert marked(marked_excerpt(context, (0, 3000), None)) == [(context[:3000], "right")]
