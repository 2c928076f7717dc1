import gzip
import json

import pytest

from input_pipeline import squad_data
from input_pipeline.errors import UserError
from input_pipeline.task_examples import Answer

CONTEXT = "Paris is  big.\nRome is old."
QAS = [
    {"id": "a", "question": "What is big?", "answers": [{"text": "Paris", "answer_start": 0}]},
    {"id": "b", "question": "Paris?", "answers": [{"text": "is big", "answer_start": 6}]},
]
IMPOSSIBLE = {"id": "c", "question": "Oslo?", "answers": [], "is_impossible": True}


def squad(*qas, context=CONTEXT):
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def flat(number, question, context, texts, starts):
    answers = {"text": texts, "answer_start": starts}
    return {"id": number, "question": question, "context": context, "answers": answers}


@pytest.fixture
def read(tmp_path):
    def read(value, name="questions.json", version_2=False, needs_answers=True, **arguments):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return squad_data.read(str(path), version_2=version_2, needs_answers=needs_answers, **arguments)

    return read


def message(call, *arguments, **named):
    with pytest.raises(UserError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def test_questions_answers_and_places(read):
    data = read(squad(*QAS))
    assert [example.id for example in data.examples] == ["a", "b"]
    assert data.examples[1].answers == (Answer("is big", 6),)
    assert data.examples[1].is_impossible is False and data.examples[1].context == CONTEXT
    assert data.examples[1].where.endswith("questions.json, data[0].paragraphs[0].qas[1]")
    assert data.notes == ()


def test_impossible_questions_of_version_2(read):
    examples = read(squad(*QAS, IMPOSSIBLE), version_2=True).examples
    assert [example.is_impossible for example in examples] == [False, False, True]
    assert "qas[2]: the question has no answer, as in SQuAD 2.0: give --version_2_with_negative" in message(
        read, squad(*QAS, IMPOSSIBLE)
    )


def test_flat_list_lines_and_a_single_line_are_the_same_questions(read, tmp_path):
    rows = [flat("a", "Q?", "Paris is big", ["Paris"], [0]), flat(7, "R?", "x", [], [])]
    listed = read({"data": rows}, version_2=True).examples
    assert [(example.id, example.answers, example.is_impossible) for example in listed] == [
        ("a", (Answer("Paris", 0),), False),
        ("7", (), True),
    ]
    lines = "\ufeff" + "".join(json.dumps(row) + "\r\n" for row in rows)
    for name in ("rows.jsonl", "rows.json"):
        found = read(lines, name, version_2=True).examples
        assert [example._replace(where="") for example in found] == [example._replace(where="") for example in listed]
        assert found[1].where.endswith("line 2")
    assert read(json.dumps(rows[0]), "one.json").examples[0].answers == (Answer("Paris", 0),)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert len(squad_data.read(str(tmp_path / "rows.jsonl.gz"), version_2=True, needs_answers=True).examples) == 2


def test_nothing_is_known_of_a_file_without_answers(read):
    rows = [flat("a", "Q?", "Paris", [], []), flat("b", "Q?", "Rome", [], [])]
    assert [
        example.is_impossible for example in read({"data": rows}, version_2=True, needs_answers=False).examples
    ] == [
        None,
        None,
    ]
    without = {"id": "a", "question": "Q?"}
    assert read(squad(without), needs_answers=False).examples[0].answers == ()
    assert "has no answer; give --version_2_with_negative if that may be" in message(read, squad(without))
    assert "no is_impossible that says there is none" in message(read, squad(without), version_2=True)


def test_training_leaves_out_answers_that_stand_elsewhere_and_says_so(read):
    wrong = {"id": "w", "question": "?", "answers": [{"text": "Rome", "answer_start": 3}]}
    several = {"id": "s", "question": "?", "answers": [{"text": "Rome", "answer_start": 15}] * 2}
    value = squad(wrong, *QAS, several)
    data = read(value, training=True)
    assert [example.id for example in data.examples] == ["a", "b", "s"]
    assert "1 of 4 questions are left out" in data.notes[0] and "qas[0], w" in data.notes[0]
    assert "1 questions have several answers" in data.notes[1]
    assert [example.id for example in read(value).examples] == ["w", "a", "b", "s"] and read(value).notes == ()


def test_blank_contexts_are_kept(read):
    examples = read(squad(IMPOSSIBLE, context=" "), version_2=True).examples
    assert (examples[0].context, examples[0].is_impossible) == (" ", True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{"data": [\n{"paragraphs": [}\n]}', "line 2: not JSON"),
        ('{"id": "a"}\n{"id": "b"}', "line 1: neither paragraphs nor question and context; there is id"),
        ("[" * 100_000, "JSON of too many levels or digits"),
        ("9" * 10_000, "JSON of too many levels or digits"),
        ({"data": []}, "questions.json: no questions"),
        ({"rows": []}, "no list named data, as SQuAD has it; there is rows"),
        ({"data": [{"title": "t"}]}, "data[0]: neither paragraphs nor question and context; there is title"),
        ({"data": [3]}, "data[0]: 3 where an object should be"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "data[0].paragraphs[0]: no context; there is qas"),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, "data[0].paragraphs[0]: no qas; there is context"),
        (squad({"question": "?", "answers": []}), "qas[0]: no id; there is question, answers"),
        (squad({"id": "a", "question": None}), "qas[0]: question is null, not a string"),
        (squad(QAS[0], QAS[0]), "qas[1]: the id 'a' is that of data[0].paragraphs[0].qas[0] too"),
        (squad(QAS[0] | {"answers": "Paris"}), 'qas[0]: answers is "Paris", not a list'),
        (squad(QAS[0] | {"answers": [{"text": "Paris"}]}), "qas[0].answers[0]: no answer_start; there is text"),
        (
            squad(QAS[0] | {"answers": [{"text": "Paris", "answer_start": 27}]}),
            "qas[0].answers[0]: answer_start is 27, but the context has 27 characters",
        ),
        (squad(QAS[0] | {"is_impossible": "no"}), 'qas[0]: is_impossible is "no", not true or false'),
        ({"data": [flat("a", "?", "x", ["x"], [])]}, "data[0].answers: 1 texts and 0 answer_start"),
    ],
)
def test_mistakes_name_their_place(read, value, words):
    found = message(read, value)
    assert words in found and "\n" not in found
    assert found.startswith("--train_file: ")


