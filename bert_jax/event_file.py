"""Event files of TensorBoard, written without TensorFlow, whose import takes longer than many a run waits.

A file is a sequence of TFRecords (length, data, and the masked CRC-32C of each), and each record an Event in the wire
format of protocol buffers; the numbers of the fields are those of event.proto and summary.proto.
"""

import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.metric_names import is_number
from input_pipeline.files import is_remote, user_errors, write_bytes_atomic

FLAG = "--output_dir"

# An object of a remote store cannot be appended to, only written anew as a whole.
REMOTE_FLUSH_SECONDS = 60.0

_START = 1  # SessionLog.START


class EventFile:
    """One event file, made at the first write.

    It starts with the mark of a restart, on which TensorBoard forgets the points from that step on that older files
    hold.

    Args:
        folder: local or remote; made if missing.
        start_step: updates done before.
        clock: Unix time in seconds.
    """

    def __init__(self, folder: Any, start_step: int, clock: Callable[[], float]):
        self._folder, self._start_step, self._clock = folder, start_step, clock
        self._path: Any = None
        self._written = bytearray()  # of a remote file
        self._flushed_at = 0.0

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Adds a point for each number."""
        values = {name: value for name, value in metrics.items() if is_number(value)}
        if not values:
            return
        records = []
        if self._path is None:
            # TensorBoard reads files in the order of their names.
            name = f"events.out.tfevents.{self._clock():017.6f}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._folder / name
            records.append(_event(self._clock(), version=b"brain.Event:2"))
            records.append(_event(self._clock(), self._start_step + 1, session=_varint_field(1, _START)))
        points = b"".join(
            _bytes_field(1, _bytes_field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
            for name, value in values.items()
        )
        records.append(_event(self._clock(), step, summary=points))
        self._append(b"".join(map(_record, records)))

    def close(self) -> None:
        if self._written:
            write_bytes_atomic(self._path, bytes(self._written))

    def _append(self, data: bytes) -> None:
        if is_remote(self._folder):
            self._written += data
            if self._clock() - self._flushed_at >= REMOTE_FLUSH_SECONDS:
                write_bytes_atomic(self._path, bytes(self._written))
                self._flushed_at = self._clock()
            return
        with user_errors(self._folder, FLAG):
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab") as file:
                file.write(data)


def _event(wall_time: float, step: int = 0, version: bytes = b"", summary: bytes = b"", session: bytes = b"") -> bytes:
    event = b"\x09" + struct.pack("<d", wall_time)
    if step:
        event += _varint_field(2, step)
    for number, content in ((3, version), (5, summary), (7, session)):
        if content:
            event += _bytes_field(number, content)
    return event


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _make_table() -> list[int]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):  # the reversed polynomial of Castagnoli
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table.tolist()


_TABLE = _make_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
