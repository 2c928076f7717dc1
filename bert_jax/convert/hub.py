"""Weights named hf://ORG/NAME: a local copy of what is needed of them, from the Hub or from its cache."""

import functools
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from input_pipeline import files
from input_pipeline.errors import UserError

SCHEME = "hf://"

_TRUE = ("1", "ON", "YES", "TRUE")  # as the library reads its switches
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"((?:{_PART}/)?{_PART})(?:@([A-Za-z0-9][A-Za-z0-9_./-]*))?")
_WEIGHTS = ["model.safetensors", "model-[0-9]*-of-[0-9]*.safetensors", "model.safetensors.index.json"]
_PICKLED = ["pytorch_model.bin", "pytorch_model-[0-9]*-of-[0-9]*.bin", "pytorch_model.bin.index.json"]
_BESIDE = ["config.json", "vocab.txt", "sentencepiece.model", "tokenizer.json", "tokenizer_config.json"]
_BESIDE += ["bert_config.json", "task_head.json"]

_logger = logging.getLogger(__name__)


def is_hub(path: str | os.PathLike) -> bool:
    """Whether `path` names weights on the Hugging Face Hub."""
    return os.fspath(path).startswith(SCHEME)


def fetch(path: str, flag: str, allow_pickled: bool = False) -> str:
    """A local folder with the configuration, the vocabulary and the weights of `path`.

    What the cache has is not fetched again, and does without a network. The library's environment variables hold:
    HF_HUB_OFFLINE, HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_ENDPOINT.

    Args:
        path: hf://ORG/NAME or hf://NAME, or with @REVISION: a branch, a tag or the hash of a commit.
        flag: named in errors.
        allow_pickled: fetch pickled weights where there are no others.

    Raises:
        UserError: no such name, no access, no weights, or no answer and no copy in the cache.
    """
    match = _NAME.fullmatch(path.removeprefix(SCHEME))
    if not match or "--" in match[1] or ".." in path:
        raise UserError(f"{flag}: {path} is no name on the Hub: write hf://ORG/NAME or hf://ORG/NAME@REVISION")
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UserError(
            f"{flag}: {path} is fetched with huggingface_hub, which is missing: pip install huggingface_hub"
        ) from None
    repository, revision = match.groups()
    snapshot = functools.partial(hub.snapshot_download, repository, revision=revision, cache_dir=_cache_folder())
    reason = "HF_HUB_OFFLINE is set"
    offline = hub.constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE
    if not offline:
        try:  # a request with a limit of time, which those of the download do not have before they read
            hub.HfApi().model_info(repository, revision=revision, timeout=files.PATIENCE_SECONDS)
        except Exception as error:  # of the HTTP library, which is another one in each version
            reason, offline = _reason(hub, error), True
            _logger.warning("%s: %s: a copy in the cache is used, if there is one", path, reason)
    download = functools.partial(_download, snapshot, offline, f"{flag}: {path}", reason)
    folder = download(_BESIDE + _WEIGHTS)
    if not _has(folder, _WEIGHTS) and allow_pickled:
        folder = download(_BESIDE + _PICKLED)
    if not _has(folder, _WEIGHTS + _PICKLED if allow_pickled else _WEIGHTS):
        place = "in the cache" if offline else "on the Hub"
        kinds = "model.safetensors and no pytorch_model.bin" if allow_pickled else "model.safetensors"
        advice = "" if allow_pickled else "; if it has a pytorch_model.bin, --allow_pickled_weights fetches that"
        raise UserError(f"{flag}: {path} has no {kinds} {place}{advice}")
    return folder


def _download(snapshot: Callable[..., str], offline: bool, name: str, reason: str, patterns: list[str]) -> str:
    try:
        return os.fspath(snapshot(allow_patterns=patterns, local_files_only=offline))
    except Exception as error:
        if offline:  # then all there is to say is why
            raise UserError(f"{name}: {reason}, and the cache has no whole copy") from None
        raise UserError(f"{name}: cannot be fetched: {_first_line(error)}") from None


def _has(folder: str, patterns: list[str]) -> bool:
    return any(file.is_file() for pattern in patterns for file in Path(folder).glob(pattern))


def _reason(hub: Any, error: Exception) -> str:
    """Why the Hub gave no answer, as part of a line."""
    if isinstance(error, hub.errors.GatedRepoError):
        return "access is granted on its page on the Hub, to be used with HF_TOKEN or `hf auth login`"
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return "the Hub has no such revision of it"
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        return "the Hub has no such model, or only for those who log in (HF_TOKEN or `hf auth login`)"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "the Hub refuses access: check HF_TOKEN, or `hf auth login`"
    if status:
        return f"the Hub answers with error {status}"
    return f"no answer from the Hub ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if len(line) < 200 else f"{line[:200]}..."


def _cache_folder() -> str | None:
    """The library's, which it would take from the environment at its import only; None for its default."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return os.path.expanduser(folder)
    if folder := os.environ.get("HF_HOME"):
        return os.path.join(os.path.expanduser(folder), "hub")
    return None
