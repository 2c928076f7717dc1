"""Ready-made masked examples of TFRecords as a source of batches."""

from collections.abc import Sequence

import numpy as np

from input_pipeline.tfrecords import Records

_NO_LIMIT = 2**62
_CHUNK = 2**20


class RecordSource:
    """Examples as the records hold them, in an order drawn anew for each epoch or in that of the files.

    Arguments:
      records: the decoded records.
      config: a PretrainingDataConfig.
      vocab_size: tokens of the vocabulary.
    """

    def __init__(self, records: Records, config, vocab_size: int):
        self.records, self.config, self.vocab_size = records, config, vocab_size
        self.fingerprint = records.fingerprint

    @property
    def warnings(self) -> list[str]:
        texts = [
            f"masked language modeling: {path} has nothing to learn, all its masked_lm_weights are 0"
            for path in self.records.without_predictions
        ]
        random_next = self.num_random_next(0)
        if self.config.next_sentence_prediction and random_next in (0, self.records.num_examples):
            texts.append(f"next-sentence prediction: all records have the same label, {int(random_next > 0)}")
        return texts

    def num_examples(self, epoch: int) -> int:
        return self.records.num_examples

    def num_random_next(self, epoch: int) -> int:
        return int(np.count_nonzero(self.records.load("next_sentence_labels")))

    def num_eval_examples(self) -> int:
        return self.records.num_examples

    def sampling_shares(self) -> dict[str, float]:
        return {}

    def unigram_counts(self) -> np.ndarray:
        """Counts of the predicted tokens, int64 [vocab_size]: other text cannot be told from its frame."""
        counts = np.zeros(self.vocab_size, np.int64)
        weights, ids = self.records.load("masked_lm_weights"), self.records.load("masked_lm_ids")
        for start in range(0, len(ids), _CHUNK):
            rows = slice(start, start + _CHUNK)
            counts += np.bincount(ids[rows][weights[rows] > 0], minlength=self.vocab_size)
        return counts

    def datasets(self, steps: range, batch_size: int, rows: Sequence[int], num_threads: int):
        """Yields tf.data datasets that together give the wanted rows of the batches of `steps`."""
        yield self._dataset(self.config.shuffle, steps, batch_size, rows, _NO_LIMIT, num_threads)

    def eval_datasets(self, steps: range, batch_size: int, rows: Sequence[int], num_threads: int):
        """The same for all examples once, in the order of the files."""
        yield self._dataset(False, steps, batch_size, rows, self.records.num_examples, num_threads)

    def _dataset(self, shuffle, *arguments):
        from input_pipeline.batch_pipeline import RecordExamples, make_dataset

        return make_dataset(RecordExamples(self.records.fields, shuffle=shuffle, seed=self.config.seed), *arguments)
