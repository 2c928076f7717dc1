"""The output folder of a training run: whose it is, what was run in it, and how a new start goes on.

run.json describes the run: {format_version, mode, task, settings, num_train_steps, finished_at_step, flags, versions,
created}. `settings` are the values that change what the run computes; a start with other ones is refused, since its
result would belong to neither. The schedule alone may be extended. Next to run.json lies what the model needs later
(configuration, vocabulary), and below checkpoints/ the state.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import IO, Any

from etils import epath

from bert_jax import checkpointing, processes
from input_pipeline import files
from input_pipeline.errors import UserError

RUN_FILE = "run.json"
LOCK_FILE = ".lock"
CHECKPOINTS = "checkpoints"
FORMAT_VERSION = 1

_TYPES = {
    "mode": (str,),
    "task": (str, NoneType),
    "settings": (dict,),
    "num_train_steps": (int,),
    "finished_at_step": (int, NoneType),
    "flags": (dict,),
    "versions": (dict,),
    "created": (str,),
}

# What may lie in a new output folder: the run's own log, and what systems and schedulers leave in any folder.
_HARMLESS = (".log", ".out", ".err")


@dataclasses.dataclass(frozen=True)
class Start:
    """How a run begins.

    Attributes:
        step: number of updates done: 0, or the checkpoint to restore.
        finished: whether nothing is left to do.
        message: one line for the user about what was found, or None.
    """

    step: int
    finished: bool
    message: str | None


class RunFolder:
    """An output folder, made if missing and held by one run while it is entered.

    One that was made is taken away again when an error comes before there is anything in it.

        with RunFolder(output_dir) as run:
            start = run.start(mode="pretrain", settings={...}, num_train_steps=1000, flags={...}, save=[config.save])
            if not start.finished:
                ...
                run.finish(1000)

    Attributes:
        path: the folder.
        checkpoints: where its checkpoints go.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = files.as_path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self._lock: IO[str] | None = None
        self._made: list[Any] = []  # this folder and those above it that were not there

    def __enter__(self) -> "RunFolder":
        """Takes the folder.

        Raises:
            UserError: it cannot be written, another run holds it, it is full of something else, or the processes of
                this run do not see the same folder.
        """
        processes.from_first(self._take)
        if not processes.all_true((self.path / LOCK_FILE).exists()):
            raise UserError(f"--output_dir={self.path}: must be on a file system that all processes share")
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is not None and self._made:
            self._remove_if_empty()
        if self._lock is not None:
            self._lock.close()

    def start(
        self,
        *,
        mode: str,
        task: str | None = None,
        settings: Mapping[str, Any],
        num_train_steps: int,
        flags: Mapping[str, Any],
        save: Iterable[Callable[[str], Any]] = (),
    ) -> Start:
        """Compares this start with what the folder holds, and describes the run in it.

        Args:
            mode, task: what is run.
            settings: flat; every value that changes the result of a step, as JSON holds it. A value that follows from
                num_train_steps is given as None, so that a run can be extended.
            num_train_steps: updates of the whole run.
            flags: all flags, for the record.
            save: functions that write into the folder, named by a string, what the model needs later (configuration,
                vocabulary); called unless a run is continued.

        Raises:
            UserError: the folder holds a run with other settings; the message names each with both values.
        """
        run = {
            "format_version": FORMAT_VERSION,
            "mode": mode,
            "task": task,
            "settings": dict(settings),
            "num_train_steps": num_train_steps,
            "finished_at_step": None,
            "flags": dict(flags),
            "versions": _versions(),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        run = json.loads(json.dumps(run, default=str))
        return Start(**processes.from_first(lambda: self._start(run, list(save))))

    def finished_at(self, *, mode: str, task: str | None, settings: Mapping[str, Any]) -> int | None:
        """The step at which a run ended that has nothing left to do, whether or not its checkpoints are still there.

        Raises:
            UserError: it is one with other settings.
        """

        def look():
            if not (self.path / RUN_FILE).exists():
                return None
            before = read_run(self.path, "--output_dir")
            if before["finished_at_step"] is not None:
                now = {"mode": mode, "task": task, "settings": dict(settings)}
                self._refuse_other_settings(before, json.loads(json.dumps(now, default=str)))
            return before["finished_at_step"]

        return processes.from_first(look)

    def refuse_others(self, *, mode: str, task: str | None) -> None:
        """Finds out early, before examples are read into the folder, that it is that of something else.

        Raises:
            UserError: there are checkpoints of another mode or task.
        """

        def look():
            if (self.path / RUN_FILE).exists() and checkpointing.latest_step(self.checkpoints) is not None:
                before = read_run(self.path, "--output_dir")
                self._refuse_other_settings(before, {"mode": mode, "task": task, "settings": before["settings"]})

        processes.from_first(look)

    def finish(self, step: int) -> None:
        """Notes that all work of the run, which ends at `step`, is done: evaluation and reports too."""

        def note():
            self._write(read_run(self.path, "--output_dir") | {"finished_at_step": step})

        processes.from_first(note)

    def _take(self) -> None:
        files.reach(self.path, "--output_dir")
        with files.user_errors(self.path, "--output_dir"):
            if self.path.exists() and not self.path.is_dir():
                raise NotADirectoryError
            if not files.is_remote(self.path):
                self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign()
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            lock_file = self.path / LOCK_FILE
            if files.is_remote(self.path):  # no locks there; the file only says that the folder is ours
                lock_file.write_text(owner)
                return
            lock = open(lock_file, "a+", encoding="utf-8")  # noqa: SIM115 (held until __exit__)
            try:
                # A lock of this kind ends with its process, whatever ends it, and is not passed on to children.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                lock.seek(0)
                raise UserError(
                    f"--output_dir={self.path} is in use by {lock.read().strip() or 'another process'}: "
                    "wait for it, stop it, or choose another folder"
                ) from None
            except OSError:
                pass  # a file system without locks
            lock.truncate(0)
            lock.write(owner)
            lock.flush()
            self._lock = lock

    def _remove_if_empty(self) -> None:
        """Removes the folder if it holds the lock and empty folders only, and with it those above that were made."""
        own = os.fspath(self.path / LOCK_FILE)
        if any(os.path.join(place, name) != own for place, _, names in os.walk(self.path) for name in names):
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # something else came into it
            for folder in self._made[1:]:
                os.rmdir(folder)

    def _refuse_foreign(self) -> None:
        if (self.path / RUN_FILE).exists() or (self.path / LOCK_FILE).exists():
            return
        names = sorted(entry.name for entry in self.path.iterdir())
        foreign = [n for n in names if not (n.startswith(".") or n.endswith(_HARMLESS) or n == "lost+found")]
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise UserError(
                f"--output_dir={self.path} is not empty and holds no run ({shown}): choose a new or an empty folder"
            )

    def _start(self, run: dict[str, Any], save: list[Callable[[str], Any]]) -> dict[str, Any]:
        damaged = checkpointing.set_aside_damaged(self.checkpoints)
        start = self._start_from(checkpointing.latest_step(self.checkpoints), run, save)
        return start | {"message": "; ".join([*damaged, *filter(None, [start["message"]])]) or None}

    def _start_from(self, step: int | None, run: dict[str, Any], save: list[Callable[[str], Any]]) -> dict[str, Any]:
        if step is None:  # nothing is lost by beginning anew, with whatever settings
            for write in save:
                write(os.fspath(self.path))
            self._write(run)
            return {"step": 0, "finished": False, "message": None}
        before = read_run(self.path, "--output_dir")
        self._refuse_other_settings(before, run)
        total, total_before = run["num_train_steps"], before["num_train_steps"]
        finished_at = before["finished_at_step"]
        if step > total or step == total == finished_at:
            where = f"step {step} of {total}" if step == total else f"step {step}, past --num_train_steps={total}"
            return {"step": step, "finished": True, "message": f"already at {where}, nothing to do"}
        self._write(run | {"created": before["created"]})
        if step == total:
            message = f"all {total} updates were done before; what follows them is still to do"
        else:
            message = f"resuming at step {step} of {total}"
        if total != total_before:
            message += (
                f"; --num_train_steps was {total_before} before, so the learning-rate schedule changes from here on"
            )
        return {"step": step, "finished": False, "message": message}

    def _refuse_other_settings(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        there = {"mode": before["mode"], "task": before["task"]} | before["settings"]
        here = {"mode": now["mode"], "task": now["task"]} | now["settings"]
        names = [name for name in here | there if here.get(name) != there.get(name)]
        if names:
            differences = "; ".join(_difference(name, there.get(name), here.get(name)) for name in names)
            raise UserError(
                f"--output_dir={self.path} holds a run with other settings: {differences}. "
                "Choose another folder, or the settings of that run"
            )

    def _write(self, run: Mapping[str, Any]) -> None:
        files.write_json_atomic(self.path / RUN_FILE, run)


def read_run(path: str | os.PathLike, flag: str) -> dict[str, Any]:
    """What run.json in the folder `path`, given by `flag`, says. Raises: UserError, when it is missing or damaged."""
    file = files.as_path(path) / RUN_FILE
    with files.user_errors(path, flag):
        if file.parent.exists() and not file.exists():
            raise UserError(f"{flag}: {path} has no {RUN_FILE}, which describes a run")
    try:
        run = json.loads(files.read_text(file, flag))
        version = run["format_version"]
        whole = version != FORMAT_VERSION or all(type(run[key]) in types for key, types in _TYPES.items())
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{flag}: {file} is damaged; it describes the run in JSON")
    if version != FORMAT_VERSION:
        raise UserError(f"{flag}: {path} was written in format {version}, this program reads format {FORMAT_VERSION}")
    return run


def find_checkpoint(path: str | os.PathLike, flag: str) -> tuple[epath.Path, int]:
    """The checkpoint that `path`, given by `flag`, names: the newest of a run folder, or one step's own folder.

    Returns:
        The folder of checkpoints and the step, for checkpointing.restore.

    Raises:
        UserError: there is no complete checkpoint.
    """
    path = files.reach(path, flag)
    folder = path / CHECKPOINTS
    if path.name.isdigit() and path.parent.name == CHECKPOINTS:
        if not checkpointing.is_complete(path):
            raise UserError(f"{flag}: {path} is no complete checkpoint")
        return path.parent, int(path.name)
    with files.user_errors(path, flag):
        if not path.exists():
            raise FileNotFoundError
        if not folder.exists():
            raise UserError(f"{flag}: {path} is not the output folder of a run: it has no folder {CHECKPOINTS}")
    step = checkpointing.latest_step(folder)
    if step is None:
        raise UserError(f"{flag}: {folder} holds no complete checkpoint")
    return folder, step


def cache_folder(output_dir: str | os.PathLike) -> Path:
    """A local folder for what can be made again: below the output folder, or the user's cache for a remote one."""
    if not files.is_remote(output_dir):
        return Path(os.fspath(output_dir), "cache")
    return files.cache_folder() / hashlib.sha256(os.fspath(output_dir).encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    packages = ("bert_jax", "jax", "flax", "optax", "orbax-checkpoint")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}


def _difference(name: str, there: Any, here: Any) -> str:
    if all(isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) for value in (there, here)):
        return f"{name} is not the same (of other files, or files that have changed)"
    return f"{name} is {_show(there)} there and {_show(here)} now"


def _show(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:12]}..."  # a fingerprint, or a long path
    return "not set" if value is None else json.dumps(value)


def later_settings(flags: Any) -> dict[str, Any]:
    """What a run records of the flags that came after the first runs; as those, nothing of what is not changed."""
    defaults = {"lr_decay_power": 1.0, "trust_ratio": "all", "restart_schedule": False, "gradient_reduction": "f32"}
    return {name: getattr(flags, name) for name, default in defaults.items() if getattr(flags, name) != default}
