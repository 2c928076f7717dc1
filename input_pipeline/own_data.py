"""A user's own files of labelled texts: tab-separated, comma-separated or JSON lines."""

import functools
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from input_pipeline import tables, text_lines
from input_pipeline.arguments import shown_json
from input_pipeline.errors import UserError
from input_pipeline.task_examples import DataSet, TextExample

KINDS = ("classification", "multi_label", "regression")
LABEL_SEPARATOR = "|"  # between the labels of an example, in TSV and CSV
_MOST_SHOWN = 20


class Fields(NamedTuple):
    """Where an example's parts stand: the name of a column, or of a JSON field, or the number of a column from 1."""

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    id: str | None = None


DEFAULT_FIELDS = Fields()
FLAGS = Fields("--text_field", "--text_pair_field", "--label_field", "--id_field")


def read(
    paths: str | Iterable[str],
    kind: str,
    fields: Fields = DEFAULT_FIELDS,
    *,
    labels: Collection[str] | None = None,
    needs_label: bool = True,
    flag: str = "--train_file",
) -> DataSet:
    """The examples of all files in order; which format a file has is told by its name, as `tables.kind_of` says.

    The first line of TSV and CSV names the columns, unless all `fields` are numbers: then it is an example too. In JSON
    lines a label may also be a number, true or false (the label's name is what stands there), or for "multi_label" a
    list of these. An example without an id has its number from 0 as id. Empty texts are kept, and noted.

    Arguments:
      paths: files, globs or folders; a string may name several with commas between.
      kind: of KINDS; the labels are a name each, a tuple of names, or a float.
      labels: the names that may occur; None for any.
      needs_label: False: labels are not looked at, and need not be there.
      flag: how the user named the files, for messages.

    Raises:
      UserError: a file that cannot be read, a column that is missing, a wrong label; file, line and value are named.
    """
    if isinstance(paths, str):
        paths = [paths] if os.path.exists(paths) else [path.strip() for path in paths.split(",")]
    paths = text_lines.input_paths([os.fspath(path) for path in paths], flag)
    is_header = functools.partial(_is_header, fields=fields, needs_label=needs_label)
    examples: list[TextExample] = []
    notes: list[str] = []
    for path in paths:
        odd: Counter = Counter()
        names, columns = fields, None
        for row in tables.read_rows(path, flag, is_header=is_header, odd=odd):
            if row.columns != columns:
                names, columns = _resolve(row, fields, needs_label, flag), row.columns
            text = _text(row, names.text, FLAGS.text, flag)
            pair = _text(row, names.text_pair, FLAGS.text_pair, flag) if names.text_pair else None
            label = _label(row, names.label, kind, labels, flag) if needs_label else None
            odd["empty"] += not (text.strip() and (pair is None or pair.strip()))
            id = _id(row, names.id, flag) if names.id else str(len(examples))
            examples.append(TextExample(id, text, pair, label, row.where))
        notes += tables.notes_of(path, odd)
    doubled = len(examples) - len({example.id for example in examples})
    if doubled:
        notes.append(f"{doubled:,} ids stand there more than once; examples are told apart by their order")
    return DataSet(examples, ", ".join(paths), tuple(notes))


def label_names(data_sets: Iterable[DataSet]) -> tuple[str, ...]:
    """All labels that occur, in order; by their value if all are numbers."""
    names: set[str] = set()
    for data in data_sets:
        for example in data.examples:
            names.update(example.label if isinstance(example.label, tuple) else {example.label} - {None})
    values = {name: _number(name) for name in names}
    if all(math.isfinite(value) for value in values.values()):
        return tuple(sorted(names, key=lambda name: (values[name], name)))
    return tuple(sorted(names))


def _asked(fields: Fields, needs_label: bool) -> dict[str, str]:
    """Flag -> column, of all that are read."""
    asked = {getattr(FLAGS, part): name for part, name in fields._asdict().items() if name is not None}
    if not needs_label:
        del asked[FLAGS.label]
    return asked


def _is_header(first: list[str], fields: Fields, needs_label: bool) -> bool:
    names = list(_asked(fields, needs_label).values())
    there = {name.strip() for name in first}
    if not all(map(_is_column_number, names)) or set(names) <= there:
        return True
    return not _is_column_number(fields.label) and fields.label in there


def _is_column_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _resolve(row: tables.Row, fields: Fields, needs_label: bool, flag: str) -> Fields:
    """The fields as columns of this row. Raises: UserError, for one that is missing."""
    hint = f" ({', '.join(FLAGS)})"
    is_table = tables.kind_of(row.path) != "jsonl"
    if is_table and not row.columns[0].isdigit():
        hint += "; in a file without a line of names, columns are numbers: --text_field=1"
    for name in _asked(fields, needs_label).values():
        if not (is_table and _is_column_number(name) and 1 <= int(name) <= len(row.columns)):
            tables.check_columns(row, [name], flag, hint)
    if not is_table:
        return fields

    def column(name):
        if name is None or name in row.columns or not _is_column_number(name) or int(name) > len(row.columns):
            return name
        return row.columns[int(name) - 1]

    return Fields(*map(column, fields))


def _text(row: tables.Row, name: str, name_flag: str, flag: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{flag}: {row.where}: field {name!r} ({name_flag}) is {shown_json(value)}, no text")
    return value


def _id(row: tables.Row, name: str, flag: str) -> str:
    value = row[name]
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UserError(f"{flag}: {row.where}: field {name!r} ({FLAGS.id}) is {shown_json(value)}, no id")
    return str(value)


def _label(row: tables.Row, name: str, kind: str, allowed: Collection[str] | None, flag: str) -> Any:
    value = row[name]
    where = f"{flag}: {row.where}: field {name!r} ({FLAGS.label})"
    if kind == "regression":
        number = _number(value)
        if not math.isfinite(number):
            raise UserError(f"{where} is {shown_json(value)}, no number")
        return number
    if kind == "multi_label":
        if isinstance(value, str) and tables.kind_of(row.path) != "jsonl":
            value = value.split(LABEL_SEPARATOR) if value.strip() else []
        several = value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(_name(one, where, allowed) for one in several))
    return _name(value, where, allowed)


def _name(value: Any, where: str, allowed: Collection[str] | None) -> str:
    if not isinstance(value, str | int | float):
        raise UserError(f"{where} is {shown_json(value)}, no label")
    name = value.strip() if isinstance(value, str) else json.dumps(value)
    if not name:
        raise UserError(f"{where} is empty; a label is needed")
    if "\ufffd" in name:
        raise UserError(
            f"{where} is {shown_json(name)}: it is no UTF-8; convert the file, such as by iconv -f latin1 -t utf8"
        )
    if allowed is not None and name not in allowed:
        known = list(allowed)
        more = f" and {len(known) - _MOST_SHOWN} more" if len(known) > _MOST_SHOWN else ""
        raise UserError(f"{where} is {shown_json(name)}, none of the labels {', '.join(known[:_MOST_SHOWN])}{more}")
    return name


def _number(value: Any) -> float:
    """NaN for what is no number; Python's own "1_000" is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "_" in str(value):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
