import os
import socket
import subprocess
import sys
import textwrap
import types

import jax
import pytest
from jax._src import distributed

from bert_jax import processes
from input_pipeline.errors import UserError

SCRIPT = textwrap.dedent(
    """
    import sys, time
    import jax
    from bert_jax import processes
    from input_pipeline.errors import UserError

    address, index = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, index)
    assert processes.is_first() == (index == 0)
    assert processes.from_first(lambda: {"made by": index, "text": "ä" * 5000}) == {"made by": 0, "text": "ä" * 5000}
    assert processes.from_first(lambda: None) is None

    def refuse():
        raise UserError(f"process {index} refuses")

    def break_down():
        raise OSError(f"process {index} breaks")

    for fail, kind in ((refuse, UserError), (break_down, UserError if index else OSError)):
        try:
            processes.from_first(fail)
        except kind as error:
            assert str(error).startswith("process 0"), error
        else:
            raise AssertionError("no error")

    class File:
        def __enter__(self):
            return "file of " + str(index)

        def __exit__(self, *_):
            raise UserError("full disk")

    for make, message in ((refuse, "process 0 refuses"), (File, "full disk")):
        try:
            with processes.on_first(make) as file:
                assert make is File and file == (None if index else "file of 0")
        except UserError as error:
            assert str(error) == message
        else:
            raise AssertionError("no error")

    assert processes.all_true(True)
    assert not processes.all_true(index == 0)
    assert not processes.posted("note")
    assert processes.all_true(True)  # both have looked
    if index == 1:
        processes.post("note")
    assert sorted(processes.counts("counted", 10 + index, 30)) == [10, 11]
    assert processes.posted("note")

    barrier = processes.Barrier("test")
    for number in range(3):
        time.sleep(0.2 * index)
        barrier(key="again", timeout_ms=30_000)
        processes.post(f"{index} passed {number}")
        barrier(key="after", timeout_ms=30_000)
        assert processes.posted(f"{1 - index} passed {number}")
    told = []
    processes.tell, processes.TELL_SECONDS = told.append, 0.2
    time.sleep(1.5 * index)
    barrier(key="slow", timeout_ms=30_000)
    assert [text.partition(";")[0] for text in told] == ["process 0 waits for another one to save"] * (1 - index)
    begin = time.monotonic()
    try:
        if index == 0:
            barrier(key="failing", timeout_ms=60_000)
        else:
            try:
                raise OSError("disk full")
            finally:
                barrier(key="elsewhere", timeout_ms=60_000)
    except RuntimeError as error:
        assert (index, str(error)) == (0, "another process failed")
    except OSError as error:
        assert (index, str(error)) == (1, "disk full")
    assert time.monotonic() - begin < 20
    try:
        processes.Barrier("late")(key=str(index), timeout_ms=500)
    except TimeoutError as error:
        assert str(error) == f"not all processes came to {index} within 0.5 s"
    else:
        raise AssertionError("no error")
    """
)


def test_one_process_asks_nobody():
    assert processes.is_first()
    assert processes.from_first(lambda: (1, 2)) == (1, 2)
    assert processes.all_true(True)
    assert not processes.all_true(False)
    with pytest.raises(UserError, match="refused"):
        processes.from_first(refuse)


def refuse():
    raise UserError("refused")


def test_that_nobody_can_be_told_ends_nothing(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        processes.say("a line")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        (types.SimpleNamespace(client=object(), process_id=0, num_processes=2), "key_value_set, .*, wait_at_barrier"),
        (types.SimpleNamespace(), "'types.SimpleNamespace' object has no attribute 'client'"),
        (None, "module 'jax._src.distributed' has no attribute 'global_state'"),
    ],
)
def test_a_jax_without_the_service_is_told(monkeypatch, state, gone):
    if state:
        monkeypatch.setattr(distributed, "global_state", state)
    else:
        monkeypatch.delattr(distributed, "global_state")
    with pytest.raises(UserError, match=rf"JAX {jax.__version__} cannot be used by several processes \({gone} is gone"):
        processes.service()


def test_two_processes_agree_and_fail_together():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    both = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, address, str(index)], stderr=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    ends = [(process.communicate(timeout=100)[1], process.returncode) for process in both]
    assert ends == [("", 0), ("", 0)]
