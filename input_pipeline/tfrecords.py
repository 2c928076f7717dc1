"""Google's masked TFRecords (the output of create_pretraining_data.py), read once into memory-mapped arrays.

A record is a tf.train.Example with the int64 lists input_ids, input_mask, segment_ids [max_seq_length],
masked_lm_positions, masked_lm_ids [max_predictions_per_seq], next_sentence_labels [1] and the float list
masked_lm_weights [max_predictions_per_seq]; unused places hold 0. Everything is checked while reading, before training
starts.
"""

import contextlib
import gzip
import hashlib
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.npy_files import NpyWriter, holds, partial_path

_VERSION = 2  # of what is checked and kept: a change of it makes old caches useless
_BATCH = 1024
_FRAME_BYTES = 16  # of each record: its length, and checksums of the length and of the data
_GZIP_MAGIC = b"\x1f\x8b"
_logger = logging.getLogger(__name__)

# Type of each field in the cache.
FIELDS = {
    "input_ids": np.int32,
    "input_mask": np.int8,
    "segment_ids": np.int8,
    "masked_lm_positions": np.int32,
    "masked_lm_ids": np.int32,
    "masked_lm_weights": np.float32,
    "next_sentence_labels": np.int8,
}


@dataclass(frozen=True)
class Records:
    """Decoded records.

    Attributes:
      fields: the `.npy` file of each field, [num_examples, width].
      num_examples: number of records.
      fingerprint: SHA-256 (hex) of the content.
      without_predictions: the files in which all masked_lm_weights are 0.
    """

    fields: dict[str, Path]
    num_examples: int
    fingerprint: str
    without_predictions: tuple[str, ...] = ()

    def load(self, field: str) -> np.ndarray:
        """The values of a field, memory-mapped, [num_examples, width]."""
        return np.load(self.fields[field], mmap_mode="r")


def read_tfrecords(
    paths: list[str],
    *,
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    cache_folder: Path,
    flag: str = "--input_file",
) -> Records:
    """Decodes record files, plain or gzip, into a folder below `cache_folder`, or finds what was decoded before.

    Arguments:
      paths: the files, in the order of the examples.
      max_seq_length, max_predictions_per_seq: sizes that the records must have.
      vocab_size: all ids must be below.
      cache_folder: a local folder.
      flag: how the user named the files, for errors.

    Raises:
      UserError: for a damaged or foreign file; for a record whose sizes are not the given ones, or that holds a value
        out of range; when there is no record at all. File, record, field and both numbers are named.
    """
    limits = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    identity = [_VERSION, [[path, *files.size_and_mtime(path, flag)] for path in paths], limits, vocab_size]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    folder = Path(cache_folder) / f"tfrecords-{key}"
    records = _find_decoded(folder, _widths(limits))
    if not records:
        if folder.is_dir():
            _logger.warning("%s is damaged and is made again", folder)
            with files.user_errors(folder, "cache folder"):
                shutil.rmtree(folder)
        _decode(paths, limits, vocab_size, folder, flag)
        records = _find_decoded(folder, _widths(limits))
    return records


