"""A token store: a prepared corpus as a folder of plain `.npy` files, read through memory maps.

Format version 1. `metadata.json` says what the store was made of; next to it lie the tokenizer's own files. Each shard
has

    tokens-00000.npy            uint16 (uint32 for vocabularies above 65,536) [tokens]
    sentence_offsets-00000.npy  int64 [sentences + 1], into the tokens of this shard
    document_offsets-00000.npy  int64 [documents + 1], into the sentences of this shard
    document_hashes-00000.npy   uint64 [documents], BLAKE2b (8 bytes, little-endian) of the bytes of a document's tokens

No sentence and no document is empty. A shard ends at the first end of a document at or after `SHARD_TOKENS` tokens, so
documents never straddle shards and the files depend on the text alone.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np

from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.npy_files import NpyWriter

FORMAT_VERSION = 1
SHARD_TOKENS = 2**27
METADATA = "metadata.json"
ARRAYS = ("tokens", "sentence_offsets", "document_offsets", "document_hashes")
_COUNTED = ("documents", "sentences", "tokens")
_CHECKED_AT_ONCE = 1 << 24


class DamagedStoreError(UserError):
    """The files of a token store are not what was written."""


class TokenStoreWriter:
    """Writes a token store as a stream: memory does not grow with the corpus, and a store appears only when complete.

    The files are written into a hidden folder next to `folder`, which gets its final name in `close`; for a remote
    `folder` they are written to the local cache and uploaded then. As a context manager it removes what it has written
    when the block raises.

    Arguments:
      folder: the store to be; must not exist yet, or be empty.
      tokenizer: the tokenizer that made the ids; saved with the store.
      sources: one dictionary a source with at least "path"; kept in the metadata.
      shard_tokens: tokens after which a shard ends with the current document.
      settings: how the text was read (JSON values); kept in the metadata.

    Raises:
      UserError: when `folder` holds something or cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        tokenizer,
        sources: list[dict[str, Any]],
        shard_tokens: int = SHARD_TOKENS,
        settings: dict[str, Any] | None = None,
    ):
        self.folder = check_vacant(folder)
        self.tokenizer = tokenizer
        self.sources = sources
        self.settings = settings or {}
        self.shard_tokens = shard_tokens
        self.dtype = np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")
        self.unknown_tokens = 0
        self._finished_shards: list[dict[str, Any]] = []
        self._partial = _partial_folder(self.folder)
        self._shard = _Shard(self._partial, 0, self.dtype)
        self._start_document()

    def add(self, sentences, continues: bool = False) -> None:
        """Appends a document, or a part of one.

        Arguments:
          sentences: the token ids of each sentence (sequences of int), or a pair (ids [tokens] as an array, lengths
            [sentences]); sentences without tokens are dropped, and a document of none.
          continues: the document goes on in the next call.
        """
        if isinstance(sentences, tuple):
            tokens, lengths = sentences
        else:
            lengths = [len(sentence) for sentence in sentences]
            tokens = np.fromiter((token for sentence in sentences for token in sentence), self.dtype, sum(lengths))
        self.add_block(np.asarray(tokens), np.asarray(lengths, np.int64), np.array([len(lengths)]), continues)

    def add_block(
        self,
        tokens: np.ndarray,
        sentence_lengths: np.ndarray,
        document_lengths: np.ndarray,
        continues: bool = False,
    ) -> None:
        """Appends several documents at once; the first one goes on with an open document.

        Arguments:
          tokens: ids of all sentences, int [tokens].
          sentence_lengths: tokens of each sentence, int [sentences].
          document_lengths: sentences of each document, int [documents].
          continues: the last document goes on in the next call.
        """
        tokens = np.ascontiguousarray(tokens, self.dtype)
        self.unknown_tokens += int(np.count_nonzero(tokens == self.tokenizer.unk_id))
        kept = sentence_lengths > 0
        owner = np.repeat(np.arange(len(document_lengths)), document_lengths)[kept]
        document_lengths = np.bincount(owner, minlength=len(document_lengths))
        ends = np.concatenate([[0], np.cumsum(sentence_lengths[kept])])
        sentence = written = 0
        for document, length in enumerate(document_lengths.tolist()):
            self._document_hash.update(tokens[ends[sentence] : ends[sentence + length]])
            sentence += length
            self._document_sentences += length
            if continues and document == len(document_lengths) - 1:
                break
            if not self._document_sentences:
                continue
            self._end_document()
            if self._shard.num_tokens + ends[sentence] - ends[written] >= self.shard_tokens:
                self._write(tokens, ends[written : sentence + 1])
                written = sentence
                self._finish_shard()
                self._shard = _Shard(self._partial, len(self._finished_shards), self.dtype)
        self._write(tokens, ends[written:])

    def close(self, **counts: int) -> "TokenStore":
        """Completes the store and opens it.

        Arguments:
          counts: further counts for the metadata, such as files=3.

        Raises:
          UserError: when no document has a token, or the final name cannot be taken.
        """
        if self._document_sentences:
            self._end_document()
            self._write(np.empty(0, self.dtype), np.zeros(1, np.int64))
        self._finish_shard()
        if not self._finished_shards:
            self.discard()
            raise UserError(f"no usable documents in {_some(source['path'] for source in self.sources)}")
        totals = {name: sum(s[name] for s in self._finished_shards) for name in ("documents", "sentences", "tokens")}
        self.tokenizer.save(os.fspath(self._partial))
        metadata = {
            "format_version": FORMAT_VERSION,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "tokenizer_kind": self.tokenizer.kind,
            "do_lower_case": self.tokenizer.do_lower_case,
            "vocab_size": self.tokenizer.vocab_size,
            "dtype": self.dtype.name,
            "sources": self.sources,
            "settings": self.settings,
            "counts": {**totals, "unknown_tokens": self.unknown_tokens, **counts},
            "shards": self._finished_shards,
        }
        files.write_json_atomic(self._partial / METADATA, metadata)
        files.move_folder(self._partial, self.folder, last=METADATA)
        return TokenStore.open(self.folder)

    def discard(self) -> None:
        """Removes everything that was written."""
        self._shard.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, exception_type, *_):
        if exception_type is not None:
            self.discard()

    def _start_document(self) -> None:
        self._document_hash = hashlib.blake2b(digest_size=8)
        self._document_sentences = 0

    def _end_document(self) -> None:
        self._shard.document_lengths.append(self._document_sentences)
        self._shard.document_hashes.append(int.from_bytes(self._document_hash.digest(), "little"))
        self._start_document()

    def _write(self, tokens: np.ndarray, ends: np.ndarray) -> None:
        with files.user_errors(self._partial, "writing"):
            self._shard.write(tokens[ends[0] : ends[-1]], ends[1:] - ends[0])

    def _finish_shard(self) -> None:
        self._shard.close()
        facts = self._shard.facts()
        if facts["documents"]:
            self._finished_shards.append(facts)
        else:
            self._shard.remove()


