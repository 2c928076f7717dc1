import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from input_pipeline import pair_plan
from input_pipeline.hashing import make_key
from input_pipeline.pair_plan import PairPlans, choose_documents, plan_folder, sampling_rates
from input_pipeline.sentence_pairs import Corpus, PairSettings, make_pairs

SETTINGS = PairSettings(max_seq_length=32)


def make_corpus(seed=0, documents=30, first_token=0):
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, 20, rng.integers(1, 10)) for _ in range(documents)]
    sentences = np.cumsum(np.concatenate([[0], *lengths]))
    return Corpus([sentences], [np.cumsum([0, *map(len, lengths)])], [first_token], np.arange(documents))


def make_plans(folder, corpora=None, rates=None, seed=5, num_tokens=20_000, **kwargs):
    corpora = corpora or [make_corpus()]
    return PairPlans(corpora, rates or [1.0] * len(corpora), num_tokens, SETTINGS, seed, folder, **kwargs)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(pair_plan, "_WINDOW_EXAMPLES", 2000)  # with 20,000 tokens: windows of 4 epochs


def epochs_of(window):
    rows = np.load(window.path)
    assert len(rows) == window.examples.sum() == window.end - window.first_example
    return np.split(rows, np.cumsum(window.examples)[:-1])


def test_a_window_holds_its_epochs_one_after_the_other(tmp_path):
    plans = make_plans(tmp_path)
    assert plans.epochs_per_window == 4
    first, second = plans.window(0), plans.window(1)
    assert (first.first_epoch, second.first_epoch) == (0, 4)
    assert (first.first_example, second.first_example) == (0, first.end)
    for epoch, rows in enumerate(epochs_of(first) + epochs_of(second)):
        blocks = make_pairs(make_corpus(), np.array([make_key(5, epoch, 0, 0, 0)]), SETTINGS)
        np.testing.assert_array_equal(rows, np.concatenate([rows for rows, _ in blocks]))
        assert plans.count(epoch) == (len(rows), rows[:, 4].sum())
    assert plans.count_first_window() == tuple(np.sum([plans.count(epoch) for epoch in range(4)], axis=0))


def test_examples_are_found_in_their_windows(tmp_path):
    plans = make_plans(tmp_path)
    ends = [plans.window(index).end for index in range(3)]
    fresh = make_plans(tmp_path / "fresh")
    assert [fresh.window_of(number) for number in (0, ends[0] - 1, ends[0], ends[1], ends[2] - 1)] == [0, 0, 1, 2, 2]
    assert [path.name for path in sorted((tmp_path / "fresh").glob("*.npy"))] == ["window-000002.npy"]
    assert fresh.window(0).end == ends[0]


def test_files_are_used_again_and_made_again(tmp_path):
    plans = make_plans(tmp_path)
    rows = np.load(plans.window(1).path)
    before = plans.window(1).path.stat().st_mtime_ns
    assert make_plans(tmp_path).window(1).path.stat().st_mtime_ns == before
    plans.discard(1)
    assert not (tmp_path / "window-000001.npy").exists()
    np.testing.assert_array_equal(np.load(plans.window(1).path), rows)
    plans.discard(7)  # was never there


@pytest.mark.parametrize("content", [b"", b"{}", b'{"examples": [1], "random_next": [1]}', b"\xff", "cut"])
@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_damaged_files_are_made_again(tmp_path, caplog, suffix, content):
    path = make_plans(tmp_path).window(1).path.with_suffix(suffix)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] if content == "cut" else content)
    window = make_plans(tmp_path).window(1)
    assert path.read_bytes() == whole and window.end > window.first_example
    assert [record.getMessage() for record in caplog.records] == [f"{path} is damaged and is made again"]


def test_counts_need_no_plan(tmp_path):
    plans = make_plans(tmp_path)
    count = plans.count(2)
    plans.discard(0)
    assert make_plans(tmp_path).count(2) == count
    assert not list(tmp_path.glob("*.npy"))


