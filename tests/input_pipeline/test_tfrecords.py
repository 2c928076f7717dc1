import base64
import gzip
import json
import struct

import numpy as np
import pytest

from input_pipeline.errors import UserError
from input_pipeline.host_tensorflow import tf
from input_pipeline.tfrecords import FIELDS, read_tfrecords, write_tfrecords

LENGTH, PREDICTIONS, VOCAB = 8, 2, 50


def make_examples(count, length=LENGTH, predictions=PREDICTIONS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "input_ids": rng.integers(0, VOCAB, length),
            "input_mask": (np.arange(length) <= rng.integers(0, length)).astype(int),
            "segment_ids": rng.integers(0, 2, length),
            "masked_lm_positions": rng.integers(0, length, predictions),
            "masked_lm_ids": rng.integers(0, VOCAB, predictions),
            "masked_lm_weights": rng.integers(0, 2, predictions).astype(np.float32),
            "next_sentence_labels": rng.integers(0, 2),
        }
        for _ in range(count)
    ]


@pytest.fixture
def read(tmp_path):
    def read(*paths, **changes):
        sizes = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "vocab_size": VOCAB, **changes}
        return read_tfrecords([str(path) for path in paths], **sizes, cache_folder=tmp_path / "cache")

    return read


@pytest.fixture
def path(tmp_path):
    """A file of 3000 records: more than are checked together."""
    write_tfrecords(tmp_path / "part-0.tfrecord", make_examples(3000))
    return tmp_path / "part-0.tfrecord"


def assert_records(records, examples):
    assert records.num_examples == len(examples)
    for name, dtype in FIELDS.items():
        values = records.load(name)
        assert values.dtype == dtype
        np.testing.assert_array_equal(values, [np.ravel(example[name]) for example in examples])


def test_records_come_back(read, path, tmp_path):
    assert write_tfrecords(tmp_path / "part-1.tfrecord", make_examples(5, seed=1)) == 5
    records = read(path, tmp_path / "part-1.tfrecord")
    assert_records(records, make_examples(3000) + make_examples(5, seed=1))


def test_format_of_a_record(tmp_path):
    """Names, types and framing, byte by byte as the reference's protocol buffer has them."""
    write_tfrecords(tmp_path / "a", make_examples(1))
    record = (tmp_path / "a").read_bytes()
    (length,) = struct.unpack("<Q", record[:8])
    assert len(record) == 8 + 4 + length + 4
    features = tf.train.Example.FromString(record[12:-4]).features.feature
    assert sorted(features) == sorted(FIELDS)
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    assert kinds.pop("masked_lm_weights") == "float_list" and set(kinds.values()) == {"int64_list"}
    assert len(features["next_sentence_labels"].int64_list.value) == 1


def test_record_of_the_reference(shared, tmp_path):
    golden = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["tfrecord"]
    (tmp_path / "golden").write_bytes(base64.b64decode(golden["file_base64"]))
    sizes = {name: golden[name] for name in ("max_seq_length", "max_predictions_per_seq")}
    records = read_tfrecords([str(tmp_path / "golden")], **sizes, vocab_size=30522, cache_folder=tmp_path / "cache")
    assert_records(records, golden["records"])
    write_tfrecords(tmp_path / "again", golden["records"])
    again = read_tfrecords([str(tmp_path / "again")], **sizes, vocab_size=30522, cache_folder=tmp_path / "cache")
    assert again.fingerprint == records.fingerprint


def test_decoded_once(read, path, tmp_path):
    records = read(path)
    stamp = records.fields["input_ids"].stat().st_mtime_ns
    assert read(path).fields["input_ids"].stat().st_mtime_ns == stamp
    assert [folder.name for folder in (tmp_path / "cache").iterdir()] == [records.fields["input_ids"].parent.name]
    write_tfrecords(path, make_examples(3))  # the file changed
    assert read(path).num_examples == 3


def test_files_without_predictions_are_known(read, path, tmp_path):
    for name, weight in (("a", 0), ("b", 0.5), ("c", 0)):
        examples = make_examples(3)
        for example in examples:
            example["masked_lm_weights"] = [0, 0]
        examples[1]["masked_lm_weights"] = [0, weight]
        write_tfrecords(tmp_path / name, examples)
    (tmp_path / "empty").touch()
    paths = [tmp_path / name for name in ("a", "b", "empty", "c")]
    for _ in range(2):  # decoded, and found decoded
        assert read(*paths).without_predictions == (str(tmp_path / "a"), str(tmp_path / "c"))


@pytest.mark.parametrize("name", ["metadata.json", "input_mask.npy"])
@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_damaged_cache_is_made_again(read, tmp_path, caplog, name, content):
    write_tfrecords(tmp_path / "few", make_examples(3))
    file = read(tmp_path / "few").fields["input_ids"].with_name(name)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert_records(read(tmp_path / "few"), make_examples(3))
    assert [record.getMessage() for record in caplog.records] == [f"{file.parent} is damaged and is made again"]


