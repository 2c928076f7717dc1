"""How fast training goes: rates, step times and the share of the devices' peak since the last logged step."""

import contextlib
import math
from collections.abc import Callable, Iterator


class StepTimes:
    """Collects when steps end, without the time spent on saving and evaluating.

    A step takes from the end of the step before to its own end, as the host sees them when it reads the metrics of a
    step, which it does anyway. With a device that is always busy that is the time of the device.

    Attributes:
        input_wait: seconds since the last logged step in which the device had nothing to do for want of input.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        step: int,
        batch_size: int,
        tokens_per_example: float,
        seconds_at_peak: float | None = None,
    ):
        """Begins at `step` updates; `seconds_at_peak` is of a step, see devices.seconds_at_peak."""
        self._clock, self._step = clock, step
        self._batch_size, self._tokens_per_example = batch_size, tokens_per_example
        self._seconds_at_peak = seconds_at_peak
        self._start = self._ended = clock()
        self._durations: list[float] = []
        self.input_wait = 0.0

    def step_ended(self) -> None:
        now = self._clock()
        self._durations.append(now - self._ended)
        self._ended = now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in it is not counted."""
        entered = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - entered
            self._start += seconds
            self._ended += seconds

    def metrics(self, step: int) -> dict[str, float]:
        """Of the steps since the last call; call when `step` has ended."""
        steps, seconds = step - self._step, max(self._ended - self._start, 1e-9)
        ordered = sorted(self._durations)
        percentile = lambda share: ordered[math.ceil(share * len(ordered)) - 1]  # nearest rank: one that was measured
        metrics = {
            "examples_per_second": steps * self._batch_size / seconds,
            "tokens_per_second": steps * self._batch_size * self._tokens_per_example / seconds,
            "seconds_per_step": seconds / steps,
            "step_seconds_p50": percentile(0.5),
            "step_seconds_p90": percentile(0.9),
            "step_seconds_max": ordered[-1],
            "input_wait_fraction": min(self.input_wait / seconds, 1.0),
        }
        if self._seconds_at_peak is not None:
            metrics["mfu"] = self._seconds_at_peak * steps / seconds
        self._step, self._start, self.input_wait, self._durations = step, self._ended, 0.0, []
        return metrics
