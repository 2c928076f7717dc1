"""Several processes train as one does, stop together, and end together when one of them is gone."""

import shutil
import signal

import numpy as np
import pytest

STEPS, SAVED = 150, 140


@pytest.fixture(scope="module")
def alone(pretraining, tmp_path_factory):
    """The run of one process."""
    run = pretraining(tmp_path_factory.mktemp("alone"), num_train_steps=STEPS, save_checkpoints_steps=SAVED)
    assert run.here() == 0
    return run


def assert_ends_like(run, alone):
    """The losses of all steps, each logged once, the evaluation and the last checkpoint are those of one process."""
    assert [line["step"] for line in run.metrics()] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(run.losses(), alone.losses(), rtol=1e-5)
    assert [line["step"] for line in run.metrics("eval_metrics.jsonl")] == [STEPS]
    assert run.results() == pytest.approx(alone.results(), rel=1e-5)
    assert (run.folder / "report.html").exists()
    ours, theirs = run.state(STEPS), alone.state(STEPS)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5, err_msg=name)


def test_a_signal_to_one_of_two_processes_stops_both_and_one_goes_on(pretraining, tmp_path, alone):
    run = pretraining(tmp_path, num_train_steps=STEPS, save_checkpoints_steps=1000)
    (first, said), (second, _) = run.elsewhere(2, send=(signal.SIGTERM, 1, 20))
    assert (first, second) == (75, 75), said
    assert "stopped by a signal to another process at step" in said
    [step] = run.steps_saved()
    assert 20 <= step < STEPS and len(run.metrics()) == step
    halves = run.batches
    assert len(halves[0]) == len(halves[1]) == step
    for first_rows, second_rows, rows in zip(*halves, alone.batches[0]):
        assert list(first_rows) == list("0123") and list(second_rows) == list("4567")
        assert first_rows | second_rows == rows
    assert run.here() == 0
    assert run.batches[0] == alone.batches[0][step:]
    assert_ends_like(run, alone)


def test_two_processes_that_share_every_row_go_on_with_what_one_saved(pretraining, tmp_path, alone):
    run = pretraining(tmp_path, num_train_steps=STEPS, save_checkpoints_steps=1000)
    shutil.copytree(alone.folder, run.folder)
    shutil.rmtree(run.folder / "checkpoints" / str(STEPS))
    assert [code for code, _ in run.elsewhere(2, mesh="data=1,tensor=2")] == [0, 0]
    assert run.batches == [alone.batches[0][SAVED:]] * 2
    assert_ends_like(run, alone)
    assert run.steps_saved() == [SAVED, STEPS]


def test_a_process_that_is_killed_takes_the_other_with_it(pretraining, tmp_path, alone):
    run = pretraining(tmp_path, num_train_steps=STEPS, save_checkpoints_steps=20)
    (first, said), (second, _) = run.elsewhere(2, send=(signal.SIGKILL, 1, 50))
    assert (first, second) == (1, -signal.SIGKILL), said  # and not after minutes, with a code of JAX's runtime
    assert run.steps_saved() == [20, 40]
    assert run.here() == 0
    assert_ends_like(run, alone)


def test_processes_with_different_flags_are_refused(pretraining, tmp_path):
    run = pretraining(tmp_path, num_train_steps=STEPS)
    ends = run.elsewhere(2, own=[{}, {"seed": 7}])
    assert [code for code, _ in ends] == [2, 2]
    assert "--seed is 7 for process 1, but 12345 for process 0" in ends[1][1]
    assert not run.folder.exists()
