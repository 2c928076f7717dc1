"""Tables of predictions as tab-separated text: a line of column names, then a line for each example.

UTF-8; lines end with "\\n". A tab, line feed or carriage return within a field is written as \\t, \\n or \\r, and a
backslash as \\\\, so that a tab always separates and a line is always a row: str.split gives the fields, and `unescape`
what they were. Half of a surrogate pair, which UTF-8 does not have, is written as \\udxxx.
"""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from input_pipeline.files import replacing

FLAG = "--output_dir"

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_ESCAPED = re.compile(r"\\(u[0-9a-f]{4}|[tnr\\])")
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}


def write_table(path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table at once; it is there as a whole or not at all.

    Args:
        columns: their names, the first line.
        rows: fields: text, numbers (written unrounded, f32 with the digits that f32 has), None for an empty field.

    Raises:
        UserError: the place cannot be written.
        ValueError: a row has not as many fields as there are columns.
    """
    with replacing(path, FLAG) as part, open(part, "wb") as file:
        for row in itertools.chain([columns], rows):
            if len(row) != len(columns):
                raise ValueError(f"{len(row)} fields for {len(columns)} columns: {row}")
            file.write("\t".join(map(escape, row)).encode("utf-8", "backslashreplace") + b"\n")


def probability_columns(labels: Sequence[str]) -> list[str]:
    """Column names for the probability of each label, which no label can make equal to another column's."""
    return [f"probability_{label}" for label in labels]


def escape(field: Any) -> str:
    """A field as it stands in a table."""
    return "" if field is None else str(field).translate(_ESCAPES)


def unescape(text: str) -> str:
    """The text of a field of a table."""
    return _ESCAPED.sub(lambda match: _NAMED.get(match[1]) or chr(int(match[1][1:], 16)), text)
