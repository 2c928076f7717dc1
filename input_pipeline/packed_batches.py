"""Training batches of a fine-tuning task: the step's examples, drawn at random, packed into rows.

A batch always has the same number of examples. They are drawn so that each batch has short and long ones in the same
mixture as the whole: all need about the same number of rows, little is padded, and mostly one shape is compiled.
(Batches of like length, the usual remedy against padding, are less random, and need many shapes.) Everything is a
function of the features, the seed and the step.
"""

import functools
from collections.abc import Sequence

import numpy as np

from input_pipeline.hashing import draw, make_key, mix
from input_pipeline.packing import SLOTS, pack, packed_arrays
from input_pipeline.task_features import NO_LABEL, Features

_SHUFFLE = 0  # use of the seed

# Rows have a width of which all devices compute multiples well, and room for more than one short sequence: up to so
# many times the longest, as packs best.
_LEAST_WIDTH, _WIDTH_STEP, _MOST_TIMES = 64, 16, 2

# Attention looks at the whole row: in one of this width a token takes twice the time.
_DOUBLING_WIDTH = 700

# So many steps tell which width packs best, and how many rows a batch needs; a batch that needs more than any of them
# gets this share more.
_WIDTH_STEPS, _SAMPLED_STEPS = 20, 200
_MORE_ROWS = 0.125


