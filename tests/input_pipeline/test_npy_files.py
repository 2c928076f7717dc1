from pathlib import Path

import numpy as np
import pytest

from input_pipeline.npy_files import NpyWriter, header_items, holds, partial_path


@pytest.mark.parametrize(("dtype", "row_shape"), [(np.uint16, ()), (np.int64, (5,)), (np.float32, (2, 3))])
def test_rows_come_back(tmp_path, dtype, row_shape):
    rows = np.arange(7 * int(np.prod(row_shape))).reshape(7, *row_shape).astype(dtype)
    with NpyWriter(tmp_path / "a.npy", dtype, row_shape) as writer:
        for part in (rows[:3], rows[3:3], rows[3:]):
            writer.append(part)
    read = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, rows)
    assert header_items(read) * read.itemsize == read.offset


def test_nothing_appended(tmp_path):
    with NpyWriter(tmp_path / "a.npy", np.int64, (5,)):
        pass
    assert np.load(tmp_path / "a.npy").shape == (0, 5)


def test_partial_files_lie_next_to_the_final_one():
    path = Path("folder/plan.npy")
    assert partial_path(path).parent == path.parent
    assert partial_path(path).suffix == ".tmp"


@pytest.mark.parametrize("shape", [(3, 2), (0, 2)])
def test_a_whole_file_is_known(tmp_path, shape):
    path = tmp_path / "a.npy"
    assert not holds(path, np.int16, shape)
    with NpyWriter(path, np.int16, shape[1:]) as writer:
        writer.append(np.zeros(shape))
    assert holds(path, np.int16, shape)
    assert not holds(path, np.uint16, shape) and not holds(path, np.int16, (4, 2))
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"x", whole[:9], b""):
        path.write_bytes(content)
        assert not holds(path, np.int16, shape)
