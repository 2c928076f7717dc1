"""What a run leaves for people and their tools: metrics as JSON lines, TensorBoard events, and the progress display.

Files in the output folder (all numbers unrounded; a number that is not finite is written as null):
    metrics.jsonl       one object a logged step: step, wall_time (Unix seconds), then metrics as named in metric_names
    eval_metrics.jsonl  the same, one object an evaluation
    eval_results.json   the last evaluation
    facts.json          tables of what the run found out about itself, for the report
    warnings.jsonl      step, wall_time, message; only if there were any
    tensorboard/        the runs "train" and "eval", which share their tags and so their plots
"""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from bert_jax.event_file import REMOTE_FLUSH_SECONDS, EventFile
from bert_jax.json_lines import drop_after, encode, write_lines
from bert_jax.metric_names import metrics_text
from bert_jax.progress import make_display
from input_pipeline.errors import UserError
from input_pipeline.files import as_path, is_remote, read_text, user_errors, write_bytes_atomic, write_json_atomic

FLAG = "--output_dir"
RESULTS_FILE = "eval_results.json"

INPUT_BOUND_FRACTION = 0.2
INPUT_BOUND_SECONDS = 30.0


def read_results(output_dir: str | os.PathLike) -> dict[str, Any]:
    """The metrics of a run's last evaluation, without its step; none where there was no evaluation.

    Raises:
        UserError: the file cannot be read, or is damaged.
    """
    path = as_path(output_dir) / RESULTS_FILE
    with user_errors(path, FLAG):
        if not path.exists():
            return {}
    try:
        results = json.loads(read_text(path, FLAG))
        del results["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{FLAG}: {path} is damaged; it holds the metrics of the last evaluation in JSON") from None
    return results