class PackedBatches:
    """The batches of a run.

    Arguments:
      features: of all training examples.
      num_choices: sequences that make one example.
      batch_size: examples of a batch; a multiple of accumulation_steps.
      num_train_steps: of the whole run, to choose the numbers of rows.
      seed: of the order.
      shuffle: in an order drawn anew for each epoch, or else in that of the features.
      accumulation_steps: parts of the batch; of its arrays, entry i along the first axis is part i modulo their number.
      row_multiple: what the rows of a part are a multiple of.
      compile_tokens: in how many tokens' time a batch of another number of rows is compiled.
    """

    def __init__(
        self,
        features: Features,
        *,
        num_choices: int = 1,
        batch_size: int,
        num_train_steps: int,
        seed: int,
        shuffle: bool = True,
        accumulation_steps: int = 1,
        row_multiple: int = 1,
        compile_tokens: float = 0.0,
    ):
        self.features, self.num_choices, self.batch_size = features, num_choices, batch_size
        self.seed, self.shuffle = seed, shuffle
        self.parts, self.row_multiple = accumulation_steps, row_multiple
        self.num_examples = len(features.lengths) // num_choices
        self.starts = np.concatenate([[0], np.cumsum(features.lengths, dtype=np.int64)])
        self.of_tokens = features.labels.ndim == 1 and len(features.labels) == len(features.input_ids)
        self.width = self._choose_width(min(num_train_steps, _WIDTH_STEPS))
        sampled = range(min(num_train_steps, _SAMPLED_STEPS))
        needs = [max(len(rows) for _, rows in self._packed(step)) for step in sampled]
        tokens_of_row = self.width * self.parts
        self.row_counts = choose_row_counts(
            [-(-need // row_multiple) * row_multiple for need in needs],
            compile_tokens / tokens_of_row * len(sampled) / num_train_steps,
        )

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step, counted from 0.

        Returns:
          The arrays of packed_arrays, [rows * parts, ...]; `places` int32 [batch, num_choices], where the sequences of
          each example are, counted over rows and their slots within the part; `labels` [batch, ...] as in Features,
          of tokens [batch, width].
        """
        packed = self._packed(step)
        count = self._row_count(max(len(rows) for _, rows in packed))
        parts = []
        for numbers, rows in packed:
            sequences = self._sequences(numbers)
            arrays = packed_arrays(
                [self._tokens(number) for number in sequences], rows + [[]] * (count - len(rows)), self.width
            )
            places = np.zeros(len(sequences), np.int32)
            for row, members in enumerate(rows):
                for slot, member in enumerate(members):
                    places[member] = row * SLOTS + slot
            labels = self._token_labels(numbers) if self.of_tokens else self.features.labels[numbers]
            parts.append(arrays | {"places": places.reshape(-1, self.num_choices), "labels": labels})
        if len(parts) == 1:
            return parts[0]
        stacked = {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
        return {name: array.reshape(-1, *array.shape[2:]) for name, array in stacked.items()}

    def examples_of(self, step: int) -> np.ndarray:
        """The numbers of the examples of a step, int64 [batch]: the stream of epochs has no gaps."""
        places = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        epochs, places = places // self.num_examples, places % self.num_examples
        if not self.shuffle:
            return places
        return np.concatenate([self._order(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)])

    @functools.lru_cache(maxsize=2)  # noqa: B019 (the object lives as long as the run)
    def _order(self, epoch: int) -> np.ndarray:
        keys = draw(make_key(self.seed, _SHUFFLE, epoch), np.arange(self.num_examples, dtype=np.uint64))
        lengths = self.features.lengths.reshape(-1, self.num_choices).sum(axis=1)
        return balanced_order(lengths, keys, self.batch_size)

    def _packed(self, step: int) -> list[tuple[np.ndarray, list[list[int]]]]:
        """For each part its examples, and how their sequences are packed."""
        numbers = self.examples_of(step)
        parts = np.split(numbers, self.parts)
        lengths = [self.features.lengths[self._sequences(part)].tolist() for part in parts]
        return [(part, pack(part_lengths, self.width)) for part, part_lengths in zip(parts, lengths)]

    def _choose_width(self, num_steps: int) -> int:
        """The width whose rows, in the numbers that batches need, take the least time.

        Whatever `row_multiple` is: what shares a row, and with it dropout, does not depend on the number of devices.
        """
        least = max(_LEAST_WIDTH, -(-int(self.features.lengths.max()) // _WIDTH_STEP) * _WIDTH_STEP)
        costs = {}
        for self.width in range(least, _MOST_TIMES * least + 1, _WIDTH_STEP):
            rows = max(len(rows) for step in range(num_steps) for _, rows in self._packed(step))
            costs[self.width] = rows * self.width * (1 + self.width / _DOUBLING_WIDTH)
        return min(costs, key=costs.__getitem__)

    def _sequences(self, examples: np.ndarray) -> np.ndarray:
        return (examples[:, None] * self.num_choices + np.arange(self.num_choices)).reshape(-1)

    def _tokens(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        place = slice(self.starts[sequence], self.starts[sequence + 1])
        return self.features.input_ids[place], self.features.segment_ids[place]

    def _token_labels(self, sequences: np.ndarray) -> np.ndarray:
        labels = np.full((len(sequences), self.width), NO_LABEL, np.int32)
        for row, sequence in enumerate(sequences):
            of_sequence = self.features.labels[self.starts[sequence] : self.starts[sequence + 1]]
            labels[row, : len(of_sequence)] = of_sequence
        return labels

    def _row_count(self, need: int) -> int:
        for count in self.row_counts:
            if count >= need:
                return count
        step = max(1, round(self.row_counts[-1] * _MORE_ROWS / self.row_multiple)) * self.row_multiple
        return self.row_counts[-1] + -(-(need - self.row_counts[-1]) // step) * step


def balanced_order(lengths: np.ndarray, keys: np.ndarray, batch_size: int) -> np.ndarray:
    """A random order in which every `batch_size` consecutive examples have lengths all over their distribution.

    The examples, sorted by length, are cut into batch_size strata; each batch takes one of every stratum at random. In
    the batch neighbouring strata lie far apart (their numbers' bits are reversed), so parts of it are balanced too.

    Arguments:
      lengths: ints [examples].
      keys: random uint64 [examples].

    Returns:
      int64 [examples], numbers of examples.
    """
    count = len(lengths)
    num_batches = -(-count // batch_size)
    by_length = np.lexsort((keys, lengths))
    stratum = np.arange(count) // num_batches
    # Within a stratum the order of keys, mixed anew since they broke ties, says which batch takes an example.
    batch = np.empty(count, np.int64)
    shuffled = np.lexsort((mix(keys[by_length]), stratum))
    batch[shuffled] = np.arange(count) - stratum * num_batches
    if count % num_batches:  # the last stratum has one for some batches only, which are drawn too
        last = np.flatnonzero(stratum == stratum[-1])
        drawn = np.argsort(mix(np.arange(num_batches, dtype=np.uint64) ^ keys[0]), kind="stable")
        batch[last] = drawn[batch[last]]
    bits = max(int(stratum[-1]).bit_length(), 1)
    places = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(int(stratum[-1]) + 1)]
    return by_length[np.lexsort((np.array(places)[stratum], batch))]


def choose_row_counts(needs: Sequence[int], compile_rows: float) -> list[int]:
    """The numbers of rows, ascending, with which computing and compiling together cost least.

    Arguments:
      needs: rows that each batch needs.
      compile_rows: in how many rows' time another number is compiled.
    """
    values, counts = np.unique(np.asarray(needs), return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    cost = [0.0] + [np.inf] * len(values)  # least cost of the first i values, the last of them being chosen
    previous = [0] * (len(values) + 1)
    for i, value in enumerate(values, start=1):
        for j in range(i):
            here = float((below[i] - below[j]) * value + compile_rows)
            if cost[j] + here < cost[i]:
                cost[i], previous[i] = cost[j] + here, j
    chosen = []
    last = len(values)
    while last:
        chosen.append(int(values[last - 1]))
        last = previous[last]
    return chosen[::-1]
