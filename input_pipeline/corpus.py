"""What the user calls the input (files, globs, folders, JSON lines, tfds:NAME, builtin) -> documents of sentences.

The work has two parts, so that processes can share it: `read_blocks` only reads and cuts bytes, in one process;
`parse_block` does the rest, in any process and without TensorFlow.
"""

import contextlib
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from input_pipeline import builtin_corpus, files
from input_pipeline.errors import UserError
from input_pipeline.sentence_splitting import split_sentences
from input_pipeline.token_store import METADATA, is_token_store

BLOCK_BYTES = 1 << 20
LONGEST_JSON_LINE = 1 << 26  # bytes

LARGEST_BAD_SHARE = 0.1  # of a text's characters; text in another 8-bit encoding has fewer, and only gets a warning
_FEWEST_BAD = 10  # below, they say nothing

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TFRECORD_NAME = re.compile(r"\.tf_?records?(-\d+-of-\d+)?$")
_JSONL_NAME = re.compile(r"\.(jsonl?|ndjson)$")
_OTHER_FORMATS = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PAR1": "Parquet",
    b"%PDF-": "PDF",
    b"\x93NUMPY": "a NumPy array",
}


@dataclass(frozen=True)
class Source:
    """One file, TFDS split or built-in corpus.

    Attributes:
      name: path or spec, as the user would write it.
      kind: "text", "jsonl", "tfds" or "builtin".
      size: bytes to read, for progress.
      facts: what tells this state of the source from another (JSON values).
    """

    name: str
    kind: str
    size: int
    facts: dict[str, Any] = field(compare=False)


@dataclass(frozen=True)
class Block:
    """A part of a source, cut but not yet understood.

    Attributes:
      name: the source's name.
      flag: how the user named the source.
      kind: "text", "jsonl", or "documents" (UTF-8 texts, each a document).
      data: whole lines, or the list of documents.
      position: bytes of the source that are read when this block is done.
      first_line: number of the block's first line, counted from 1.
      continues: the last document may go on in the source's next block.
      cut_line: the last line was too long and goes on in the next block as a line of its own.
    """

    name: str
    flag: str
    kind: str
    data: bytes | list[bytes]
    position: int
    first_line: int = 1
    continues: bool = False
    cut_line: bool = False


def kind_of(spec: str, flag: str = "--input_file") -> str:
    """What an entry of --input_file is: "text", "jsonl", "tfds", "builtin", "store" or "tfrecord".

    A glob or folder is of the kind of its files ("text" when it has text and JSON lines).

    Raises:
      UserError: when nothing is there, or masked TFRecords are mixed with text.
    """
    if spec == "builtin":
        return "builtin"
    if spec.startswith("tfds:"):
        return "tfds"
    if is_token_store(spec, flag):
        return "store"
    kinds = {_file_kind(path, flag) for path in files_of(spec, flag)}
    if "tfrecord" in kinds and len(kinds) > 1:
        raise UserError(f"{flag}: {spec} mixes TFRecords of masked examples with text; name them one by one")
    return kinds.pop() if len(kinds) == 1 else "text"


def find_sources(spec: str, flag: str = "--input_file") -> list[Source]:
    """The sources that one entry of --input_file names, sorted by name.

    Raises:
      UserError: when there are none, or they hold no text.
    """
    kind = kind_of(spec, flag)
    if kind in ("store", "tfrecord"):
        what = "a prepared token store" if kind == "store" else "TFRecords of masked examples"
        raise UserError(f"{flag}: {spec} is {what}, which needs no preparing: pretrain from it directly")
    if kind == "builtin":
        size = sum(map(len, _builtin_texts()))
        return [Source(spec, kind, size, {"path": spec, "checksum": builtin_corpus.checksum()})]
    if kind == "tfds":
        from input_pipeline import tfds_corpus

        size, facts = tfds_corpus.size_and_facts(spec, flag)
        return [Source(spec, kind, size, {"path": spec, **facts})]
    sources = []
    for path in files_of(spec, flag):
        size, mtime_ns = files.size_and_mtime(path, flag)
        sources.append(Source(path, _file_kind(path, flag), size, {"path": path, "size": size, "mtime_ns": mtime_ns}))
    return sources


