"""Rows of tab-separated, comma-separated and JSON-lines files, plain or gzip, each with the line it begins at."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from input_pipeline import corpus, text_lines
from input_pipeline.errors import UserError

_KINDS = (("jsonl", re.compile(r"\.(jsonl?|ndjson)(\.gz)?$", re.I)), ("csv", re.compile(r"\.csv(\.gz)?$", re.I)))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_FIELD = 2**31 - 1  # characters; the default of Python's csv is 131,072
_LONGEST_LIST = 300


class Row(NamedTuple):
    """One row.

    Attributes:
      line: number of its first line in the file, from 1.
      columns: the names of its values: of the header line, of a JSON object's fields, else "1", "2", ...
      values: strings; in JSON lines whatever stands there.
    """

    path: str
    line: int
    columns: tuple[str, ...]
    values: list[Any]

    @property
    def where(self) -> str:
        """Such as "data/train.tsv, line 3", for messages."""
        return f"{self.path}, line {self.line}"

    def __getitem__(self, name: str) -> Any:
        return self.values[self.columns.index(name)]


def kind_of(path: str) -> str:
    """By the ending of the name: "jsonl" (.jsonl, .json, .ndjson), "csv", and "tsv" for all others; also with .gz."""
    return next((kind for kind, ending in _KINDS if ending.search(path)), "tsv")


def read_rows(
    path: str,
    flag: str,
    *,
    kind: str | None = None,
    is_header: Callable[[list[str]], bool] = lambda first: True,
    odd: Counter | None = None,
) -> Iterator[Row]:
    """The rows of a file, in order.

    In TSV a tab separates and all else is text, quotes too, as in the files of GLUE. CSV follows RFC 4180: fields may
    be quoted, and then hold commas, line ends and doubled quotes. A line of JSON is an object. Lines end at "\\n" or
    "\\r\\n" only; blank ones are skipped; what is no UTF-8 becomes U+FFFD.

    Arguments:
      flag: how the user named the file, for messages.
      kind: "tsv", "csv" or "jsonl"; None: `kind_of` the name.
      is_header: of the first line's fields, whether they name the columns; if not, these are counted from 1.
      odd: is given the numbers of blank lines and of bad characters, for `notes_of`.

    Raises:
      UserError: the file cannot be read or is no text, it holds no row, or a line is damaged; the line is named.
    """
    kind = kind or kind_of(path)
    odd = Counter() if odd is None else odd
    with corpus.open_text(path, flag) as file:
        rows = {"tsv": _split_tabs, "csv": _split_commas, "jsonl": _objects}[kind](_lines(file, odd), odd)
        number = 0
        try:
            columns: tuple[str, ...] = ()
            for number, (line, values) in enumerate(rows, start=1):
                if kind == "jsonl":
                    yield Row(path, line, tuple(values), list(values.values()))
                    continue
                if number == 1:
                    named = is_header(values)
                    columns = tuple(map(str.strip, values) if named else map(str, range(1, len(values) + 1)))
                    if named:
                        continue
                if len(values) != len(columns):
                    raise _Damaged(line, _wrong_count(len(values), columns, kind) + _separator_hint(columns, [], kind))
                yield Row(path, line, columns, values)
        except _Damaged as error:
            line, problem = error.args
            raise UserError(f"{flag}: {path}, line {line}: {problem}") from None
    if number == 0:
        raise UserError(f"{flag}: {path} is empty")
    if number == 1 and kind != "jsonl" and named:
        raise UserError(f"{flag}: {path} has one line only, which names its columns, and no rows")


def notes_of(path: str, odd: Counter) -> tuple[str, ...]:
    """What a user should know of the oddities that were counted, a line each.

    Arguments:
      odd: of `read_rows`; readers add how many examples have an "empty" text.
    """
    notes = []
    if count := odd["blank"]:
        notes.append(f"{path}: {count:,} blank {'line was' if count == 1 else 'lines were'} skipped")
    if count := odd["replaced"]:
        notes.append(f"{path}: {count:,} {'place is' if count == 1 else 'places are'} no UTF-8; U+FFFD stands there")
    if count := odd["empty"]:
        notes.append(f"{path}: {count:,} {'example has' if count == 1 else 'examples have'} an empty text")
    return tuple(notes)


def check_columns(row: Row, names: Iterable[str], flag: str, hint: str = "") -> None:
    """Raises: UserError, which lists the columns there are, when one of `names` is missing or there twice."""
    for name in names:
        if name not in row.columns:
            there = ", ".join(row.columns)
            there = there if len(there) <= _LONGEST_LIST else there[:_LONGEST_LIST] + "..."
            place = row.where if kind_of(row.path) == "jsonl" else row.path
            hint += _separator_hint(row.columns, row.values, kind_of(row.path))
            raise UserError(f"{flag}: {place} has no column {name!r}; there are: {there or 'none'}{hint}")
        if row.columns.count(name) > 1:
            raise UserError(f"{flag}: {row.path} has two columns named {name!r}")


def _separator_hint(columns: Sequence[str], values: Sequence[Any], kind: str) -> str:
    """What may be wrong with a table of one column, to be added to an error."""
    if len(columns) != 1 or kind == "jsonl":
        return ""
    first = columns[0] if columns[0] != "1" else "".join(map(str, values))
    if ";" in first:
        return "; it looks as if ';' separated them: save the file with commas as .csv, or with tabs as .tsv"
    if kind == "csv" and "\t" in first:
        return "; it looks as if tabs separated them: the name of such a file does not end in .csv but in .tsv"
    if kind == "tsv" and "," in first:
        return "; it looks as if commas separated them: the name of such a file ends in .csv"
    return ""


class _Damaged(Exception):
    """(line, problem)."""


def _lines(file: IO[bytes], odd: Counter) -> Iterator[tuple[int, str]]:
    for number, data in enumerate(file, start=1):
        if number == 1:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        if b"\0" in data:
            raise _Damaged(number, "holds a zero byte; a text file is needed")
        text = data.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        if "\ufffd" in text:
            odd["replaced"] += text.count("\ufffd") - data.count("\ufffd".encode())
        yield number, text


def _split_tabs(lines: Iterator[tuple[int, str]], odd: Counter) -> Iterator[tuple[int, list[str]]]:
    for number, text in lines:
        if text.strip(" \r"):  # tabs make fields, if empty ones
            yield number, text.split("\t")
        else:
            odd["blank"] += 1


def _split_commas(lines: Iterator[tuple[int, str]], odd: Counter) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_FIELD)
    # The parser sees blank lines too: they may be part of a quoted text.
    reader = csv.reader((text + "\n" for _, text in lines), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise _Damaged(first, f"not CSV ({error}); quotes within a quoted field are doubled") from None
        if values is None:
            return
        if not values or (len(values) == 1 and values[0].isspace()):
            odd["blank"] += 1
        else:
            yield first, values


def _objects(lines: Iterator[tuple[int, str]], odd: Counter) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in lines:
        if not text.strip():
            odd["blank"] += 1
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            hint = text_lines.json_lines_hint(text)
            raise _Damaged(number, f"not JSON ({error}); a line is an object{hint}") from None
        if not isinstance(value, dict):
            raise _Damaged(number, f"not a JSON object{text_lines.json_lines_hint(text)}")
        yield number, value


def _wrong_count(count: int, columns: tuple[str, ...], kind: str) -> str:
    separator = "tab" if kind == "tsv" else "comma"
    fields = f"{count} {'field' if count == 1 else 'fields'}"
    if columns[0] == "1":
        return f"{fields}, where the lines before have {len(columns)}; a {separator} separates fields"
    names = ", ".join(columns)
    names = names if len(names) <= _LONGEST_LIST else names[:_LONGEST_LIST] + "..."
    return f"{fields}, where the header line has {len(columns)} ({names}); a {separator} separates fields"
