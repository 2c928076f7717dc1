"""Questions about contexts: SQuAD 1.1 and 2.0 in their original JSON, or flat, a question an object.

Original: {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}],
"is_impossible"}]}]}]}. Flat, as Hugging Face has it: {"data": [...]}, a list, or lines of {"id", "question", "context",
"answers": {"text": [...], "answer_start": [...]}}.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from input_pipeline import corpus, files
from input_pipeline.errors import UserError
from input_pipeline.question_features import Words, split_words
from input_pipeline.task_examples import Answer, DataSet, QuestionExample

VERSION_FLAG = "--version_2_with_negative"
_JSON_LINES = re.compile(r"\.(jsonl|ndjson)(\.gz)?$", re.IGNORECASE)


class _Question(NamedTuple):
    """An object with a question, the context it is about, and where it stands."""

    fields: dict[str, Any]
    context: str
    place: str


def find(data_dir: str, version_2: bool | None, flag: str = "--data_dir") -> dict[str, str]:
    """The files of the splits "train" and "dev" that are in a folder, by their official names, plain or gzip.

    Arguments:
      version_2: whether SQuAD 2.0 is meant; None for the one that is there.

    Raises:
      UserError: no split of that version is there, or with None those of both are.
    """
    folder = files.reach(data_dir, flag)
    with files.user_errors(folder, flag):
        if not folder.is_dir():
            folder.stat()  # says so where nothing is there
            raise NotADirectoryError
        found = {version: _splits(folder, version) for version in ("1.1", "2.0")}
    versions = [version for version in found if found[version]]
    if version_2 is None and len(versions) == 1:
        return found[versions[0]]
    if version_2 is None and versions:
        raise UserError(f"{flag}: {folder} holds SQuAD 1.1 and 2.0; choose by {VERSION_FLAG}=false or =true")
    wanted = ["1.1", "2.0"] if version_2 is None else ["2.0" if version_2 else "1.1"]
    if not any(found[version] for version in wanted):
        names = " and no ".join(f"{split}-v{version}.json" for version in wanted for split in ("train", "dev"))
        hint = f"; it holds SQuAD {versions[0]}: give {VERSION_FLAG}={str(not version_2).lower()}" if versions else ""
        raise UserError(f"{flag}: {folder} holds no {names}{hint}")
    return found[wanted[0]]


def _splits(folder: Any, version: str) -> dict[str, str]:
    found = {}
    for split in ("train", "dev"):
        for ending in ("json", "json.gz"):
            if split not in found and (path := folder / f"{split}-v{version}.{ending}").exists():
                found[split] = os.fspath(path)
    return found


def read(
    path: str, *, version_2: bool, needs_answers: bool, training: bool = False, flag: str = "--train_file"
) -> DataSet:
    """The questions of a file, in its order.

    Without "is_impossible", a question of SQuAD 2.0 with an empty list of answers has none; but where no question of
    the file has an answer, nothing is known.

    Arguments:
      version_2: whether contexts may hold no answer.
      needs_answers: every question needs one (or, in SQuAD 2.0, to be impossible), else what is missing stays unknown.
      training: leave out, and note, questions whose first answer does not stand where it should; a model could only
        learn something wrong from it. Metrics only need its text.

    Raises:
      UserError: a file that cannot be read or is of another form; missing or wrong fields, an id that is there twice,
        an answer that starts outside of its context, no answer where one is needed. The place is named.
    """
    questions = list(_questions(path, flag))
    where = f"{flag}: {path}"
    if not questions:
        raise UserError(f"{where}: no questions")
    known = any(_has_answers(question.fields) or question.fields.get("is_impossible") for question in questions)
    examples, misplaced, several = [], [], 0
    places: dict[str, str] = {}
    words: tuple[str, Words] = "", split_words("")
    for question in questions:
        example = _example(question, path, where, version_2 and known)
        if example.id in places:
            raise UserError(f"{where}, {question.place}: the id {example.id!r} is that of {places[example.id]} too")
        places[example.id] = question.place
        if needs_answers:
            _check_answers(example, f"{where}, {question.place}", version_2)
        if training and example.answers:
            if words[0] != example.context:
                words = example.context, split_words(example.context)
            if words[1].of(example.answers[0]) is None:
                misplaced.append(f"{question.place}, {example.id}")
                continue
            several += len(example.answers) > 1
        examples.append(example)
    return DataSet(examples, path, tuple(_notes(path, len(questions), misplaced, several)))


def _notes(path: str, total: int, misplaced: list[str], several: int) -> Iterator[str]:
    if misplaced:
        yield (
            f"{path}: {len(misplaced):,} of {total:,} questions are left out, since the answer is not where "
            f"answer_start says (first: {misplaced[0]})"
        )
    if several:
        yield f"{path}: {several:,} questions have several answers, of which training takes the first"


def _has_answers(fields: dict[str, Any]) -> bool:
    answers = fields.get("answers")
    return bool(answers.get("text") if isinstance(answers, dict) else answers)


def _check_answers(example: QuestionExample, where: str, version_2: bool) -> None:
    if version_2 and example.is_impossible is None:
        raise UserError(f"{where}: the question has no answer, and no is_impossible that says there is none")
    if not version_2 and example.is_impossible:
        raise UserError(f"{where}: the question has no answer, as in SQuAD 2.0: give {VERSION_FLAG}")
    if not version_2 and not example.answers:
        raise UserError(f"{where}: the question has no answer; give {VERSION_FLAG} if that may be")


def _example(question: _Question, path: str, where: str, empty_is_impossible: bool) -> QuestionExample:
    fields, context, place = question
    where = f"{where}, {place}"
    number = fields.get("id")
    if isinstance(number, bool) or not isinstance(number, str | int):
        raise _wrong_field(fields, "id", "a string", where)
    text = _field(fields, "question", str, "a string", where)
    impossible = fields.get("is_impossible")
    if not isinstance(impossible, bool | None):
        raise UserError(f"{where}: is_impossible is {_short(impossible)}, not true or false")
    answers = () if impossible else tuple(_answers(fields, context, where))
    if impossible is None and answers:
        impossible = False
    elif impossible is None and empty_is_impossible and "answers" in fields:
        impossible = True
    elif impossible is False and not answers:
        impossible = None  # there is one, but nobody says which
    return QuestionExample(str(number), text, context, answers, impossible, f"{path}, {place}")


def _answers(fields: dict[str, Any], context: str, where: str) -> Iterator[Answer]:
    answers = fields.get("answers") or []
    if isinstance(answers, dict):
        texts = _field(answers, "text", list, "a list", f"{where}.answers")
        starts = _field(answers, "answer_start", list, "a list", f"{where}.answers")
        if len(texts) != len(starts):
            raise UserError(f"{where}.answers: {len(texts)} texts and {len(starts)} answer_start")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    if not isinstance(answers, list):
        raise UserError(f"{where}: answers is {_short(answers)}, not a list")
    for number, answer in enumerate(answers):
        place = f"{where}.answers[{number}]"
        text = _field(answer, "text", str, "a string", place)
        start = _field(answer, "answer_start", int, "a whole number", place)
        if not 0 <= start <= max(len(context) - 1, 0):
            raise UserError(f"{place}: answer_start is {start}, but the context has {len(context):,} characters")
        yield Answer(text, start)


def _questions(path: str, flag: str) -> Iterator[_Question]:
    """The questions of a file of any form, in order."""
    with corpus.open_text(path, flag) as file:
        data = file.read()
    where = f"{flag}: {path}"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}, line {line}: not UTF-8 text (byte {data[error.start]:#04x})") from None
    if _JSON_LINES.search(path):
        yield from _json_lines(text, where)
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise UserError(f"{where}, line {error.lineno}: not JSON: {error.msg}") from None
        yield from _json_lines(text, where)
        return
    except (RecursionError, ValueError):  # brackets in brackets, or a number of thousands of digits
        raise UserError(f"{where}: JSON of too many levels or digits") from None
    name = "data" if isinstance(value, dict) and "data" in value else ""
    entries = value["data"] if name else value
    if isinstance(entries, dict) and "question" in entries:
        entries = [entries]  # JSON lines of one line
    if not isinstance(entries, list):
        raise UserError(f"{where}: no list named data, as SQuAD has it; there is {_names(value)}")
    for number, entry in enumerate(entries):
        place = f"{name}[{number}]" if name else f"entry {number}"
        if isinstance(entry, dict) and "paragraphs" in entry:
            yield from _questions_of_article(entry, place, where)
        else:
            yield _flat_question(entry, place, where)


def _questions_of_article(article: dict[str, Any], place: str, where: str) -> Iterator[_Question]:
    paragraphs = _field(article, "paragraphs", list, "a list", f"{where}, {place}")
    for number, paragraph in enumerate(paragraphs):
        at = f"{place}.paragraphs[{number}]"
        context = _field(paragraph, "context", str, "a string", f"{where}, {at}")
        for index, question in enumerate(_field(paragraph, "qas", list, "a list", f"{where}, {at}")):
            _check_object(question, f"{where}, {at}.qas[{index}]")
            yield _Question(question, context, f"{at}.qas[{index}]")


def _flat_question(entry: Any, place: str, where: str) -> _Question:
    if isinstance(entry, dict) and not {"question", "context"} & entry.keys():
        raise UserError(f"{where}, {place}: neither paragraphs nor question and context; there is {_names(entry)}")
    return _Question(entry, _field(entry, "context", str, "a string", f"{where}, {place}"), place)


def _json_lines(text: str, where: str) -> Iterator[_Question]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "too many levels or digits")
            raise UserError(
                f"{where}, line {number}: not JSON: {reason}; a line is an object with a question"
            ) from None
        yield _flat_question(entry, f"line {number}", where)


def _field(fields: Any, name: str, kind: type, kind_name: str, where: str) -> Any:
    _check_object(fields, where)
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _wrong_field(fields, name, kind_name, where)
    return value


def _wrong_field(fields: dict[str, Any], name: str, kind_name: str, where: str) -> UserError:
    if name in fields:
        return UserError(f"{where}: {name} is {_short(fields[name])}, not {kind_name}")
    return UserError(f"{where}: no {name}; there is {_names(fields)}")


def _check_object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"{where}: {_short(value)} where an object should be")


def _names(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, dict) else _short(value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