class RunReporter:
    """Reports a run; a context manager, and silent on all processes but the main one.

    Args:
        output_dir: folder of the run, local or remote; made if missing.
        total_steps: updates of the whole run.
        start_step: updates already done when this process starts. What an interrupted run reported after this step is
            dropped, because it is about to be reported again.
        is_main_process: whether to report at all; on the other processes every method does nothing.
        stream: where progress is shown; standard error by default.
        clock: Unix time in seconds.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike,
        total_steps: int,
        start_step: int = 0,
        is_main_process: bool = True,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self._active = is_main_process
        if not is_main_process:
            return
        self._folder, self._clock, self._step = as_path(output_dir), clock, start_step
        self._metrics = _MetricsFile(self._folder / "metrics.jsonl", start_step, clock)
        self._evaluations = drop_after(self._folder / "eval_metrics.jsonl", start_step, FLAG)
        self._warnings = drop_after(self._folder / "warnings.jsonl", start_step, FLAG)
        self._facts: dict[str, Any] = {}
        self._events = {run: EventFile(self._folder / "tensorboard" / run, start_step, clock) for run in _RUNS}
        self._input_watch = _InputWatch(clock)
        self._drop_later_results(start_step)
        self._display = make_display(total_steps, start_step, stream, clock)

    def __enter__(self) -> "RunReporter":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Reports the metrics of a step.

        Args:
            step: updates done, from 1.
            metrics: name -> number (Python, NumPy or JAX scalar); see metric_names.METRICS.
        """
        if not self._active:
            return
        self._step = step
        metrics = _plain(metrics)
        self._metrics.append({"step": step, "wall_time": self._clock(), **metrics})
        self._events["train"].write(step, metrics)
        self._display.update(step, metrics)
        if (share := self._input_watch.update(metrics.get("input_wait_fraction"))) is not None:
            self.warning(
                f"input-bound: training waits for data {100 * share:.0f}% of the time; give this machine more CPU "
                "cores; text to pretrain on is best prepared once with --mode=prepare, into a folder on a local disk"
            )

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Reports an evaluation after `step` updates; metrics may hold nested tables and text as well as numbers."""
        if not self._active:
            return
        metrics = _plain(metrics)
        line = {"step": step, "wall_time": self._clock(), **metrics}
        self._evaluations = [*(old for old in self._evaluations if old["step"] != step), line]
        write_lines(self._folder / "eval_metrics.jsonl", self._evaluations)
        write_json_atomic(self._folder / RESULTS_FILE, {"step": step, **metrics})
        self._events["eval"].write(step, metrics)
        self._metrics.flush()
        self._display.message(f"evaluation at step {step:,}: {metrics_text(metrics)}")

    def has_evaluation(self, step: int) -> bool:
        """Whether an evaluation after `step` updates is reported, by this process or by an earlier start of the run."""
        return self._active and any(line["step"] == step for line in self._evaluations)

    def facts(self, **sections: Mapping[str, Any]) -> None:
        """Keeps tables of facts for the report, such as facts(model={"parameters": 4386178}, device={...})."""
        if self._active:
            self._facts |= _plain(sections)
            write_json_atomic(self._folder / "facts.json", self._facts)

    def status(self, text: str) -> None:
        """Says on the progress bar what is going on until the next step ("evaluating 3/40"); not in a log."""
        if self._active:
            self._display.status(text)

    def message(self, text: str) -> None:
        """Shows one line."""
        if self._active:
            self._display.message(text)

    def warning(self, text: str) -> None:
        """Shows a warning and keeps it for the report; the same words are kept once."""
        if not self._active:
            return
        self._display.message(f"warning: {text}")
        if all(line.get("message") != text for line in self._warnings):
            self._warnings.append({"step": self._step, "wall_time": self._clock(), "message": text})
            write_lines(self._folder / "warnings.jsonl", self._warnings)

    def close(self) -> None:
        """Completes the files and the display; may be called twice."""
        if self._active:
            self._active = False
            self._display.close()
            self._metrics.close()
            for events in self._events.values():
                events.close()

    def _drop_later_results(self, start_step: int) -> None:
        """The last evaluation must not be one of a future that is trained anew: it would pass for the final one."""
        path = self._folder / RESULTS_FILE
        with user_errors(path, FLAG):
            if not path.exists():
                return
            try:
                later = json.loads(path.read_bytes())["step"] > start_step
            except (ValueError, KeyError, TypeError):
                later = True
            if later:
                path.unlink()


_RUNS = ("train", "eval")


class _MetricsFile:
    """metrics.jsonl: appended to line by line, so that a killed run loses at most the line it was writing."""

    def __init__(self, path, start_step: int, clock: Callable[[], float]):
        self._path, self._clock, self._flushed_at = path, clock, clock()
        lines = drop_after(path, start_step, FLAG)
        self._pending: list[str] | None = None
        with user_errors(path, FLAG):
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_remote(path):
                self._pending = [encode(line) for line in lines]
            else:
                self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (close() closes it)

    def append(self, line: dict[str, Any]) -> None:
        text = encode(line)
        if self._pending is None:
            with user_errors(self._path, FLAG):
                self._file.write(text)
            return
        self._pending.append(text)
        if self._clock() - self._flushed_at >= REMOTE_FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._pending is not None:
            write_bytes_atomic(self._path, "".join(self._pending).encode())
            self._flushed_at = self._clock()

    def close(self) -> None:
        self.flush()
        if self._pending is None:
            self._file.close()


class _InputWatch:
    """Notices, once, that the input is the bottleneck of a run over a while."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._last: float | None = None
        self._seconds = self._waited = 0.0
        self._done = False

    def update(self, fraction: float | None) -> float | None:
        """Takes the share of the time since the last call; returns the share of the last while if it is too much.

        The first call's time holds compilation and the start of the pipeline, so it does not count.
        """
        now, last = self._clock(), self._last
        self._last = now
        if self._done or fraction is None or last is None:
            return None
        self._seconds += now - last
        self._waited += fraction * (now - last)
        if self._seconds < INPUT_BOUND_SECONDS:
            return None
        share = self._waited / self._seconds
        self._seconds = self._waited = 0.0
        self._done = share > INPUT_BOUND_FRACTION
        return share if self._done else None


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it: Python numbers in place of array scalars, None in place of NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
