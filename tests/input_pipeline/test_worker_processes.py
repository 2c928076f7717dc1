import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from input_pipeline.worker_processes import AHEAD, available_cores, ordered_map


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_are_in_order(num_workers):
    assert list(ordered_map(partial(pow, 3), range(50), num_workers)) == [3**i for i in range(50)]
    assert list(ordered_map(abs, [], num_workers)) == []
    assert multiprocessing.active_children() == []


def test_items_are_taken_as_they_are_needed():
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    results = ordered_map(abs, items(), 2)
    for i in range(10):
        assert next(results) == i
    assert len(taken) <= 10 + AHEAD * 2
    results.close()
    assert multiprocessing.active_children() == []


def test_no_more_workers_than_items():
    results = ordered_map(abs, [1, 2], 10**9)
    assert next(results) == 1
    assert len(multiprocessing.active_children()) == 2
    results.close()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_first_failure_is_raised_at_its_place(num_workers):
    results = ordered_map(int, ["1", "2", "x", "3", "y"], num_workers)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="'x'"):
        next(results)
    assert multiprocessing.active_children() == []


def test_a_killed_worker_is_told():
    with pytest.raises(ChildProcessError, match="exit code 3"):
        list(ordered_map(os._exit, [3], 2))


def test_workers_import_nothing_of_the_program(tmp_path):
    script = tmp_path / "program.py"  # without `if __name__ == "__main__"`: a worker must not run it again
    script.write_text(
        "import json, sys, tensorflow\n"
        "from input_pipeline.worker_processes import ordered_map\n"
        "names = next(ordered_map(eval, ['list(__import__(\"sys\").modules)'], 2))\n"
        "print('tensorflow' in names, 'jax' in names, 'numpy' in names, 'input_pipeline.worker_processes' in names)\n"
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert result.stdout == "False False False True\n", result.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_program(tmp_path, number):
    script = tmp_path / "program.py"
    script.write_text(
        # What is started in the background inherits that SIGINT is ignored.
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from input_pipeline.worker_processes import ordered_map\n"
        "calls = ['__import__(\"os\").getpid()'] * 2 + ['__import__(\"time\").sleep(1)'] * 9\n"
        "for pid in ordered_map(eval, calls, 2):\n"
        "    print(pid, flush=True)\n"
    )
    program = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pids = [int(program.stdout.readline()) for _ in range(2)]
    program.send_signal(number)
    assert program.wait(20) != 0
    program.stdout.close()
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")  # a container may have nobody who collects dead orphans
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False


def test_available_cores():
    assert 1 <= available_cores() <= os.cpu_count()
