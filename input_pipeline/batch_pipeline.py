"""The tf.data pipeline of pretraining: from the number of a step to a batch, all in TensorFlow's C++ threads.

Nothing in the graph calls Python: batches are made while Python trains, and a process that ends does not wait for the
pipeline. Files are memory-mapped inside the graph, and the rows of a batch are gathered from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from input_pipeline.hashing import make_key
from input_pipeline.host_tensorflow import tf
from input_pipeline.masking import Masking, example_keys
from input_pipeline.pair_plan import Window
from input_pipeline.sentence_pairs import A_LENGTH, A_START, B_LENGTH, B_START, LABEL

_SHUFFLE, _MASKS = 0, 1  # uses of the seed
_PREFETCHED_BATCHES = 2

Examples = Callable[[tf.Tensor], dict[str, tf.Tensor]]


class MappedArray:
    """The concatenation of `.npy` files along their first axis: memory-mapped tensors that a graph gathers from.

    Arguments:
      paths: local files of one type and row shape; unsigned integers are below 2**31.
    """

    def __init__(self, paths: Sequence[Path | str]):
        self._files = [_map_tensor(path) for path in paths]
        self._first = np.cumsum([0, *map(len, self._files)])

    def gather(self, index: tf.Tensor) -> tf.Tensor:
        """Rows at `index` (int64, any shape), counted over all files. Integers of less than 32 bits come as int32."""
        if len(self._files) == 1:
            return _widen(tf.gather(self._files[0], index))
        flat = tf.reshape(index, [-1])
        file = tf.searchsorted(self._first[1:], flat, side="right")
        places = tf.dynamic_partition(tf.range(tf.size(flat)), file, len(self._files))
        parts = [
            _widen(tf.gather(self._files[number], tf.gather(flat, place) - self._first[number]))
            for number, place in enumerate(places)
        ]
        rows = tf.dynamic_stitch(places, parts)
        return tf.reshape(rows, tf.concat([tf.shape(index), tf.shape(rows)[1:]], axis=0))


@dataclass(frozen=True)
class SpecialTokens:
    """Ids that frame the text."""

    pad_id: int
    cls_id: int
    sep_id: int


class PairExamples:
    """Masked examples of pair plans.

    Arguments:
      windows: consecutive windows that hold all examples asked for.
      tokens: token ids of all stores.
      special_tokens: ids of [PAD], [CLS] and [SEP].
      masking: what is predicted.
      next_sentence_prediction: [CLS] A [SEP] B [SEP], or else [CLS] A [SEP].
      shuffle: in an order drawn anew for each epoch, or else in the order of the text.
      seed: any integer.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        tokens: MappedArray,
        special_tokens: SpecialTokens,
        masking: Masking,
        *,
        next_sentence_prediction: bool,
        shuffle: bool,
        seed: int,
    ):
        self.plan = MappedArray([window.path for window in windows])
        self.tokens, self.special_tokens, self.masking = tokens, special_tokens, masking
        self.is_pair, self.shuffle, self.seed = next_sentence_prediction, shuffle, seed
        self.first_epoch = windows[0].first_epoch
        self.sizes = np.concatenate([window.examples for window in windows])
        self.starts = windows[0].first_example + np.cumsum(np.concatenate([[0], self.sizes]))

    def __call__(self, number: tf.Tensor) -> dict[str, tf.Tensor]:
        """Examples by their numbers over all epochs, int64 [batch]."""
        epoch = tf.searchsorted(self.starts, number, side="right", out_type=tf.int64) - 1
        start, size = tf.gather(self.starts, epoch), tf.gather(self.sizes, epoch)
        row = number - start
        if self.shuffle:
            row = _shuffle(row, size, epoch + self.first_epoch, self.seed)
        plan = self.plan.gather(start - self.starts[0] + row)
        input_ids, is_text, segment_ids, num_tokens = self._assemble(plan)
        keys = example_keys(make_key(self.seed, _MASKS), epoch + self.first_epoch, row)
        return {
            **self.masking(input_ids, is_text, num_tokens, keys),
            "input_mask": tf.cast(tf.range(self.masking.length)[None] < num_tokens[:, None], tf.int32),
            "segment_ids": segment_ids,
            "next_sentence_labels": tf.cast(plan[:, LABEL], tf.int32),
        }

    def _assemble(self, plan):
        """input_ids int32, is_text bool, segment_ids int32, each [batch, length], and num_tokens int32 [batch]."""
        a_length, b_length = (tf.cast(plan[:, column, None], tf.int32) for column in (A_LENGTH, B_LENGTH))
        position = tf.range(self.masking.length)[None]
        first_sep = a_length + 1
        num_tokens = first_sep + 1 + (b_length + 1 if self.is_pair else 0)
        in_a = (position >= 1) & (position < first_sep)
        in_b = (position > first_sep) & (position <= first_sep + b_length)
        is_text = in_a | in_b
        start = tf.where(in_b, plan[:, B_START, None] - tf.cast(first_sep + 1, tf.int64), plan[:, A_START, None] - 1)
        place = tf.where(is_text, start + tf.cast(position, tf.int64), 0)
        special = tf.where(position < num_tokens, self.special_tokens.sep_id, self.special_tokens.pad_id)
        special = tf.where(position == 0, self.special_tokens.cls_id, special)
        input_ids = tf.where(is_text, self.tokens.gather(place), special)
        segment_ids = tf.cast((position > first_sep) & (position < num_tokens), tf.int32)
        return input_ids, is_text, segment_ids, num_tokens[:, 0]


