"""Speed of pretraining's input: sentence pairs planned, and masked examples made, a second.

    python benchmarks/pretraining_batches.py [--input_file=STORE] [--max_seq_length=512 --max_predictions_per_seq=76]
    python benchmarks/pretraining_batches.py --input_file=text.txt --vocab_file=vocab.txt

Without an input: a made-up store of a million sentences with the lengths and word pieces of English text.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from input_pipeline.corpus import kind_of
from input_pipeline.pair_plan import PairPlans
from input_pipeline.prepare import prepare
from input_pipeline.pretraining_data import PretrainingDataConfig, open_stores
from input_pipeline.sentence_pairs import Corpus
from input_pipeline.token_store import TokenStore, TokenStoreWriter
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

_INPUT_FILE = flags.DEFINE_string("input_file", None, "A token store, or text.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The vocabulary for text.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Predicted tokens of an example.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 256, "Examples of a batch.")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", 200_000, "Examples that are timed.")
_THREADS = flags.DEFINE_integer("threads", None, "Batches made at the same time; default: as in training.")


def made_up_store(folder: Path, num_sentences: int = 1_000_000, vocab_size: int = 30522) -> TokenStore:
    """Sentences of 26 tokens on average, 40 of them a document; an eighth of the pieces continues a word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [f"##p{i}" if i % 8 == 0 else f"w{i}" for i in range(len(special), vocab_size)]
    rng = np.random.default_rng(0)
    with TokenStoreWriter(folder, WordPieceTokenizer(special + pieces), [{"path": "made up"}]) as writer:
        for _ in range(20):
            lengths = 1 + rng.gamma(2.0, 12.5, num_sentences // 20).astype(np.int64)
            documents = np.full(len(lengths) // 40, 40)
            lengths = lengths[: documents.sum()]
            writer.add_block(rng.integers(len(special), vocab_size, lengths.sum()), lengths, documents)
        return writer.close()


def open_input(folder: Path) -> TokenStore:
    if not _INPUT_FILE.value:
        return made_up_store(folder / "store")
    if kind_of(_INPUT_FILE.value) == "store":
        return TokenStore.open(_INPUT_FILE.value)
    return prepare(
        [_INPUT_FILE.value],
        load_tokenizer(_VOCAB_FILE.value),
        folder / "store",
    )


def time_plan(store: TokenStore, config: PretrainingDataConfig, folder: Path) -> float:
    """Sentences a second, with the plan written to a file."""
    first_token = np.cumsum([0, *map(len, store.tokens)])[:-1].tolist()
    corpus = Corpus(store.sentence_offsets, store.document_offsets, first_token, np.arange(store.num_documents))
    plans = PairPlans([corpus], [1.0], store.num_tokens, config.pair_settings, 0, folder / "plan", single_epoch=True)
    start = time.perf_counter()
    plans.window(0)
    return store.num_sentences / (time.perf_counter() - start)


def time_batches(store: TokenStore, config: PretrainingDataConfig, folder: Path) -> float:
    """Examples a second, without the first batches, which wait for TensorFlow to start."""
    warm_up, steps = 10, max(_NUM_EXAMPLES.value // _BATCH_SIZE.value, 10)
    data = open_stores([store], "all", config, folder)
    with data.batches(_BATCH_SIZE.value, 0, warm_up + steps, num_threads=_THREADS.value) as batches:
        for _ in range(warm_up):
            next(batches)
        start = time.perf_counter()
        for _ in range(steps):
            next(batches)
        return steps * _BATCH_SIZE.value / (time.perf_counter() - start)


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        store = open_input(folder)
        print(f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens")
        sizes = {
            "max_seq_length": _MAX_SEQ_LENGTH.value,
            "max_predictions_per_seq": _MAX_PREDICTIONS.value,
        }
        plain = PretrainingDataConfig(**sizes)
        print(f"pair plan           {time_plan(store, plain, folder):12,.0f} sentences a second")
        for name, whole_words in (("masked examples", False), ("whole-word masked", True)):
            config = PretrainingDataConfig(**sizes, whole_word_masking=whole_words)
            print(f"{name:<20}{time_batches(store, config, folder):12,.0f} examples a second")


if __name__ == "__main__":
    app.run(main)
