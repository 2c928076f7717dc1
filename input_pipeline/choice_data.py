"""Contexts with possible endings: the files of SWAG (Zellers et al., 2018), and own ones as JSON lines."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from input_pipeline import files, tables
from input_pipeline.arguments import shown_json
from input_pipeline.errors import UserError
from input_pipeline.task_examples import ChoiceExample, DataSet

# Split -> possible names of its file.
FILES = {
    "train": ("train.csv", "train.jsonl", "train_full.csv"),
    "dev": ("val.csv", "dev.csv", "val.jsonl", "dev.jsonl", "val_full.csv"),
    "test": ("test.csv", "test.jsonl"),
}
FOLDERS = ("SWAG", "swag", "data")

_TEXT, _STEM, _LABEL = "sent1", "sent2", "label"  # columns of SWAG
_ENDING = re.compile(r"ending(\d+)")
# Files of all that was written for a context have the right ending in a column of its own.
_FULL = ("gold-ending", "distractor-0", "distractor-1", "distractor-2")


def find(
    data_dir: str | os.PathLike, flag: str = "--data_dir", *, needed: Sequence[str] = ("train", "dev")
) -> dict[str, str]:
    """The files of a folder, or of its folder "SWAG": split (train, dev, test) -> path.

    Raises:
      UserError: a split of `needed` is not there, or no file at all.
    """
    root = files.reach(data_dir, flag)
    with files.user_errors(root, flag):
        if not root.exists():
            raise FileNotFoundError
        if not root.is_dir():
            raise NotADirectoryError
        found = {}
        for split, names in FILES.items():
            paths = (folder / name for folder in (root, *(root / name for name in FOLDERS)) for name in names)
            if path := next((os.fspath(path) for path in paths if path.exists()), None):
                found[split] = path
    missing = [split for split in needed if split not in found] or ([] if found else list(FILES))
    if missing:
        names = ", ".join(name for split in missing for name in FILES[split])
        raise UserError(
            f"{flag}: {data_dir} holds no {' and no '.join(missing)} file: looked for {names} in it and in its folders "
            f"{', '.join(FOLDERS)}"
        )
    return found


def read(path: str | os.PathLike, *, needs_label: bool = True, flag: str = "--data_dir") -> DataSet:
    """The examples of a file; the id of one without "id" is the number of its row from 0.

    CSV (quoted) has the columns of SWAG: sent1, sent2, ending0, ending1, ..., label; or gold-ending and distractor-0 to
    distractor-2 instead of the last, and then the right ending is put at place (number of the row) mod 4. A line of
    JSON is {"text": ..., "endings": [...], "stem": ..., "label": ...}, where the stem may be missing.

    Arguments:
      needs_label: False: labels are not looked at, and need not be there.

    Raises:
      UserError: a column is missing, a label is no number of an ending, or the number of endings varies; file and line
        are named.
    """
    path = os.fspath(path)
    odd: Counter = Counter()
    parse = _from_json if tables.kind_of(path) == "jsonl" else _from_columns
    examples: list[ChoiceExample] = []
    for row in tables.read_rows(path, flag, odd=odd):
        example = parse(row, len(examples), needs_label, flag)
        count, expected = len(example.endings), len((examples or [example])[0].endings)
        if count < 2:
            raise UserError(f"{flag}: {row.where}: {count} endings; at least two are needed")
        if count != expected:
            raise UserError(f"{flag}: {row.where}: {count} endings, where the lines before have {expected}")
        odd["empty"] += not (example.text.strip() and all(map(str.strip, example.endings)))
        examples.append(example)
    notes = tables.notes_of(path, odd)
    if examples and _FULL[0] in row.columns:
        notes += (f"{path}: the right ending and the first three others are taken; where it is put goes by the row",)
    return DataSet(examples, path, notes)


def _from_columns(row: tables.Row, number: int, needs_label: bool, flag: str) -> ChoiceExample:
    is_full = _FULL[0] in row.columns
    found = sorted((int(match[1]), match[0]) for match in map(_ENDING.fullmatch, row.columns) if match)
    names = list(_FULL) if is_full else [name for _, name in found] or ["ending0", "ending1"]
    needed = [_TEXT, _STEM, *names] + [_LABEL] * (needs_label and not is_full)
    if number == 0:
        tables.check_columns(row, needed, flag)
    if is_full:
        right = number % len(names)
        names.insert(right, names.pop(0))
        label = right if needs_label else None
    else:
        label = _label(row[_LABEL], len(names), row, flag) if needs_label else None
    endings = tuple(row[name] for name in names)
    return ChoiceExample(str(number), row[_TEXT], row[_STEM], endings, label, row.where)


def _from_json(row: tables.Row, number: int, needs_label: bool, flag: str) -> ChoiceExample:
    value = dict(zip(row.columns, row.values))
    tables.check_columns(row, ["text", "endings", *[_LABEL] * needs_label], flag)
    text, stem, endings = value["text"], value.get("stem") or "", value["endings"]
    for name, one in (("text", text), ("stem", stem)):
        if not isinstance(one, str):
            raise UserError(f"{flag}: {row.where}: field {name!r} is {shown_json(one)}, no text")
    if not (isinstance(endings, list) and all(isinstance(ending, str) for ending in endings)):
        raise UserError(f"{flag}: {row.where}: field 'endings' is {shown_json(endings)}, no list of texts")
    id = value.get("id")
    id = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else str(number)
    label = _label(value[_LABEL], len(endings), row, flag) if needs_label and endings else None
    return ChoiceExample(id, text, stem, tuple(endings), label, row.where)


def _label(value: Any, count: int, row: tables.Row, flag: str) -> int:
    text = value.strip() if isinstance(value, str) else value
    if not isinstance(text, bool) and str(text) in map(str, range(count)):
        return int(text)
    raise UserError(f"{flag}: {row.where}: the label {shown_json(text)} is no number of an ending: 0 to {count - 1}")
