"""Token stores as a source of masked sentence pairs."""

import functools
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from input_pipeline.errors import UserError
from input_pipeline.npy_files import NpyWriter, holds, partial_path
from input_pipeline.pair_plan import PairPlans, choose_documents, plan_folder, sampling_rates
from input_pipeline.sentence_pairs import Corpus
from input_pipeline.token_store import TokenStore

EVAL_SEED = 20181011  # evaluation examples are the same whatever the seed of training
_NO_LIMIT = 2**62
_CHUNK = 2**24
_logger = logging.getLogger(__name__)


class PairSource:
    """Examples made from the documents of one split.

    Arguments:
      stores: made with one tokenizer.
      split: "train", "eval" or "all".
      config: a PretrainingDataConfig.
      cache_folder: where pair plans are kept.

    Raises:
      UserError: when the stores have different tokenizers, or no [MASK].
    """

    def __init__(self, stores: list[TokenStore], split: str, config, cache_folder: Path):
        self.stores, self.split, self.config, self._cache_folder = stores, split, config, cache_folder
        first = stores[0].metadata
        for store in stores[1:]:
            if store.metadata["tokenizer_fingerprint"] != first["tokenizer_fingerprint"]:
                raise UserError(
                    f"--input_file: {store.folder} was made with another vocabulary or casing than {stores[0].folder}"
                )
        self.tokenizer = stores[0].tokenizer
        if self.tokenizer.mask_id is None:
            raise UserError(f"--input_file: the vocabulary of {stores[0].folder} has no [MASK]")
        self.fingerprint = hashlib.sha256(" ".join(store.fingerprint for store in stores).encode()).hexdigest()
        self.corpora = []
        first_token = 0
        for store in stores:
            ends = first_token + np.cumsum([0, *map(len, store.tokens)])
            documents = choose_documents(store.document_hashes, split, config.eval_fraction)
            offsets = (
                [np.asarray(shard) for shard in part] for part in (store.sentence_offsets, store.document_offsets)
            )
            self.corpora.append(Corpus(*offsets, ends[:-1].tolist(), documents))
            first_token = int(ends[-1])
        self._rates = sampling_rates([store.num_tokens for store in stores], config.sampling_exponent)
        self._seed = EVAL_SEED if split == "eval" else config.seed

    @functools.cached_property
    def warnings(self) -> list[str]:
        examples, random_next = self._plans.count_first_window()
        if not examples:
            return [f"the {self.split} part of the data has no document"]
        texts = []
        if self.config.next_sentence_prediction:
            alone = [store.folder for store, corpus in zip(self.stores, self.corpora) if len(corpus.documents) == 1]
            if alone:
                texts.append(
                    f"next-sentence prediction: the {self.split} part of {', '.join(alone)} is a single document, so "
                    "that no B can be taken from another one: all its examples have label 0, B follows A (documents "
                    "are separated by blank lines)"
                )
            elif random_next == examples:
                texts.append(
                    "next-sentence prediction: all examples have label 1, since no document has two sentences that "
                    "fit into an example"
                )
        if self.config.whole_word_masking:
            counts = self._unigram_counts
            share = counts[self.tokenizer.is_continuation].sum() / counts.sum()
            if share < 0.01:
                texts.append(
                    f"whole-word masking: only {share:.2%} of the tokens continue a word in this text (each Chinese "
                    "character is a word of its own), so it hardly differs from masking single tokens"
                )
        return texts

    def num_examples(self, epoch: int) -> int:
        return self._plans.count(epoch)[0]

    def num_random_next(self, epoch: int) -> int:
        return self._plans.count(epoch)[1]

    def num_eval_examples(self) -> int:
        return self._eval_plans.count(0)[0]

    def sampling_shares(self) -> dict[str, float]:
        total = sum(store.num_tokens for store in self.stores)
        return {store.folder: rate * store.num_tokens / total for store, rate in zip(self.stores, self._rates)}

    def unigram_counts(self) -> np.ndarray:
        return self._unigram_counts.copy()

    @functools.cached_property
    def _unigram_counts(self) -> np.ndarray:
        path = self._plans.folder / "unigram_counts.npy"
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        if holds(path, counts.dtype, counts.shape):
            return np.load(path)
        if path.exists():
            _logger.warning("%s is damaged and is made again", path)
        for store, corpus in zip(self.stores, self.corpora):
            for shard, tokens in enumerate(store.tokens):
                for start, end in _token_ranges(corpus, shard):
                    for chunk in range(start, end, _CHUNK):
                        found = np.bincount(tokens[chunk : min(chunk + _CHUNK, end)], minlength=len(counts))
                        if len(found) > len(counts):
                            problem = f"holds {len(found) - 1}, the vocabulary has {len(counts)} entries"
                            raise store.damaged(f"tokens-{shard:05d}.npy {problem}")
                        counts += found
        with NpyWriter(partial_path(path), np.int64) as writer:
            writer.append(counts)
        os.replace(partial_path(path), path)
        return counts

    @functools.cached_property
    def _plans(self) -> PairPlans:
        return self._make_plans(self._seed, single_epoch=False)

    @functools.cached_property
    def _eval_plans(self) -> PairPlans:
        return self._make_plans(EVAL_SEED, single_epoch=True)

    def _make_plans(self, seed: int, single_epoch: bool) -> PairPlans:
        folder = plan_folder(
            self._cache_folder,
            data=self.fingerprint,
            split=[self.split, self.config.eval_fraction if self.split != "all" else None],
            rates=self._rates,
            settings=asdict(self.config.pair_settings),
            seed=seed,
            single_epoch=single_epoch,
        )
        num_tokens = sum(store.num_tokens for store in self.stores)
        return PairPlans(
            self.corpora, self._rates, num_tokens, self.config.pair_settings, seed, folder, single_epoch=single_epoch
        )

    def datasets(self, steps: range, batch_size: int, rows: Sequence[int], num_threads: int):
        """Yields tf.data datasets that together give the wanted rows of the batches of `steps`."""
        from input_pipeline.batch_pipeline import make_dataset

        plans, step = self._plans, steps.start
        while step < steps.stop:
            first, last = plans.window_of(step * batch_size), plans.window_of((step + 1) * batch_size - 1)
            windows = [plans.window(index) for index in range(first, last + 1)]
            # A dataset has the batches that end in its last window; the first one of them may start before.
            stop = min(windows[-1].end // batch_size, steps.stop)
            if stop < steps.stop:
                plans.prepare(last + 1)
            examples = self._examples(windows, self._seed, self.config.shuffle)
            yield make_dataset(examples, range(step, stop), batch_size, rows, _NO_LIMIT, num_threads)
            for index in range(first, last):
                plans.discard(index)
            step = stop

    def eval_datasets(self, steps: range, batch_size: int, rows: Sequence[int], num_threads: int):
        """The same for all examples once, in the order of the files."""
        from input_pipeline.batch_pipeline import make_dataset

        examples = self._examples([self._eval_plans.window(0)], EVAL_SEED, shuffle=False)
        yield make_dataset(examples, steps, batch_size, rows, self.num_eval_examples(), num_threads)

    def _examples(self, windows, seed, shuffle):
        from input_pipeline.batch_pipeline import MappedArray, PairExamples, SpecialTokens
        from input_pipeline.masking import Masking

        config, tokenizer = self.config, self.tokenizer
        masking = Masking(
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            max_seq_length=config.max_seq_length,
            max_predictions_per_seq=config.max_predictions_per_seq,
            masked_lm_prob=config.masked_lm_prob,
            masking_split=config.masking_split,
            is_continuation=tokenizer.is_continuation if config.whole_word_masking else None,
        )
        return PairExamples(
            windows,
            MappedArray([path for store in self.stores for path, _, _ in store.token_files]),
            SpecialTokens(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id),
            masking,
            next_sentence_prediction=config.next_sentence_prediction,
            shuffle=shuffle,
            seed=seed,
        )


def _token_ranges(corpus: Corpus, shard: int) -> Iterator[tuple[int, int]]:
    """Ranges of a shard's tokens that the documents of a corpus take; neighbours are joined."""
    lo, hi = np.searchsorted(corpus.documents, corpus.first_document[shard : shard + 2])
    documents = corpus.documents[lo:hi] - corpus.first_document[shard]
    if not documents.size:
        return
    gaps = np.flatnonzero(np.diff(documents) > 1)
    first = documents[np.concatenate([[0], gaps + 1])]
    last = documents[np.concatenate([gaps, [len(documents) - 1]])]
    sentences, tokens = corpus.document_offsets[shard], corpus.sentence_offsets[shard]
    yield from zip(tokens[sentences[first]].tolist(), tokens[sentences[last + 1]].tolist())
