"""Sentence pairs for next-sentence prediction, by the rules of the reference (google-research/bert,
create_pretraining_data.py), as vectorised functions of counter-based random numbers.

The reference walks through a document: it collects whole sentences until a target length is reached (the chunk), cuts
the chunk at a random sentence into A and B, and half of the time throws B away for text of another document; the
sentences thrown away are used again. That makes the place where the next chunk starts depend on all earlier draws.
Here every draw of a chunk is keyed on the sentence that it starts with, so the chunk that would start at any sentence,
and the start of the one after it, are found for all sentences at once. What is left to do one after the other is to
follow these links through each document. A sentence starts at most one chunk, so the draws are as independent as the
reference's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from input_pipeline.hashing import below, count_heads, draw, unit

# What a random number is for. Draws of a document are keyed on its number, draws of a chunk on its first sentence.
_DOCUMENT, _CHUNK = np.uint64(1), np.uint64(2)
_SHORT, _TARGET, _CUT, _RANDOM_DOCUMENT, _RANDOM_SENTENCE, _FRONT_A, _FRONT_B = np.arange(7, dtype=np.uint64)

A_START, A_LENGTH, B_START, B_LENGTH, LABEL = range(5)
ROW_WIDTH = 5


@dataclass(frozen=True)
class PairSettings:
    """How long the examples are, in tokens, and whether they are pairs."""

    max_seq_length: int = 128
    short_seq_prob: float = 0.1
    next_sentence_prediction: bool = True

    @property
    def max_num_tokens(self) -> int:
        """Room for text beside [CLS] A [SEP] B [SEP] or [CLS] A [SEP]."""
        return self.max_seq_length - (3 if self.next_sentence_prediction else 2)


@dataclass(frozen=True)
class Corpus:
    """Documents to make pairs from: those of one token store that belong to one split.

    Attributes:
      sentence_offsets: one array a shard, int64 [sentences + 1], into the shard's tokens.
      document_offsets: one array a shard, int64 [documents + 1], into the shard's sentences.
      first_token: position of each shard's first token in the concatenation of all token files.
      documents: numbers of the documents to use, counted over all shards, ascending, int64 [n].
    """

    sentence_offsets: list[np.ndarray]
    document_offsets: list[np.ndarray]
    first_token: list[int]
    documents: np.ndarray

    @cached_property
    def first_document(self) -> np.ndarray:
        """Number of each shard's first document, and at the end the number of documents, int64 [shards + 1]."""
        return np.cumsum([0] + [len(offsets) - 1 for offsets in self.document_offsets])

    @cached_property
    def first_sentence(self) -> np.ndarray:
        """The same for sentences."""
        return np.cumsum([0] + [len(offsets) - 1 for offsets in self.sentence_offsets])


