"""SIGTERM and SIGINT end a run at a step where everything can be saved, the same one on all processes.

A signal only leaves a note. The loop asks for it between steps and between batches of an evaluation, saves, and ends
with exit code 75 (EX_TEMPFAIL of sysexits.h: the same command, given again, goes on). Long calls that know no steps,
such as a compilation, are left at once.

With several processes a signal may reach only one of them, and at different steps. Processes that stop at different
steps wait for each other for ever, so they agree: each counts how often it was asked, publishes its count while it asks
no further, and all stop at the first count that none has passed. JAX's own preemption sync point works like this too,
but it knows SIGTERM only, and nothing but steps.
"""

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from bert_jax import processes

EXIT_CODE = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT)

# How long a process waits for the others to tell their counts.
AGREEMENT_SECONDS = 120.0

_T = TypeVar("_T")
_instances = itertools.count()


class Interrupted(Exception):
    """The run was asked to stop and has saved what there was to save."""

    exit_code = EXIT_CODE

    def __init__(self, message: str, *, work_goes_on: bool = False):
        super().__init__(message)
        self._work_goes_on = work_goes_on

    def leave(self) -> int:
        """Returns the exit code for sys.exit, unless an abandoned call still runs: then ends the process here and now.

        A thread inside a compiler survives until the interpreter tears its libraries down, and crashes then.
        """
        if self._work_goes_on:
            sys.stdout.flush()
            sys.stderr.flush()
            with contextlib.suppress(Exception):
                jax.distributed.shutdown()  # the other processes take a silent end for a crash
            os._exit(self.exit_code)
        return self.exit_code


class Interruption:
    """Catches SIGTERM and SIGINT while it is entered; once is enough for a program.

    Enter it in the main thread, after jax.distributed.initialize (which installs a SIGTERM handler of its own). All
    processes must make the same calls of `requested` and `run_interruptibly` in the same order.

        with Interruption(step) as interruption:
            step_function = interruption.run_interruptibly(compile)
            while step < num_train_steps and not interruption.requested(step):
                ...
            save(step)
            if step < num_train_steps:
                raise interruption.exception(step)

    Args:
        step: number of updates done before, for messages only.
    """

    def __init__(self, step: int = 0):
        self._received: str | None = None
        self._step = step
        self._stepping = False
        self._count = 0
        self._stop_at: int | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._alone = not jax.distributed.is_initialized()
        self._topic = f"stop/{next(_instances)}"

    def __enter__(self) -> "Interruption":
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        if not self._alone:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._over.set()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if isinstance(error, Interrupted):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an impatient second signal must not change the exit code

    def requested(self, step: int) -> bool:
        """Whether to stop before the next step; once True it stays True.

        Args:
            step: number of updates done, for messages only.
        """
        self._step = step
        self._stepping = True
        return self._counted()

    def exception(self, step: int, *, work_goes_on: bool = False) -> Interrupted:
        """What to raise when the state of `step` is saved."""
        return Interrupted(
            f"stopped by {self._received or 'a signal to another process'} at step {step}; the same command goes on "
            "from there",
            work_goes_on=work_goes_on,
        )

    def run_interruptibly(self, call: Callable[[], _T]) -> _T:
        """Returns `call()`, made in a thread of its own so that a signal can be obeyed before it returns.

        What JAX keeps by thread (jax.set_mesh, jax.default_matmul_precision as a context, ...) must be entered inside
        `call`. With several processes, all leave `call`, or none when one of them is past it.

        Raises:
            Interrupted: a stop was requested before, during or right after the call. Nothing is saved here.
        """
        if self._counted():
            raise self.exception(self._step)
        outcome: dict[str, Any] = {}

        def work():
            try:
                outcome["value"] = call()
            except BaseException as error:
                outcome["error"] = error

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.1)
            if self._stops_at_next_count():
                break
        if self._counted():
            raise self.exception(self._step, work_goes_on=worker.is_alive())
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]

    def _note(self, number: int, frame: Any) -> None:
        # Only what is safe in the middle of any other statement: no locks, no buffered output.
        name = signal.Signals(number).name
        if self._received is None:
            self._received = name
            how = (
                "after this step, with everything saved" if self._stepping else "before the first step, nothing is lost"
            )
            message = f"\n{name}: stopping {how}\n"
        else:
            message = f"\n{name}: already stopping (SIGKILL ends it at once, at the last complete checkpoint)\n"
        with contextlib.suppress(OSError):
            os.write(2, message.encode())

    def _counted(self) -> bool:
        with self._lock:
            stop = self._stops_at_next_count()
            self._count += 1
        return stop

    def _stops_at_next_count(self) -> bool:
        if self._alone:
            return self._received is not None
        return self._stop_at is not None and self._count + 1 >= self._stop_at

    def _watch(self) -> None:
        """Waits for a signal to any process, then finds the count at which all stop."""
        while self._received is None and not processes.posted(self._topic):
            if self._over.wait(processes.POLL_SECONDS):
                return
        with self._lock:
            try:
                processes.post(self._topic)
                self._stop_at = max(processes.counts(f"{self._topic}/counts", self._count, AGREEMENT_SECONDS)) + 1
            except jax.errors.JaxRuntimeError:  # a process is gone: there is nobody left to wait for
                self._stop_at = 0
