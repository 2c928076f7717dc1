import numpy as np
import pytest

from input_pipeline.packed_batches import PackedBatches, balanced_order, choose_row_counts
from input_pipeline.packing import SLOTS
from input_pipeline.task_features import NO_LABEL, make_features


def features_of(lengths, labels=None, first_id=100):
    """Sequences whose tokens tell which sequence they are of."""
    sequences = [([first_id + number] * length, [0] * length) for number, length in enumerate(lengths)]
    return make_features(sequences, range(len(lengths)), np.arange(len(lengths)) if labels is None else labels)


def batches_of(features, **options):
    options = {"batch_size": 8, "num_train_steps": 20, "seed": 1} | options
    return PackedBatches(features, **options)


LENGTHS = np.random.default_rng(0).integers(3, 40, 50).tolist()


def tokens_at(batch, example, choice=0, parts=1, part=0):
    """The tokens of a sequence, found by its place."""
    rows = {name: batch[name][part::parts] for name in ("input_ids", "starts", "lengths")}
    places = batch["places"][part::parts]
    row, slot = divmod(int(places[example, choice]), SLOTS)
    start, length = rows["starts"][row, slot], rows["lengths"][row, slot]
    return rows["input_ids"][row, start : start + length].tolist()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_each_example_is_where_places_says(parts):
    batches = batches_of(features_of(LENGTHS), accumulation_steps=parts)
    batch = batches.batch(3)
    for part in range(parts):
        labels = batch["labels"][part::parts]
        for example, label in enumerate(labels):
            assert tokens_at(batch, example, parts=parts, part=part) == [100 + label] * LENGTHS[label]
    assert sorted(batch["labels"]) == sorted(batches.examples_of(3))


def test_an_epoch_has_each_example_once_and_epochs_follow_without_a_gap():
    batches = batches_of(features_of(LENGTHS), batch_size=10)
    epochs = [np.concatenate([batches.examples_of(5 * epoch + step) for step in range(5)]) for epoch in range(2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(50))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()
    across = batches_of(features_of(LENGTHS), batch_size=40)
    stream = np.concatenate([across.examples_of(step) for step in range(3)]).tolist()
    assert [sorted(stream[:50]), sorted(stream[50:100])] == [list(range(50))] * 2


def test_the_order_is_a_function_of_the_seed():
    orders = [batches_of(features_of(LENGTHS), seed=seed).examples_of(0).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    plain = batches_of(features_of(LENGTHS), shuffle=False)
    assert plain.examples_of(6).tolist() == [48, 49, 0, 1, 2, 3, 4, 5]


def test_a_batch_does_not_depend_on_those_made_before():
    used, fresh = batches_of(features_of(LENGTHS)), batches_of(features_of(LENGTHS))
    for step in range(15):
        used.batch(step)
    for name, array in fresh.batch(15).items():
        np.testing.assert_array_equal(used.batch(15)[name], array)


def test_choices_stay_together():
    batches = batches_of(features_of(LENGTHS[:48], labels=np.arange(12)), num_choices=4, batch_size=3)
    batch = batches.batch(0)
    assert batch["places"].shape == (3, 4)
    for example, label in enumerate(batch["labels"]):
        for choice in range(4):
            assert tokens_at(batch, example, choice)[0] == 100 + 4 * label + choice


def test_labels_of_tokens_are_padded():
    lengths = [3, 5]
    batches = batches_of(features_of(lengths, labels=np.arange(8)), batch_size=2, shuffle=False)
    labels = batches.batch(0)["labels"]
    assert labels[:, :5].tolist() == [[0, 1, 2, NO_LABEL, NO_LABEL], [3, 4, 5, 6, 7]]
    assert (labels[:, 5:] == NO_LABEL).all()


def test_rows_are_a_multiple_for_the_devices_and_few_numbers_of_them():
    batches = batches_of(features_of(LENGTHS), row_multiple=4, compile_tokens=100.0)
    counts = {len(batches.batch(step)["input_ids"]) for step in range(20)}
    assert counts <= set(batches.row_counts)
    assert all(count % 4 == 0 for count in counts)


def test_a_batch_that_needs_more_rows_than_any_sample_gets_them():
    batches = batches_of(features_of(LENGTHS))
    batches.row_counts = [1]
    batch = batches.batch(0)
    assert len(batch["input_ids"]) >= 2
    assert tokens_at(batch, 0) == [100 + batch["labels"][0]] * LENGTHS[batch["labels"][0]]


def test_the_width_holds_the_longest_sequence():
    assert batches_of(features_of([5, 6] * 10)).width == 64
    assert batches_of(features_of([5, 100] * 10)).width == 112
    assert batches_of(features_of([5, 128] * 10)).width == 144  # which has room for both
    assert batches_of(features_of([128] * 20)).width == 128


def test_numbers_of_rows_weigh_compiling_against_padding():
    needs = [8] * 50 + [9] * 50 + [16] * 2
    assert choose_row_counts(needs, 0.0) == [8, 9, 16]
    assert choose_row_counts(needs, 60.0) == [9, 16]
    assert choose_row_counts(needs, 10_000.0) == [16]


@pytest.mark.parametrize(("count", "batch_size"), [(1000, 32), (1003, 32), (5, 8), (64, 64), (33, 32), (7, 1)])
def test_a_balanced_order_has_each_example_once(count, batch_size):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**63, count).astype(np.uint64)
    order = balanced_order(rng.integers(1, 100, count), keys, batch_size)
    assert sorted(order.tolist()) == list(range(count))


def test_batches_of_a_balanced_order_have_about_as_many_tokens():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.05, 3200), 128)
    order = balanced_order(lengths, rng.integers(0, 2**63, 3200).astype(np.uint64), 32)
    totals = lengths[order].reshape(-1, 32).sum(axis=1)
    plain = lengths.reshape(-1, 32).sum(axis=1)
    assert totals.std() < plain.std() / 4
    halves = lengths[order].reshape(-1, 2, 16).sum(axis=2)
    assert np.abs(halves[:, 0] - halves[:, 1]).mean() < 0.25 * halves.mean()
    shifted = lengths[order][13:-19].reshape(-1, 32).sum(axis=1)  # of a later epoch
    assert shifted.std() < plain.std() / 2


def test_any_two_examples_may_meet_in_a_balanced_order():
    rng = np.random.default_rng(0)
    lengths = np.arange(16)
    batches = [
        balanced_order(lengths, rng.integers(0, 2**63, 16).astype(np.uint64), 4).reshape(4, 4) for _ in range(400)
    ]
    together = np.zeros((16, 16))
    for batch in batches:
        for row in batch:
            together[np.ix_(row, row)] += 1
    # One of each stratum of four: within a stratum never, across strata each pair in a quarter of the orders.
    strata = lengths // 4
    across = strata[:, None] != strata[None]
    assert (together[~across & ~np.eye(16, dtype=bool)] == 0).all()
    assert np.abs(together[across] / 400 - 0.25).max() < 0.1


def test_more_devices_only_add_empty_rows():
    features = features_of(
        np.random.default_rng(1).integers(3, 15, 50).tolist()
    )  # so short that a row has room for many
    few, many = batches_of(features), batches_of(features, row_multiple=8)
    for step in range(3):
        a, b = few.batch(step), many.batch(step)
        rows = len(a["input_ids"])
        assert rows < len(b["input_ids"])
        for name in ("input_ids", "starts", "lengths"):
            np.testing.assert_array_equal(a[name], b[name][:rows])
            assert not b[name][rows:].any()
        np.testing.assert_array_equal(a["places"], b["places"])