class RecordExamples:
    """Ready-made examples, as they are.

    Arguments:
      fields: one array a field, [examples, ...].
      shuffle, seed: see `PairExamples`.
    """

    def __init__(self, fields: dict[str, Path], *, shuffle: bool, seed: int):
        self.fields = {name: MappedArray([path]) for name, path in fields.items()}
        self.num_examples = len(np.load(fields["input_ids"], mmap_mode="r"))
        self.shuffle, self.seed = shuffle, seed

    def __call__(self, number: tf.Tensor) -> dict[str, tf.Tensor]:
        """Examples by their numbers over all epochs, int64 [batch]."""
        row, epoch = number % self.num_examples, number // self.num_examples
        if self.shuffle:
            row = _shuffle(row, tf.fill(tf.shape(row), np.int64(self.num_examples)), epoch, self.seed)
        batch = {name: array.gather(row) for name, array in self.fields.items()}
        return {**batch, "next_sentence_labels": batch["next_sentence_labels"][:, 0]}


def make_dataset(
    examples: Examples, steps: range, batch_size: int, rows: Sequence[int], limit: int, num_threads: int
) -> tf.data.Dataset:
    """The batches of consecutive steps.

    Arguments:
      examples: maps numbers of examples, int64 [n], to a batch.
      steps: step k takes the examples k * batch_size and on.
      batch_size: examples of a global batch.
      rows: the numbers of its rows that are wanted.
      limit: number of examples; those beyond are copies of the last one with weight 0.
      num_threads: batches made at the same time, each by one thread.
    """

    @tf.autograph.experimental.do_not_convert
    def make_batch(step):
        number = step * batch_size + np.asarray(rows, np.int64)
        batch = examples(tf.minimum(number, limit - 1))
        weights = tf.cast(number < limit, tf.float32)
        batch["masked_lm_weights"] *= weights[:, None]
        return {**batch, "example_weights": weights}

    dataset = tf.data.Dataset.range(steps.start, steps.stop)
    dataset = dataset.map(make_batch, num_parallel_calls=num_threads, deterministic=True)
    dataset = dataset.prefetch(_PREFETCHED_BATCHES)
    options = tf.data.Options()
    # A pool of its own, of bounded size, so that training keeps its share of the cores.
    options.threading.private_threadpool_size = num_threads
    options.threading.max_intra_op_parallelism = 1
    # Rewriting the graph would copy the memory-mapped files into it.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def _shuffle(position, size, epoch, seed):
    """Row of each position in the epoch's own permutation of its `size` rows; all int64 [batch]."""
    keys = example_keys(make_key(seed, _SHUFFLE), epoch, tf.zeros_like(epoch))
    # The operation behind tf.random.experimental.index_shuffle, which itself takes no seed for each element.
    seeds = tf.concat([keys, tf.ones_like(keys[:, :1])], axis=1)
    return tf.raw_ops.RandomIndexShuffle(index=position, seed=seeds, max_index=size - 1, rounds=4)


def _map_tensor(path):
    """A `.npy` file as a tensor that shares its memory map.

    tf.raw_ops.ImmutableConst maps files too, but TensorFlow folds constants, and copies the file for that.
    """
    array = np.asarray(np.load(path, mmap_mode="c"))  # DLPack needs a writable array: private pages, never written
    if array.dtype == np.uint32:
        array = array.view(np.int32)  # TensorFlow knows few operations on uint32
    with tf.device("CPU:0"):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _widen(tensor):
    return tf.cast(tensor, tf.int32) if tensor.dtype.size < 4 else tensor
