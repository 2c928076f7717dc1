"""Pair plans: the sentence pairs of whole epochs, computed ahead, kept as files and read through memory maps.

Consecutive epochs of a small corpus share a file (a window), so that reading goes on for a while before the next file
is needed. A plan is a function of the data, the settings and the seed alone; processes that need the same one may all
write it, and the last rename wins.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline import files
from input_pipeline.hashing import draw, make_key, unit
from input_pipeline.npy_files import NpyWriter, holds, partial_path
from input_pipeline.sentence_pairs import A_START, LABEL, ROW_WIDTH, Corpus, PairSettings, make_pairs

_VERSION = 1  # of the rules: a change of what a plan holds makes old files useless
_WINDOW_EXAMPLES = 2**16
_MAX_WINDOW_EPOCHS = 1024
_STALE_SECONDS = 3600
_logger = logging.getLogger(__name__)


def choose_documents(hashes: Sequence[np.ndarray], split: str, eval_fraction: float) -> np.ndarray:
    """The documents of a token store that belong to a split.

    A document is held out for evaluation by its hash, whatever else the corpus holds; equal documents are on the same
    side. If the hashes leave one side empty, the document with the smallest hash is held out, or the one with the
    largest is not; a corpus whose documents are all equal is not split.

    Arguments:
      hashes: document hashes, one uint64 array a shard.
      split: "train", "eval" or "all".
      eval_fraction: expected share of the held-out documents, in [0, 1).

    Returns:
      document numbers over all shards, ascending, int64 [n].
    """
    if split == "all" or not eval_fraction:
        total = sum(len(shard) for shard in hashes)
        return np.arange(0 if split == "eval" else total)
    smallest, largest = min(shard.min() for shard in hashes), max(shard.max() for shard in hashes)
    threshold = np.uint64(eval_fraction * 2.0**64)
    if smallest == largest:
        threshold = np.uint64(0)
    elif threshold <= smallest:
        threshold = smallest + np.uint64(1)
    elif threshold > largest:
        threshold = largest
    first = np.cumsum([0] + [len(shard) for shard in hashes])
    chosen = [np.flatnonzero((shard < threshold) == (split == "eval")) for shard in hashes]
    return np.concatenate([documents + start for documents, start in zip(chosen, first)])


def sampling_rates(tokens: Sequence[int], exponent: float) -> list[float]:
    """How often each corpus is run through in an epoch, for exponentially smoothed sampling (multilingual BERT).

    The shares of the corpora are proportional to (tokens of the corpus / all tokens) ** exponent, and the length of an
    epoch stays what it is with exponent 1, where every rate is 1.
    """
    shares = np.asarray(tokens, np.float64) / sum(tokens)
    smoothed = shares**exponent / np.sum(shares**exponent)
    return (smoothed / shares).tolist() if exponent != 1 else [1.0] * len(shares)


@dataclass(frozen=True)
class Window:
    """The plan of consecutive epochs, in one file of rows as `sentence_pairs.make_pairs` yields them, epoch by epoch.

    Attributes:
      path: the `.npy` file, int64 [examples, 5].
      first_epoch: number of the first epoch.
      first_example: number of the window's first example, counted from the first epoch of all.
      examples: examples of each epoch, int64 [epochs].
    """

    path: Path
    first_epoch: int
    first_example: int
    examples: np.ndarray

    @property
    def end(self) -> int:
        """Number of the first example behind the window."""
        return self.first_example + int(self.examples.sum())


class PairPlans:
    """The plans of one or several corpora, made when they are needed.

    Arguments:
      corpora: the token stores' documents to use.
      rates: how often an epoch runs through each corpus; the fraction above a whole number is a random choice of pairs.
      num_tokens: tokens of all corpora, an estimate that decides how many epochs share a window.
      settings: lengths of the examples.
      seed: any integer.
      folder: where the files go; of these plans alone.
      single_epoch: only epoch 0 is ever needed.
    """

    def __init__(
        self,
        corpora: list[Corpus],
        rates: list[float],
        num_tokens: int,
        settings: PairSettings,
        seed: int,
        folder: Path,
        single_epoch: bool = False,
    ):
        self.corpora, self.rates, self.settings, self.seed, self.folder = corpora, rates, settings, seed, folder
        expected = max(num_tokens // settings.max_seq_length, 1)
        self.epochs_per_window = 1 if single_epoch else min(math.ceil(_WINDOW_EXAMPLES / expected), _MAX_WINDOW_EPOCHS)
        self._lock = threading.Lock()
        self._starts = [0]  # number of the first example of each window known so far
        with files.user_errors(folder, "cache folder"):
            folder.mkdir(parents=True, exist_ok=True)
            for partial in folder.glob("*.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                        partial.unlink()

    def window(self, index: int) -> Window:
        """Window `index`, counted from 0; its file is made if it is missing or damaged."""
        with self._lock:
            while len(self._starts) <= index:
                self._count_next()
            if not holds(self._path(index), np.int64, (sum(self._facts(index)["examples"]), ROW_WIDTH)):
                self._rebuild(index, self._path(index))
            examples = np.array(self._facts(index)["examples"], np.int64)
            return Window(self._path(index), index * self.epochs_per_window, self._starts[index], examples)

    def count(self, epoch: int) -> tuple[int, int]:
        """Examples of an epoch, and those with label 1 among them."""
        index, place = divmod(epoch, self.epochs_per_window)
        with self._lock:
            facts = self._facts(index)
        return facts["examples"][place], facts["random_next"][place]

    def count_first_window(self) -> tuple[int, int]:
        """The same for all epochs of the first window together."""
        with self._lock:
            facts = self._facts(0)
        return sum(facts["examples"]), sum(facts["random_next"])

    def window_of(self, example: int) -> int:
        """Index of the window that holds example number `example`; files of windows before it are removed.

        The data must hold an example.
        """
        with self._lock:
            while self._starts[-1] <= example:
                self.discard(len(self._starts) - 2)
                self._count_next()
            return int(np.searchsorted(self._starts, example, side="right")) - 1

    def prepare(self, index: int) -> None:
        """Starts to make window `index` in the background. An error shows when the window is asked for."""

        def build():
            with contextlib.suppress(Exception):
                self.window(index)

        # A daemon, so that a process that ends does not wait for it.
        threading.Thread(target=build, name="pair-plan", daemon=True).start()

    def discard(self, index: int) -> None:
        """Removes the file of a window that is no longer needed; its counts stay."""
        self._path(index).unlink(missing_ok=True)

    def _count_next(self) -> None:
        self._starts.append(self._starts[-1] + sum(self._facts(len(self._starts) - 1)["examples"]))

    def _path(self, index: int) -> Path:
        return self.folder / f"window-{index:06d}.npy"

    def _facts(self, index: int) -> dict[str, list[int]]:
        path = self._path(index).with_suffix(".json")
        facts = _read_facts(path, self.epochs_per_window)
        if not facts:
            self._rebuild(index, path)
            facts = json.loads(path.read_bytes())
        return facts

    def _rebuild(self, index: int, path: Path) -> None:
        if path.exists():
            _logger.warning("%s is damaged and is made again", path)
        self._build(index)

    def _build(self, index: int) -> None:
        epochs = range(index * self.epochs_per_window, (index + 1) * self.epochs_per_window)
        examples, random_next = np.zeros((2, len(epochs)), np.int64)
        with files.user_errors(self.folder, "cache folder"):
            with _replacing(self._path(index)) as partial, NpyWriter(partial, np.int64, (ROW_WIDTH,)) as writer:
                kept = []
                for rows, passes in self._pairs(epochs):
                    examples += np.bincount(passes, minlength=len(epochs))
                    random_next += np.bincount(passes[rows[:, LABEL] == 1], minlength=len(epochs))
                    if len(epochs) == 1:
                        writer.append(rows)
                    else:
                        kept.append((rows, passes))
                if kept:
                    rows, passes = (np.concatenate(parts) for parts in zip(*kept))
                    writer.append(rows[np.argsort(passes, kind="stable")])
            facts = {"examples": examples.tolist(), "random_next": random_next.tolist()}
            with _replacing(self._path(index).with_suffix(".json")) as partial:
                partial.write_text(json.dumps(facts))

    def _pairs(self, epochs: range):
        """Blocks of pairs of all corpora, as `make_pairs` yields them."""
        for number, (corpus, rate) in enumerate(zip(self.corpora, self.rates)):
            for turn in range(math.ceil(rate)):
                keys, lots = (
                    np.array([make_key(self.seed, epoch, number, turn, use) for epoch in epochs]) for use in (0, 1)
                )
                for rows, passes in make_pairs(corpus, keys, self.settings):
                    if rate - turn < 1:
                        # A pair is known by where its A starts: the A segments of a pass do not overlap.
                        lot = unit(draw(lots[passes], rows[:, A_START].astype(np.uint64)))
                        rows, passes = rows[lot < rate - turn], passes[lot < rate - turn]
                    yield rows, passes


def _read_facts(path: Path, epochs: int) -> dict[str, list[int]] | None:
    """What `PairPlans` writes about a window; None if there is no such file, or a damaged one."""
    try:
        facts = json.loads(path.read_bytes())
        counts = np.array([facts["examples"], facts["random_next"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return facts if counts.shape == (2, epochs) and counts.dtype == np.int64 and counts.min() >= 0 else None


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write that gets the name `path` at the end, whoever else writes the same one."""
    partial = partial_path(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def plan_folder(cache_folder: Path, **identity) -> Path:
    """A folder below `cache_folder` for the plans of some data and settings, given as JSON values."""
    text = json.dumps({"version": _VERSION, **identity}, sort_keys=True)
    return cache_folder / f"pair-plan-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
