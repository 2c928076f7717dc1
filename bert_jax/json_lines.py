"""Files of one JSON object a line, each of them about a step of a run."""

import json
import os
from typing import Any

from input_pipeline.files import as_path, read_bytes, user_errors, write_bytes_atomic


def encode(line: dict[str, Any]) -> str:
    """One line of such a file. Raises: ValueError for NaN or infinity, which JSON does not have."""
    return json.dumps(line, allow_nan=False) + "\n"


def read_lines(path: str | os.PathLike, flag: str) -> list[dict[str, Any]]:
    """The objects that have a step, in the order of the file; none if there is no file.

    Other lines are left out: a killed run can leave its last one half-written.

    Raises:
        UserError: the file cannot be read; the message names `flag`.
    """
    with user_errors(path, flag):
        if not as_path(path).exists():
            return []
    lines = []
    for text in read_bytes(path, flag).split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def write_lines(path: str | os.PathLike, lines: list[dict[str, Any]]) -> None:
    """Replaces the file at once. Raises: UserError, when it cannot be written."""
    write_bytes_atomic(path, "".join(map(encode, lines)).encode())


def drop_after(path: str | os.PathLike, step: int, flag: str) -> list[dict[str, Any]]:
    """Takes the lines of later steps, and broken ones, out of the file at once; returns those that stay.

    Raises:
        UserError: the file cannot be read or written.
    """
    lines = [line for line in read_lines(path, flag) if line["step"] <= step]
    target = as_path(path)
    if target.exists() and target.read_bytes() != "".join(map(encode, lines)).encode():
        write_lines(path, lines)
    return lines
