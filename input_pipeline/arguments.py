"""Arguments that a program passes in: what they are, and one line about what they should have been."""

import contextlib
import json
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from input_pipeline.errors import UserError

_LONGEST_SHOWN = 80


def shown(value: Any) -> str:
    """A value for a message, which stays short."""
    return _short(repr(value))


def shown_json(value: Any) -> str:
    """A value of a JSON file or of a table, as the file has it but for strings, which look as those of messages do."""
    return _short(repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def whole_number(value: Any, name: str) -> int:
    """`value` as an int, so that equal values are the same key of a cache. Raises: UserError, for 2.0 too."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{name}={shown(value)} must be a whole number") from None


def whole_numbers(values: Any, name: str) -> tuple[int, ...]:
    """One whole number or several, as a tuple. Raises: UserError."""
    with contextlib.suppress(TypeError):
        return (operator.index(values),)
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise UserError(f"{name}={shown(values)} must be whole numbers, such as (-2, -1)") from None


def list_of_texts(values: Any) -> list:
    """The values of any iterable. Raises: UserError, for a single text and for bytes too."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(f"a list of texts is needed, not {shown(values)}")
    return list(values)


def texts_of(value: Any, place: str) -> tuple[str, str | None]:
    """The two texts of a pair (tuple, list or array), or a single text and None.

    Arguments:
      place: names the value in errors.

    Raises:
      UserError: it is neither.
    """
    parts = [value] if isinstance(value, str) else list(value) if isinstance(value, tuple | list | np.ndarray) else []
    if not (1 <= len(parts) <= 2 and all(isinstance(part, str) for part in parts)):
        raise UserError(f"{place} must be a string or a pair of strings, not {shown(value)}")
    return parts[0], parts[1] if len(parts) > 1 else None
