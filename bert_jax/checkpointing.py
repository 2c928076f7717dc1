"""Checkpoints of the training state: asynchronous, atomic, and restored onto any mesh.

Step 10 is the folder <folder>/10, which Orbax fills under a temporary name and renames when it is whole. Its state/
holds the arrays and, written last, a list of all files with their sizes and CRC-32: a step whose files do not have the
listed sizes (a copy that broke off, a deletion cut short) is no checkpoint and is passed over. The checksums, for which
all has to be read, are compared when a run goes on from a step and when a step is restored.
"""

import contextlib
import functools
import itertools
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import processes
from input_pipeline import files
from input_pipeline.errors import UserError

ITEM = "state"
FILE_LIST = "file_list.json"

_instances = itertools.count()
_STEP = re.compile(r"0|[1-9]\d*")
_UNFINISHED = ".orbax-checkpoint-tmp"
_DISK_TROUBLE = re.compile(
    "No space left on device|Disk quota exceeded|File too large|Read-only file system|Permission denied"
)
_DROPPED_ERRORS = ("Future exception was never retrieved", "Task exception was never retrieved")  # of asyncio
_WITHOUT_IT = "with that folder moved away, the checkpoint before it is used"
_CHUNK_BYTES = 1 << 20


class Checkpointer:
    """Saves and restores the state of one run; all processes of the run make the same calls.

    At first the folder is put in order: what an interrupted save left is removed, a step that is not complete is set
    aside as STEP.incomplete, so that the step can be saved again, and only the newest `keep` steps stay.

    Args:
        folder: where the steps go; made if missing. Only one run at a time may use it (see run_folder.RunFolder).
        keep: how many complete steps stay on disk, at least 1. An older one goes only after a newer one is whole.

    Attributes:
        warnings: one line for each step that was not complete.

    Raises:
        UserError: the folder cannot be used, or `keep` is less than 1.
    """

    def __init__(self, folder: str | os.PathLike, keep: int):
        if keep < 1:
            raise UserError(f"--keep_checkpoints={keep}: at least 1 checkpoint must be kept")
        _silence_orbax()
        self.folder = _absolute(folder)
        self.warnings: list[str] = processes.from_first(lambda: _put_in_order(self.folder, keep))
        registry = ocp.DefaultCheckpointHandlerRegistry()
        handler = _StateHandler()
        registry.add(ITEM, ocp.args.PyTreeSave, handler)
        registry.add(ITEM, ocp.args.PyTreeRestore, handler)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            single_host_load_and_broadcast=True,
            save_root_metadata=False,
            async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier()),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options, handler_registry=registry)

    def latest_step(self) -> int | None:
        """The newest step that is complete on disk; a save that still runs does not count."""
        return latest_step(self.folder)

    def last_saved_step(self) -> int | None:
        """The newest step when a save that still runs has ended, however it ends."""
        with contextlib.suppress(UserError):
            self.wait()
        return self.latest_step()

    def save(self, step: int, state: Any) -> None:
        """Starts to save `state` as `step` and returns once its buffers may be donated; a saved step is left alone.

        Waits for the save before, and raises its error if it failed.

        Args:
            step: number of updates done; must be what state["step"] says.
            state: a tree of jax.Arrays with "step", an int32 scalar.

        Raises:
            UserError: this save cannot start, or the one before failed (no space, no access, ...).
        """
        if int(state["step"]) != step:
            raise ValueError(f"the state of step {int(state['step'])} is not step {step}")
        if step == self._manager.latest_step():
            return
        with self._disk_errors():
            self._manager.save(step, args=ocp.args.Composite(**{ITEM: ocp.args.PyTreeSave(state)}), force=True)

    def restore(self, step: int, target: Any) -> Any:
        """As the function `restore`, from this folder."""
        return restore(self.folder, step, target)

    def wait(self) -> None:
        """Returns when the last save is complete on disk. Raises: UserError, when it failed."""
        with self._disk_errors():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits as `wait` and ends the threads. Raises: UserError, when the last save failed."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # the same error once more
                self._manager.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        # An error on its way out says more than the failed save that it may have come from.
        with contextlib.suppress(UserError) if error is not None else contextlib.nullcontext():
            self.close()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not jax.distributed.is_initialized():  # else others may still be writing there
                _remove_unfinished(self.folder)  # it may be what fills the disk
            safe = self.latest_step()
            kept = f"the last complete checkpoint is step {safe}" if safe is not None else "no checkpoint is complete"
            raise UserError(
                f"saving a checkpoint in {self.folder} failed: {_reason(error)}; {kept}, from which the same command "
                "goes on once this is mended"
            ) from error


