"""The data of pretraining: batches of masked examples as a function of (data, settings, seed, step).

Nothing here has a state that would have to be saved: a run that starts at step k gets the batches that an uninterrupted
run gets from step k on. docs/determinism.md tells how.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.errors import UserError
from input_pipeline.pair_source import PairSource
from input_pipeline.record_source import RecordSource
from input_pipeline.sentence_pairs import PairSettings
from input_pipeline.tfrecords import read_tfrecords
from input_pipeline.token_store import TokenStore

MIN_PAIR_LENGTH, MIN_SINGLE_LENGTH = 5, 4  # the frame and two tokens of text, as in the reference

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class PretrainingDataConfig:
    """What examples look like. Each field is the flag of the same name; a bad value raises UserError.

    Attributes:
      max_seq_length: tokens of an example, with [CLS], [SEP] and padding.
      max_predictions_per_seq: room for predicted tokens.
      masked_lm_prob: share of the tokens that are predicted.
      masking_split: shares of the predicted tokens that are shown as [MASK], unchanged, and as a random word.
      whole_word_masking: all pieces of a word are predicted or none.
      short_seq_prob: share of the documents that are cut into shorter examples.
      next_sentence_prediction: pairs of segments, or else one segment.
      seed: of everything random.
      shuffle: a new order in each epoch, or else the order of the files.
      sampling_exponent: smooths the shares of several stores: 1 by size, 0 all equal.
      eval_fraction: share of the documents that is held out for evaluation.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    masking_split: tuple[float, float, float] = (0.8, 0.1, 0.1)
    whole_word_masking: bool = False
    short_seq_prob: float = 0.1
    next_sentence_prediction: bool = True
    seed: int = 0
    shuffle: bool = True
    sampling_exponent: float = 1.0
    eval_fraction: float = 0.02

    def __post_init__(self):
        shortest = MIN_PAIR_LENGTH if self.next_sentence_prediction else MIN_SINGLE_LENGTH
        split = self.masking_split
        for flag, is_right, right in (
            ("max_seq_length", shortest <= self.max_seq_length <= 2**16, f"between {shortest} and 65536"),
            ("max_predictions_per_seq", self.max_predictions_per_seq >= 1, "at least 1"),
            ("masked_lm_prob", 0 < self.masked_lm_prob <= 1, "above 0 and at most 1"),
            (
                "masking_split",
                len(split) == 3 and min(split) >= 0 and abs(sum(split) - 1) < 1e-6,
                "three shares (shown as [MASK], unchanged, random word) that add up to 1",
            ),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "between 0 and 1"),
            ("sampling_exponent", 0 <= self.sampling_exponent <= 1, "between 0 and 1"),
            ("eval_fraction", 0 <= self.eval_fraction < 1, "at least 0 and below 1"),
        ):
            if not is_right:
                raise UserError(f"--{flag} is {getattr(self, flag)}, it must be {right}")

    @property
    def pair_settings(self) -> PairSettings:
        return PairSettings(self.max_seq_length, self.short_seq_prob, self.next_sentence_prediction)


class Batches(Iterator[Batch]):
    """Batches in the order of their steps; made ahead in threads of TensorFlow until `close` or the end of a `with`."""

    def __init__(self, datasets):
        self._iterator = (batch for dataset in datasets for batch in dataset.as_numpy_iterator())

    def __next__(self) -> Batch:
        return next(self._iterator)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self._iterator.close()


