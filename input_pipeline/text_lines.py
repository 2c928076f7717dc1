"""Files with a text a line, plain or JSON, as the modes that use a model read them."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from input_pipeline import corpus, files
from input_pipeline.errors import UserError

STANDARD_INPUT = "standard input"
PAIR_MARK = " ||| "
PAIR_FIELD = "text_pair"
_JSON_LINES = re.compile(r"\.(jsonl?|ndjson)(\.gz)?$", re.IGNORECASE)


class TextLine(NamedTuple):
    """One text.

    Attributes:
      text: without the end of its line.
      path: the file, or STANDARD_INPUT.
      number: of its line in the file, from 1.
      fields: the whole object of a line of JSON, else None.
    """

    text: str
    path: str
    number: int
    fields: dict[str, Any] | None = None

    def where(self, flag: str = "--input_file") -> str:
        """Such as "--input_file: notes.txt, line 3", for messages."""
        return f"{flag}: {self.path}, line {self.number}"


def is_json_lines(path: str) -> bool:
    """Whether the name says that a line of the file is a JSON object."""
    return _JSON_LINES.search(path) is not None


def json_lines_hint(first: str) -> str:
    """What to add to an error about a line of JSON; nothing unless the file seems to be one value over all its lines.

    Arguments:
      first: the line that is no object.
    """
    if first.lstrip().startswith("["):
        return "; an array of objects has to become JSON lines, an object a line: jq -c '.[]' does that"
    if first.strip() == "{":
        return "; objects over several lines have to become JSON lines, an object a line: jq -c . does that"
    return ""


def input_paths(specs: str | Iterable[str], flag: str = "--input_file") -> list[str]:
    """The files of paths, globs and folders, in the order given; each is opened once, to see that it is text.

    Raises:
      UserError: there is no such file, it cannot be read, or it is no text.
    """
    specs = [specs] if isinstance(specs, str) else specs
    paths = [path for spec in specs for path in corpus.files_of(spec, flag)]
    for path in paths:
        if files.is_remote(path) or Path(path).is_file():  # what a pipe holds can be read only once
            with corpus.open_text(path, flag):
                pass
    return paths


def read_lines(paths: list[str], text_field: str = "text", flag: str = "--input_file") -> Iterator[TextLine]:
    """The texts of all files in order, or of standard input where there are none.

    A file named as JSON lines (.jsonl, .jsonl.gz, .json, .ndjson) holds objects with the text in `text_field`, and its
    blank lines are skipped. In any other each line is a text, which may be empty; only "\\n" and "\\r\\n" end a line,
    and what is no UTF-8 becomes U+FFFD.

    Raises:
      UserError: a file cannot be read, is no text, or has a line without the field; the line is named.
    """
    if not paths:
        yield from _standard_input(flag)
    for path in paths:
        with corpus.open_text(path, flag) as file:
            for number, text in enumerate(_lines_of(file), start=1):
                line = TextLine(text, path, number)
                if not is_json_lines(path):
                    yield line
                elif text.strip():
                    yield _from_json(line, text_field, flag)


def count_lines(paths: list[str], text_field: str = "text", flag: str = "--input_file") -> int | None:
    """How many texts `read_lines` will give; None where only reading could tell (pipes and standard input).

    Raises:
      UserError: as `read_lines` and `pair_of`.
    """
    if not paths or not all(files.is_remote(path) or os.path.isfile(path) for path in paths):
        return None
    return sum(1 for line in read_lines(paths, text_field, flag) if pair_of(line, text_field, flag))


def pair_of(line: TextLine, text_field: str = "text", flag: str = "--input_file") -> tuple[str, str | None]:
    """The two texts of a line: a line of JSON may have the second in "text_pair"; else as `split_pair` says.

    Raises:
      UserError: that field is no string; the line is named.
    """
    if text_field == PAIR_FIELD or PAIR_FIELD not in (line.fields or {}):
        return split_pair(line.text)
    second = line.fields[PAIR_FIELD]
    if not isinstance(second, str):
        raise UserError(f"{line.where(flag)}: field {PAIR_FIELD!r} is no string")
    return line.text, second


def split_pair(line: str) -> tuple[str, str | None]:
    """The two texts of "A ||| B", or the line and None.

    As in google-research/bert (extract_features.py): white space at both ends is no part of the line, and the last mark
    counts.
    """
    line = line.strip()
    first, mark, second = line.rpartition(PAIR_MARK)
    return (first, second) if mark else (line, None)


def _standard_input(flag: str) -> Iterator[TextLine]:
    try:
        for number, text in enumerate(_lines_of(sys.stdin.buffer), start=1):
            yield TextLine(text, STANDARD_INPUT, number)
    except OSError as error:  # it is closed
        raise UserError(f"{STANDARD_INPUT} cannot be read ({error.strerror}): give {flag}") from None


def _lines_of(file: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def _from_json(line: TextLine, text_field: str, flag: str) -> TextLine:
    hint = json_lines_hint(line.text)
    try:
        fields = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{line.where(flag)}: not JSON ({error}); a line is an object with the text{hint}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{line.where(flag)}: not a JSON object with a field {text_field!r}{hint}")
    if not isinstance(fields.get(text_field), str):
        found = f"is missing; there are: {', '.join(fields) or 'none'}" if text_field not in fields else "is no string"
        raise UserError(f"{line.where(flag)}: field {text_field!r} {found} (--text_field)")
    return line._replace(text=fields[text_field], fields=fields)
