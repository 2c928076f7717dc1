import hashlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from input_pipeline import pair_plan
from input_pipeline.errors import UserError
from input_pipeline.pretraining_data import PretrainingDataConfig, open_stores, open_tfrecords
from input_pipeline.tfrecords import write_tfrecords

CONFIG = PretrainingDataConfig(max_seq_length=32, max_predictions_per_seq=5, seed=3)


def digest(batch):
    return hashlib.sha256(b"".join(batch[name].tobytes() for name in sorted(batch))).hexdigest()


def digests(data, batch_size, start, number, **kwargs):
    with data.batches(batch_size, start, number, **kwargs) as batches:
        return [digest(batch) for batch in batches]


def rows_of(data, batch_size, start, number, **kwargs):
    """All batches put together."""
    with data.batches(batch_size, start, number, **kwargs) as batches:
        batches = list(batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(pair_plan, "_WINDOW_EXAMPLES", 150)  # so that a few steps cross several windows


@pytest.fixture
def data(make_store, make_documents, tmp_path, small_windows):
    """About 130 examples an epoch in 4 shards, two epochs a window."""
    store = make_store(make_documents(30), vocab_size=3300, shard_tokens=1000)
    assert len(store.tokens) == 4
    return open_stores([store], "train", CONFIG, tmp_path / "cache")


def test_a_step_has_the_same_batch_wherever_a_run_starts(data, tmp_path):
    whole = digests(data, 16, 0, 60)
    assert len(set(whole)) == 60
    assert digests(data, 16, 0, 60) == whole
    for start in (1, 17, 45):
        assert digests(data, 16, start, 60 - start) == whole[start:]
    # A new cache, as on another machine.
    other = open_stores(data._source.stores, "train", CONFIG, tmp_path / "other")
    assert digests(other, 16, 33, 5) == whole[33:38]


def test_threads_change_nothing(data):
    assert digests(data, 8, 3, 40, num_threads=1) == digests(data, 8, 3, 40, num_threads=4)


def test_hosts_get_the_rows_of_the_same_batch(data):
    whole = rows_of(data, 12, 5, 20)
    for parts in (2, 3):
        size = 12 // parts
        shares = [rows_of(data, 12, 5, 20, rows=range(i, 12, parts)) for i in range(parts)]
        for name, value in whole.items():
            pieces = [share[name].reshape(20, size, *value.shape[1:]) for share in shares]
            np.testing.assert_array_equal(np.stack(pieces, axis=2).reshape(value.shape), value)


def test_the_batch_size_only_cuts_the_stream_of_examples(data):
    large = rows_of(data, 400, 0, 1)  # several epochs in one batch
    small = rows_of(data, 8, 0, 50)
    for name, value in large.items():
        np.testing.assert_array_equal(small[name], value)


def test_an_epoch_has_each_pair_once_and_epochs_differ(data):
    sizes = [data.num_examples(epoch) for epoch in range(5)]
    assert len(set(sizes)) > 1 and min(sizes) > 100 and max(sizes) < 150
    start = 0
    texts = []
    for epoch, size in enumerate(sizes):
        batch = rows_of(data, 1, start, size)
        start += size
        labels = batch["input_ids"].copy()
        np.put_along_axis(
            labels,
            batch["masked_lm_positions"],
            np.where(batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], 2),
            axis=1,
        )
        texts.append({row.tobytes() for row in labels})
        assert len(texts[-1]) == size
        assert abs(batch["next_sentence_labels"].mean() - data.label_shares(epoch)["random_next"]) < 1e-6
    assert len(texts[0] & texts[1]) < sizes[0] / 2


def test_file_order(data, make_store, make_documents, tmp_path):
    config = PretrainingDataConfig(max_seq_length=32, shuffle=False, eval_fraction=0.0)
    plain = open_stores(data._source.stores, "all", config, tmp_path / "cache")
    first = rows_of(plain, 1, 0, plain.num_examples())
    # Tokens are numbered in the order of the text: the first unmasked word of A rises from example to example.
    original = np.where(first["masked_lm_weights"] > 0, first["masked_lm_ids"], 0)
    ids = first["input_ids"].copy()
    ids[np.arange(len(ids))[:, None], first["masked_lm_positions"]] = original
    assert (np.diff(ids[:, 1]) > 0).all()


