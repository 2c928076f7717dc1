"""`map` over worker processes: results in order, bounded memory, no process left behind.

`concurrent.futures` has no bound on what waits, and its workers outlive a parent that was killed. Here each worker has
a pipe of its own to the parent: when the parent ends in whatever way, the pipe ends, and so does the worker.
"""

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

AHEAD = 3  # items a worker, in work or waiting for an earlier one: what bounds the memory


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[Any], Any], items: Iterable[Any], num_workers: int) -> Iterator[Any]:
    """Yields `function(item)` for each item, in order, computed by `num_workers` processes (by this one if it is 1).

    There are no more processes than items.

    The workers are new Python processes that import only what `function` needs, not the program's main module, so it
    does not matter what this process has imported or which threads it runs. `function`, items and results must be
    picklable.

    Raises:
      Exception: what `function` raised, at the place of the first item that it failed for.
      ChildProcessError: when a worker was killed.
    """
    if num_workers == 1:
        yield from map(function, items)
        return
    items = iter(items)
    first = list(itertools.islice(items, num_workers))
    num_workers = len(first)
    numbered = enumerate(itertools.chain(first, items))
    del first  # what the chain has passed on need not stay in memory
    context = multiprocessing.get_context("spawn")
    workers: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess] = {}
    try:
        idle = []
        with _no_main_module():
            for _ in range(num_workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                workers[ours] = process
                idle.append(ours)
        code = pickle.dumps(function)
        for connection in idle:
            _send(connection, code, workers)
        results: dict[int, Any] = {}
        busy: dict[multiprocessing.connection.Connection, int] = {}
        exhausted = False
        wanted = 0
        while True:
            while idle and not exhausted and len(busy) + len(results) < AHEAD * num_workers:
                entry = next(numbered, None)
                if entry is None:
                    exhausted = True
                    break
                number, item = entry
                connection = idle.pop()
                _send(connection, pickle.dumps(item), workers)
                busy[connection] = number
            if not busy:
                return
            for connection in multiprocessing.connection.wait(list(busy)):
                results[busy.pop(connection)] = _receive(connection, workers)
                idle.append(connection)
            while wanted in results:
                value, error, trace = results.pop(wanted)
                if error is not None:
                    error.add_note(f"in a worker process:\n{trace}")
                    raise error
                yield value
                wanted += 1
    finally:
        for connection, process in workers.items():
            connection.close()
            process.terminate()
        for process in workers.values():
            process.join()


def _work(connection: multiprocessing.connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    with contextlib.suppress(EOFError, ConnectionError):
        function = pickle.loads(connection.recv_bytes())
        while True:
            item = pickle.loads(connection.recv_bytes())
            try:
                result = (function(item), None, None)
            except Exception as error:
                result = (None, error, traceback.format_exc())
            connection.send(result)


def _send(connection, data: bytes, workers) -> None:
    try:
        connection.send_bytes(data)
    except (BrokenPipeError, ConnectionError):
        raise _killed(workers[connection]) from None


def _receive(connection, workers) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        raise _killed(workers[connection]) from None


def _killed(process) -> ChildProcessError:
    process.join(5)
    code = process.exitcode
    return ChildProcessError(f"a worker process ended with exit code {code} (-9: killed, mostly for want of memory)")


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Lets processes start as if there were no main module, which each of them would import again otherwise."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