def latest_step(folder: str | os.PathLike) -> int | None:
    """The newest complete step in `folder`, or None. Raises: UserError, when the folder cannot be read."""
    folder = _absolute(folder)
    with files.user_errors(folder, "checkpoints"):
        steps = sorted((int(name) for name in _names(folder) if _STEP.fullmatch(name)), reverse=True)
        return next((step for step in steps if is_complete(folder / str(step))), None)


def is_complete(step_folder: epath.Path) -> bool:
    """Whether the folder of one step holds all files that were written for it."""
    listed = _listed(step_folder)
    return (
        bool(listed)
        and ocp.path.step.is_path_finalized(step_folder)
        and all(path.exists() and path.stat().length == size for path, size, _ in listed)
    )


def set_aside_damaged(folder: str | os.PathLike) -> list[str]:
    """Reads the newest complete step and sets it aside if its bytes changed, then the one before, until one is sound.

    Returns:
        One line for each step that was set aside.

    Raises:
        UserError: the folder cannot be read or changed.
    """
    folder, warnings = _absolute(folder), []
    with files.user_errors(folder, "checkpoints"):
        while (step := latest_step(folder)) is not None and (file := _changed_file(folder / str(step))):
            aside = _set_aside(folder, step)
            warnings.append(f"the checkpoint of step {step} is damaged ({file.name}) and was set aside as {aside}")
    return warnings


def restore(folder: str | os.PathLike, step: int, target: Any) -> Any:
    """Reads the checkpoint of `step`, whatever devices and mesh it was written from.

    Args:
        folder: the folder of the steps.
        step: a complete step.
        target: a tree of jax.ShapeDtypeStruct with shardings. Top-level entries that it lacks are not read, so
            {"params": ...} reads the parameters only. None reads the parameters as they are, as NumPy arrays.

    Returns:
        A tree like `target` of jax.Arrays with the target's shardings and exactly the saved values.

    Raises:
        UserError: an array is missing in the checkpoint or in the target, or differs in shape or dtype; or a file
            cannot be read, or is not what was written.
    """
    _silence_orbax()
    path = _absolute(folder) / str(step) / ITEM
    processes.from_first(lambda: _check_bytes(path.parent))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        try:
            saved = reader.metadata(path).item_metadata
            if target is None:
                target = {"params": jax.tree.map(lambda x: np.empty(x.shape, x.dtype), saved.tree["params"])}
            else:
                _check_same_arrays(path.parent, saved.tree, target)
            restore_args = ocp.checkpoint_utils.construct_restore_args(target)
            return reader.restore(
                path, args=ocp.args.PyTreeRestore(target, restore_args=restore_args, partial_restore=True)
            )
        except UserError:
            raise
        except Exception as error:
            if processes.are_lost(error):  # the checkpoint is as good as before
                raise
            raise UserError(f"the checkpoint {path.parent} cannot be read: {_reason(error)}; {_WITHOUT_IT}") from error


def read_parameters(folder: str | os.PathLike, step: int) -> dict[str, Any]:
    """The parameters of the checkpoint of `step` as NumPy arrays, whatever model they are of.

    Raises:
        UserError: as `restore`.
    """
    return restore(folder, step, None)["params"]


def _barrier() -> processes.Barrier | None:
    return processes.Barrier(f"saving/{next(_instances)}") if jax.distributed.is_initialized() else None


class _StateHandler(ocp.PyTreeCheckpointHandler):
    def __init__(self):
        # Trained floats hardly compress: 8 % less to write for ten times the processor time.
        super().__init__(use_compression=False)

    def finalize(self, directory: epath.Path) -> None:
        # Called on the first process when all processes have written, before the folder gets its final name.
        super().finalize(directory)
        listed = {name: {"size": path.stat().length, "crc32": _crc32(path)} for name, path in _walk(directory)}
        (directory / FILE_LIST).write_text(json.dumps(listed))


