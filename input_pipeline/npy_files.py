"""`.npy` files that are written as a stream, and appear at once."""

import math
import os
import platform
import threading
from pathlib import Path

import numpy as np


class NpyWriter:
    """Writes an array of unknown length row by row; the header gets the length in `close`.

    Arguments:
      path: the file; overwritten.
      dtype: type of the items.
      row_shape: shape of one row, () for a vector.
    """

    def __init__(self, path: str | os.PathLike, dtype, row_shape: tuple[int, ...] = ()):
        self.dtype, self.row_shape, self.length = np.dtype(dtype), row_shape, 0
        self._file = open(path, "wb")  # noqa: SIM115 (open for as long as the array grows)
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Appends rows, shape [n, *row_shape]."""
        rows = np.ascontiguousarray(rows, self.dtype).reshape(-1, *self.row_shape)
        self._file.write(rows.data)
        self.length += len(rows)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _write_header(self) -> None:
        # NumPy pads the header for a length of up to 21 digits, so it takes the same bytes before and after.
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length, *self.row_shape)}
        np.lib.format.write_array_header_1_0(self._file, header)


def holds(path: str | os.PathLike, dtype, shape: tuple[int, ...]) -> bool:
    """Whether `path` is a complete file of an array of this type and shape, as `NpyWriter` writes it."""
    try:
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            found = np.lib.format.read_array_header_1_0(file)
            size = os.fstat(file.fileno()).st_size - file.tell()
    except (OSError, ValueError):
        return False
    return found == (shape, False, np.dtype(dtype)) and size == math.prod(shape) * np.dtype(dtype).itemsize


def header_items(array: np.memmap) -> int:
    """Size of the header of a memory-mapped `.npy` file, in items of its type."""
    items, rest = divmod(array.offset, array.itemsize)
    if rest:
        raise ValueError(f"the header of {array.filename} ends inside an item")
    return items


def partial_path(path: Path) -> Path:
    """Where this thread of this process writes what gets the name `path` when it is complete."""
    return path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}-{threading.get_ident()}.tmp")