def test_seeds_and_masks(data, tmp_path):
    other = open_stores(
        data._source.stores,
        "train",
        PretrainingDataConfig(max_seq_length=32, max_predictions_per_seq=5, seed=4),
        tmp_path / "cache",
    )
    assert not set(digests(data, 16, 0, 20)) & set(digests(other, 16, 0, 20))


def test_evaluation_sees_each_example_once_and_never_changes(data, tmp_path):
    held_out = open_stores(data._source.stores, "eval", CONFIG, tmp_path / "cache")
    number = held_out.num_eval_examples()
    assert number == held_out.num_examples() > 0 and held_out.num_eval_batches(4) == -(-number // 4)
    batches = list(held_out.eval_batches(4))
    assert len(batches) == held_out.num_eval_batches(4)
    assert sum(batch["example_weights"].sum() for batch in batches) == number
    assert all(len(batch["input_ids"]) == 4 for batch in batches)
    other_seed = PretrainingDataConfig(max_seq_length=32, max_predictions_per_seq=5, seed=99, shuffle=False)
    again = open_stores(data._source.stores, "eval", other_seed, tmp_path / "cache")
    assert [digest(batch) for batch in again.eval_batches(4)] == [digest(batch) for batch in batches]
    halves = [list(held_out.eval_batches(4, rows=[i, i + 1])) for i in (0, 2)]
    for batch, first, second in zip(batches, *halves):
        for name in batch:
            np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), batch[name])


def test_old_plans_are_removed(data, tmp_path):
    digests(data, 16, 0, 100)
    plans = list((tmp_path / "cache").glob("pair-plan-*/window-*.npy"))
    assert 0 < len(plans) <= 3
    assert data._source._plans.window_of(1599) >= 5


def test_fewer_examples_than_a_batch(make_store, tmp_path):
    store = make_store([[[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14]]])
    data = open_stores(
        [store], "train", PretrainingDataConfig(max_seq_length=16, eval_fraction=0.0), tmp_path / "cache"
    )
    assert data.num_examples() < 5
    batch = rows_of(data, 64, 1, 1)
    assert len(batch["input_ids"]) == 64 and len(np.unique(batch["input_ids"], axis=0)) > 10
    assert (batch["example_weights"] == 1).all()


def test_no_example_at_all(make_store, tmp_path):
    data = open_stores([make_store([[[5]]])], "train", CONFIG, tmp_path / "cache")
    with pytest.raises(UserError, match="no example"):
        data.batches(4, 0, 1)
    held_out = open_stores([data._source.stores[0]], "eval", CONFIG, tmp_path / "cache")
    assert held_out.num_eval_batches(4) == 0
    with pytest.raises(UserError, match="no example"):
        held_out.eval_batches(4)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"max_seq_length": 4}, "--max_seq_length is 4, it must be between 5"),
        ({"max_seq_length": 3, "next_sentence_prediction": False}, "--max_seq_length is 3, it must be between 4"),
        ({"max_seq_length": 2**16 + 1}, "--max_seq_length"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq"),
        ({"masked_lm_prob": 0.0}, "--masked_lm_prob"),
        ({"masked_lm_prob": 15.0}, "--masked_lm_prob"),
        ({"masking_split": (0.8, 0.1)}, "--masking_split"),
        ({"masking_split": (0.8, 0.1, 0.2)}, "--masking_split"),
        ({"masking_split": (1.2, -0.1, -0.1)}, "--masking_split"),
        ({"short_seq_prob": -0.1}, "--short_seq_prob"),
        ({"sampling_exponent": 2.0}, "--sampling_exponent"),
        ({"eval_fraction": 1.0}, "--eval_fraction"),
        ({"masked_lm_prob": float("nan")}, "--masked_lm_prob"),
    ],
)
def test_bad_settings_name_their_flag(changes, flag):
    with pytest.raises(UserError, match=flag):
        PretrainingDataConfig(**changes)


def test_settings_at_the_edge():
    PretrainingDataConfig(max_seq_length=5, max_predictions_per_seq=5)
    PretrainingDataConfig(max_seq_length=4, max_predictions_per_seq=1, next_sentence_prediction=False)
    PretrainingDataConfig(masking_split=(0.0, 0.0, 1.0), masked_lm_prob=1.0, short_seq_prob=1.0, sampling_exponent=0.0)