def read_blocks(
    source: Source, text_field: str, flag: str = "--input_file", block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Cuts a source into `Block`s of about `block_bytes`, in order. The cuts depend on the source alone.

    Raises:
      UserError: when the source cannot be read, or is no text.
    """
    if source.kind == "builtin":
        yield from _pack(source.name, flag, _builtin_texts(), block_bytes)
    elif source.kind == "tfds":
        from input_pipeline import tfds_corpus

        yield from _pack(source.name, flag, tfds_corpus.read_texts(source.name, text_field, flag), block_bytes)
    else:
        cut = _cut_text if source.kind == "text" else _cut_jsonl
        with _open(source.name, flag) as (stream, position):
            yield from _cut_blocks(source, flag, stream, position, cut, block_bytes)


def parse_block(block: Block, text_field: str, split: bool) -> tuple[list[list[str]], int]:
    """The documents of a block, as sentences, and the number of characters that were no valid UTF-8.

    In text, a line is a sentence and a line of white space ends the document, as in the reference
    (create_pretraining_data.py); with `split`, the lines of a document are running text. In JSON lines and TFDS data
    sets an example is a document. The first document goes on with what the block before left open; it may be empty.

    Arguments:
      block: of `read_blocks`.
      text_field: the field of JSON lines that holds the text.
      split: find the sentences within lines, by `split_sentences`.

    Raises:
      UserError: for a JSON line without text, with its file and number.
    """
    encoded = block.data if isinstance(block.data, list) else [block.data]
    texts = [data.decode("utf-8", "replace") for data in encoded]
    replaced = sum(map(_num_replaced, texts, encoded))
    if block.kind == "text":
        documents = _paragraphs(texts[0])
        if split:
            documents = [split_sentences("\n".join(lines)) for lines in documents]
        return documents, replaced
    if block.kind == "jsonl":
        texts = list(_json_texts(texts[0], block, text_field))
    if split:
        return list(map(split_sentences, texts)), replaced
    return [[line for line in text.split("\n") if line.strip()] for text in texts], replaced


def is_split(kind: str, sentence_splitting: str) -> bool:
    """Whether --sentence_splitting ("auto", "always", "never") splits a source of this kind."""
    return sentence_splitting == "always" or (sentence_splitting == "auto" and kind != "text")


def read_texts(sources: Iterable[Source], text_field: str, flag: str = "--input_file") -> Iterator[str]:
    """The lines of all sources, as a vocabulary's training takes them. Raises: UserError, as `read_blocks` does."""
    for source in sources:
        for block in read_blocks(source, text_field, flag):
            for document in parse_block(block, text_field, split=False)[0]:
                yield from document


def files_of(spec: str, flag: str) -> list[str]:
    """The files of a path, glob or folder; of a folder all, with those of its sub-folders, but no hidden ones."""
    found = []
    for name in files.expand([spec], flag):
        path = files.as_path(name)
        with files.user_errors(path, flag):
            if not path.is_dir():
                found.append(name)
                continue
            for folder, subfolders, names in path.walk():
                if METADATA in names:
                    raise UserError(f"{flag}: {folder} is a token store; name it by itself")
                subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "_")))
                found += sorted(os.fspath(folder / name) for name in names if not name.startswith((".", "_")))
    if not found:
        raise UserError(f"{flag}: the folder {spec} holds no files")
    return found


def _file_kind(path: str, flag: str) -> str:
    name = path.removesuffix(".gz").lower()
    if _TFRECORD_NAME.search(name):
        return "tfrecord"
    if _JSONL_NAME.search(name):
        return "jsonl"
    if name.endswith(".txt"):
        return "text"
    with _open(path, flag) as (stream, _):
        start = stream.read(16)
    return "tfrecord" if _is_record(start) else "text"


def _is_record(start: bytes) -> bool:
    # A record begins with its length (8 bytes), a checksum (4 bytes) and, as a tf.train.Example, byte 10.
    return len(start) >= 16 and start[12] == 10 and 0 < int.from_bytes(start[:8], "little") < 2**32


@contextlib.contextmanager
def open_text(path: str, flag: str) -> Iterator[IO[bytes]]:
    """The content of a text file, plain or gzip.

    Raises:
      UserError: when it cannot be read, or is no text; a damaged gzip file shows while it is read.
    """
    with _open(path, flag) as (stream, _):
        if stream.seekable():
            _check_is_text(stream.read(BLOCK_BYTES), path, flag)
            stream.seek(0)
        yield stream


