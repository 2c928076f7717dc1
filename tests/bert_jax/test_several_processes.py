"""Several processes train as one does, stop together, and end together when one of them is gone."""

import signal

import numpy as np
import pytest

SHORT = {"num_train_steps": 40, "save_checkpoints_steps": 20}


@pytest.fixture(scope="module")
def pair(pretraining, tmp_path_factory):
    """A short run of two processes that nothing interrupts."""
    run = pretraining(tmp_path_factory.mktemp("pair"), **SHORT)
    assert run.elsewhere(2) == [0, 0]
    return run


def assert_ends_like(run, alone):
    """The losses of all steps, each logged once, the evaluation and the last checkpoint are those of one process."""
    assert [line["step"] for line in run.metrics()] == list(range(1, 151))
    np.testing.assert_allclose(run.losses(), alone.losses(), rtol=1e-5)
    assert [line["step"] for line in run.metrics("eval_metrics.jsonl")] == [150]
    assert run.results() == pytest.approx(alone.results(), rel=1e-5)
    assert (run.folder / "report.html").exists()
    ours, theirs = run.state(150), alone.state(150)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5, err_msg=name)


def test_a_signal_to_one_of_two_processes_stops_both_and_one_goes_on(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    assert run.elsewhere(2, devices=2, send=(signal.SIGTERM, 1, 20)) == [75, 75]
    assert "stopped by a signal to another process at step" in run.errors[0]
    [step] = run.steps_saved()
    assert 20 <= step < 140 and len(run.metrics()) == step
    first, second = run.batches
    assert len(first) == len(second) == step
    for first_rows, second_rows, rows in zip(first, second, alone.batches[0]):
        assert list(first_rows) == list("0145") and list(second_rows) == list("2367")
        assert first_rows | second_rows == rows
    assert run.here() == 0
    assert run.batches[0] == alone.batches[0][step:]
    assert_ends_like(run, alone)


def test_two_processes_that_share_every_row_go_on_with_what_one_saved(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    run.copy_without_last_checkpoint(alone)
    assert run.elsewhere(2, mesh="data=1,tensor=2") == [0, 0]
    assert run.batches == [alone.batches[0][140:]] * 2
    assert_ends_like(run, alone)
    assert run.steps_saved() == [140, 150]


def test_what_one_process_saved_four_go_on_with_and_then_two(pretraining, tmp_path, alone):
    run = pretraining(tmp_path)
    run.copy_without_last_checkpoint(alone)
    assert run.elsewhere(4, mesh="data=2,sequence=2", send=(signal.SIGTERM, 2, 3)) == [75] * 4
    # Two by two they share rows, of which each has half the length.
    rows = [{number for batch in batches for number in batch} for batches in run.batches]
    assert rows == [set("0123"), set("0123"), set("4567"), set("4567")]
    first, step = run.steps_saved()
    assert first == 140 and 143 <= step < 150
    assert run.elsewhere(2) == [0, 0]
    assert run.steps_saved() == [140, step, 150]
    assert_ends_like(run, alone)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_takes_the_other_with_it_and_nothing_is_lost(pretraining, tmp_path, pair, killed):
    run = pretraining(tmp_path, **SHORT)
    codes = run.elsewhere(2, send=(signal.SIGKILL, killed, 30))
    assert run.seconds_after_signal < 60
    assert codes[killed] == -signal.SIGKILL
    # Without the first process, where all coordinate, JAX's runtime may be quicker to end the other than we are.
    if killed or codes[1] != -signal.SIGABRT:
        assert codes[1 - killed] == 1
        told = f"error: process {1 - killed} lost contact with another one"
        (line,) = (line for line in run.errors[1 - killed].splitlines() if line.startswith(told))
        assert line.count("Gloo") == 1
    assert run.steps_saved() == [20]
    assert run.elsewhere(2) == [0, 0]
    assert run.losses() == pair.losses() and run.results() == pair.results()
    ours, theirs = run.state(40), pair.state(40)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_two_processes_begin_with_the_weights_of_a_run(pretraining, tmp_path, pair):
    new = {"init_checkpoint": pair.folder, "num_train_steps": 3, "save_checkpoints_steps": 3}
    together, single = (pretraining(tmp_path / name, **new) for name in ("together", "single"))
    assert together.elsewhere(2) == [0, 0] and single.elsewhere() == [0]
    np.testing.assert_allclose(together.losses(), single.losses(), rtol=1e-5)
    assert together.losses()[0] < pair.losses()[0] - 0.2  # what was learned is there


def test_processes_with_different_flags_are_refused(pretraining, tmp_path):
    run = pretraining(tmp_path)
    assert run.elsewhere(2, own=[{}, {"seed": 7}]) == [2, 2]
    assert "--seed is 7 for process 1, but 12345 for process 0" in run.errors[1]
    assert not run.folder.exists()
