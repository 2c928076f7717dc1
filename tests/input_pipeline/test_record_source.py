import numpy as np
import pytest

from input_pipeline.npy_files import NpyWriter
from input_pipeline.pretraining_data import PretrainingDataConfig
from input_pipeline.record_source import RecordSource
from input_pipeline.tfrecords import Records


@pytest.fixture
def make_source(tmp_path):
    def make(labels, without_predictions=(), **config):
        fields = {
            "masked_lm_ids": np.array([[7, 7, 0]] * len(labels), np.int32),
            "masked_lm_weights": np.array([[1, 1, 0]] * len(labels), np.float32),
            "next_sentence_labels": np.array(labels, np.int8)[:, None],
        }
        for name, values in fields.items():
            with NpyWriter(tmp_path / f"{name}.npy", values.dtype, values.shape[1:]) as writer:
                writer.append(values)
        records = Records({name: tmp_path / f"{name}.npy" for name in fields}, len(labels), "f", without_predictions)
        return RecordSource(records, PretrainingDataConfig(**config), vocab_size=10)

    return make


def test_counts(make_source):
    source = make_source([0, 1, 1])
    assert source.num_examples(0) == source.num_examples(9) == source.num_eval_examples() == 3
    assert source.num_random_next(0) == 2
    assert source.warnings == [] and source.sampling_shares() == {}


def test_predicted_tokens_are_counted(make_source):
    assert make_source([0, 1]).unigram_counts().tolist() == [0] * 7 + [4, 0, 0]


@pytest.mark.parametrize("label", [0, 1])
def test_a_single_label_is_worth_a_warning(make_source, label):
    (warning,) = make_source([label] * 3).warnings
    assert f"same label, {label}" in warning
    assert make_source([label] * 3, next_sentence_prediction=False).warnings == []


def test_a_file_without_predictions_is_worth_a_warning(make_source):
    (warning,) = make_source([0, 1], ("a.tfrecord",)).warnings
    assert "a.tfrecord has nothing to learn" in warning
