from pathlib import Path

import numpy as np
import pytest

from input_pipeline.batch_pipeline import MappedArray, PairExamples, RecordExamples, SpecialTokens, make_dataset
from input_pipeline.host_tensorflow import tf
from input_pipeline.masking import Masking
from input_pipeline.pair_plan import Window

LENGTH = 16


def save(path: Path, array) -> Path:
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32, np.int8, np.int64, np.float32])
@pytest.mark.parametrize("files", [1, 3])
def test_items_of_all_files(tmp_path, dtype, files):
    parts = [np.arange(10 * i, 10 * i + 5 + i).astype(dtype) for i in range(files)]
    array = MappedArray([save(tmp_path / f"{i}.npy", part) for i, part in enumerate(parts)])
    index = np.random.default_rng(0).integers(0, sum(map(len, parts)), (3, 4))
    found = array.gather(tf.constant(index)).numpy()
    assert found.dtype == (dtype if np.dtype(dtype).itemsize >= 4 and dtype != np.uint32 else np.int32)
    np.testing.assert_array_equal(found, np.concatenate(parts)[index])


def test_rows_of_all_files(tmp_path):
    parts = [np.random.default_rng(i).integers(0, 2**40, (4 + i, 5)) for i in range(2)]
    array = MappedArray([save(tmp_path / f"{i}.npy", part) for i, part in enumerate(parts)])
    index = np.array([8, 0, 3, 4, 4])
    np.testing.assert_array_equal(array.gather(tf.constant(index)).numpy(), np.concatenate(parts)[index])


def test_files_are_mapped_not_read(tmp_path):
    """A file of 200 MB with holes: reading it would show in the memory of the process."""
    path = tmp_path / "big.npy"
    np.lib.format.open_memmap(path, "w+", np.uint16, (10**8,)).flush()

    def anonymous_memory():
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024

    before = anonymous_memory()
    array = MappedArray([path])

    def examples(number):
        items = array.gather(number[:, None] * 1000 + tf.range(128, dtype=tf.int64))
        return {"items": items, "masked_lm_weights": tf.ones([8, 1])}

    for batch in make_dataset(examples, range(100), 8, range(8), 2**62, 2).as_numpy_iterator():
        assert (batch["items"] == 0).all()
    assert anonymous_memory() - before < 50e6


def make_examples(tmp_path, rows, tokens, *, is_pair=True, shuffle=False, sizes=None, first_epoch=0, first_example=0):
    sizes = np.array(sizes or [len(rows)])
    window = Window(save(tmp_path / "plan.npy", np.array(rows, np.int64)), first_epoch, first_example, sizes)
    masking = Masking(
        vocab_size=1000,
        mask_id=4,
        max_seq_length=LENGTH,
        max_predictions_per_seq=3,
        masked_lm_prob=0.15,
        masking_split=(0.0, 1.0, 0.0),
    )
    tokens = MappedArray([save(tmp_path / f"{i}.npy", np.array(part, np.uint16)) for i, part in enumerate(tokens)])
    return PairExamples(
        [window],
        tokens,
        SpecialTokens(pad_id=0, cls_id=2, sep_id=3),
        masking,
        next_sentence_prediction=is_pair,
        shuffle=shuffle,
        seed=0,
    )


def test_layout_of_a_pair(tmp_path):
    # The tokens of A lie in the first file, those of B in the second.
    examples = make_examples(tmp_path, [[1, 3, 6, 2, 1], [5, 12, 0, 1, 0]], [range(10, 15), range(20, 40)])
    batch = {name: value.numpy() for name, value in examples(tf.constant([0, 1], tf.int64)).items()}
    first = [2, 11, 12, 13, 3, 21, 22, 3] + [0] * 8
    second = [2, *range(20, 32), 3, 10, 3]
    assert batch["input_ids"].tolist() == [first, second]
    assert batch["input_mask"].tolist() == [[1] * 8 + [0] * 8, [1] * 16]
    assert batch["segment_ids"].tolist() == [[0] * 5 + [1] * 3 + [0] * 8, [0] * 14 + [1] * 2]
    assert batch["next_sentence_labels"].tolist() == [1, 0]
    assert batch["masked_lm_weights"].tolist() == [[1, 0, 0], [1, 1, 0]]
    assert set(batch["masked_lm_positions"][1, :2]) <= {*range(1, 13), 14}
    assert {name: value.dtype for name, value in batch.items()} == {
        **dict.fromkeys(batch, np.dtype(np.int32)),
        "masked_lm_weights": np.dtype(np.float32),
    }


