"""Text -> token store: read in one process, split and tokenized in several, written in order by the first.

The store is the same, byte for byte, whatever the number of workers. Memory is bounded by the blocks in flight, however
large the corpus or its documents are.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from input_pipeline import corpus
from input_pipeline.corpus import Block, Source
from input_pipeline.token_store import SHARD_TOKENS, TokenStore, TokenStoreWriter
from input_pipeline.worker_processes import available_cores, ordered_map

HIGH_UNKNOWN_SHARE = 0.05
_BYTES_FOR_A_WORKER = 1 << 22  # below this, a process takes longer to start than it saves
_MOST_WORKERS_A_CORE = 4
_ENCODED_AT_ONCE = 1 << 18  # characters; Python's lists of ids take ten times the memory of the array

Progress = Callable[[int, int, dict[str, int]], None]


@dataclasses.dataclass(frozen=True)
class EncodedBlock:
    """A block as token ids: arguments of `TokenStoreWriter.add_block`, and what is counted."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    continues: bool
    position: int
    replaced_characters: int
    cut_lines: int


def prepare(
    input_specs: list[str],
    tokenizer,
    output_folder: str | os.PathLike,
    *,
    sentence_splitting: str = "auto",
    text_field: str = "text",
    num_workers: int | None = None,
    progress: Progress | None = None,
    flag: str = "--input_file",
    settings: dict[str, Any] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    block_bytes: int = corpus.BLOCK_BYTES,
) -> TokenStore:
    """Makes one token store of all `input_specs`.

    Arguments:
      input_specs: files, globs, folders, tfds:NAME[/CONFIG][:SPLIT] or builtin.
      tokenizer: of `input_pipeline.tokenization`.
      output_folder: the store; must not exist, or be empty. It appears when it is complete.
      sentence_splitting: "always", "never", or "auto": all but text files, which have a sentence a line.
      text_field: field of JSON lines and TFDS data sets that holds the text.
      num_workers: processes; None or 0 for one a core, less for little text; 1 works in this process. There
        are never more than four a core, or than blocks of text.
      progress: called with the bytes done, all bytes, and counts of documents, sentences and tokens after each block;
        what it raises ends the work.
      flag: how the user named the inputs, for errors.
      settings: kept in the metadata, with sentence_splitting and text_field.

    Raises:
      UserError: when an input is missing or no text, there is no usable document, or the folder cannot be written.
    """
    sources = [source for spec in input_specs for source in corpus.find_sources(spec, flag)]
    total = sum(source.size for source in sources)
    workers = num_workers or min(available_cores(), 1 + total // _BYTES_FOR_A_WORKER)
    workers = min(workers, _MOST_WORKERS_A_CORE * available_cores())
    blocks = _all_blocks(sources, text_field, flag, block_bytes)
    encode = functools.partial(encode_block, tokenizer, text_field, sentence_splitting)
    with (
        _exit_on_sigterm(),
        TokenStoreWriter(
            output_folder,
            tokenizer,
            [source.facts for source in sources],
            shard_tokens,
            text_settings(sentence_splitting, text_field) | (settings or {}),
        ) as writer,
        contextlib.closing(ordered_map(encode, blocks, workers)) as encoded,
    ):
        return write_blocks(
            writer, encoded, len(sources), functools.partial(progress, total=total) if progress else None
        )


def write_blocks(
    writer: TokenStoreWriter, blocks: Iterable[EncodedBlock], num_files: int, progress: Callable | None = None
) -> TokenStore:
    """Writes the blocks in the order of their sources and completes the store. Raises: UserError as `prepare`."""
    counts = {"documents": 0, "sentences": 0, "tokens": 0}
    replaced_characters = cut_lines = 0
    for block in blocks:
        writer.add_block(block.tokens, block.sentence_lengths, block.document_lengths, block.continues)
        replaced_characters += block.replaced_characters
        cut_lines += block.cut_lines
        counts["documents"] += np.count_nonzero(block.document_lengths)
        counts["sentences"] += np.count_nonzero(block.sentence_lengths)
        counts["tokens"] += len(block.tokens)
        if progress:
            progress(block.position, counts=counts)
    return writer.close(files=num_files, replaced_characters=replaced_characters, cut_lines=cut_lines)


def encode_block(tokenizer, text_field: str, sentence_splitting: str, block: Block) -> EncodedBlock:
    """Splits and tokenizes one block; runs in the workers. Raises: UserError as `corpus.parse_block`."""
    split = corpus.is_split(block.kind, sentence_splitting)
    documents, replaced = corpus.parse_block(block, text_field, split)
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    tokens, lengths = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    for sentences in _portions(sentence for document in documents for sentence in document):
        ids = tokenizer.encode_batch(sentences)
        lengths.append(np.fromiter(map(len, ids), np.int64, len(ids)))
        tokens.append(np.fromiter(itertools.chain.from_iterable(ids), dtype, int(lengths[-1].sum())))
    return EncodedBlock(
        np.concatenate(tokens),
        np.concatenate(lengths),
        np.array([len(document) for document in documents], np.int64),
        block.continues,
        block.position,
        replaced,
        int(block.cut_line),
    )


def text_settings(sentence_splitting: str, text_field: str) -> dict[str, str]:
    """The settings that change what a text becomes, as they stand in the metadata."""
    return {"sentence_splitting": sentence_splitting, "text_field": text_field}


def totals(store: TokenStore) -> str:
    """One line about the size of a store."""
    counts = store.metadata["counts"]
    sizes = [
        f"{counts[name]:,} {name if counts[name] != 1 else name[:-1]}" for name in ("files", "documents", "sentences")
    ]
    return (
        f"{', '.join(sizes)}, {counts['tokens']:,} tokens ({counts['tokens'] / counts['sentences']:.1f} a sentence, "
        f"{counts['unknown_tokens'] / counts['tokens']:.2%} unknown)"
    )


def warnings(store: TokenStore) -> list[str]:
    """What the user should know about a store, one line each."""
    counts = store.metadata["counts"]
    found = []
    if counts["documents"] == 1:
        found.append(
            "all text is one document, but next-sentence prediction needs two; in text files a blank line ends one"
        )
    share = counts["unknown_tokens"] / counts["tokens"]
    if share > HIGH_UNKNOWN_SHARE:
        found.append(
            f"{share:.1%} of the tokens are unknown: is this the vocabulary for the language, and is "
            f"--do_lower_case={store.metadata['do_lower_case']} right for it?"
        )
    if counts["replaced_characters"]:
        found.append(f"{counts['replaced_characters']:,} bad bytes or sequences were no UTF-8 and were replaced")
    if counts["cut_lines"]:
        found.append(f"lines longer than a block were cut at {counts['cut_lines']:,} places: is a line a sentence?")
    return found


def _all_blocks(sources: list[Source], text_field: str, flag: str, block_bytes: int) -> Iterator[Block]:
    """The blocks of all sources, with positions counted from the first one's start."""
    start = 0
    for source in sources:
        for block in corpus.read_blocks(source, text_field, flag, block_bytes):
            yield dataclasses.replace(block, position=start + block.position)
        start += source.size


def _portions(sentences: Iterable[str]) -> Iterator[list[str]]:
    portion, size = [], 0
    for sentence in sentences:
        portion.append(sentence)
        size += len(sentence)
        if size >= _ENCODED_AT_ONCE:
            yield portion
            portion, size = [], 0
    yield portion


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM, if nothing else handles it, end the program by an exception, so that half a store is removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