def test_fingerprint_is_that_of_the_content(read, path, tmp_path):
    compressed = tmp_path / "elsewhere.gz"
    write_tfrecords(compressed, make_examples(3000))
    assert read(compressed).fingerprint == read(path).fingerprint
    write_tfrecords(tmp_path / "other", make_examples(3000, seed=1))
    assert read(tmp_path / "other").fingerprint != read(path).fingerprint


def test_gzip_is_known_by_its_content(read, path, tmp_path):
    (tmp_path / "no_suffix").write_bytes(gzip.compress(path.read_bytes()))
    assert read(tmp_path / "no_suffix").num_examples == 3000


def test_empty_files_are_tolerated(read, path, tmp_path):
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty", path).num_examples == 3000
    with pytest.raises(UserError, match=r"no record in .*empty"):
        read(tmp_path / "empty")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 128}, r"record 0: input_ids holds 8 values, but --max_seq_length is 128"),
        ({"max_predictions_per_seq": 5}, r"record 0: masked_lm_\w+ holds 2 values, but --max_predictions_per_seq is 5"),
        ({"max_predictions_per_seq": 1}, r"record 0: masked_lm_\w+ holds 2 values, but --max_predictions_per_seq is 1"),
    ],
)
def test_other_sizes(read, path, changes, message):
    with pytest.raises(UserError, match=rf"part-0.tfrecord, {message}"):
        read(path, **changes)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_ids", [0] * 7 + [50], "input_ids holds 50, but the vocabulary has 50 entries"),
        ("input_ids", [-1] + [0] * 7, "input_ids holds -1"),
        ("input_ids", [2**32] + [0] * 7, "input_ids holds 4294967296"),
        ("masked_lm_ids", [50, 0], "masked_lm_ids holds 50"),
        ("masked_lm_positions", [0, 8], "masked_lm_positions holds 8, but it must be below 8"),
        ("segment_ids", [2] * 8, "segment_ids holds 2"),
        ("input_mask", [0] * 7 + [-1], "input_mask holds -1"),
        ("next_sentence_labels", 2, "next_sentence_labels holds 2"),
        ("next_sentence_labels", [0, 1], "next_sentence_labels holds 2 values, one is needed"),
        ("input_mask", [], "the field input_mask is missing"),
        ("masked_lm_weights", [float("nan"), 0.0], "masked_lm_weights holds nan, but it must be between 0 and 1"),
        ("masked_lm_weights", [0.0, float("inf")], "masked_lm_weights holds inf"),
        ("masked_lm_weights", [0.0, -0.5], "masked_lm_weights holds -0.5"),
        ("masked_lm_weights", [1.5, 0.0], "masked_lm_weights holds 1.5"),
        ("input_mask", [0] * 8, "input_mask must be ones for the text"),
        ("input_mask", [1, 0, 1] + [0] * 5, "input_mask must be ones for the text"),
        ("input_mask", [0] + [1] * 7, "input_mask must be ones for the text"),
    ],
)
def test_bad_values_are_named(read, tmp_path, field, value, message):
    examples = make_examples(1500)
    examples[1234][field] = value
    write_tfrecords(tmp_path / "bad", examples)
    with pytest.raises(UserError, match=f"bad, record 1234: {message}"):
        read(tmp_path / "bad")
    assert not list((tmp_path / "cache").glob("*"))


def test_damaged_files_are_named(read, path, tmp_path):
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for name, data in {
        "truncated": content[:-10],
        "flipped": bytes(flipped),
        "text": b"Once upon a time there was a file that held no records at all.\n",
        "short_text": b"Once",
        **{f"truncated{cut}.gz": gzip.compress(content)[:-cut] for cut in (4, 2000, 2001, 2002, 2003)},
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"--input_file: \S*/{name}: damaged"):
            read(tmp_path / name)


def test_records_of_something_else(read, tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "other")) as writer:
        writer.write(b"not an example")
    with pytest.raises(UserError, match="other: not written by create_pretraining_data"):
        read(tmp_path / "other")
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * LENGTH))
    with tf.io.TFRecordWriter(str(tmp_path / "floats")) as writer:
        writer.write(tf.train.Example(features=tf.train.Features(feature={"input_ids": feature})).SerializeToString())
    with pytest.raises(UserError, match=r"floats: not written by .*input_ids"):
        read(tmp_path / "floats")


def test_missing_file(read, tmp_path):
    with pytest.raises(UserError, match="--eval_input_file: no such file"):
        read(tmp_path / "nothing", flag="--eval_input_file")
