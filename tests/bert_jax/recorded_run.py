"""The command line of bert_jax, with a record of the rows that reach the devices: run by PretrainingRun of conftest.py.

usage: recorded_run.py RECORD_FILE SIGNAL BATCH FLAG...

RECORD_FILE.signal is touched when the signal is sent.

The mesh takes one device of each process after the other, as that of a slice of a TPU pod may.

Before batch number BATCH (from 0; -1 never) the process sends itself SIGNAL, when checkpoints that were begun have had
time to be completed. What follows goes slowly, so that a run on a fast machine is not over before other processes have
heard of the signal.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from bert_jax import partitioning
from bert_jax.main import main


def digests_of_rows(arrays) -> dict[str, str]:
    """Global row number -> digest of all arrays of the batch in that row, for the rows on this process's devices."""
    rows: dict[str, dict[str, bytes]] = {}
    for name in sorted(arrays):
        for shard in arrays[name].addressable_shards:
            start, _, _ = shard.index[0].indices(arrays[name].shape[0])
            for number, row in enumerate(np.asarray(shard.data), start):
                parts = rows.setdefault(str(number), {})
                assert parts.setdefault(name, row.tobytes()) == row.tobytes(), "devices differ in a row they share"
    return {number: hashlib.sha256(b"".join(rows[number].values())).hexdigest() for number in sorted(rows, key=int)}


@contextlib.contextmanager
def recorded(before_batch=lambda number: None) -> Iterator[list[dict[str, str]]]:
    """Collects the digests of all batches, first those of training, then those of evaluation."""
    batches, to_global_batch = [], partitioning.to_global_batch

    def recording(mesh, batch, batch_size):
        before_batch(len(batches))
        arrays = to_global_batch(mesh, batch, batch_size)
        batches.append(digests_of_rows(arrays))
        return arrays

    partitioning.to_global_batch = recording
    try:
        yield batches
    finally:
        partitioning.to_global_batch = to_global_batch


def number_in_its_process(device):
    return jax.local_devices(process_index=device.process_index).index(device)


def run(record_file, number, last_batch, flags):
    def before_batch(batch):
        if batch == last_batch:
            time.sleep(1)
            Path(f"{record_file}.signal").touch()
            os.kill(os.getpid(), number)
        if batch >= last_batch >= 0:
            time.sleep(0.5)

    make_mesh = partitioning.make_mesh
    partitioning.make_mesh = lambda text, dcn_text: make_mesh(
        text, sorted(jax.devices(), key=number_in_its_process), dcn_text
    )
    with recorded(before_batch) as batches:
        code = main(["bert_jax", *flags])
    with open(record_file, "w", encoding="utf-8") as file:
        json.dump(batches, file)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], signal.Signals[sys.argv[2]], int(sys.argv[3]), sys.argv[4:]))
