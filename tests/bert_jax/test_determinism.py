"""The same batches and the same losses however a run is cut: over devices, accumulation steps, starts."""

import numpy as np
import pytest

STEPS = 30
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


@pytest.fixture(scope="module")
def alone(pretraining, tmp_path_factory):
    """One device, with dropout; the evaluation at the end has four batches."""
    run = pretraining(tmp_path_factory.mktemp("alone"), num_train_steps=STEPS, save_checkpoints_steps=12)
    assert run.here() == 0
    return run


def test_a_run_is_repeated_exactly_and_has_new_rows_in_every_batch(pretraining, alone, tmp_path):
    again = pretraining(tmp_path, num_train_steps=STEPS, save_checkpoints_steps=100)
    assert again.here(num_workers=4) == 0
    assert again.batches == alone.batches
    assert again.losses() == alone.losses()
    assert again.results() == alone.results()
    digests = [digest for batch in alone.batches[0][:STEPS] for digest in batch.values()]
    assert len(digests) == 8 * STEPS == len(set(digests))


def test_eight_devices_get_the_batches_and_the_losses_of_one(pretraining, alone, tmp_path):
    run = pretraining(tmp_path, num_train_steps=STEPS, save_checkpoints_steps=12)
    run.elsewhere(devices=8, mesh="data=2,fsdp=2,tensor=2")
    assert run.batches == alone.batches
    np.testing.assert_allclose(run.losses(), alone.losses(), atol=1e-4, rtol=0)
    assert run.results() == pytest.approx(alone.results(), abs=1e-4)


def test_scanned_layers_on_eight_devices_have_the_losses_of_one(pretraining, corpus, tmp_path):
    flags = {"bert_config_file": corpus / "three_layers.json", "scan_layers": True, "evaluate_at_end": False}
    one, eight = (pretraining(tmp_path / name, num_train_steps=STEPS, **flags) for name in ("one", "eight"))
    assert one.here() == 0
    eight.elsewhere(devices=8, mesh="data=4,tensor=2")
    np.testing.assert_allclose(eight.losses(), one.losses(), atol=1e-4, rtol=0)


def test_accumulated_parts_of_a_batch_are_the_batch(pretraining, tmp_path):
    whole, parts = (
        pretraining(tmp_path / name, num_train_steps=10, train_batch_size=32, eval_fraction=0, **WITHOUT_DROPOUT)
        for name in ("whole", "parts")
    )
    assert whole.here() == 0
    assert parts.here(gradient_accumulation_steps=4) == 0
    assert parts.batches == whole.batches
    np.testing.assert_allclose(parts.losses(), whole.losses(), atol=1e-5, rtol=0)


def test_the_batch_size_cuts_the_same_stream_of_examples(pretraining, tmp_path, alone):
    run = pretraining(tmp_path, num_train_steps=STEPS // 4, train_batch_size=32, eval_batch_size=8)
    assert run.here() == 0
    ours, theirs = (
        [digest for batch in batches[0] for digest in batch.values()] for batches in (run.batches, alone.batches)
    )
    assert ours[: 32 * (STEPS // 4)] == theirs[: 32 * (STEPS // 4)]
    assert run.batches[0][STEPS // 4 :] == alone.batches[0][STEPS:]


def test_a_continued_run_gets_the_batches_that_are_left(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    assert run.here(num_train_steps=5, evaluate_at_end=False) == 0
    assert run.batches[0] == alone.batches[0][:5]
    assert run.here(num_train_steps=STEPS) == 0
    assert run.batches[0] == alone.batches[0][5:]
