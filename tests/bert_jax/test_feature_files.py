"""Each format read back; nothing is left where a file could not be completed."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.feature_files import ENDINGS, ending_of, open_feature_file
from bert_jax.features import FeatureSpec
from input_pipeline import files
from input_pipeline.errors import UserError

TOKENIZER = SimpleNamespace(convert_ids_to_tokens=lambda ids: [f"t{id}" for id in ids])
LENGTHS = (2, 5, 3)


def spec(layers=(-1,), combination="concat", pooling="mean"):
    return FeatureSpec(layers, tuple(layer % 4 for layer in layers), combination, pooling)


def write(path, spec, hidden=3):
    """Writes random vectors of three lines, and returns them with their ids."""
    rng = np.random.default_rng(0)
    shape = spec.vector_shape(hidden)
    lines = []
    with open_feature_file(str(path), spec, shape, TOKENIZER) as file:
        for length in LENGTHS:
            vectors = rng.standard_normal((length, *shape) if spec.of_tokens else shape, np.float32)
            ids = rng.integers(0, 50, length).tolist()
            file.write(vectors, ids)
            lines.append((vectors, ids))
    assert os.listdir(path.parent) == [path.name]
    return lines


@pytest.mark.parametrize("combination", ["concat", "sum", "list"])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_numpy_arrays_of_lines(tmp_path, ending, combination):
    written = write(tmp_path / f"x.{ending}", spec((0, -1), combination))
    read = np.load(tmp_path / f"x.{ending}")
    array = read if ending == "npy" else read["features"]
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, [vectors for vectors, _ in written])
    assert ending == "npy" or read.files == ["features"]


@pytest.mark.parametrize("combination", ["concat", "list"])
def test_npz_of_tokens(tmp_path, combination):
    written = write(tmp_path / "new" / "x.npz", spec((0, -1), combination, "none"))
    with np.load(tmp_path / "new" / "x.npz") as read:
        assert {name: read[name].dtype for name in read} == {"features": "f4", "offsets": "i8", "token_ids": "i4"}
        np.testing.assert_array_equal(read["offsets"], np.cumsum((0, *LENGTHS)))
        for line, (vectors, ids) in enumerate(written):
            rows = slice(*read["offsets"][line : line + 2])
            np.testing.assert_array_equal(read["features"][rows], vectors)
            np.testing.assert_array_equal(read["token_ids"][rows], ids)


def read_json(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("layers", "combination"), [((-1,), "concat"), ((2,), "list"), ((-1, 0), "list")])
def test_json_of_tokens_has_googles_form(tmp_path, layers, combination):
    written = write(tmp_path / "x.jsonl", spec(layers, combination, "none"))
    for index, (line, (vectors, ids)) in enumerate(zip(read_json(tmp_path / "x.jsonl"), written, strict=True)):
        vectors = vectors.reshape(len(ids), len(layers), 3)
        assert line == {
            "linex_index": index,
            "features": [
                {
                    "token": f"t{id}",
                    "layers": [
                        {"index": layer, "values": [round(float(x), 6) for x in values]}
                        for layer, values in zip(layers, of_token)
                    ],
                }
                for id, of_token in zip(ids, vectors)
            ],
        }


def test_json_of_lines_and_of_combined_layers(tmp_path):
    for (vectors, _), line in zip(write(tmp_path / "x.jsonl", spec()), read_json(tmp_path / "x.jsonl")):
        assert list(line) == ["linex_index", "values"]
        np.testing.assert_allclose(line["values"], vectors, rtol=0, atol=5.1e-7)
    write(tmp_path / "x.jsonl", spec((0, -1), "list"))
    assert [layer["index"] for layer in read_json(tmp_path / "x.jsonl")[0]["layers"]] == [0, -1]
    write(tmp_path / "x.jsonl", spec((0, -1), "sum", "none"))
    assert list(read_json(tmp_path / "x.jsonl")[0]["features"][0]) == ["token", "values"]


def test_tfrecords(tmp_path):
    from input_pipeline.host_tensorflow import tf

    for form in (spec(), spec((0, -1), "list", "none")):
        written = write(tmp_path / "x.tfrecord", form)
        for record, (vectors, ids) in zip(tf.data.TFRecordDataset(str(tmp_path / "x.tfrecord")), written, strict=True):
            feature = tf.train.Example.FromString(record.numpy()).features.feature
            shape = feature["shape"].int64_list.value
            values = np.array(feature["features"].float_list.value, np.float32)
            np.testing.assert_array_equal(values.reshape(shape), vectors)
            assert list(feature["token_ids"].int64_list.value) == (ids if form.of_tokens else [])


@pytest.mark.parametrize("ending", ["npy", "npz", "jsonl", "tfrecord"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError])
def test_nothing_is_left_and_nothing_replaced_after_an_error(tmp_path, ending, error):
    (tmp_path / f"x.{ending}").write_text("old")
    for path in (tmp_path / f"x.{ending}", tmp_path / "new" / "folder" / f"x.{ending}"):
        with pytest.raises(error), open_feature_file(str(path), spec(), (3,), TOKENIZER) as file:
            file.write(np.zeros(3, np.float32), [1])
            raise error
    assert os.listdir(tmp_path) == [f"x.{ending}"]
    assert (tmp_path / f"x.{ending}").read_text() == "old"


@pytest.mark.parametrize("ending", ["npy", "npz", "jsonl", "tfrecord"])
def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path, ending):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / f"x.{ending}")
    problem = r"--output_file: .*x\.\w+ is a file, or lies below one"
    with pytest.raises(UserError, match=problem), open_feature_file(path, spec(), (3,), TOKENIZER):
        pass


def test_remote_files_are_uploaded_when_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "is_remote", lambda path: True)
    monkeypatch.setattr(files, "reach", lambda path, flag: files.as_path(path))
    written = write(tmp_path / "x.npy", spec())
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), [vectors for vectors, _ in written])


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_usual_mode(tmp_path, ending):
    before = os.umask(0o027)
    try:
        write(tmp_path / f"a{ending}", spec())
    finally:
        os.umask(before)
    assert (tmp_path / f"a{ending}").stat().st_mode & 0o777 == 0o640


def test_endings():
    assert ending_of("a/b.NPZ", True) == ".npz"
    with pytest.raises(UserError, match=r"--output_file=x\.csv must end in \.npy, \.npz, \.jsonl or \.tfrecord"):
        ending_of("x.csv", False)
    with pytest.raises(UserError, match=r"with --pooling=none write \.npz, \.jsonl or \.tfrecord"):
        ending_of("x.npy", True)