def _find_decoded(folder: Path, widths: dict[str, int]) -> Records | None:
    """What `_decode` wrote; None if it is missing or damaged."""
    try:
        facts = json.loads((folder / "metadata.json").read_bytes())
        number, fingerprint = int(facts["num_examples"]), str(facts["fingerprint"])
        without_predictions = tuple(facts["without_predictions"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    fields = {name: folder / f"{name}.npy" for name in FIELDS}
    is_whole = all(holds(fields[name], dtype, (number, widths[name])) for name, dtype in FIELDS.items())
    return Records(fields, number, fingerprint, without_predictions) if is_whole else None


def _widths(limits: dict[str, int]) -> dict[str, int]:
    widths = {
        name: limits["max_predictions_per_seq" if name.startswith("masked_lm") else "max_seq_length"] for name in FIELDS
    }
    return widths | {"next_sentence_labels": 1}


def write_tfrecords(path: str | os.PathLike, examples: Iterable[Mapping[str, np.ndarray]]) -> int:
    """Writes examples as the reference does, compressed if the name ends in .gz; returns their number.

    Arguments:
      examples: one mapping an example with the keys of `FIELDS`; the label may be a scalar.
    """
    from input_pipeline.host_tensorflow import tf

    options = tf.io.TFRecordOptions(compression_type="GZIP" if os.fspath(path).endswith(".gz") else "")
    written = 0
    with tf.io.TFRecordWriter(os.fspath(path), options) as writer:
        for example in examples:
            features = {}
            for name, dtype in FIELDS.items():
                values = np.ravel(example[name]).tolist()
                if dtype == np.float32:
                    features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
                else:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
            record = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(record.SerializeToString())
            written += 1
    return written


def _decode(paths, limits, vocab_size, folder, flag) -> None:
    widths = _widths(limits)
    partial = partial_path(folder)
    digest = hashlib.sha256()
    without_predictions = []
    with files.user_errors(folder, "cache folder"), contextlib.ExitStack() as stack:
        partial.mkdir(parents=True)
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        with contextlib.ExitStack() as writers:
            outputs = {
                name: writers.enter_context(NpyWriter(partial / f"{name}.npy", dtype, (widths[name],)))
                for name, dtype in FIELDS.items()
            }
            for path in paths:
                has_predictions = []
                for first, batch in _batches(path, widths, flag):
                    _check(path, first, batch, vocab_size, flag)
                    has_predictions.append(batch["masked_lm_weights"].any())
                    for name, dtype in FIELDS.items():
                        values = batch[name].astype(dtype)
                        outputs[name].append(values)
                        digest.update(values)
                if has_predictions and not any(has_predictions):
                    without_predictions.append(path)
        num_examples = outputs["input_ids"].length
        if not num_examples:
            raise UserError(f"{flag}: there is no record in {', '.join(paths)}")
        facts = {
            "num_examples": num_examples,
            "fingerprint": digest.hexdigest(),
            "files": paths,
            "without_predictions": without_predictions,
            **limits,
        }
        files.write_json_atomic(partial / "metadata.json", facts)
        with contextlib.suppress(OSError):  # another process was faster: its folder holds the same
            os.rename(partial, folder)


def _batches(path: str, widths: dict[str, int], flag: str) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields the number of a batch's first record, from 0, and its fields, [n, width]."""
    from input_pipeline.host_tensorflow import tf

    with files.open_binary(path, flag) as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    features = {
        name: tf.io.RaggedFeature(tf.float32 if dtype == np.float32 else tf.int64) for name, dtype in FIELDS.items()
    }

    def parse(records):
        return tf.reduce_sum(tf.strings.length(records)), tf.io.parse_example(records, features)

    dataset = tf.data.TFRecordDataset(path, "GZIP" if is_gzip else "", buffer_size=2**23).batch(_BATCH).map(parse)
    number = size = 0
    try:
        for num_bytes, parsed in dataset:
            batch = {}
            for name, width in widths.items():
                lengths = parsed[name].row_lengths().numpy()
                wrong = np.flatnonzero(lengths != width)
                if wrong.size:
                    _raise_width(f"{flag}: {path}, record {number + wrong[0]}", name, lengths[wrong[0]], width)
                batch[name] = parsed[name].flat_values.numpy().reshape(-1, width)
            yield number, batch
            number += len(lengths)
            size += int(num_bytes) + _FRAME_BYTES * len(lengths)
        # TensorFlow takes a file that ends inside the frame of a record for a complete one.
        if size != _uncompressed_size(path, is_gzip, flag):
            raise tf.errors.DataLossError(None, None, "truncated record")
    except tf.errors.OpError as error:
        reason = re.sub(r"\{\{.*?\}\} ?", "", error.message).partition("\n")[0].strip()
        if not isinstance(error, tf.errors.DataLossError):
            problem = f"not written by create_pretraining_data.py, behind record {number}"
        elif number:
            problem = f"damaged behind record {number}"
        else:
            problem = "damaged, or not a TFRecord file"
        raise UserError(f"{flag}: {path}: {problem} ({reason})") from None


def _uncompressed_size(path: str, is_gzip: bool, flag: str) -> int:
    """Bytes of a file behind its compression; -1 if that is damaged."""
    if not is_gzip:
        return files.size_and_mtime(path, flag)[0]
    size = 0
    try:
        with files.open_binary(path, flag) as file, gzip.GzipFile(fileobj=file) as content:
            while block := content.read(2**24):
                size += len(block)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return -1
    return size


def _raise_width(where, name, found, width):
    if not found:
        raise UserError(f"{where}: the field {name} is missing")
    if name == "next_sentence_labels":
        raise UserError(f"{where}: {name} holds {found} values, one is needed")
    size = "--max_predictions_per_seq" if name.startswith("masked_lm") else "--max_seq_length"
    raise UserError(f"{where}: {name} holds {found} values, but {size} is {width}")


def _check(path, first, batch, vocab_size, flag) -> None:
    weights = batch["masked_lm_weights"]
    wrong = np.argwhere(~((weights >= 0) & (weights <= 1)))  # also NaN
    if wrong.size:
        record, place = wrong[0]
        problem = f"masked_lm_weights holds {weights[record, place]:g}, but it must be between 0 and 1"
        raise UserError(f"{flag}: {path}, record {first + record}: {problem}")
    limits = {
        "input_ids": vocab_size,
        "masked_lm_ids": vocab_size,
        "masked_lm_positions": batch["input_ids"].shape[1],
        "input_mask": 2,
        "segment_ids": 2,
        "next_sentence_labels": 2,
    }
    for name, limit in limits.items():
        wrong = np.argwhere((batch[name] < 0) | (batch[name] >= limit))
        if wrong.size:
            record, place = wrong[0]
            bound = f"the vocabulary has {limit} entries" if limit == vocab_size else f"it must be below {limit}"
            raise UserError(
                f"{flag}: {path}, record {first + record}: {name} holds {batch[name][record, place]}, but {bound}"
            )
    mask = batch["input_mask"]
    wrong = np.flatnonzero((mask[:, 0] != 1) | (np.diff(mask) > 0).any(axis=1))
    if wrong.size:
        problem = "input_mask must be ones for the text, at least one, then zeros"
        raise UserError(f"{flag}: {path}, record {first + wrong[0]}: {problem}")
