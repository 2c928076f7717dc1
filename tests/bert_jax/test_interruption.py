import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_jax.interruption import EXIT_CODE, Interrupted, Interruption
from input_pipeline.errors import UserError

SMALL_RUN = Path(__file__).with_name("small_run.py")


class Run:
    """small_run.py in a process of its own, or in several that train together."""

    def __init__(self, folder, num_steps=300, slow="", num_processes=1):
        command = [
            sys.executable,
            "-W",
            "error",
            SMALL_RUN,
            folder / "run",
            str(num_steps),
            folder / "result.npy",
            slow,
        ]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        if num_processes > 1:
            with socket.socket() as probe:
                probe.bind(("localhost", 0))
                command += [f"localhost:{probe.getsockname()[1]}", str(num_processes)]
        self.processes = [
            subprocess.Popen(
                [*command, str(index)] if num_processes > 1 else command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(num_processes)
        ]

    def wait_for(self, line):
        """Reads what the first process prints until `line`; returns that and all before it."""
        lines = [self.processes[0].stdout.readline().rstrip("\n")]
        while not lines[-1].startswith(line):
            assert lines[-1], (lines, self.processes[0].stderr.read())
            lines.append(self.processes[0].stdout.readline().rstrip("\n"))
        return lines

    def signal(self, number, index=0):
        self.processes[index].send_signal(number)

    def end(self):
        """Waits, and returns for each process its exit code, its last line and what it wrote to stderr."""
        ends = [process.communicate(timeout=120) for process in self.processes]
        return [
            (process.returncode, (output.splitlines() or [""])[-1], errors)
            for process, (output, errors) in zip(self.processes, ends)
        ]


def checkpoints(folder):
    return sorted(int(name) for name in os.listdir(folder / "run" / "checkpoints"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The parameters that `Run` ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert Run(folder).end() == [(0, "step 300", "")]
    assert checkpoints(folder) == [295, 300]
    return np.load(folder / "result.npy")


def test_a_run_stopped_and_killed_at_any_moment_ends_as_if_it_had_not_been(tmp_path, uninterrupted):
    dice = random.Random(0)
    codes = []
    for number in [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM]:
        run = Run(tmp_path)
        run.wait_for("step")
        time.sleep(dice.uniform(0, 0.2))
        run.signal(number)
        codes.append(run.end()[0][0])
    assert codes == [EXIT_CODE, -signal.SIGKILL, EXIT_CODE, -signal.SIGKILL, EXIT_CODE]
    assert Run(tmp_path).end() == [(0, "step 300", "")]
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), uninterrupted)
    assert Run(tmp_path).end() == [(0, "already at step 300 of 300, nothing to do", "")]


def test_a_stop_saves_the_last_step_and_a_second_signal_changes_nothing(tmp_path):
    run = Run(tmp_path, num_steps=100_000)
    run.wait_for("step 7")
    run.signal(signal.SIGTERM)
    time.sleep(0.005)
    run.signal(signal.SIGTERM)
    [(code, line, errors)] = run.end()
    step = checkpoints(tmp_path)[-1]
    assert step >= 7
    assert (code, line) == (75, f"stopped by SIGTERM at step {step}; the same command goes on from there")
    assert errors.startswith("\nSIGTERM: stopping after this step, with everything saved\n")
    run = Run(tmp_path, num_steps=100_000)
    assert run.wait_for("step")[-2:] == [f"resuming at step {step} of 100000", f"step {step + 1}"]
    run.signal(signal.SIGKILL)
    run.end()


def test_a_stop_during_evaluation_saves_the_step_before_it(tmp_path):
    run = Run(tmp_path, slow="eval")
    run.wait_for("evaluating")
    run.signal(signal.SIGTERM)
    assert run.end()[0][:2] == (75, "stopped by SIGTERM at step 7; the same command goes on from there")
    assert checkpoints(tmp_path) == [5, 7]


def test_a_stop_during_compilation_does_not_wait_for_its_end(tmp_path):
    run = Run(tmp_path, slow="compile")
    run.wait_for("compiling")
    run.signal(signal.SIGINT)
    begin = time.monotonic()
    code, line, errors = run.end()[0]
    assert (code, line) == (75, "stopped by SIGINT at step 0; the same command goes on from there")
    assert errors == "\nSIGINT: stopping before the first step, nothing is lost\n"
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("slow", ["", "eval", "compile"])
def test_a_signal_to_one_of_two_processes_stops_both_at_the_same_step(tmp_path, slow):
    run = Run(tmp_path, num_steps=100_000, slow=slow, num_processes=2)
    run.wait_for({"": "step 3", "eval": "evaluating", "compile": "compiling"}[slow])
    run.signal(signal.SIGTERM, index=1)
    first, second = run.end()
    assert (first[0], second[0]) == (75, 75)
    assert second[1].startswith("stopped by SIGTERM at step ")
    assert first[1] == second[1].replace("SIGTERM", "a signal to another process")
    step = int(second[1].split()[5].rstrip(";"))
    if slow == "compile":
        assert step == 0
    else:
        assert checkpoints(tmp_path)[-1] == step
    if slow == "eval":
        assert step == 7


def test_two_processes_end_as_one_does_also_when_stopped_and_continued_by_one(tmp_path, uninterrupted):
    run = Run(tmp_path, num_processes=2)
    run.wait_for("step 20")
    run.signal(signal.SIGTERM)
    assert [end[0] for end in run.end()] == [75, 75]
    assert Run(tmp_path).end()[0][:2] == (0, "step 300")
    # Gradients are summed in another order.
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), uninterrupted, atol=1e-6)


def test_handlers_are_only_there_inside():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interruption() as interruption:
        assert not interruption.requested(0)
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested(1)
        assert interruption.requested(1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_results_and_errors_of_long_calls_come_through():
    def fail():
        raise UserError("no such file")

    with Interruption() as interruption:
        assert interruption.run_interruptibly(lambda: 7) == 7
        with pytest.raises(UserError, match="no such file"):
            interruption.run_interruptibly(fail)


def test_a_long_call_is_not_begun_after_a_signal():
    with Interruption() as interruption:
        interruption.requested(3)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step 3; the same command") as error:
            interruption.run_interruptibly(pytest.fail)
    assert error.value.leave() == EXIT_CODE


def test_a_stop_before_the_first_step_names_the_step_that_the_run_began_at():
    with Interruption(step=8) as interruption:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step 8; the same command"):
            interruption.run_interruptibly(pytest.fail)


def test_on_the_way_out_further_signals_are_ignored():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(Interrupted), Interruption() as interruption:
            raise interruption.exception(0)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