@contextlib.contextmanager
def _open(path: str, flag: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """The file's content, decompressed where it is gzip, and a function that tells how much of the file was read."""
    with files.open_binary(path, flag) as raw, files.user_errors(path, flag):
        is_gzip = False
        if raw.seekable():  # no pipe
            is_gzip = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
        try:
            yield (gzip.GzipFile(fileobj=raw) if is_gzip else raw), raw.tell
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{flag}: {path} is a damaged or cut-off gzip file: {error}") from None


def _check_is_text(start: bytes, name: str, flag: str) -> None:
    """Raises: UserError when the first block of a file is no UTF-8 text."""
    wanted = "input is UTF-8 text or JSON lines, plain or gzipped"
    for magic, format_name in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise UserError(f"{flag}: {name} is {format_name}; {wanted}")
    if _is_record(start):
        raise UserError(f"{flag}: {name} holds TFRecords; {wanted}")
    text = start.decode("utf-8", "replace")
    bad = _num_replaced(text, start) + start.count(b"\0")
    if bad >= _FEWEST_BAD and bad > LARGEST_BAD_SHARE * len(text):
        raise UserError(f"{flag}: {name}: is this a text file? {bad / len(text):.0%} is zeros or no UTF-8; {wanted}")


def _num_replaced(text: str, data: bytes) -> int:
    return text.count("\ufffd") - data.count("\ufffd".encode())


def _cut_blocks(source: Source, flag: str, stream: IO[bytes], position, cut, block_bytes: int) -> Iterator[Block]:
    line = 1
    buffer = stream.read(block_bytes)
    _check_is_text(buffer, source.name, flag)
    buffer = buffer.removeprefix(_BYTE_ORDER_MARK)
    while chunk := stream.read(block_bytes):
        end = cut(buffer, f"{flag}: {source.name}", line)
        if end:
            data = buffer[:end]
            cut_line = not data.endswith(b"\n")
            yield Block(
                source.name,
                flag,
                source.kind,
                data,
                position(),
                line,
                continues=source.kind == "text",
                cut_line=cut_line,
            )
            line += data.count(b"\n")
        buffer = buffer[end:] + chunk
    yield Block(source.name, flag, source.kind, buffer, source.size, line)


def _cut_text(buffer: bytes, name: str, line: int) -> int:
    """Where to cut: after a blank line if one is in the second half, else after a line, else (a line longer than the
    block) after a space or before a character. A cut inside a document only matters to a sentence of running text.
    """
    blank = max(buffer.rfind(ending) + len(ending) for ending in (b"\n\n", b"\n\r\n"))
    if blank > len(buffer) // 2:
        return blank
    end = buffer.rfind(b"\n") + 1 or buffer.rfind(b" ") + 1
    if end:
        return end
    starts = (len(buffer) - back for back in range(1, 4) if buffer[-back] & 0xC0 != 0x80)
    return next(starts, len(buffer))


def _cut_jsonl(buffer: bytes, name: str, line: int) -> int:
    end = buffer.rfind(b"\n") + 1
    if not end and len(buffer) > LONGEST_JSON_LINE:
        raise UserError(f"{name}, line {line}: longer than {LONGEST_JSON_LINE >> 20} MiB; a JSON line is one document")
    return end


def _builtin_texts() -> Iterator[bytes]:
    return (text.encode("utf-8", "replace") for text in builtin_corpus.documents())


def _pack(name: str, flag: str, texts: Iterable[bytes], block_bytes: int) -> Iterator[Block]:
    batch, size, position = [], 0, 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= block_bytes:
            position += size
            yield Block(name, flag, "documents", batch, position)
            batch, size = [], 0
    yield Block(name, flag, "documents", batch, position + size)


def _paragraphs(text: str) -> list[list[str]]:
    lines = text.split("\n")
    if not lines[-1]:  # the end of the last line, not a blank line
        lines.pop()
    documents: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            documents[-1].append(line)
        else:
            documents.append([])
    return documents


def _json_texts(text: str, block: Block, text_field: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), block.first_line):
        if not line.strip():
            continue
        where = f"{block.flag}: {block.name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON ({error}); a line is an object with the text of a document") from None
        if not isinstance(value, dict):
            raise UserError(f"{where}: not a JSON object with a field {text_field!r}")
        if not isinstance(value.get(text_field), str):
            problem = "is no string" if text_field in value else f"is missing; there are: {', '.join(value) or 'none'}"
            raise UserError(f"{where}: field {text_field!r} {problem} (--text_field)")
        yield value[text_field]
