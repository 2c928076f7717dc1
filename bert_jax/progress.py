"""What a run shows while it runs: a progress bar on a terminal, plain lines anywhere else."""

import collections
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from bert_jax.metric_names import format_seconds, format_value, metric

SHOWN_IN_BAR = ("loss", "masked_lm_accuracy", "accuracy", "examples_per_second", "learning_rate")
SHOWN_IN_LINES = (
    "loss",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "next_sentence_accuracy",
    "accuracy",
    "learning_rate",
    "examples_per_second",
)
# Below this share, waiting for input is not worth anybody's attention.
INPUT_WAIT_SHOWN = 0.1

# Plain lines come a few seconds apart at first, so that one sees that it works, and rarer in a run of days.
SHORTEST_LINE_INTERVAL, LONGEST_LINE_INTERVAL = 5.0, 60.0


class Display(Protocol):
    """Where the state of a run is shown."""

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None: ...
    def status(self, text: str) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


def make_display(total_steps: int, start_step: int, stream: TextIO | None, clock: Callable[[], float]) -> Display:
    """A bar if `stream` (standard error by default) is a terminal that can redraw a line, else plain lines."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        from rich.console import Console

        console = Console(file=stream, force_terminal=True)
        if not console.is_dumb_terminal:
            return BarDisplay(total_steps, start_step, console, clock)
    return LineDisplay(total_steps, start_step, stream, clock)


def describe(metrics: Mapping[str, float | None], names: tuple[str, ...]) -> list[str]:
    """The metrics of `names` that are there, as "loss 5.9312" or "1,204 examples/s"; also a long wait for input."""
    parts = []
    for name in names:
        if name in metrics:
            title, value = metric(name).title, format_value(name, metrics[name])
            parts.append(f"{value} {title}" if metric(name).kind == "rate" else f"{title} {value}")
    waiting = metrics.get("input_wait_fraction") or 0.0
    if waiting >= INPUT_WAIT_SHOWN:
        parts.append(f"waiting for input {100 * waiting:.0f}%")
    return parts


class Pace:
    """Time left, from the pace of the last logged steps: it knows evaluations, but not the compilation before them."""

    def __init__(self, total_steps: int):
        self._total_steps = total_steps
        self._marks: collections.deque[tuple[int, float]] = collections.deque(maxlen=50)

    def mark(self, step: int, now: float) -> None:
        """Notes that `step` was done at `now` (seconds)."""
        self._marks.append((step, now))

    def time_left(self) -> str:
        """Such as "ETA 3:05"; without a number until two steps are known, and empty at the last step."""
        (first, started), (last, now) = self._marks[0], self._marks[-1]
        if last >= self._total_steps:
            return ""
        if last <= first or now < started:
            return "ETA -"
        return f"ETA {format_seconds((self._total_steps - last) * (now - started) / (last - first))}"


class LineDisplay:
    """Informative lines for logs and pipes: the first step, the last one, and some between."""

    def __init__(self, total_steps: int, start_step: int, stream: TextIO, clock: Callable[[], float]):
        self._total_steps, self._stream, self._clock = total_steps, stream, clock
        self._pace = Pace(total_steps)
        self._started = clock()
        self._shown_at: float | None = None
        self._not_shown: str | None = None

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None:
        now = self._clock()
        self._pace.mark(step, now)
        share = f" ({100 * step // self._total_steps}%)" if self._total_steps else ""
        parts = [f"step {step:,}/{self._total_steps:,}{share}", *describe(metrics, SHOWN_IN_LINES)]
        self._not_shown = "  ".join([*parts, self._pace.time_left()]).rstrip()
        interval = min(max((now - self._started) / 100, SHORTEST_LINE_INTERVAL), LONGEST_LINE_INTERVAL)
        if self._shown_at is None or now - self._shown_at >= interval or step >= self._total_steps:
            self._shown_at = now
            self._flush()

    def status(self, text: str) -> None:
        """A line that is redrawn has no place here."""

    def message(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._not_shown is not None:
            self._write(self._not_shown)
            self._not_shown = None

    def _write(self, text: str) -> None:
        # Losing the terminal or the reader of a pipe must not end a training run.
        with contextlib.suppress(OSError):
            print(text, file=self._stream, flush=True)


class BarDisplay:
    """A bar with its numbers below; messages scroll by above it."""

    def __init__(self, total_steps: int, start_step: int, console, clock: Callable[[], float]):
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class BarAboveNumbers(Progress):
            numbers = ""

            def get_renderables(self):
                yield self.make_tasks_table(self.tasks)
                yield Text(self.numbers, style="dim", no_wrap=True, overflow="ellipsis")

        self._console, self._clock, self._total_steps = console, clock, total_steps
        self._pace = Pace(total_steps)
        self._bar = BarAboveNumbers(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:3.0f}%", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[time_left]}", markup=False),
            console=console,
            refresh_per_second=4,
            expand=True,
            get_time=clock,
            # Rich would send redirected output to the terminal; only what goes there anyway may pass through the bar.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._bar.add_task("", total=total_steps, completed=start_step, time_left="")
        self._bar.start()

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._pace.mark(step, self._clock())
        self._bar.numbers = "  ".join(describe(metrics, SHOWN_IN_BAR))
        self._bar.update(self._task, completed=step, time_left=self._pace.time_left())

    def status(self, text: str) -> None:
        self._bar.numbers = text

    def message(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._bar.stop()
