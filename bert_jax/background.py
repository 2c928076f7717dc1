"""Long calls that return to no handler of signals before they have ended: compilers, and waits for other processes."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(call: Callable[[], T], tick: Callable[[], None] = lambda: None, tick_seconds: float = 60.0) -> T:
    """Returns `call()`, made in a thread of its own, so that a KeyboardInterrupt gets through to the main thread.

    What JAX keeps by thread (jax.set_mesh, jax.default_matmul_precision as a context, ...) must be entered inside
    `call`. It goes on when the wait for it ends by an exception: the process has to end then.

    Args:
        tick: called every `tick_seconds` until the call has ended.
    """
    result: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work():
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        with contextlib.suppress(TimeoutError):
            return result.result(tick_seconds)
        tick()