class TokenStore:
    """A token store on disk. Make one with `TokenStore.open`.

    Attributes:
      folder: where its files lie on this machine.
      metadata: the content of metadata.json.
      tokens, sentence_offsets, document_offsets, document_hashes: one memory map a shard, see the module's text.
      token_files: (path, items of the file's header, tokens) of each shard's tokens, for readers that map the whole
        file: the header is `items` many items of the array's type.
    """

    def __init__(self, folder: str, metadata: dict[str, Any], flag: str):
        self.folder, self.metadata, self._flag = folder, metadata, flag
        if problem := _metadata_problem(metadata):
            raise self.damaged(f"{METADATA}: {problem}")
        self.tokens, self.sentence_offsets, self.document_offsets, self.document_hashes = (
            [self._map(name, shard) for shard in range(len(metadata["shards"]))] for name in ARRAYS
        )
        self._check_arrays()
        self.token_files = [(str(array.filename), array.offset // array.itemsize, len(array)) for array in self.tokens]

    @classmethod
    def open(cls, path: str | os.PathLike, flag: str = "--input_file") -> "TokenStore":
        """The store at `path`; a remote one is copied once into the local cache.

        Raises:
          UserError: when there is no store of this format version.
          DamagedStoreError: when its files are not what was written. The values of the tokens are not looked at.
        """
        if not is_token_store(path, flag):
            raise UserError(f"{flag}: {path} is not a token store (it has no {METADATA}); --mode=prepare makes one")
        folder = files.local_folder(path, flag)
        try:
            metadata = json.loads(files.read_bytes(Path(folder, METADATA), flag))
        except ValueError:
            metadata = None
        version = metadata.get("format_version") if isinstance(metadata, dict) else None
        if isinstance(version, int) and version != FORMAT_VERSION:
            raise UserError(f"{flag}: {path} has format version {version}, this program reads {FORMAT_VERSION}")
        return cls(folder, metadata, flag)

    def damaged(self, what: str) -> DamagedStoreError:
        """The error for a store that is damaged in the way of `what`."""
        return DamagedStoreError(
            f"{self._flag}: {self.folder}: the token store is damaged ({what}); make it again with --mode=prepare"
        )

    @property
    def num_documents(self) -> int:
        return self.metadata["counts"]["documents"]

    @property
    def num_sentences(self) -> int:
        return self.metadata["counts"]["sentences"]

    @property
    def num_tokens(self) -> int:
        return self.metadata["counts"]["tokens"]

    @functools.cached_property
    def tokenizer(self):
        """The tokenizer that the store was made with. Raises: DamagedStoreError when it is gone or another."""
        from input_pipeline.tokenization import load_tokenizer

        try:
            tokenizer = load_tokenizer(self.folder)
        except UserError as error:
            raise self.damaged(str(error)) from None
        if tokenizer.fingerprint != self.metadata["tokenizer_fingerprint"]:
            raise self.damaged(f"its vocabulary is not the one that {METADATA} tells of")
        return tokenizer

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) that identifies the data: equal for stores of the same text wherever the text lay."""
        known = ("format_version", "tokenizer_fingerprint", "dtype", "shards")
        return hashlib.sha256(json.dumps([self.metadata[name] for name in known]).encode()).hexdigest()

    def _map(self, name: str, shard: int) -> np.memmap:
        path = os.path.join(self.folder, f"{name}-{shard:05d}.npy")
        try:
            array = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise self.damaged(f"{os.path.basename(path)}: {error}") from None
        dtype = {"tokens": self.metadata["dtype"], "document_hashes": "uint64"}.get(name, "int64")
        if not isinstance(array, np.memmap) or array.ndim != 1 or array.dtype != dtype:
            raise self.damaged(f"{os.path.basename(path)} is no vector of {dtype}")
        return array

    def _check_arrays(self) -> None:
        for index, facts in enumerate(self.metadata["shards"]):
            lengths = (facts["tokens"], facts["sentences"] + 1, facts["documents"] + 1, facts["documents"])
            for name, wanted in zip(ARRAYS, lengths):
                found = len(getattr(self, name)[index])
                if found != wanted:
                    raise self.damaged(f"{name}-{index:05d}.npy has {found} entries, {METADATA} says {wanted}")
            for name, end in (("sentence_offsets", facts["tokens"]), ("document_offsets", facts["sentences"])):
                if not _rises(getattr(self, name)[index], end):
                    raise self.damaged(f"{name}-{index:05d}.npy does not rise from 0 to {end}")


def _rises(offsets: np.ndarray, end: int) -> bool:
    """Whether `offsets` go from 0 to `end` in steps of at least 1."""
    return (
        offsets[0] == 0
        and offsets[-1] == end
        and all(
            np.all(np.diff(offsets[start : start + _CHECKED_AT_ONCE + 1]) > 0)
            for start in range(0, len(offsets), _CHECKED_AT_ONCE)
        )
    )


def _metadata_problem(metadata: Any) -> str | None:
    """What is wrong with the content of metadata.json; None if it is as `TokenStoreWriter.close` writes it."""
    if not isinstance(metadata, dict):
        return "no JSON object"
    types = {
        "format_version": int,
        "tokenizer_fingerprint": str,
        "tokenizer_kind": str,
        "do_lower_case": bool | None,
        "vocab_size": int,
        "dtype": str,
        "sources": list,
        "settings": dict,
        "counts": dict,
        "shards": list,
    }
    for name, kind in types.items():
        if name not in metadata or not isinstance(metadata[name], kind):
            return f"{name} is {metadata.get(name)!r:.40}" if name in metadata else f"{name} is missing"
    if metadata["dtype"] not in ("uint16", "uint32"):
        return f"dtype is {metadata['dtype']!r:.40}"
    if not all(isinstance(source, dict) and isinstance(source.get("path"), str) for source in metadata["sources"]):
        return "sources have no path"
    counts, shards = metadata["counts"], metadata["shards"]
    if not shards or not all(isinstance(shard, dict) and _has_counts(shard, _COUNTED, 1) for shard in shards):
        return "shards have no counts"
    if not _has_counts(counts, {*_COUNTED, "unknown_tokens", *counts}, 0):
        return "counts are no numbers"
    wrong = [name for name in _COUNTED if counts[name] != sum(shard[name] for shard in shards)]
    return f"the {wrong[0]} of the shards do not add up to counts" if wrong else None


def _has_counts(counts: dict, names, least: int) -> bool:
    return all(isinstance(counts.get(name), int) and counts[name] >= least for name in names)


def is_token_store(path: str | os.PathLike, flag: str = "--input_file") -> bool:
    """Whether `path` is a folder with a store's metadata."""
    path = files.reach(path, flag)
    with files.user_errors(path, flag):
        return (path / METADATA).exists()


def check_vacant(folder: str | os.PathLike):
    """The path of a store to be. Raises: UserError when it holds something: a store is never written over files."""
    path = files.reach(folder, "--output_dir")
    with files.user_errors(path, "--output_dir"):
        if path.exists() and any(path.iterdir()):
            raise UserError(f"--output_dir: {path} is not empty; a token store needs a new folder")
    return path


class _Shard:
    """The files of a shard while they are written."""

    def __init__(self, folder: Path, index: int, dtype: np.dtype):
        dtypes = (dtype, "<i8", "<i8", "<u8")
        self._paths = [folder / f"{name}-{index:05d}.npy" for name in ARRAYS]
        self._writers = [NpyWriter(path, dtype) for path, dtype in zip(self._paths, dtypes)]
        self._tokens, self._sentence_offsets, self._document_offsets, self._document_hashes = self._writers
        self._is_open = True
        self._document_end = 0
        self.document_lengths: list[int] = []  # documents that ended since the last write, in sentences
        self.document_hashes: list[int] = []
        self._sentence_offsets.append(np.zeros(1))
        self._document_offsets.append(np.zeros(1))

    @property
    def num_tokens(self) -> int:
        return self._tokens.length

    def write(self, tokens: np.ndarray, sentence_ends: np.ndarray) -> None:
        """Appends whole sentences, with `sentence_ends` counted from the first of `tokens`, and the ended documents."""
        self._sentence_offsets.append(sentence_ends + self._tokens.length)
        self._tokens.append(tokens)
        ends = self._document_end + np.cumsum(self.document_lengths, dtype=np.int64)
        self._document_offsets.append(ends)
        self._document_hashes.append(np.array(self.document_hashes, np.uint64))
        self._document_end = int(ends[-1]) if len(ends) else self._document_end
        self.document_lengths, self.document_hashes = [], []

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            for writer in self._writers:
                writer.close()

    def facts(self) -> dict[str, Any]:
        """What the metadata says of a closed shard; its digest covers all but the tokens: the hashes stand for them."""
        digest = hashlib.sha256()
        for path in self._paths[1:]:
            with open(path, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return {
            "documents": self._document_hashes.length,
            "sentences": self._sentence_offsets.length - 1,
            "tokens": self._tokens.length,
            "digest": digest.hexdigest(),
        }

    def remove(self) -> None:
        for path in self._paths:
            path.unlink()


def _partial_folder(folder) -> Path:
    """A new hidden folder to write in; what killed processes of this machine left for the same store is removed."""
    parent = files.cache_folder() if files.is_remote(folder) else Path(folder.parent)
    machine = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())
    with files.user_errors(folder, "--output_dir"):
        parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{folder.name}.{machine}-"
        for old in parent.iterdir():
            if old.name.startswith(prefix) and old.name.endswith(".tmp"):
                pid = old.name[len(prefix) : -len(".tmp")]
                if pid.isdigit() and not _is_alive(int(pid)):
                    shutil.rmtree(old, ignore_errors=True)
        partial = parent / f"{prefix}{os.getpid()}.tmp"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    return partial


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _some(names, limit: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
