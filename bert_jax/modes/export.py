"""--mode=export: any checkpoint as a folder for Hugging Face, as Google's TF1 checkpoint, or as a StableHLO program."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax import devices, processes
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.convert.stablehlo import check_platforms, export_stablehlo
from bert_jax.convert.tf1_export import export_tf1
from bert_jax.loading import LoadedBert, load_from_flags
from input_pipeline import files
from input_pipeline.errors import UserError

MARK = "export.json"  # written last; a folder with it may be written over


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
    if not processes.is_first():
        return
    bert = load_from_flags(flags, processes.say)
    with new_folder(flags.output_dir, flags.overwrite) as folder:
        with full_disk_is_no_crash(flags.output_dir):
            notes = write(folder, flags, bert)
        described = {"format": flags.format, "init_checkpoint": flags.init_checkpoint, "notes": notes}
        files.write_json_atomic(folder / MARK, described)
    for note in notes:
        processes.say(note)
    processes.say(f"done: {flags.output_dir} holds the {flags.format} export")


def write(folder: Path, flags: Any, bert: LoadedBert) -> list[str]:
    """Writes the export into the empty local `folder`; returns lines for the user."""
    if flags.format == "stablehlo":
        return export_stablehlo(folder, bert, flags.platforms)
    head = getattr(bert.module, "head", None)
    exporter = export_huggingface if flags.format == "huggingface" else export_tf1
    return exporter(folder, bert.config, head, bert.params, bert.tokenizer)


@contextlib.contextmanager
def full_disk_is_no_crash(path: str) -> Iterator[None]:
    """Names `path` when writing fails: each library has exceptions of its own for what the system says."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if trouble := re.search(
            "No space left on device|Disk quota exceeded|File too large|Permission denied", str(error)
        ):
            raise UserError(f"--output_dir={path}: {trouble[0]}; nothing was left there") from error
        raise


def check_free(path: str, overwrite: bool) -> None:
    """Raises UserError when `path` is taken: by anything, or with `overwrite` by anything but an export."""
    place = files.reach(path, "--output_dir")
    with files.user_errors(place, "--output_dir"):
        if not place.exists():
            return
        if not place.is_dir():
            raise NotADirectoryError
        if not any(place.iterdir()):
            return
        if not overwrite:
            raise UserError(f"--output_dir={path} is not empty: choose a new folder, or give --overwrite")
        if not (place / MARK).exists():
            raise UserError(f"--output_dir={path} holds something else than an export, which --overwrite would delete")


@contextlib.contextmanager
def new_folder(path: str, overwrite: bool) -> Iterator[Path]:
    """A local folder to fill, which becomes `path` when all is written and vanishes when something fails."""
    target = files.as_path(path)
    with files.user_errors(target, "--output_dir"):
        parent = Path(tempfile.gettempdir() if files.is_remote(path) else target.parent)
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent))
        partial.chmod(0o777 & ~_umask())  # mkdtemp's folders are closed to others
    try:
        yield partial
        with files.user_errors(target, "--output_dir"):
            if overwrite and target.exists():
                target.rmtree()
        files.move_folder(partial, target, last=MARK)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