class PretrainingData:
    """Examples for pretraining; `open_stores` and `open_tfrecords` make one.

    A batch is a dictionary of NumPy arrays, with length L and P = max_predictions_per_seq:
      input_ids, input_mask, segment_ids: int32 [rows, L];
      masked_lm_positions (ascending), masked_lm_ids: int32 [rows, P];
      masked_lm_weights: float32 [rows, P], 1, or 0 for places without a prediction;
      next_sentence_labels: int32 [rows], 0 = B follows A, 1 = B is random;
      example_weights: float32 [rows], 1, or 0 for rows that fill up the last evaluation batch (all their
        masked_lm_weights are 0 too).

    Attributes:
      config: the settings.
      fingerprint: SHA-256 (hex) of the data, whatever the settings.
    """

    def __init__(self, source: PairSource | RecordSource, config: PretrainingDataConfig):
        self._source, self.config = source, config
        self.fingerprint: str = source.fingerprint

    @property
    def warnings(self) -> list[str]:
        """What the user should know about this data with these settings, one line each."""
        return self._source.warnings

    def num_examples(self, epoch: int = 0) -> int:
        """Examples of an epoch; sentence pairs are drawn anew in each one, so their number varies a little."""
        return self._source.num_examples(epoch)

    def label_shares(self, epoch: int = 0) -> dict[str, float]:
        """Shares of the next-sentence labels in an epoch: {"is_next", "random_next"}."""
        share = self._source.num_random_next(epoch) / max(self.num_examples(epoch), 1)
        return {"is_next": 1 - share, "random_next": share}

    def sampling_shares(self) -> dict[str, float]:
        """Expected share of each token store, by its folder, in the text of an epoch."""
        return self._source.sampling_shares()

    def unigram_counts(self) -> np.ndarray:
        """How often each token occurs in the text, int64 [vocab_size]; in TFRecords: among the predicted tokens."""
        return self._source.unigram_counts()

    def batches(
        self,
        batch_size: int,
        start_step: int,
        num_steps: int,
        rows: Sequence[int] | None = None,
        num_threads: int | None = None,
    ) -> Batches:
        """The batches of steps start_step to start_step + num_steps - 1.

        The examples of all epochs form one stream; step k takes the batch_size examples from k * batch_size on.

        Arguments:
          batch_size: examples of the global batch.
          rows: the numbers of the rows that are wanted of each global batch; all by default.
          num_threads: batches made at the same time; changes nothing but the speed.

        Raises:
          UserError: when there is no example.
        """
        self._require(self.num_examples())
        steps = range(start_step, start_step + num_steps)
        return Batches(self._source.datasets(steps, batch_size, _rows(rows, batch_size), num_threads or _cores()))

    def num_eval_examples(self) -> int:
        """Examples of an evaluation."""
        return self._source.num_eval_examples()

    def num_eval_batches(self, batch_size: int) -> int:
        """Batches of an evaluation, the last one filled up."""
        return -(-self.num_eval_examples() // batch_size)

    def eval_batches(
        self, batch_size: int, rows: Sequence[int] | None = None, num_threads: int | None = None
    ) -> Batches:
        """All examples once, in the order of the files, with pairs and masks that depend on no seed.

        Arguments and errors are those of `batches`.
        """
        self._require(self.num_eval_examples())
        steps = range(self.num_eval_batches(batch_size))
        return Batches(self._source.eval_datasets(steps, batch_size, _rows(rows, batch_size), num_threads or _cores()))

    def _require(self, number: int) -> None:
        if not number:
            raise UserError(f"--input_file: the text gives no example of --max_seq_length={self.config.max_seq_length}")


def open_stores(
    stores: list[TokenStore], split: str, config: PretrainingDataConfig, cache_folder: str | os.PathLike
) -> PretrainingData:
    """Opens token stores.

    Arguments:
      stores: made with one tokenizer.
      split: "train", "eval" (the held-out documents; there may be none) or "all".
      config: settings of the examples.
      cache_folder: a local folder for pair plans; several processes may share it.

    Raises:
      UserError: when the stores have different tokenizers, or no [MASK].
    """
    return PretrainingData(PairSource(stores, split, config, Path(cache_folder)), config)


def open_tfrecords(
    paths: list[str],
    config: PretrainingDataConfig,
    vocab_size: int,
    cache_folder: str | os.PathLike,
    flag: str = "--input_file",
) -> PretrainingData:
    """Opens Google's masked TFRecords: pairs and masks are what the records hold. Arguments as `read_tfrecords`.

    Raises:
      UserError: when a record does not fit the settings, or a file is damaged.
    """
    records = read_tfrecords(
        paths,
        max_seq_length=config.max_seq_length,
        max_predictions_per_seq=config.max_predictions_per_seq,
        vocab_size=vocab_size,
        cache_folder=Path(cache_folder),
        flag=flag,
    )
    return PretrainingData(RecordSource(records, config, vocab_size), config)


def _rows(rows: Sequence[int] | None, batch_size: int) -> Sequence[int]:
    return range(batch_size) if rows is None else rows


def _cores() -> int:
    """Threads that make batches: few enough to leave the cores to training, many enough for an accelerator."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores, 8)