def test_records_are_read_through_the_same_calls(data, tmp_path):
    source = rows_of(data, 10, 0, 1)
    examples = [{name: value[i] for name, value in source.items() if name != "example_weights"} for i in range(10)]
    write_tfrecords(tmp_path / "a.tfrecord", examples)
    config = PretrainingDataConfig(max_seq_length=32, max_predictions_per_seq=5, shuffle=False)
    records = open_tfrecords([str(tmp_path / "a.tfrecord")], config, 3300, tmp_path / "cache")
    assert records.num_examples() == 10
    found = rows_of(records, 4, 0, 5)  # two epochs
    for name, value in source.items():
        np.testing.assert_array_equal(found[name], np.concatenate([value, value]))
        assert found[name].dtype == value.dtype
    assert digests(records, 4, 2, 3) == digests(records, 4, 0, 5)[2:]
    assert [batch["example_weights"].sum() for batch in records.eval_batches(4)] == [4, 4, 2]


EXIT = """
import sys, time
from input_pipeline.pretraining_data import PretrainingDataConfig, open_stores
from input_pipeline.token_store import TokenStore
data = open_stores([TokenStore.open(sys.argv[1])], "train", PretrainingDataConfig(max_seq_length=32), sys.argv[2])
batches = data.batches(256, 0, 10**6)
for _ in range(5):
    next(batches)
print(time.time())
"""


def test_a_process_may_end_in_the_middle(data, tmp_path):
    arguments = [sys.executable, "-c", EXIT, data._source.stores[0].folder, str(tmp_path / "exit")]
    run = subprocess.run(
        arguments, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert run.returncode == 0 and run.stderr == ""
    assert time.time() - float(run.stdout) < 5  # about half a second on a quiet machine


def test_masking_statistics_are_those_of_the_reference(shared, tmp_path):
    from input_pipeline.token_store import TokenStoreWriter
    from input_pipeline.tokenization import load_tokenizer

    golden = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["statistics"]
    for number, case in enumerate(golden):
        name = "data/sample_text/sample_text.txt" if case["corpus"] == "sample_text" else f"golden/{case['corpus']}"
        tokenizer = load_tokenizer(str(shared / "data" / "vocab" / case["vocab"] / "vocab.txt"), case["do_lower_case"])
        documents = [part.split("\n") for part in (shared / name).read_text().split("\n\n")]
        with TokenStoreWriter(tmp_path / f"store{number}", tokenizer, [{"path": name}]) as writer:
            for document in documents:
                writer.add(tokenizer.encode_batch(document))
            store = writer.close()
        config = PretrainingDataConfig(
            max_seq_length=case["max_seq_length"],
            max_predictions_per_seq=case["max_predictions_per_seq"],
            masked_lm_prob=case["masked_lm_prob"],
            short_seq_prob=case["short_seq_prob"],
            whole_word_masking=case["whole_word_mask"],
        )
        data = open_stores([store], "all", config, tmp_path / "cache")
        batch_size = int(case["statistics"]["n_instances"]["mean"])
        batch = rows_of(data, batch_size, 0, 16)
        used = batch["masked_lm_weights"] > 0
        labels = batch["masked_lm_ids"]
        shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)
        is_mask, is_kept = (shown == tokenizer.mask_id) & used, (shown == labels) & used
        found = {
            "mean_masked": used.sum() / len(used),
            "share_masked_of_tokens": used.sum() / batch["input_mask"].sum(),
            "share_mask_token": is_mask.sum() / used.sum(),
            "share_kept": is_kept.sum() / used.sum(),
            "share_random_token": (used & ~is_mask & ~is_kept).sum() / used.sum(),
            "share_continuation_pieces_of_masked": tokenizer.is_continuation[labels[used]].mean(),
            "special_tokens_masked": np.isin(labels[used], list(tokenizer.special_ids - {tokenizer.unk_id})).sum(),
        }
        for statistic, value in found.items():
            expected = case["statistics"][statistic]
            tolerance = expected["tolerance_mean_of_16_runs"] + (0.002 if statistic.startswith("share") else 0)
            assert abs(value - expected["mean"]) <= tolerance, (case["corpus"], statistic, value, expected["mean"])
