"""Packs short sequences into rows of one width, several in a row, so that hardly anything is computed for padding."""

from collections.abc import Mapping, Sequence

import numpy as np

# How many sequences may share a row.
SLOTS = 8


def pack(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Which sequences share a row: the longest first, each in the fullest row that has room for it.

    Arguments:
      lengths: tokens of each sequence, none more than width.

    Returns:
      For each row the numbers of its sequences, at most SLOTS.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        fitting = [row for row, free in enumerate(room) if free >= length and len(rows[row]) < SLOTS]
        if fitting:
            row = min(fitting, key=room.__getitem__)
        else:
            row = len(rows)
            rows.append([])
            room.append(width)
        rows[row].append(number)
        room[row] -= length
    return rows


def packed_arrays(
    sequences: Mapping[int, tuple[Sequence[int], Sequence[int]]] | Sequence[tuple[Sequence[int], Sequence[int]]],
    rows: Sequence[Sequence[int]],
    width: int,
) -> dict[str, np.ndarray]:
    """The arrays of packed rows, all int32.

    Arguments:
      sequences: (input_ids, segment_ids) of each.
      rows: the numbers of the sequences in each row; it may be empty.

    Returns:
      [rows, width]: input_ids, segment_ids, position_ids (of each token in its sequence) and sequence_ids (the number
      of the sequence in its row, from 1; 0 is padding); [rows, SLOTS]: starts and lengths of the sequences in the row.
    """
    names = ("input_ids", "segment_ids", "position_ids", "sequence_ids")
    arrays = {name: np.zeros((len(rows), width), np.int32) for name in names}
    arrays |= {name: np.zeros((len(rows), SLOTS), np.int32) for name in ("starts", "lengths")}
    for row, numbers in enumerate(rows):
        start = 0
        for slot, number in enumerate(numbers):
            input_ids, segment_ids = sequences[number]
            length = len(input_ids)
            place = row, slice(start, start + length)
            arrays["input_ids"][place] = input_ids
            arrays["segment_ids"][place] = segment_ids
            arrays["position_ids"][place] = np.arange(length)
            arrays["sequence_ids"][place] = slot + 1
            arrays["starts"][row, slot], arrays["lengths"][row, slot] = start, length
            start += length
    return arrays
