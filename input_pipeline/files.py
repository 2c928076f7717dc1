"""The one layer between paths that a user gives and the file system, local or remote (gs://, s3://, ...).

Remote paths go through `etils.epath`, which uses TensorFlow's file systems. Without a network, or without access, these
can wait for minutes; here the first contact with a path is given `PATIENCE_SECONDS`, then a `UserError` names it.
"""

import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from etils import epath

from input_pipeline.errors import UserError

PATIENCE_SECONDS = 10.0
PARTIAL = ".tmp"  # at the end of names that hold what is not complete
REMOTE_SCHEMES = ("gs://", "s3://", "az://", "hf://")

_T = TypeVar("_T")
_GLOB_CHARACTERS = re.compile(r"[*?\[]")
_reached: set[str] = set()


def is_remote(path: str | os.PathLike) -> bool:
    """Whether `path` names an object of a remote store."""
    return os.fspath(path).startswith(REMOTE_SCHEMES)


def as_path(path: str | os.PathLike, flag: str | None = None) -> epath.Path:
    """`path`, which the user named with `flag`, as an `epath.Path`, with `~` expanded.

    Raises:
      UserError: for an unknown scheme ("http://...", or "gs:/bucket" with one slash), which would otherwise become a
        local folder named "http:" or "gs:".
    """
    name = os.fspath(path)
    where = f"{flag}: " if flag else ""
    if not name:
        raise UserError(f"{where}an empty path was given; write a file or folder name")
    if not is_remote(name) and (scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", name)):
        known = ", ".join(REMOTE_SCHEMES)
        raise UserError(f"{where}{name}: {scheme[0]} is not a known kind of path; write a local path or one of {known}")
    return epath.Path(name).expanduser()


def reach(path: str | os.PathLike, flag: str) -> epath.Path:
    """`path` as an `epath.Path` whose file system is known to answer; nothing is asked about a local path.

    Raises:
      UserError: when a remote file system refuses, or does not answer within `PATIENCE_SECONDS`.
    """
    target = as_path(path, flag)
    if is_remote(target) and os.fspath(target) not in _reached:
        with user_errors(target, flag):
            _tensorflow()  # its import takes seconds, which are not the network's
            _within_patience(target.exists, f"{flag}: no answer from {target} within {PATIENCE_SECONDS:g} s; ")
        _reached.add(os.fspath(target))
    return target


def expand(patterns: list[str], flag: str) -> list[str]:
    """The files and folders that `patterns` (paths or globs, also `**`) name: sorted within each pattern.

    Raises:
      UserError: when a pattern matches nothing.
    """
    found = []
    for pattern in patterns:
        path = as_path(pattern, flag)
        name = os.fspath(path)
        wild = _GLOB_CHARACTERS.search(name)
        folder = reach(name[: wild.start()].rpartition("/")[0] if wild and is_remote(name) else name, flag)
        with user_errors(path, flag):
            if path.exists():
                matches = [name]
            elif wild and is_remote(name):
                matches = sorted(os.fspath(match) for match in folder.glob(os.path.relpath(name, os.fspath(folder))))
            else:
                matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise UserError(f"{flag}: {'no file matches' if wild else 'no such file or folder:'} {name}")
        found.extend(matches)
    return found


def read_bytes(path: str | os.PathLike, flag: str) -> bytes:
    """The content of the file `path`, which the user named with `flag`.

    Raises:
      UserError: when the file is missing or cannot be read.
    """
    target = reach(path, flag)
    with user_errors(target, flag):
        return target.read_bytes()


def read_text(path: str | os.PathLike, flag: str) -> str:
    """The content of the UTF-8 file `path` without a byte order mark; line ends are kept as they are.

    Raises:
      UserError: when the file is missing, cannot be read, or is not UTF-8.
    """
    data = read_bytes(path, flag)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{flag}: {path} is not UTF-8 text (byte {data[error.start]:#04x} at {error.start})") from None


def open_binary(path: str | os.PathLike, flag: str) -> IO[bytes]:
    """The file `path`, open for reading bytes. Raises: UserError, as `read_bytes`."""
    target = reach(path, flag)
    with user_errors(target, flag):
        if target.is_dir():
            raise IsADirectoryError
        return open(target, "rb") if not is_remote(target) else _open_remote(target)


def size_and_mtime(path: str | os.PathLike, flag: str) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds (whole seconds on remote stores). Raises: UserError."""
    target = reach(path, flag)
    with user_errors(target, flag):
        if is_remote(target):
            stat = target.stat()
            return stat.length, int(stat.mtime) * 10**9
        stat = os.stat(target)
        return stat.st_size, stat.st_mtime_ns


def write_bytes_atomic(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file of which a reader sees either the old or the whole new content; missing parent folders are made.

    Raises:
      UserError: when the place cannot be written.
    """
    with replacing(path, "writing") as part:
        part.write_bytes(data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, flag: str) -> Iterator[Path]:
    """A local file to write, in a folder of its own, which becomes `path` at the end and vanishes after an error.

    Raises:
      UserError: when the place cannot be written, on entering or at any time later.
    """
    target = reach(path, flag)
    with user_errors(target, flag), contextlib.ExitStack() as stack:
        if is_remote(target):
            folder = tempfile.mkdtemp()
        else:
            stack.enter_context(_parents_made(Path(target).absolute().parent))
            folder = tempfile.mkdtemp(prefix=f".{target.name}.", suffix=PARTIAL, dir=target.parent)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        part = Path(folder, target.name)
        yield part
        if is_remote(target):  # an object appears only once its upload is complete
            with open(part, "rb") as local, target.open("wb") as remote:
                shutil.copyfileobj(local, remote, 1 << 24)
        else:
            os.replace(part, target)


@contextlib.contextmanager
def _parents_made(folder: Path) -> Iterator[None]:
    """Makes a folder and those above it, and takes away again, after an error, what it made."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # it is not empty any more
            for one in missing:
                one.rmdir()
        raise


def write_json_atomic(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON. Raises: UserError as `write_bytes_atomic`; ValueError for NaN or infinity."""
    write_bytes_atomic(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def local_folder(path: str | os.PathLike, flag: str = "path") -> str:
    """A local folder with the files of `path`: itself when local, else a copy made once below the user's cache folder.

    The copy is keyed by names, sizes and times of the remote files (sub-folders are left out), so that a changed folder
    is copied anew.

    Raises:
      UserError: when the folder is missing or cannot be read.
    """
    source = reach(path, flag)
    with user_errors(source, flag):
        if not source.is_dir():
            raise FileNotFoundError
        if not is_remote(source):
            return os.fspath(source)
        files = sorted(entry for entry in source.iterdir() if not entry.is_dir())
        listing = [(entry.name, *size_and_mtime(entry, flag)) for entry in files]
        key = hashlib.sha256(repr((os.fspath(source), listing)).encode()).hexdigest()[:16]
        copy = cache_folder() / f"{source.name}-{key}"
        if not copy.is_dir():
            partial = cache_folder() / f"{copy.name}.{os.getpid()}.tmp"
            partial.mkdir(parents=True)
            try:
                for entry in files:
                    with _open_remote(entry) as remote, open(partial / entry.name, "wb") as local:
                        shutil.copyfileobj(remote, local, 1 << 24)
                with contextlib.suppress(OSError):  # another process of this machine was faster: its copy is as good
                    os.rename(partial, copy)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return os.fspath(copy)


def cache_folder() -> Path:
    """Where local copies of remote files are kept: below $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bert_jax")


def move_folder(source: str | os.PathLike, target: str | os.PathLike, last: str) -> None:
    """Gives the complete local folder `source` (files only) the name `target`, which must be new or an empty folder.

    A remote target is filled file by file, the one named `last` at the end: with it the folder counts as complete.

    Raises:
      UserError: when `target` cannot be written.
    """
    target = reach(target, "writing")
    with user_errors(target, "writing"):
        if not is_remote(target):
            os.rename(source, target)
            return
        for name in sorted(os.listdir(source), key=lambda name: (name == last, name)):
            with open(os.path.join(source, name), "rb") as local, (target / name).open("wb") as remote:
                shutil.copyfileobj(local, remote, 1 << 24)
        shutil.rmtree(source)


@contextlib.contextmanager
def filling_folder(path: str | os.PathLike, flag: str, last: str) -> Iterator[Path]:
    """A local folder to put files into, which become those of the folder `path` at the end and vanish after an error.

    Arguments:
      last: name of the file that comes last, with which the folder counts as complete.

    Raises:
      UserError: when the place cannot be written, on entering or at the end.
    """
    target = reach(path, flag)
    with contextlib.ExitStack() as stack:
        with user_errors(target, flag):
            if is_remote(target):
                partial = Path(tempfile.mkdtemp())
            else:
                target = as_path(os.path.realpath(target))  # what a link names, also where that is not there yet
                # Inside of a folder that is there: it may be the only place that can be written.
                parent = Path(target if target.exists() else target.parent)
                stack.enter_context(_parents_made(parent))
                partial = parent / f".{target.name}.{secrets.token_hex(4)}{PARTIAL}"
                partial.mkdir()  # by mkdtemp it would be closed to others
            stack.callback(shutil.rmtree, partial, ignore_errors=True)
        yield partial
        with user_errors(target, flag):
            _usual_modes(partial)
            if is_remote(target) or not target.exists():
                move_folder(partial, target, last)
            else:
                for name in sorted(os.listdir(partial), key=lambda name: (name == last, name)):
                    os.replace(partial / name, target / name)


def _usual_modes(folder: Path) -> None:
    """Gives the files of a folder the mode that a new file has; some libraries close theirs to others."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for path in folder.iterdir():
        path.chmod(mode)


def check_new_file(path: str | os.PathLike, flag: str, overwrite: bool) -> None:
    """Raises UserError when `path` cannot become a file: a folder is there, or a file and `overwrite` is False."""
    target = reach(path, flag)
    with user_errors(target, flag):
        if target.is_dir():
            raise IsADirectoryError
        if target.exists() and not overwrite:
            raise UserError(f"{flag}={path} is there already: give --overwrite, or another name")


@contextlib.contextmanager
def user_errors(path: str | os.PathLike, flag: str) -> Iterator[None]:
    """Turns what a file system raises about `path` into a `UserError` that names `flag` and `path`."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{flag}: no such file or folder: {path}") from None
    except IsADirectoryError:
        raise UserError(f"{flag}: {path} is a folder, a file is needed") from None
    except (NotADirectoryError, FileExistsError):
        raise UserError(f"{flag}: {path} is a file, or lies below one: a folder is needed") from None
    except OSError as error:
        raise UserError(f"{flag}: cannot access {path}: {error.strerror or _first_line(error)}") from None
    except Exception as error:
        if not is_remote(path):
            raise
        # The remote file systems have exceptions of their own (tensorflow.errors.OpError and others).
        raise UserError(f"{flag}: cannot access {path}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _open_remote(path: epath.Path) -> IO[bytes]:
    return _tensorflow().io.gfile.GFile(os.fspath(path), "rb")


def _tensorflow():
    from input_pipeline.host_tensorflow import tf

    return tf


def _within_patience(call: Callable[[], _T], complaint: str) -> _T:
    """The result of `call`, made in a thread of its own: a call that hangs in a C++ library cannot be interrupted."""
    outcome: list = []

    def run():
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if not outcome:
        raise UserError(f"{complaint}check the network, the credentials and the name")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
