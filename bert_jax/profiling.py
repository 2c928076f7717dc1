"""--profile_steps: a trace of some updates on host and devices, for XProf and TensorBoard."""

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from input_pipeline import files
from input_pipeline.errors import UserError

FLAG = "--profile_steps"
_ENDINGS = (".xplane.pb", ".trace.json.gz")


def parse_steps(text: str | None, num_train_steps: int | None = None) -> range | None:
    """The updates to trace, counted from 1, of --profile_steps, such as 100:110; both ends are in.

    Raises:
        UserError: it is not of that form, or begins after num_train_steps updates.
    """
    if text is None:
        return None
    ends = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    first, last = map(int, ends.groups()) if ends else (0, 0)
    if not 1 <= first <= last:
        raise UserError(f"{FLAG}={text} must be FIRST:LAST, two updates counted from 1, such as 100:110")
    if num_train_steps is not None and first > num_train_steps:
        raise UserError(f"{FLAG}={text} begins after the last update, --num_train_steps={num_train_steps}")
    return range(first, last + 1)


class Profile:
    """Traces the updates `steps` of a run; a context manager, at whose end a trace in progress is written.

    Each process writes what it and its devices did to OUTPUT_DIR/tensorboard/plugins/profile/steps_FIRST_LAST. What
    cannot be traced or written is a warning: training goes on.

    Args:
        steps: None traces nothing.
        output_dir: local or remote.
        say, warn: take a line.
    """

    def __init__(
        self,
        steps: range | None = None,
        output_dir: str | os.PathLike = ".",
        say: Callable[[str], None] = lambda text: None,
        warn: Callable[[str], None] = lambda text: None,
    ):
        self._steps, self._say, self._warn = steps, say, warn
        self._logdir = files.as_path(output_dir) / "tensorboard"
        self._temporary: tempfile.TemporaryDirectory | None = None
        self._done = False
        self._first = self._last = 0  # update that was traced, and that was begun

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception) -> None:
        self.stop()
        if self._steps and not self._done:
            text = f"{FLAG}={self._steps[0]}:{self._steps[-1]}: none of these updates was made, and none is traced"
            self._warn(text + (f"; the last one was {self._last}" if self._last else ""))

    def begins_with(self, step: int) -> bool:
        """Whether to start before update `step`; one that was resumed begins with the first that is left."""
        return bool(self._steps) and not self._done and step in self._steps

    def ends_with(self, step: int) -> bool:
        """Whether to stop when update `step` has ended."""
        return self._temporary is not None and step == self._steps[-1]

    def start(self) -> None:
        """Call when the devices have nothing to do: updates that were begun before would be in the trace."""
        self._done = True
        self._temporary = tempfile.TemporaryDirectory()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # a trace of each call in Python would hide the rest
        options.session_id = f"steps_{self._steps[0]}_{self._steps[-1]}"
        try:
            jax.profiler.start_trace(self._temporary.name, profiler_options=options)
        except Exception as error:
            self._give_up(error)

    def step(self, number: int) -> contextlib.AbstractContextManager:
        """Marks what is done in it as update `number`, by which XProf tells the steps apart."""
        self._last = number
        if self._temporary is None:
            return contextlib.nullcontext()
        self._first = self._first or number
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def stop(self) -> None:
        """Writes the trace, if one is in progress; what is not finished on the devices may be missing."""
        if self._temporary is None:
            return
        try:
            jax.profiler.stop_trace()
            folder = self._write()
        except Exception as error:
            self._give_up(error)
            return
        self._temporary.cleanup()
        self._temporary = None
        self._say(
            f"the trace of updates {self._first} to {self._last} is in {folder}: look at it by "
            f"xprof --logdir={self._logdir} (pip install xprof), or give its .trace.json.gz to https://ui.perfetto.dev"
        )

    def _write(self) -> os.PathLike:
        """Copies the files to their place, where those of several processes of a host must not meet."""
        found = [path for path in Path(self._temporary.name).rglob("*") if path.name.endswith(_ENDINGS)]
        if not found:
            raise OSError("the profiler wrote nothing")
        target = self._logdir / "plugins" / "profile" / found[0].parent.name
        target.mkdir(parents=True, exist_ok=True)
        name = socket.gethostname() + (f"_process{jax.process_index()}" if jax.process_count() > 1 else "")
        for path in found:
            ending = next(ending for ending in _ENDINGS if path.name.endswith(ending))
            files.write_bytes_atomic(target / (name + ending), path.read_bytes())
        return target

    def _give_up(self, error: Exception) -> None:
        self._temporary.cleanup()
        self._temporary = None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._warn(f"{FLAG}: there is no trace: {reason}")
