"""Hugging Face's tokenizer files: the vocabulary of a tokenizer.json, and settings that have to be those used here."""

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from input_pipeline.errors import UserError
from input_pipeline.vocabulary import SPECIAL_TOKENS

# What WordPiece does here, under the names of tokenizer_config.json and of the parts of tokenizer.json. A long word
# is one [UNK] from 201 characters on here, from 101 on there: max_input_chars_per_word may say either.
_CONFIG = {
    "tokenize_chinese_chars": True,
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    **{f"{name[1:-1].lower()}_token": name for name in SPECIAL_TOKENS},
}
_MODEL = {"type": "WordPiece", "continuing_subword_prefix": "##", "unk_token": "[UNK]"}
_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
_PRE_TOKENIZER = {"type": "BertPreTokenizer"}

_logger = logging.getLogger(__name__)


class TokenizerJson(NamedTuple):
    """What a tokenizer.json says that is needed here: the piece of each id, and what is done to text first."""

    vocabulary: list[str]
    do_lower_case: bool
    strip_accents: bool | None  # None: as do_lower_case


def parse_tokenizer_json(content: bytes, name: str) -> TokenizerJson:
    """Reads the WordPiece tokenizer of BERT that `content` describes.

    Tokens that were added behind the vocabulary get their ids, but no text is ever cut into them.

    Args:
      content: JSON as the library `tokenizers` saves it.
      name: where it came from, for messages.

    Raises:
      UserError: another kind of tokenizer or another setting than BERT's, or ids that are not 0, 1, 2, ...
    """
    values = parse_object(content, name)
    model = _part(values, "model", name)
    if "type" not in model and "max_input_chars_per_word" in model:  # before the library wrote the type
        model = model | {"type": "WordPiece"}
    normalizer = _part(values, "normalizer", name)
    for part, settings, expected in (
        ("model", model, _MODEL),
        ("normalizer", normalizer, _NORMALIZER),
        ("pre_tokenizer", _part(values, "pre_tokenizer", name), _PRE_TOKENIZER),
    ):
        for key, value in expected.items():
            found = settings.get(key, None if key == "type" else value)
            if found != value:
                raise UserError(f"{name}: {part} has {key} {found!r}, only {value!r} is supported")
    return TokenizerJson(
        _vocabulary(model.get("vocab"), values.get("added_tokens") or [], name),
        true_or_false(normalizer.get("lowercase"), "lowercase", name) is not False,
        normalizer.get("strip_accents"),
    )


def check_tokenizer_config(settings: Mapping[str, Any], name: str) -> None:
    """Raises UserError if the `settings` of a tokenizer_config.json want WordPiece to work otherwise than here."""
    for key, value in _CONFIG.items():
        found = settings.get(key, value)
        if isinstance(found, dict):  # a token with its own settings
            found = found.get("content")
        if found not in (value, None):
            raise UserError(f"{name}: {key} is {found!r}, only {value!r} is supported")


def check_accents(strip_accents: Any, do_lower_case: bool, name: str) -> None:
    """Raises UserError if accents are to be kept where text is lower-cased, or removed where it is not."""
    if strip_accents not in (None, do_lower_case):
        raise UserError(
            f"{name}: strip_accents is {strip_accents!r} with do_lower_case {do_lower_case}: accents are removed "
            "where, and only where, text is lower-cased"
        )


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in `content`. Raises: UserError when it is something else."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f"{name} is no JSON object")
    return values


def true_or_false(value: Any, key: str, name: str) -> bool | None:
    """The setting `key` of a file; None where it says nothing. Raises: UserError for anything else."""
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{key} in {name} is {value!r}, not true or false")
    return value


def _part(values: Mapping[str, Any], part: str, name: str) -> dict[str, Any]:
    found = values.get(part) or {}
    if not isinstance(found, dict):
        raise UserError(f"{name} describes no tokenizer: {part} is {type(found).__name__}, not an object")
    return found


def _vocabulary(table: Any, added: Any, name: str) -> list[str]:
    """The pieces by id, those of the table and those behind it."""
    try:
        pieces = {i: piece for piece, i in table.items()}
        repeated = len(pieces) < len(table)
        behind = [token["content"] for token in added if token["content"] not in table]
        pieces |= {token["id"]: token["content"] for token in added}
    except (AttributeError, TypeError, KeyError):
        raise UserError(f"{name} describes no WordPiece vocabulary: a table of pieces and ids is needed") from None
    if repeated or len(pieces) != len(table) + len(behind) or pieces.keys() != set(range(len(pieces))):
        raise UserError(f"{name}: the ids of the vocabulary and of the added tokens are not 0, 1, 2, ..., each once")
    vocabulary = [pieces[i] for i in range(len(pieces))]
    if odd := [piece for piece in vocabulary if not isinstance(piece, str) or "\n" in piece]:
        raise UserError(f"{name}: {odd[0]!r} cannot be a piece, which is text on one line")
    if behind:
        _logger.warning(
            "%s: tokens were added (%d, such as %r); they keep their ids, but no text is cut into them",
            name,
            len(behind),
            behind[0],
        )
    return vocabulary
