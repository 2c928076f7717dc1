"""Masked language modelling: which tokens are predicted, and what the model sees in their place (TensorFlow graph).

The rules are those of the reference (google-research/bert, create_pretraining_data.py). All randomness is a hash of
(seed, epoch, example, position), so that the masks of an example do not depend on its batch.
"""

import numpy as np

from input_pipeline.hashing import make_key
from input_pipeline.host_tensorflow import tf

# Counters of the hash: what a random number is for.
_SELECT, _ACTION, _WORD = (stream << 24 for stream in range(3))
_GOLDEN = np.uint32(0x9E3779B9)
_POSITION_BITS = 16
MAX_LENGTH = 2**_POSITION_BITS


def prediction_counts(max_seq_length: int, max_predictions_per_seq: int, masked_lm_prob: float) -> np.ndarray:
    """How many tokens are predicted in an example of n tokens, int32 [max_seq_length + 1], indexed by n.

    n counts [CLS] and [SEP] as the reference does; the product is taken in float64 and rounded half to even; at least
    1, at most `max_predictions_per_seq`.
    """
    counts = [min(max_predictions_per_seq, max(1, round(n * masked_lm_prob))) for n in range(max_seq_length + 1)]
    return np.array(counts, np.int32)


def example_keys(seed: int, epoch: tf.Tensor, example: tf.Tensor) -> tf.Tensor:
    """Random keys of examples, uint32 [batch, 2].

    Arguments:
      seed: any integer.
      epoch, example: int64 [batch], at least 0.
    """
    seed = int(make_key(seed))
    words = [tf.cast(word, tf.uint32) for word in (epoch, example & 0xFFFFFFFF, tf.bitwise.right_shift(example, 32))]
    keys = []
    for half in (seed & 0xFFFFFFFF, seed >> 32):
        key = tf.constant(half, tf.uint32)
        for word in words:
            key = _mix(_mix((word + 1) * _GOLDEN) ^ key)
        keys.append(key)
    return tf.stack(keys, axis=1)


def random_bits(keys: tf.Tensor, counters: tf.Tensor) -> tf.Tensor:
    """Hashes keys, uint32 [batch, 2], and counters, int32 [batch or 1, n], to uint32 random bits [batch, n].

    Each half of the key enters in a round of its own: the streams of two keys are not permutations of each other.
    """
    bits = _mix(tf.cast(counters, tf.uint32) * _GOLDEN ^ keys[:, :1])
    return _mix(bits ^ keys[:, 1:])


