"""--mode=tokenize: shows what the tokenizer makes of each text, as JSON lines {text, tokens, ids}."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer


def run(flags) -> None:
    """Tokenizes each text of --input_file, or of standard input, without adding [CLS] and [SEP].

    A name in .jsonl holds objects with a "text", any other input has a text a line, which may be empty. One object is
    written for each text, to --output_file or standard output.

    Args:
      flags: vocab_file, do_lower_case (None for the vocabulary's own setting), input_file (a list or None) and
        output_file (or None).

    Raises:
      UserError: when a file is missing or a line of JSON has no text.
    """
    if not flags.vocab_file:
        raise UserError("--mode=tokenize needs --vocab_file: a vocab.txt, a SentencePiece model, or a folder with one")
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case)
    lines = (
        json.dumps({"text": text, "tokens": tokenizer.convert_ids_to_tokens(ids), "ids": ids}) + "\n"
        for text in _read_texts(flags.input_file)
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


def _read_texts(input_file: list[str] | str | None) -> Iterator[str]:
    if not input_file:
        yield from _text_lines(sys.stdin.buffer)
        return
    for path in files.expand([input_file] if isinstance(input_file, str) else input_file, "--input_file"):
        with files.open_binary(path, "--input_file") as file:
            yield from _json_texts(file, path) if path.endswith(".jsonl") else _text_lines(file)


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
