"""One or two texts -> the ids of one sequence: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""

from collections.abc import Sequence
from typing import NamedTuple

from input_pipeline.errors import UserError
from input_pipeline.tokenization import Tokenizer

# Special tokens of a sequence, without and with a second text.
SINGLE_SPECIAL, PAIR_SPECIAL = 2, 3


class Layout(NamedTuple):
    """input_ids and segment_ids (0 for [CLS] A [SEP], 1 for B [SEP]), of one length; was_cut: tokens were left out."""

    input_ids: list[int]
    segment_ids: list[int]
    was_cut: bool


def lay_out(
    tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None, max_length: int | None = None
) -> Layout:
    """Lays out ids by the rules of google-research/bert (extract_features.py, run_classifier.py).

    What is too long loses tokens at its end: a pair that of the longer text, token by token, B where both are as long.
    A second text without tokens, or of which none is left, is as good as none.

    Arguments:
      first, second: ids without special tokens.
      max_length: of the sequence with its special tokens; None for no limit.

    Raises:
      UserError: `max_length` leaves no room for the special tokens.
    """
    special = PAIR_SPECIAL if second else SINGLE_SPECIAL
    keep_first, keep_second = len(first), len(second or ())
    if max_length is not None:
        if max_length < special:
            raise UserError(f"a sequence of {max_length} tokens has no room for {special} special ones")
        keep_first, keep_second = _lengths(keep_first, keep_second, max_length - special)
    input_ids = [tokenizer.cls_id, *first[:keep_first], tokenizer.sep_id]
    segment_ids = [0] * len(input_ids)
    if keep_second:
        input_ids += [*second[:keep_second], tokenizer.sep_id]
        segment_ids += [1] * (keep_second + 1)
    return Layout(input_ids, segment_ids, keep_first + keep_second < len(first) + len(second or ()))


def _lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """What remains of two lengths when the longer one, or the second of equal ones, is cut by one until both fit."""
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if 2 * shorter >= room:  # both end up about equal
        return room - room // 2, room // 2
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)