def test_layout_of_a_single_segment(tmp_path):
    examples = make_examples(tmp_path, [[1, 3, 4, 0, 0]], [range(10, 15)], is_pair=False)
    batch = {name: value.numpy() for name, value in examples(tf.constant([0], tf.int64)).items()}
    assert batch["input_ids"].tolist() == [[2, 11, 12, 13, 3] + [0] * 11]
    assert batch["input_mask"].tolist() == [[1] * 5 + [0] * 11]
    assert not batch["segment_ids"].any() and not batch["next_sentence_labels"].any()


@pytest.mark.parametrize("sizes", [[1, 1, 2], [3, 5, 64, 1], [257]])
def test_each_epoch_is_a_permutation_of_its_rows(tmp_path, sizes):
    total = sum(sizes)
    rows = [[token, 1, token, 1, 0] for token in range(total)]
    examples = make_examples(
        tmp_path, rows, [range(10, 10 + total)], shuffle=True, sizes=sizes, first_epoch=7, first_example=1000
    )
    order = examples(tf.range(1000, 1000 + total, dtype=tf.int64))["input_ids"].numpy()[:, 1] - 10
    start = 0
    for size in sizes:
        epoch = order[start : start + size]
        assert sorted(epoch) == list(range(start, start + size))
        start += size
    if total > 100:
        assert abs(np.corrcoef(order, np.arange(total))[0, 1]) < 0.25
        assert np.mean(np.abs(np.diff(order)) == 1) < 0.1


def test_orders_of_epochs_and_seeds_differ(tmp_path):
    rows = [[token, 1, token, 1, 0] for token in range(200)]
    examples = make_examples(tmp_path, rows, [range(10, 210)], shuffle=True, sizes=[100, 100])

    def order(seed, start):
        examples.seed = seed
        numbers = tf.range(start, start + 100, dtype=tf.int64)
        return examples(numbers)["input_ids"].numpy()[:, 1] - 10 - start

    orders = [order(0, 0), order(0, 100), order(1, 0)]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            assert (first == second).sum() < 8 and abs(np.corrcoef(first, second)[0, 1]) < 0.35


def test_rows_beyond_the_limit_have_no_weight(tmp_path):
    examples = make_examples(tmp_path, [[0, 5, 6, 5, 0]] * 5, [range(10, 30)])
    dataset = make_dataset(examples, range(2), 4, range(4), limit=5, num_threads=1)
    first, second = dataset.as_numpy_iterator()
    assert first["example_weights"].tolist() == [1] * 4 and second["example_weights"].tolist() == [1, 0, 0, 0]
    assert second["masked_lm_weights"].sum(axis=1).tolist() == [2, 0, 0, 0]
    assert second["input_mask"].all(axis=0)[:13].all()  # rows without weight are text all the same


def test_records_come_as_they_are(tmp_path):
    fields = {
        "input_ids": np.arange(30, dtype=np.int32).reshape(10, 3),
        "masked_lm_weights": np.linspace(0, 1, 20, dtype=np.float32).reshape(10, 2),
        "next_sentence_labels": (np.arange(10, dtype=np.int8) % 2)[:, None],
    }
    paths = {name: save(tmp_path / f"{name}.npy", value) for name, value in fields.items()}
    batch = RecordExamples(paths, shuffle=False, seed=0)(tf.constant([9, 10, 25], tf.int64))
    for name, value in fields.items():
        np.testing.assert_array_equal(batch[name].numpy().reshape(3, -1), value[[9, 0, 5]])
    assert batch["next_sentence_labels"].shape == (3,)
    shuffled = RecordExamples(paths, shuffle=True, seed=0)(tf.range(20, dtype=tf.int64))["input_ids"].numpy()[:, 0] // 3
    assert sorted(shuffled[:10]) == sorted(shuffled[10:]) == list(range(10))
    assert shuffled[:10].tolist() != shuffled[10:].tolist()
