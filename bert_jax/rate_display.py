"""How far a mode is that goes through many texts: a bar on a terminal, a line now and then anywhere else."""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TextIO

from bert_jax.metric_names import format_seconds
from bert_jax.progress import LONGEST_LINE_INTERVAL, SHORTEST_LINE_INTERVAL


class RateDisplay:
    """Counts things of one kind; to be closed, or used in a with statement.

    Args:
        unit: what is counted, in the plural.
        total: how many there will be; None where nobody knows.
        stream: default standard error.
        clock: seconds.
        shown: False shows nothing, for all processes but the first.
    """

    def __init__(
        self,
        unit: str,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        shown: bool = True,
    ):
        self._unit, self._total, self._clock, self._shown = unit, total, clock, shown
        self._stream = sys.stderr if stream is None else stream
        self._done = 0
        # The pace counts from the first result on: compilation comes before it, and once only.
        self._started = self._first = self._shown_at = clock()
        self._first_done = 0
        self._bar = self._make_bar() if shown and self._stream.isatty() else None

    def advance(self, count: int = 1) -> None:
        """Notes that `count` more are done."""
        now = self._clock()
        if not self._done:  # nothing to tell yet: there is no pace
            self._first, self._first_done, self._shown_at = now, count, now
        self._done += count
        interval = min(max((now - self._started) / 100, SHORTEST_LINE_INTERVAL), LONGEST_LINE_INTERVAL)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, pace=self._pace(now))
        elif self._shown and now - self._shown_at >= interval:
            self._shown_at = now
            self._write(f"{self._count()}{self._pace(now)}")

    def summary(self) -> str:
        """Such as "1,012 lines in 0:03"."""
        return f"{self._counted()} in {format_seconds(self._clock() - self._started)}"

    def close(self) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
            self._bar = None

    def __enter__(self) -> "RateDisplay":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _counted(self) -> str:
        return f"{self._done:,} {self._unit if self._done != 1 else self._unit.removesuffix('s')}"

    def _count(self) -> str:
        if not self._total:
            return self._counted()
        return f"{self._done:,}/{self._total:,} {self._unit} ({100 * self._done // self._total}%)"

    def _pace(self, now: float) -> str:
        done, seconds = self._done - self._first_done, now - self._first
        if done <= 0 or seconds <= 0:
            return ""
        rate = done / seconds
        pace = f"  {rate:,.{0 if rate >= 10 else 1}f} {self._unit}/s"
        if self._total and self._total > self._done:
            pace += f"  ETA {format_seconds((self._total - self._done) / rate)}"
        return pace

    def _make_bar(self):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(file=self._stream, force_terminal=True)
        if console.is_dumb_terminal:
            return None
        count = "{task.completed:,.0f}" + ("/{task.total:,.0f}" if self._total else "") + f" {self._unit}"
        bar = Progress(
            TextColumn(count, markup=False),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("{task.fields[pace]}", markup=False),
            console=console,
            refresh_per_second=4,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = bar.add_task("", total=self._total, pace="")
        bar.start()
        return bar

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # losing the terminal must not end the work
            print(text, file=self._stream, flush=True)
