"""Text of TensorFlow Datasets: `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`, such as `tfds:wiki40b/de:train[:10%]`.

Data sets lie in $TFDS_DATA_DIR, else in ~/tensorflow_datasets; one that is not there is downloaded by TFDS.
"""

import functools
import os
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from input_pipeline import files
from input_pipeline.errors import UserError

_SPEC = re.compile(r"tfds:([^:\[]+(?::[\d.*]+)?)(?::(.+))?")


def size_and_facts(spec: str, flag: str) -> tuple[int, dict[str, Any]]:
    """Bytes of a split (of the whole of it, for progress) and what identifies its state.

    Raises:
      UserError: when the data set is not there and cannot be downloaded, or has no such split.
    """
    builder, split = open_split(spec, flag)
    info = builder.info.splits[split]
    return info.num_bytes or 0, {"version": str(builder.version), "split": split, "examples": info.num_examples}


def read_texts(spec: str, text_field: str, flag: str) -> Iterator[bytes]:
    """The texts of a split as UTF-8, always in the same order.

    Raises:
      UserError: as `size_and_facts`, and when the data set has no text in `text_field`.
    """
    import tensorflow_datasets as tfds

    builder, split = open_split(spec, flag)
    features = builder.info.features
    if text_field not in features:
        raise UserError(f"{flag}: {spec} has no field {text_field!r} (--text_field); there are: {', '.join(features)}")
    data = builder.as_dataset(
        split=split, shuffle_files=False, decoders=tfds.decode.PartialDecoding({text_field: True})
    )
    for example in tfds.as_numpy(data):
        text = example[text_field]
        if not isinstance(text, bytes):
            raise UserError(f"{flag}: field {text_field!r} of {spec} is no text (--text_field)")
        yield text


@functools.cache
def open_split(spec: str, flag: str):
    """The prepared builder of `spec`, downloaded if it is not there, and the name of the split. Raises: UserError."""
    match = _SPEC.fullmatch(spec)
    if not match:
        raise UserError(f"{flag}: {spec} is not of the form tfds:NAME[/CONFIG][:VERSION][:SPLIT]")
    name, split = match.groups()

    from input_pipeline import host_tensorflow  # noqa: F401  (before TFDS, so that TensorFlow sees no accelerator)

    try:
        import tensorflow_datasets as tfds

        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        if not builder.info.splits:
            _check_connection(builder)
            builder.download_and_prepare()
    except UserError as error:
        raise UserError(f"{flag}: {spec}: {error}") from None
    except Exception as error:  # each data set has exceptions of its own
        raise UserError(f"{flag}: {spec} cannot be opened: {str(error).partition(chr(10))[0]}") from None
    splits = builder.info.splits
    split = split or ("train" if "train" in splits else next(iter(splits)))
    try:
        splits[split]
    except (KeyError, ValueError):
        raise UserError(f"{flag}: {spec} has no such split; there are: {', '.join(splits)}") from None
    return builder, split


def _check_connection(builder) -> None:
    """Finds out in seconds that a data set cannot be downloaded; TFDS itself tries for minutes."""
    problem = f"not in {builder.data_dir} (TFDS_DATA_DIR says where data sets lie)"
    for url in builder.url_infos if not urllib.request.getproxies() else ():
        parts = urllib.parse.urlsplit(url)
        port = parts.port or {"http": 80, "ftp": 21}.get(parts.scheme, 443)
        try:
            socket.create_connection((parts.hostname, port), files.PATIENCE_SECONDS).close()
        except OSError as error:
            raise UserError(f"{problem}, and {parts.hostname} cannot be reached to download it: {error}") from None
        return
