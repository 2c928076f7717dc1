"""Token stores of made-up documents."""

import numpy as np
import pytest

from input_pipeline.token_store import TokenStoreWriter
from input_pipeline.tokenization import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FIRST_WORD = len(SPECIAL)


@pytest.fixture
def make_store(tmp_path):
    """make_store(documents, vocab_size): a store of documents (lists of sentences, which are lists of ids).

    Ids 5, 6, ... are words; every id that is divisible by 4 continues a word.
    """

    def make(documents, vocab_size=3000, name="store", shard_tokens=2**27):
        pieces = [f"##p{i}" if i % 4 == 0 else f"w{i}" for i in range(FIRST_WORD, vocab_size)]
        tokenizer = WordPieceTokenizer(SPECIAL + pieces)
        with TokenStoreWriter(tmp_path / name, tokenizer, [{"path": name}], shard_tokens) as writer:
            for document in documents:
                writer.add(document)
            return writer.close()

    return make


@pytest.fixture
def make_documents():
    """make_documents(n, seed): documents in which every token is another one: ids count up from the first word."""

    def make(count, seed=0, sentences=12, length=30):
        rng = np.random.default_rng(seed)
        documents, token = [], FIRST_WORD
        for _ in range(count):
            lengths = rng.integers(1, length, rng.integers(1, sentences))
            ends = token + np.cumsum(lengths)
            documents.append([list(range(end - size, end)) for end, size in zip(ends.tolist(), lengths.tolist())])
            token = int(ends[-1])
        return documents

    return make
