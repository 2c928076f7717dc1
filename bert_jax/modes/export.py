"""--mode=export: any checkpoint as a folder for Hugging Face, as Google's TF1 checkpoint, or as a StableHLO program."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax import devices, processes
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.convert.stablehlo import check_platforms, export_stablehlo
from bert_jax.convert.tf1_export import export_tf1
from bert_jax.heads import rescale
from bert_jax.loading import LoadedBert, load_from_flags
from input_pipeline import files
from input_pipeline.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO)
MARK = "export.json"  # written last; it lists the files of the folder, which may be written over


def run(flags: Any) -> None:
    """Writes --init_checkpoint to --output_dir in the form that --format names.

    Args:
        flags: format, output_dir, overwrite, platforms, and those of loading.load_from_flags.

    Raises:
        UserError: a missing flag, a folder that is not free, or a model that the form cannot express.
    """
    if flags.format is None:
        raise UserError("--mode=export needs --format: huggingface, tf1 or stablehlo")
    if flags.output_dir is None:
        raise UserError("--mode=export needs --output_dir: a new folder")
    if flags.format == "stablehlo":
        check_platforms(flags.platforms)
    check_free(flags.output_dir, flags.overwrite)
    devices.start(flags)
    processes.from_first(lambda: make(flags))


def make(flags: Any) -> None:
    """Loads, writes and tells; for one process only."""
    bert = load_from_flags(flags, processes.say)
    with files.filling_folder(flags.output_dir, "--output_dir", last=MARK) as folder:
        with full_disk_is_no_crash(flags.output_dir, folder):
            notes = write(folder, flags, bert)
            described = {"format": flags.format, "init_checkpoint": flags.init_checkpoint, "notes": notes}
            files.write_json_atomic(folder / MARK, {**described, "files": sorted(os.listdir(folder))})
        remove_export(flags.output_dir, flags.overwrite)
    for note in notes:
        processes.say(note)
    processes.say(f"done: {flags.output_dir} holds the {flags.format} export")


def write(folder: Path, flags: Any, bert: LoadedBert) -> list[str]:
    """Writes the export into the empty local `folder`; returns lines for the user."""
    if flags.format == "stablehlo":
        return export_stablehlo(folder, bert, flags.platforms)
    head = getattr(bert.module, "head", None)
    if head and not head.is_plain:
        raise UserError(
            f"--format={flags.format}: no program there knows a head with --head_features={head.features} and "
            f"--head_lstm={','.join(map(str, head.lstm))}; --format=stablehlo takes any"
        )
    params = bert.params
    if head and head.is_scaled:
        params, head = rescale(params, head, head.without_scale()), head.without_scale()
    exporter = export_huggingface if flags.format == "huggingface" else export_tf1
    return exporter(folder, bert.config, head, params, bert.tokenizer)


@contextlib.contextmanager
def full_disk_is_no_crash(path: str, partial: Path) -> Iterator[None]:
    """Names `path` and not `partial` when writing fails: each library has exceptions of its own for that."""
    try:
        yield
    except Exception as error:
        trouble = re.search("|".join(map(os.strerror, _FULL)), str(error))
        if trouble and (not isinstance(error, UserError) or os.fspath(partial) in str(error)):
            raise UserError(f"--output_dir={path}: {trouble[0]}") from error
        raise


def check_free(path: str, overwrite: bool) -> None:
    """Raises UserError when `path` is taken: by anything, or with `overwrite` by anything but an export."""
    place = files.reach(path, "--output_dir")
    with files.user_errors(place, "--output_dir"):
        if not place.exists():
            return
        if not place.is_dir():
            raise NotADirectoryError
        # What a killed run left is no reason to refuse the same command.
        found = {entry.name for entry in place.iterdir() if not entry.name.endswith(files.PARTIAL)}
        if not found:
            return
        if not overwrite:
            raise UserError(f"--output_dir={path} is not empty: choose a new folder, or give --overwrite")
        if foreign := sorted(found - set(files_of_export(place))):
            raise UserError(
                f"--output_dir={path} holds something else than an export, which --overwrite will not delete: "
                f"{foreign[0]}"
            )


def files_of_export(folder: Any) -> list[str]:
    """What an earlier export wrote into the folder, MARK first; nothing where there was none."""
    try:
        names = json.loads((folder / MARK).read_bytes())["files"]
        return [MARK, *(os.path.basename(name) for name in names)]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return []


def remove_export(path: str, overwrite: bool) -> None:
    """Takes the files of an earlier export away; other files stay. Raises: UserError as check_free."""
    check_free(path, overwrite)  # it is some time since the first look
    place = files.as_path(path)
    with files.user_errors(place, "--output_dir"):
        for name in files_of_export(place):
            with contextlib.suppress(FileNotFoundError):
                (place / name).unlink()
