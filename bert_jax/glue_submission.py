"""Files for the GLUE leaderboard: a table of predictions for each test set, and the zip of them that it takes.

A table has the columns index and prediction: the index of the test file, and the name of a label or, for STS-B, a
number from 0 to 5. The leaderboard wants all eleven tables; AX is the diagnostic set, answered by the model of MNLI.
"""

import math
import os
import zipfile
from collections.abc import Sequence
from typing import Any

from bert_jax.prediction_tables import write_table
from input_pipeline.errors import UserError
from input_pipeline.files import as_path, read_bytes, replacing, user_errors
from input_pipeline.glue_data import TASKS

FLAG = "--output_dir"
ZIP = "submission.zip"

# The tables that the leaderboard wants, and the rows of each, which are those of the test sets.
ROWS = {
    "CoLA.tsv": 1063,
    "SST-2.tsv": 1821,
    "MRPC.tsv": 1725,
    "QQP.tsv": 390965,
    "STS-B.tsv": 1379,
    "MNLI-m.tsv": 9796,
    "MNLI-mm.tsv": 9847,
    "QNLI.tsv": 5463,
    "RTE.tsv": 3000,
    "WNLI.tsv": 146,
    "AX.tsv": 1104,
}
_LABELS = {name: task.labels for task in TASKS.values() for name in task.submission.values()}


def write(folder: str | os.PathLike, file_name: str, ids: Sequence[str], predictions: Sequence[Any]) -> str:
    """Writes one table and returns its path.

    Args:
        file_name: one of ROWS.
        ids: the index of each example in the test file.
        predictions: names of labels; numbers for STS-B, which are clipped to [0, 5] as the leaderboard refuses others.

    Raises:
        UserError: a prediction or an index that the leaderboard does not take; the place cannot be written.
    """
    if len(ids) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions of {len(ids)} examples")
    seen: set[str] = set()
    for index in ids:
        if not (index.isascii() and index.isdecimal()):
            raise UserError(f"{file_name}: the index of an example is {index!r}, not a whole number")
        if index in seen:
            raise UserError(f"{file_name}: two examples have the index {index}")
        seen.add(index)
    path = as_path(folder, FLAG) / file_name
    rows = [(index, _field(file_name, index, prediction)) for index, prediction in zip(ids, predictions)]
    write_table(path, ["index", "prediction"], rows)
    return os.fspath(path)


def _field(file_name: str, index: str, prediction: Any) -> str:
    labels = _LABELS[file_name]
    if not labels:
        if not math.isfinite(prediction):
            raise UserError(f"{file_name}: the prediction of {index} is {prediction}, not a number from 0 to 5")
        return f"{min(max(float(prediction), 0.0), 5.0):.6f}"
    if prediction not in labels:
        raise UserError(f"{file_name}: the prediction of {index} is {prediction!r}, not one of {', '.join(labels)}")
    return prediction


def missing_tables(folder: str | os.PathLike) -> str | None:
    """A line about what the leaderboard would miss in a folder's submission.zip; None without a zip or a miss."""
    source = as_path(folder, FLAG)
    with user_errors(source, FLAG):
        missing = [name for name in ROWS if not (source / name).exists()]
        if not missing or not (source / ZIP).exists():
            return None
    return f"{ZIP} has {len(ROWS) - len(missing)} of {len(ROWS)} tables; missing: {', '.join(missing)}"


def zip_folder(folder: str | os.PathLike) -> tuple[str, list[str]]:
    """Packs the tables that are in `folder` into its submission.zip; the same tables give the same bytes.

    Returns:
        The path of the zip, and lines that say what the leaderboard would miss in it.

    Raises:
        UserError: there is no table, or a place cannot be read or written.
    """
    source = as_path(folder, FLAG)
    with user_errors(source, FLAG):
        there = [name for name in ROWS if (source / name).exists()]
    if not there:
        raise UserError(f"{FLAG}: no table of predictions in {source}; looked for {', '.join(ROWS)}")
    notes = []
    with replacing(source / ZIP, FLAG) as part, zipfile.ZipFile(part, "w") as packed:
        for name in there:
            data = read_bytes(source / name, FLAG)
            # Neither the time nor the machine, and no compression, whose bytes depend on the version of zlib.
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            packed.writestr(entry, data)
            if (rows := data.count(b"\n") - 1) != ROWS[name]:
                notes.append(f"predictions in {name}: {rows:,}; examples in the leaderboard's test set: {ROWS[name]:,}")
    missing = missing_tables(folder)
    return os.fspath(source / ZIP), [missing] * bool(missing) + notes