def cuts(len_a: np.ndarray, len_b: np.ndarray, max_num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens the reference's truncate_seq_pair takes from A and from B.

    It takes one token at a time from A if A is longer, else from B, until both fit: first the longer side loses the
    difference, then the two sides take turns, B first.

    Arguments:
      len_a, len_b: tokens of both sides, int64 [n].

    Returns:
      int64 [n] each; whether a token goes at the front or the back is another matter.
    """
    excess = np.maximum(len_a + len_b - max_num_tokens, 0)
    from_longer = np.minimum(excess, np.abs(len_a - len_b))
    from_both = excess - from_longer
    a_longer = len_a > len_b
    return (
        np.where(a_longer, from_longer, 0) + from_both // 2,
        np.where(a_longer, 0, from_longer) + (from_both + 1) // 2,
    )


def make_pairs(
    corpus: Corpus, keys: np.ndarray, settings: PairSettings, block_size: int = 2**18
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs through the corpus once for each key and makes all of its examples.

    With a single document there is no other one to take a random B from: every B is the text that follows, and a chunk
    of one sentence is cut inside the sentence (or left out when it is a single token).

    Arguments:
      keys: random keys, one for each pass (epoch), uint64 [passes].
      block_size: sentences times passes that are looked at together; bounds the memory, changes nothing else.

    Yields:
      (rows, passes), a block at a time, for each pass in the order of the text. rows: int64 [n, 5], the columns
      A start, A length, B start, B length, label (0 = B follows A, 1 = B is random); starts are positions in the
      concatenation of all token files. Without next-sentence prediction B is empty. passes: index into `keys` of each
      row, int64 [n].
    """
    for shard in range(len(corpus.document_offsets)):
        yield from _make_shard(corpus, shard, np.asarray(keys, np.uint64), settings, block_size)


def _make_shard(corpus, shard, keys, settings, block_size):
    first_document = corpus.first_document
    lo, hi = np.searchsorted(corpus.documents, first_document[shard : shard + 2])
    if lo == hi:
        return
    offsets = corpus.document_offsets[shard]
    local = corpus.documents[lo:hi] - first_document[shard]
    document_start, document_end = offsets[local], offsets[local + 1]
    # Sentences of the chosen documents are counted without gaps ("slots"): a link over the end of a document leads to
    # the start of the next chosen one.
    first_slot = np.concatenate([[0], np.cumsum(document_end - document_start)])
    block = max(block_size // len(keys), 1)
    next_slot = np.zeros(len(keys), np.int64)
    for begin in range(0, int(first_slot[-1]), block):
        slot = np.arange(begin, min(begin + block, int(first_slot[-1])))
        owner = np.searchsorted(first_slot, slot, side="right") - 1
        sentence = document_start[owner] + slot - first_slot[owner]
        chunks = _Chunks(corpus, shard, sentence, document_end[owner], lo + owner, keys, settings)
        visited = []
        for index, steps in enumerate(chunks.steps):
            starts, past_end = _follow(steps.tolist(), int(next_slot[index]) - begin)
            next_slot[index] = begin + past_end
            visited.append(starts)
        passes = np.repeat(np.arange(len(keys)), [len(starts) for starts in visited])
        rows = chunks.rows(passes, np.concatenate(visited))
        kept = rows[:, A_LENGTH] > 0
        yield rows[kept], passes[kept]


def _follow(steps: list[int], start: int) -> tuple[np.ndarray, int]:
    """Visits `start`, start + steps[start] and so on; returns the places visited and the first one past the end."""
    visited = []
    end = len(steps)
    while start < end:
        visited.append(start)
        start += steps[start]
    return np.array(visited, np.int64), start


class _Chunks:
    """The chunks that would start at each of some sentences of a shard.

    Arguments:
      sentence: the sentences, numbers inside the shard, int64 [n].
      document_end: first sentence after the document of each, int64 [n].
      owner: index into corpus.documents of each, int64 [n].
      keys: uint64 [passes].
    """

    def __init__(self, corpus, shard, sentence, document_end, owner, keys, settings):
        self.corpus, self.shard, self.settings = corpus, shard, settings
        self.sentence, self.document_end, self.owner = sentence, document_end, owner
        self.offsets = corpus.sentence_offsets[shard]
        self.key = draw(
            draw(keys, _CHUNK)[:, None], (sentence + corpus.first_sentence[shard]).astype(np.uint64)
        )  # [passes, n]
        self.target = self._target_lengths(draw(keys, _DOCUMENT))
        # The chunk ends with the sentence that reaches the target length, or with the document.
        end = np.searchsorted(self.offsets, self.offsets[sentence] + self.target)
        self.count = np.minimum(end, document_end) - sentence
        self.several_documents = len(corpus.documents) > 1
        bits = draw(self.key, _CUT)
        self.cut = np.where(self.count > 1, 1 + below(bits, np.maximum(self.count - 1, 1)), 1)
        self.is_random = ((self.count == 1) | (bits & np.uint64(1) == 1)) & self.several_documents
        if not settings.next_sentence_prediction:
            self.cut, self.is_random = self.count, np.zeros_like(self.is_random)
        self.steps = np.where(self.is_random, self.cut, self.count)

    def _target_lengths(self, keys: np.ndarray) -> np.ndarray:
        """Tokens to reach, int64 [passes, n]; drawn once a document, as the reference does."""
        limit = self.settings.max_num_tokens
        documents = self.corpus.documents[self.owner[0] : self.owner[-1] + 1]
        key = draw(keys[:, None], documents.astype(np.uint64))
        short = unit(draw(key, _SHORT)) < self.settings.short_seq_prob
        target = np.where(short, 2 + below(draw(key, _TARGET), limit - 1), limit)
        return target[:, self.owner - self.owner[0]]

    def rows(self, passes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """The examples of the chunks that start at `places` in `passes`, int64 [m, 5]; left out ones have length 0."""
        limit = self.settings.max_num_tokens
        key, target = self.key[passes, places], self.target[passes, places]
        is_random = self.is_random[passes, places]
        first = self.sentence[places]
        middle = first + self.cut[passes, places]
        a_start = self.offsets[first]
        b_start = self.offsets[middle]
        b_end = self.offsets[first + self.count[passes, places]]
        if self.settings.next_sentence_prediction and not self.several_documents:
            sentence_length = b_start - a_start
            inside = a_start + 1 + below(draw(key, _CUT), np.maximum(sentence_length - 1, 1))
            b_start = np.where(b_start == b_end, np.minimum(inside, b_end), b_start)
        shift = self.corpus.first_token[self.shard]
        a_length, b_length = b_start - a_start, b_end - b_start
        a_start, b_start = a_start + shift, b_start + shift
        if is_random.any():
            b_start[is_random], b_length[is_random] = self._random_text(
                key[is_random], self.owner[places[is_random]], (target - a_length)[is_random]
            )
        cut_a, cut_b = cuts(a_length, b_length, limit)
        front_a = count_heads(draw(key, _FRONT_A), cut_a)
        front_b = count_heads(draw(key, _FRONT_B), cut_b)
        rows = np.stack([a_start + front_a, a_length - cut_a, b_start + front_b, b_length - cut_b, is_random], axis=1)
        if self.settings.next_sentence_prediction:
            rows[b_length == 0] = 0
        return rows

    def _random_text(self, key, owner, length) -> tuple[np.ndarray, np.ndarray]:
        """Text of another document for each example, from a random sentence on until it has `length` tokens or ends.

        Arguments:
          key: uint64 [m].
          owner: index of the document not to use, int64 [m].
          length: int64 [m]; may be below 1, one sentence is taken then.

        Returns:
          Start in the concatenation of all token files and length, int64 [m] each.
        """
        corpus = self.corpus
        other = below(draw(key, _RANDOM_DOCUMENT), len(corpus.documents) - 1)
        document = corpus.documents[other + (other >= owner)]
        shards = np.searchsorted(corpus.first_document, document, side="right") - 1
        start, found = np.empty_like(document), np.empty_like(document)
        bits = draw(key, _RANDOM_SENTENCE)
        for shard in np.unique(shards):
            here = shards == shard
            offsets = corpus.sentence_offsets[shard]
            local = document[here] - corpus.first_document[shard]
            begin, end = (corpus.document_offsets[shard][local + i] for i in (0, 1))
            first = begin + below(bits[here], end - begin)
            last = np.searchsorted(offsets, offsets[first] + length[here])
            last = np.clip(last, first + 1, end)
            start[here] = offsets[first] + corpus.first_token[shard]
            found[here] = offsets[last] - offsets[first]
        return start, found
