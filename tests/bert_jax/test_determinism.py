"""The same batches and the same losses however a run is cut: over devices, accumulation steps, starts."""

import shutil

import numpy as np
import pytest


@pytest.fixture(scope="module")
def wide(pretraining, tmp_path_factory):
    """A run of batches of 32, without dropout."""
    flags = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "num_train_steps": 8, "eval_batch_size": 8}
    run = pretraining(tmp_path_factory.mktemp("wide"), train_batch_size=32, **flags)
    assert run.here() == 0
    return run


def digests(batches):
    return [digest for batch in batches for digest in batch.values()]


def test_a_run_is_repeated_exactly_and_has_new_rows_in_every_batch(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    assert run.here(num_workers=4, save_checkpoints_steps=7) == 0
    assert run.batches == alone.batches
    assert run.losses() == alone.losses()
    assert run.results() == alone.results()
    assert len(set(digests(alone.batches[0][:150]))) == 8 * 150


def test_a_run_that_goes_on_gets_the_batches_that_are_left(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    run.copy_without_last_checkpoint(alone)
    assert run.here() == 0
    assert run.batches[0] == alone.batches[0][140:]
    ours, theirs = run.state(150), alone.state(150)
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_an_evaluation_that_a_stopped_run_did_not_end_is_made_up_for(pretraining, tmp_path, alone):
    run = pretraining(tmp_path, eval_every_steps=70)
    run.copy_without_last_checkpoint(alone)
    assert run.here() == 0
    evaluations = run.metrics("eval_metrics.jsonl")
    assert [line["step"] for line in evaluations] == [140, 150]
    assert run.results() == alone.results()
    shutil.rmtree(run.folder / "checkpoints" / "150")
    assert run.here() == 0
    assert run.metrics("eval_metrics.jsonl")[0] == evaluations[0]  # with the time of day when it was made


def test_the_batch_size_cuts_the_same_stream_of_examples(wide, alone):
    assert digests(wide.batches[0][:8]) == digests(alone.batches[0][:32])
    assert wide.batches[0][8:] == alone.batches[0][150:]


def test_accumulated_parts_of_a_batch_are_the_batch(pretraining, tmp_path, wide):
    run = pretraining(tmp_path, train_batch_size=32, gradient_accumulation_steps=4, eval_batch_size=8)
    assert run.here(hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_train_steps=8) == 0
    assert run.batches == wide.batches
    np.testing.assert_allclose(run.losses(), wide.losses(), atol=1e-5, rtol=0)


def test_eight_devices_get_the_batches_and_the_losses_of_one(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    assert run.elsewhere(devices=8, mesh="data=2,fsdp=2,tensor=2") == [0]
    assert run.batches == alone.batches
    np.testing.assert_allclose(run.losses(), alone.losses(), atol=1e-4, rtol=0)
    assert run.results() == pytest.approx(alone.results(), abs=1e-4)


def test_scanned_layers_on_eight_devices_have_the_losses_of_one(pretraining, corpus, tmp_path):
    flags = {"bert_config_file": corpus / "three_layers.json", "scan_layers": True, "evaluate_at_end": False}
    one, eight = (pretraining(tmp_path / name, num_train_steps=30, **flags) for name in ("one", "eight"))
    assert one.here() == 0
    assert eight.elsewhere(devices=8, mesh="data=4,tensor=2") == [0]
    np.testing.assert_allclose(eight.losses(), one.losses(), atol=1e-4, rtol=0)
