"""What the processes of one program tell each other outside of device programs.

With one process nothing here touches a device or waits.
"""

import collections
import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from input_pipeline.errors import UserError

POLL_SECONDS = 1.0
TELL_SECONDS = 10.0

# What is used of the client of the coordination service.
_CALLS = ("key_value_set", "key_value_try_get", "key_value_dir_get", "key_value_delete", "wait_at_barrier")

# What the libraries say that carry something to other processes and find them gone.
_LOST = re.compile(
    "Gloo|Connection closed by peer|remote process exited|[Cc]oordination ?[Ss]ervice|coordination agent"
    "|DEADLINE_EXCEEDED|UNAVAILABLE"
)

_T = TypeVar("_T")


class _Service(NamedTuple):
    """The service by which the processes of a program coordinate, and the place of this one."""

    client: Any
    process_id: int
    num_processes: int


def service() -> _Service:
    """The coordination service, to which JAX (0.10) gives no public access; there must be several processes.

    Raises:
        UserError: this version of JAX does not have it where it was.
    """
    try:
        from jax._src import distributed

        state = distributed.global_state
        found = _Service(state.client, state.process_id, state.num_processes)
        missing = [name for name in _CALLS if not hasattr(found.client, name)]
    except (ImportError, AttributeError) as error:
        missing = [str(error)]
    if missing:
        raise UserError(
            f"JAX {jax.__version__} cannot be used by several processes ({', '.join(missing)} is gone): install "
            "'jax>=0.10.0,<0.11'"
        )
    return found


def is_first() -> bool:
    """Whether this process is the one that writes what only one may write."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def say(text: str) -> None:
    """One line for the user, on standard error, from one process only."""
    if is_first():
        tell(text)


def tell(text: str) -> None:
    """One line for the user, on standard error, from each process that calls this."""
    with contextlib.suppress(OSError):  # that nobody can be told must not end the work
        print(text, file=sys.stderr, flush=True)


def from_first(decide: Callable[[], Any]) -> Any:
    """Calls `decide` on the first process only and returns its result, which JSON must hold, on every process.

    All processes must call this; none goes on before the first one is done.

    Raises:
        UserError: on every process, when `decide` raised it; on the others also for any other error of the first.
    """
    if not jax.distributed.is_initialized():
        return decide()
    outcome, failure = {}, None
    if is_first():
        try:
            outcome = {"value": decide()}
        except Exception as error:
            failure = error
            outcome = {"error": str(error) or type(error).__name__}
    outcome = json.loads(_broadcast(json.dumps(outcome).encode()))
    if failure is not None:
        raise failure
    if "error" in outcome:
        raise UserError(outcome["error"])
    return outcome["value"]


@contextlib.contextmanager
def on_first(make: Callable[[], contextlib.AbstractContextManager[_T]]) -> Iterator[_T | None]:
    """Enters what `make` gives on the first process only; the others get None.

    All processes must enter and leave this, and all get the errors of entering and leaving as from_first gives them.
    """
    entered: list[_T] = []
    with contextlib.ExitStack() as stack:
        from_first(lambda: entered.append(stack.enter_context(make())))
        yield entered[0] if entered else None
        from_first(stack.close)


def all_true(value: bool) -> bool:
    """Whether `value` is true on every process; all must call this."""
    if not jax.distributed.is_initialized():
        return value
    return bool(np.all(multihost_utils.process_allgather(np.bool_(value))))


def _broadcast(data: bytes) -> bytes:
    """The bytes that the first process passes in; the others' are ignored."""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    buffer = np.zeros(size, np.uint8)
    if is_first():
        buffer[:] = np.frombuffer(data, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def are_lost(error: BaseException) -> bool:
    """Whether `error` comes from another process that has ended or cannot be reached."""
    return jax.distributed.is_initialized() and bool(_LOST.search(str(error)))


def post(note: str) -> None:
    """Makes `posted(note)` true on all processes, from any thread."""
    service().client.key_value_set(f"bert_jax/{note}", "yes", allow_overwrite=True)


def posted(note: str) -> bool:
    """Whether a process has posted `note`."""
    try:
        return bool(service().client.key_value_try_get(f"bert_jax/{note}"))
    except jax.errors.JaxRuntimeError:  # not found
        return False


def counts(topic: str, own: int, timeout_seconds: float) -> list[int]:
    """The number that each process passes in, when all have called this, from any thread; once for each `topic`.

    Raises:
        jax.errors.JaxRuntimeError: a process is gone, or does not call within the time.
    """
    client, process_id, _ = service()
    client.key_value_set(f"bert_jax/{topic}/{process_id}", str(own))
    client.wait_at_barrier(f"bert_jax/{topic}", int(timeout_seconds * 1000))
    return [int(value) for _, value in client.key_value_dir_get(f"bert_jax/{topic}/")]


class Barrier:
    """A barrier for background threads that lets all processes fail as soon as one does.

    At the coordination service's own barrier the others would wait for the failed one until their time is over.

    Args:
        name: tells the users of this class apart.
    """

    def __init__(self, name: str):
        self._failure = f"failed/{name}"
        self._name = name
        self._uses = collections.Counter()
        self._last_note: str | None = None

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits until all processes have come to the barrier `key` as often as this one.

        Raises:
            RuntimeError: another process failed.
            TimeoutError: not all have come in time.
        """
        if sys.exc_info()[0] is not None:  # called while an error is on its way out: this process is the failed one
            post(self._failure)
            return
        client, process_id, num_processes = service()
        self._uses[key] += 1
        barrier = f"bert_jax/barrier/{self._name}/{key}/{self._uses[key]}/"
        note = f"{barrier}{process_id}"
        client.key_value_set(note, "here")
        deadline, pause = time.monotonic() + timeout_ms / 1000, 0.01
        told_at = time.monotonic() + TELL_SECONDS
        while len(client.key_value_dir_get(barrier)) < num_processes:
            if posted(self._failure):
                raise RuntimeError("another process failed")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all processes came to {key} within {timeout_ms / 1000:g} s")
            if time.monotonic() > told_at:
                told_at = math.inf
                tell(
                    f"process {process_id} waits for another one to save; should that one be gone, JAX ends this one "
                    "too, within half a minute; the same command, given to all again, goes on from the last complete "
                    "checkpoint"
                )
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
        if self._last_note is not None:  # all have left that barrier: they have come to this one
            client.key_value_delete(self._last_note)
        self._last_note = note
