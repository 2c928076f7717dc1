"""--mode=tokenize: shows what the tokenizer makes of each text, as JSON lines {text, tokens, ids}."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from input_pipeline import corpus, files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer


def run(flags) -> None:
    """Tokenizes each text of --input_file, or of standard input, without adding [CLS] and [SEP].

    Files may be gzip. A name in .jsonl or .jsonl.gz holds objects with a "text", any other input has a text a line,
    which may be empty. One object is written for each text, to --output_file or standard output.

    Args:
      flags: vocab_file, do_lower_case (None for the vocabulary's own setting), input_file (a list or None) and
        output_file (or None).

    Raises:
      UserError: when a file is missing or no text, a line of JSON has no text, or --output_file is an input.
    """
    if not flags.vocab_file:
        raise UserError("--mode=tokenize needs --vocab_file: a vocab.txt, a SentencePiece model, or a folder with one")
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case)
    specs = [flags.input_file] if isinstance(flags.input_file, str) else flags.input_file or []
    paths = files.expand(specs, "--input_file")
    if flags.output_file:
        for path in paths:
            if os.path.realpath(path) == os.path.realpath(flags.output_file):
                raise UserError(f"--output_file={flags.output_file} is an --input_file too: it would be overwritten")
    lines = (
        json.dumps({"text": text, "tokens": tokenizer.convert_ids_to_tokens(ids), "ids": ids}) + "\n"
        for text in (_read_texts(paths) if paths else _text_lines(sys.stdin.buffer))
        for ids in [tokenizer.encode(text)]
    )
    if flags.output_file:
        files.write_bytes_atomic(flags.output_file, "".join(lines).encode())
        return
    try:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where the interpreter flushes the rest at exit


def _read_texts(paths: list[str]) -> Iterator[str]:
    for path in paths:
        with corpus.open_text(path, "--input_file") as file:
            yield from _json_texts(file, path) if path.removesuffix(".gz").endswith(".jsonl") else _text_lines(file)


def _text_lines(file: IO[bytes] | Iterable[bytes]) -> Iterator[str]:
    """The lines of UTF-8 text: they end in "\\n" or "\\r\\n" only, and what is no UTF-8 becomes U+FFFD."""
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def _json_texts(file: IO[bytes], path: str) -> Iterator[str]:
    for number, line in enumerate(_text_lines(file), start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise UserError(f'--input_file: {path}, line {number}: a JSON object with a "text" string is needed')
        yield text
