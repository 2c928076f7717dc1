"""Files of vectors, written as a stream: .npy, .npz, .jsonl and .tfrecord.

    .npy       f32 [lines, dim], or [lines, layers, hidden] of a list; no vectors of tokens.
    .npz       "features": the same array. Vectors of tokens: "features" f32 [tokens of all lines, dim], "token_ids"
               int32 [tokens of all lines] and "offsets" int64 [lines + 1]: line i has offsets[i] to offsets[i + 1].
    .jsonl     an object a line, values rounded to 6 decimals. Vectors of tokens have the form of google-research/bert
               (extract_features.py): {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1,
               "values": [...]}, ...]}, ...]}; where several layers became one vector, "values" stands in the place of
               "layers". A vector for the line: {"linex_index": 0, "values": [...]}, or with "layers" for a list.
    .tfrecord  a tf.train.Example a line: float list "features" (row by row), int64 list "shape" ([dim], or [layers,
               hidden] of a list; behind the number of tokens for their vectors), and for tokens int64 list "token_ids".

A file appears under its name when it is complete, and nothing is left where it could not be completed.
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from bert_jax.features import FeatureSpec
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.npy_files import NpyWriter
from input_pipeline.tokenization import Tokenizer

FLAG = "--output_file"
ENDINGS = (".npy", ".npz", ".jsonl", ".tfrecord")
_DECIMALS = 6


class FeatureWriter(Protocol):
    """What takes the vectors of one line after the other."""

    def write(self, vectors: np.ndarray, input_ids: Sequence[int]) -> None:
        """Takes the f32 vectors of the next line, as features.extract gives them, and its ids."""


def ending_of(path: str, spec_of_tokens: bool) -> str:
    """The ending that says the format.

    Raises:
        UserError: it is none of ENDINGS, or cannot hold vectors of tokens.
    """
    ending = next((ending for ending in ENDINGS if path.lower().endswith(ending)), None)
    if ending is None:
        raise UserError(f"{FLAG}={path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, which says the format")
    if ending == ".npy" and spec_of_tokens:
        raise UserError(
            f"{FLAG}={path}: lines differ in their number of tokens, which one array cannot hold: with --pooling=none "
            "write .npz, .jsonl or .tfrecord"
        )
    return ending


@contextlib.contextmanager
def open_feature_file(
    path: str, spec: FeatureSpec, vector_shape: tuple[int, ...], tokenizer: Tokenizer
) -> Iterator[FeatureWriter]:
    """Opens the file, which replaces one of this name at the end.

    Args:
        path: local or remote, with one of ENDINGS.
        vector_shape: of FeatureSpec.vector_shape.

    Raises:
        UserError: on entering and at any time later, when the place cannot be written.
    """
    ending = ending_of(path, spec.of_tokens)
    with files.replacing(path, FLAG) as part:
        if ending == ".tfrecord":
            opened = _tfrecord(part, spec)
        elif ending == ".jsonl":
            opened = _json_lines(part, spec, tokenizer)
        elif ending == ".npy":
            opened = _npy(part, vector_shape)
        else:
            opened = _npz(part, spec, vector_shape)
        with opened as writer:
            yield writer


@contextlib.contextmanager
def _npy(part: Path, vector_shape: tuple[int, ...]) -> Iterator[FeatureWriter]:
    with NpyWriter(part, np.float32, vector_shape) as features:

        class Writer:
            def write(self, vectors, input_ids):
                features.append(vectors)

        yield Writer()


@contextlib.contextmanager
def _npz(part: Path, spec: FeatureSpec, vector_shape: tuple[int, ...]) -> Iterator[FeatureWriter]:
    # The entries are files of their own first: how long they are is known at the end, and stands at their beginning.
    with contextlib.ExitStack() as stack:

        def array(name, dtype, row_shape=()):
            return stack.enter_context(NpyWriter(part.with_name(f"{name}.npy"), dtype, row_shape))

        features = array("features", np.float32, vector_shape)
        if spec.of_tokens:
            token_ids, offsets = array("token_ids", np.int32), array("offsets", np.int64)
            offsets.append(np.zeros(1))

        class Writer:
            def write(self, vectors, input_ids):
                features.append(vectors)
                if spec.of_tokens:
                    token_ids.append(np.asarray(input_ids))
                    offsets.append(np.full(1, features.length))

        yield Writer()
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for entry in sorted(part.parent.glob("*.npy")):
            archive.write(entry, entry.name)
            entry.unlink()


@contextlib.contextmanager
def _json_lines(part: Path, spec: FeatureSpec, tokenizer: Tokenizer) -> Iterator[FeatureWriter]:
    # One layer of a token keeps Google's form whatever the combination.
    by_layer = spec.combination == "list" or (spec.of_tokens and len(spec.layers) == 1)

    def values(vector):
        if not by_layer:
            return {"values": vector}
        layers = vector if spec.combination == "list" else [vector]
        return {"layers": [{"index": index, "values": layer} for index, layer in zip(spec.layers, layers)]}

    with open(part, "w", encoding="ascii") as file:

        class Writer:
            lines = 0

            def write(self, vectors, input_ids):
                line = {"linex_index": self.lines}
                vectors = np.round(vectors.astype(np.float64), _DECIMALS).tolist()
                if spec.of_tokens:
                    tokens = tokenizer.convert_ids_to_tokens(input_ids)
                    line["features"] = [{"token": token, **values(vector)} for token, vector in zip(tokens, vectors)]
                else:
                    line |= values(vectors)
                file.write(json.dumps(line, allow_nan=False) + "\n")
                self.lines += 1

        yield Writer()


@contextlib.contextmanager
def _tfrecord(part: Path, spec: FeatureSpec) -> Iterator[FeatureWriter]:
    from input_pipeline.host_tensorflow import tf

    def integers(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    class Writer:
        def write(self, vectors, input_ids):
            feature = {
                "features": tf.train.Feature(float_list=tf.train.FloatList(value=vectors.ravel())),
                "shape": integers(vectors.shape),
            }
            if spec.of_tokens:
                feature["token_ids"] = integers(input_ids)
            records.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    try:
        with tf.io.TFRecordWriter(os.fspath(part)) as records:
            yield Writer()
    except tf.errors.OpError as error:  # such as a full disk
        raise OSError(0, error.message.partition("\n")[0].rpartition("; ")[2]) from None