def _absolute(folder: str | os.PathLike) -> epath.Path:
    path = files.as_path(folder)
    return path if files.is_remote(path) else epath.Path(os.path.abspath(path))  # as Orbax demands


def _walk(folder: epath.Path, prefix: str = "") -> Iterator[tuple[str, epath.Path]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _listed(step_folder: epath.Path) -> list[tuple[epath.Path, int, int]]:
    """The files of a step with the sizes and checksums that were written; empty when its list is missing or damaged."""
    file = step_folder / ITEM / FILE_LIST
    if not file.exists():
        return []
    try:
        listed = json.loads(file.read_text()).items()
        return [(file.parent / name, entry["size"], entry["crc32"]) for name, entry in listed]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _crc32(file: epath.Path) -> int:
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _changed_file(step_folder: epath.Path) -> epath.Path | None:
    return next((file for file, _, checksum in _listed(step_folder) if _crc32(file) != checksum), None)


def _check_bytes(step_folder: epath.Path) -> None:
    with files.user_errors(step_folder, "checkpoint"):
        file = _changed_file(step_folder)
    if file:
        raise UserError(f"the checkpoint {step_folder} is damaged: {file} is not what was written; {_WITHOUT_IT}")


def _names(folder: epath.Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.exists() else []


def _put_in_order(folder: epath.Path, keep: int) -> list[str]:
    warnings = []
    with files.user_errors(folder, "checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
        warnings += [f"{name}: a save that did not end was removed" for name in _remove_unfinished(folder)]
        steps = sorted(int(name) for name in _names(folder) if _STEP.fullmatch(name))
        complete = [step for step in steps if is_complete(folder / str(step))]
        for step in sorted(set(steps) - set(complete)):
            if len(complete) >= keep and step < complete[-keep]:
                (folder / str(step)).rmtree()  # its removal was interrupted
                continue
            aside = _set_aside(folder, step)
            warnings.append(f"the checkpoint of step {step} is not complete and was set aside as {aside}")
        for step in complete[:-keep]:
            (folder / str(step)).rmtree()
    return warnings


def _set_aside(folder: epath.Path, step: int) -> epath.Path:
    aside = folder / f"{step}.incomplete"
    if aside.exists():
        aside.rmtree()
    (folder / str(step)).rename(aside)
    return aside


def _remove_unfinished(folder: epath.Path) -> list[str]:
    names = [name for name in _names(folder) if _UNFINISHED in name]
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).rmtree()
    return names


def _check_same_arrays(step_folder: epath.Path, saved: Any, target: Any) -> None:
    """Raises UserError unless `saved` has the arrays of `target`, apart from top-level entries that `target` lacks."""
    there = _arrays({name: tree for name, tree in saved.items() if name in target})
    here = _arrays(target)
    problems = [f"{name} is in the checkpoint but not in this model" for name in there if name not in here]
    for name, array in here.items():
        if name not in there:
            problems.append(f"{name} is not in the checkpoint")
        elif there[name] != array:
            problems.append(f"{name} is {_describe(*there[name])} in the checkpoint, {_describe(*array)} in this model")
    if problems:
        more = f" (and {len(problems) - 1} more differences)" if len(problems) > 1 else ""
        raise UserError(f"the checkpoint {step_folder} does not fit: {problems[0]}{more}")


def _arrays(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (tuple(leaf.shape), str(leaf.dtype))
        for path, leaf in leaves
    }


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype}{list(shape)}"


def _reason(error: BaseException) -> str:
    """The cause in a few words: the libraries wrap what the operating system said in pages of their own."""
    if trouble := _DISK_TROUBLE.search(str(error)):
        return trouble[0]
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


@functools.cache
def _silence_orbax() -> None:
    """Keeps Orbax's own log, and the echoes of its errors, from the user.

    When one array cannot be read or written, Orbax raises that error and drops those of the others, which Python then
    reports one by one.
    """

    def not_from_orbax(record: logging.LogRecord) -> bool:
        return f"{os.sep}orbax{os.sep}checkpoint{os.sep}" not in record.pathname

    def no_dropped_error(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_DROPPED_ERRORS)

    logging.getLogger("absl").addFilter(not_from_orbax)
    logging.getLogger("asyncio").addFilter(no_dropped_error)
    report = sys.unraisablehook

    def without_dropped_errors(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            report(unraisable)

    sys.unraisablehook = without_dropped_errors
