import numpy as np
import pytest

from input_pipeline.packing import SLOTS, pack, packed_arrays


@pytest.mark.parametrize("seed", range(5))
def test_each_sequence_has_one_place_and_no_row_is_too_full(seed):
    lengths = np.random.default_rng(seed).integers(1, 65, 100).tolist()
    rows = pack(lengths, 64)
    assert sorted(number for row in rows for number in row) == list(range(100))
    assert all(sum(lengths[number] for number in row) <= 64 and len(row) <= SLOTS for row in rows)
    assert len(rows) <= 1.1 * sum(lengths) / 64 + 1


def test_short_sequences_fill_the_slots_of_a_row():
    assert [len(row) for row in pack([2] * 20, 64)] == [SLOTS, SLOTS, 20 - 2 * SLOTS]


def test_nothing_needs_no_rows():
    assert pack([], 64) == []


def test_arrays_of_packed_rows():
    arrays = packed_arrays([([5, 6], [0, 1]), ([7], [0]), ([8, 9, 10], [0, 0, 1])], [[2, 1], [0], []], 5)
    assert arrays["input_ids"].tolist() == [[8, 9, 10, 7, 0], [5, 6, 0, 0, 0], [0] * 5]
    assert arrays["segment_ids"].tolist() == [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0] * 5]
    assert arrays["position_ids"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 0, 0, 0], [0] * 5]
    assert arrays["sequence_ids"].tolist() == [[1, 1, 1, 2, 0], [1, 1, 0, 0, 0], [0] * 5]
    assert arrays["starts"][:, :2].tolist() == [[0, 3], [0, 0], [0, 0]]
    assert arrays["lengths"][:, :3].tolist() == [[3, 1, 0], [2, 0, 0], [0, 0, 0]]
    assert all(array.dtype == np.int32 for array in arrays.values())