class Masking:
    """Turns token ids into masked examples.

    Arguments:
      vocab_size: random words are drawn uniformly from all ids below this, special and unused ones included, as in the
        reference.
      mask_id: id of [MASK].
      max_seq_length, max_predictions_per_seq, masked_lm_prob: see `prediction_counts`.
      masking_split: shares of the predicted tokens that are shown as [MASK], unchanged, and as a random word.
      is_continuation: which ids continue a word, bool [vocab_size], for whole-word masking: all pieces of a word are
        predicted or none. None for predicting pieces independently.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        mask_id: int,
        max_seq_length: int,
        max_predictions_per_seq: int,
        masked_lm_prob: float,
        masking_split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        is_continuation: np.ndarray | None = None,
    ):
        if max_seq_length > MAX_LENGTH:
            raise ValueError(f"max_seq_length {max_seq_length} is above {MAX_LENGTH}")
        self.vocab_size, self.mask_id = vocab_size, mask_id
        self.length, self.num_predictions = max_seq_length, max_predictions_per_seq
        self._num_places = min(max_seq_length, max_predictions_per_seq)
        self.counts = prediction_counts(max_seq_length, max_predictions_per_seq, masked_lm_prob)
        self.mask_share, self.kept_share = masking_split[0], masking_split[0] + masking_split[1]
        self.is_continuation = is_continuation

    def __call__(self, input_ids: tf.Tensor, candidates: tf.Tensor, num_tokens: tf.Tensor, keys: tf.Tensor) -> dict:
        """Masks a batch.

        Arguments:
          input_ids: int32 [batch, length].
          candidates: bool [batch, length], which positions hold text: not [CLS], [SEP] or padding.
          num_tokens: int32 [batch], without padding.
          keys: uint32 [batch, 2], from `example_keys`.

        Returns:
          input_ids, int32 [batch, length], with the masks; masked_lm_positions (ascending, 0 in unused places) and
          masked_lm_ids (the true ids), int32 [batch, predictions]; masked_lm_weights, 1 or 0 for unused places, float32
          [batch, predictions].
        """
        budget = tf.gather(self.counts, num_tokens)
        if self.is_continuation is None:
            positions = self._pick_pieces(candidates, budget, keys)
        else:
            positions = self._pick_words(input_ids, candidates, budget, keys)
        missing = self.num_predictions - self._num_places
        positions = tf.pad(positions, [[0, 0], [0, missing]], constant_values=self.length)
        used = positions < self.length
        positions = tf.where(used, positions, 0)
        labels = tf.gather(input_ids, positions, batch_dims=1)
        shown = tf.where(used, self._replace(labels, positions, keys), labels)
        return {
            "input_ids": _scatter(input_ids, positions, shown),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(used, labels, 0),
            "masked_lm_weights": tf.cast(used, tf.float32),
        }

    def _pick_pieces(self, candidates, budget, keys):
        """Positions of `budget` random candidates, ascending, then `length`: int32 [batch, num_places]."""
        order, exists = _random_order(candidates, keys, self._num_places)
        within = tf.range(self._num_places)[None] < budget[:, None]
        return tf.sort(tf.where(exists & within, order, self.length), axis=1)

    def _pick_words(self, input_ids, candidates, budget, keys):
        """The same for whole words: in a random order, leaving out each one that has more pieces than are still wanted.

        A word is a candidate and the continuation pieces behind it, be it behind a [SEP] (as in the reference).
        """
        length = self.length
        position = tf.cumsum(tf.cast(candidates, tf.int32), axis=1)
        starts = candidates & ((position == 1) | ~tf.gather(self.is_continuation, input_ids))
        word = tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)
        # The words in a random order, and their sizes; there are at most as many words as positions.
        batch = tf.shape(input_ids)[0]
        row_word = word + tf.range(batch)[:, None] * length
        sizes = tf.math.unsorted_segment_sum(tf.cast(candidates, tf.int32), row_word, batch * length)
        sizes = tf.reshape(sizes, [batch, length])
        order, _ = _random_order(sizes > 0, keys, length)
        picked = _fill(tf.gather(sizes, order, batch_dims=1), budget)
        picked = _scatter(sizes, order, tf.cast(picked, tf.int32))
        chosen = candidates & (tf.gather(picked, word, batch_dims=1) > 0)
        countdown = tf.where(chosen, length - tf.range(length), 0)
        return length - tf.math.top_k(countdown, self._num_places).values

    def _replace(self, labels, positions, keys):
        """What is shown at predicted positions: [MASK], the label or a random word, int32 [batch, predictions]."""
        share = tf.cast(random_bits(keys, positions + _ACTION), tf.float64) * 2.0**-32
        words = tf.cast(random_bits(keys, positions + _WORD), tf.int64) * self.vocab_size
        words = tf.cast(tf.bitwise.right_shift(words, tf.constant(32, tf.int64)), tf.int32)
        return tf.where(share < self.mask_share, self.mask_id, tf.where(share < self.kept_share, labels, words))


def _random_order(exists, keys, k):
    """The first k columns of each row in a random order, those that do not exist last.

    Arguments:
      exists: bool [batch, n].
      keys: uint32 [batch, 2].

    Returns:
      columns, int32 [batch, k], and whether they exist, bool [batch, k].
    """
    column = tf.range(exists.shape[1])
    bits = tf.cast(random_bits(keys, column[None] + _SELECT), tf.int64)
    # One number to sort by: the random bits, then the column.
    bits = tf.where(exists, bits, -1) * MAX_LENGTH + tf.cast(column, tf.int64)
    first = tf.math.top_k(bits, k).values
    return tf.cast(first & (MAX_LENGTH - 1), tf.int32), first >= 0


def _fill(sizes, budget):
    """Takes items from left to right, leaving out each one that is larger than what is left of the budget.

    All items up to the first one that is too large are taken at once; that one and all larger ones are out then.

    Arguments:
      sizes: int32 [batch, n]; 0 for items that do not exist.
      budget: int32 [batch].

    Returns:
      bool [batch, n].
    """

    def take(taken, open_, left):
        fits = open_ & (sizes <= left[:, None])
        fitting_sizes = tf.where(fits, sizes, 0)
        now = fits & (tf.cumsum(fitting_sizes, axis=1) <= left[:, None])
        left -= tf.reduce_sum(tf.where(now, sizes, 0), axis=1)
        return taken | now, fits & ~now, left

    taken, _, _ = tf.while_loop(
        lambda taken, open_, left: tf.reduce_any(open_), take, (tf.zeros_like(sizes, tf.bool), sizes > 0, budget)
    )
    return taken


def _scatter(table, columns, values):
    """`table` [batch, n] with `values` at `columns`, both [batch, k]; columns named twice must get equal values."""
    rows = tf.broadcast_to(tf.range(tf.shape(table)[0])[:, None], tf.shape(columns))
    return tf.tensor_scatter_nd_update(table, tf.stack([rows, columns], axis=2), values)


def _mix(x):
    """A bijection of uint32 in which every bit of x reaches every bit of the result (lowbias32 of Chris Wellons)."""
    x = (x ^ _shift(x, 16)) * np.uint32(0x7FEB352D)
    x = (x ^ _shift(x, 15)) * np.uint32(0x846CA68B)
    return x ^ _shift(x, 16)


def _shift(x, bits):
    return tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32))