def test_the_next_window_is_made_in_the_background(tmp_path):
    plans = make_plans(tmp_path)
    plans.prepare(1)
    deadline = time.monotonic() + 30
    while not (tmp_path / "window-000001.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    np.testing.assert_array_equal(np.load(plans.window(1).path), np.load(make_plans(tmp_path / "b").window(1).path))


def test_several_may_make_the_same_files(tmp_path):
    plans = [make_plans(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(len(plans)) as pool:
        windows = list(pool.map(lambda each: each.window(1), plans))
    expected = np.load(make_plans(tmp_path / "alone").window(1).path)
    assert all(np.array_equal(np.load(window.path), expected) for window in windows)
    assert not list(tmp_path.glob("*.tmp"))


def test_one_epoch_for_evaluation(tmp_path):
    assert make_plans(tmp_path, single_epoch=True).epochs_per_window == 1
    assert make_plans(tmp_path, num_tokens=3).epochs_per_window == 1024
    assert make_plans(tmp_path, num_tokens=10**9).epochs_per_window == 1


def test_stale_partial_files_are_removed(tmp_path):
    for name, age in (("old.tmp", 7200), ("new.tmp", 10)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    make_plans(tmp_path)
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["new.tmp"]


def test_long_epochs_are_streamed_to_the_file(tmp_path):
    streamed, grouped = make_plans(tmp_path / "a", num_tokens=10**9), make_plans(tmp_path / "b")
    assert (streamed.epochs_per_window, grouped.epochs_per_window) == (1, 4)
    for epoch, rows in enumerate(epochs_of(grouped.window(0))):
        np.testing.assert_array_equal(np.load(streamed.window(epoch).path), rows)


def test_rates_repeat_and_thin_corpora(tmp_path):
    corpora = [make_corpus(0, 400), make_corpus(1, 400, first_token=10**6)]
    natural = np.load(make_plans(tmp_path / "1", corpora, num_tokens=10**9).window(0).path)
    mixed = np.load(make_plans(tmp_path / "2", corpora, [0.25, 2.5], num_tokens=10**9).window(0).path)
    of_second = natural[:, 0] >= 10**6
    count = np.bincount(mixed[:, 0] >= 10**6)
    assert abs(count[0] / (~of_second).sum() - 0.25) < 0.03
    assert abs(count[1] / of_second.sum() - 2.5) < 0.06
    # The passes over a corpus are different ones.
    assert len(np.unique(mixed[:, :4], axis=0)) > 0.95 * len(mixed)
    kept = {tuple(row) for row in natural.tolist()}
    assert {tuple(row) for row in mixed[mixed[:, 0] < 10**6].tolist()} <= kept


def test_sampling_rates():
    assert sampling_rates([10, 90], 1.0) == [1.0, 1.0]
    equal = sampling_rates([10, 90], 0.0)
    np.testing.assert_allclose(equal, [5, 5 / 9])
    shares = np.array([10, 90]) / 100
    smoothed = np.array(sampling_rates([10, 90], 0.7)) * shares
    np.testing.assert_allclose(smoothed, shares**0.7 / (shares**0.7).sum())


def test_documents_are_held_out_by_their_hash():
    rng = np.random.default_rng(0)
    hashes = [rng.integers(0, 2**64, size, np.uint64) for size in (3000, 1, 2000)]
    train, held_out = (choose_documents(hashes, split, 0.02) for split in ("train", "eval"))
    assert sorted([*train, *held_out]) == list(range(5001)) and 60 < len(held_out) < 140
    assert (np.concatenate(hashes)[held_out] < 0.02 * 2**64).all()
    assert len(choose_documents(hashes, "all", 0.02)) == 5001
    # Documents of other shards do not matter.
    np.testing.assert_array_equal(choose_documents(hashes[:1], "eval", 0.02), held_out[held_out < 3000])


@pytest.mark.parametrize(
    ("hashes", "fraction", "held_out"),
    [
        ([2**63, 2**62, 2**63 + 5], 0.02, [1]),  # none by its hash: the smallest
        ([5, 2**62, 7], 0.9, [0, 2]),  # all by their hashes: the largest stays
        ([2**62, 2**62, 2**63], 0.02, [0, 1]),  # equal documents stay together
        ([2**62, 2**62], 0.02, []),
        ([2**62], 0.02, []),
        ([5], 0.02, []),
        ([5, 2**63], 0.0, []),
    ],
)
def test_small_corpora_keep_a_document_on_each_side(hashes, fraction, held_out):
    hashes = [np.array(hashes, np.uint64)]
    assert choose_documents(hashes, "eval", fraction).tolist() == held_out
    train = choose_documents(hashes, "train", fraction).tolist()
    assert train == [document for document in range(len(hashes[0])) if document not in held_out] and train


def test_each_setting_has_its_own_folder(tmp_path):
    folders = {plan_folder(tmp_path, data="a", seed=seed, settings={"length": n}) for seed in (0, 1) for n in (64, 128)}
    assert len(folders) == 4 and all(folder.parent == tmp_path for folder in folders)
