"""Features of a task's examples: built by several processes, and kept under a key of everything they depend on."""

import functools
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from input_pipeline import files
from input_pipeline.task_features import Features, concatenate
from input_pipeline.worker_processes import available_cores, ordered_map

# Raised when features of the same examples and settings come out differently.
FORMAT_VERSION = 1

# A worker process takes about a second to start; so many characters are worth it, and make one piece of work.
_CHARACTERS_A_CHUNK = 1_000_000

Split = Callable[[list], list[list]]


def build_features(
    features_of: functools.partial,
    examples: list,
    *,
    cache: Path | None,
    groups: Split | None = None,
    num_workers: int = 0,
) -> Features:
    """The features of all examples.

    Arguments:
      features_of: a partial of a module's function with its settings, among them `tokenizer`: examples -> Features,
        each example on its own.
      examples: named tuples.
      cache: folder for what was built; None keeps nothing.
      groups: cuts examples into groups that have to stay together; by default each is on its own.
      num_workers: processes; 0 is one for each core.
    """
    content = json.dumps(examples)
    target = cache / f"features-{_key(features_of, content)}.npz" if cache else None
    if target and target.exists() and (features := _read(target)) is not None:
        return features
    chunks = _chunks(groups(examples) if groups else [[example] for example in examples], len(content))
    workers = min(num_workers or available_cores(), len(chunks))
    parts = list(ordered_map(features_of, chunks, workers))
    features = concatenate(parts, [len(chunk) for chunk in chunks])
    if target:
        with files.replacing(target, "--output_dir") as part, open(part, "wb") as file:
            arrays = {name: value for name, value in features._asdict().items() if isinstance(value, np.ndarray)}
            info = {f"token_info/{name}": value for name, value in features.token_info.items()}
            np.savez(file, **arrays, **info, num_cut=np.int64(features.num_cut))
    return features


def _key(features_of: functools.partial, content: str) -> str:
    settings = {name: getattr(value, "fingerprint", value) for name, value in sorted(features_of.keywords.items())}
    name = f"{features_of.func.__module__}.{features_of.func.__qualname__}"
    described = json.dumps([FORMAT_VERSION, name, settings], default=str)
    return hashlib.sha256(f"{described}\n{content}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _chunks(groups: list[list], characters: int) -> list[list]:
    """Joins groups to pieces of work of about equal numbers of examples."""
    count = max(1, characters // _CHARACTERS_A_CHUNK)
    size = -(-sum(map(len, groups)) // count)
    chunks: list[list] = [[]]
    for group in groups:
        if len(chunks[-1]) >= size:
            chunks.append([])
        chunks[-1].extend(group)
    return chunks


def _read(path: Path) -> Features | None:
    """What was kept; None where the file is damaged, and has to be made again."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():  # NumPy does not look at checksums of what a damaged header cuts short
                return None
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        info = {name.partition("/")[2]: arrays.pop(name) for name in list(arrays) if name.startswith("token_info/")}
        num_cut = int(arrays.pop("num_cut"))
        return Features(**{"labels": None} | arrays, token_info=info, num_cut=num_cut)
    except Exception:  # zipfile, NumPy and its parser of headers raise many kinds
        return None