def test_text_in_another_encoding_names_its_line(tmp_path):
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"data":\n["caf\xe9"]}')
    assert "line 2: not UTF-8 text (byte 0xe9)" in message(
        squad_data.read, str(path), version_2=False, needs_answers=True
    )


def test_find_by_version(tmp_path):
    assert "holds no train-v1.1.json and no dev-v1.1.json" in message(squad_data.find, str(tmp_path), False)
    (tmp_path / "train-v2.0.json").write_text("{}")
    (tmp_path / "dev-v2.0.json.gz").write_text("{}")
    found = {"train": str(tmp_path / "train-v2.0.json"), "dev": str(tmp_path / "dev-v2.0.json.gz")}
    assert squad_data.find(str(tmp_path), True) == squad_data.find(str(tmp_path), None) == found
    assert "it holds SQuAD 2.0: give --version_2_with_negative=true" in message(squad_data.find, str(tmp_path), False)
    (tmp_path / "dev-v1.1.json").write_text("{}")
    assert squad_data.find(str(tmp_path), False) == {"dev": str(tmp_path / "dev-v1.1.json")}
    assert "choose by --version_2_with_negative" in message(squad_data.find, str(tmp_path), None)
    assert "no such file or folder" in message(squad_data.find, str(tmp_path / "none"), None)
    assert "a folder is needed" in message(squad_data.find, str(tmp_path / "dev-v1.1.json"), None)


@pytest.mark.parametrize(
    ("name", "version_2", "total", "impossible"),
    [
        ("train-v1.1", False, 2184, 0),
        ("dev-v1.1", False, 726, 0),
        ("train-v2.0", True, 4611, 2427),
        ("dev-v2.0", True, 1467, 741),
    ],
)
def test_real_files_are_read_whole(shared, name, version_2, total, impossible):
    path = str(shared / "data" / "squad" / f"{name}.json")
    examples = squad_data.read(path, version_2=version_2, needs_answers=True, training=True).examples
    assert (len(examples), sum(example.is_impossible for example in examples)) == (total, impossible)
