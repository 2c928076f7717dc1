"""--mode=tokenize: shows what the tokenizer makes of each text, as JSON lines {text, tokens, ids}."""

import json
import os
import sys

from bert_jax.beside_checkpoint import take_vocabulary
from input_pipeline import files, text_lines
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer


def run(flags) -> None:
    """Tokenizes each text of --input_file, or of standard input, without adding [CLS] and [SEP].

    See text_lines.read_lines for the forms of input. One object is written for each text, to --output_file or standard
    output.

    Args:
      flags: vocab_file, do_lower_case (None for the vocabulary's own setting), input_file (a list or None), text_field,
        output_file (or None), and those of beside_checkpoint.take_vocabulary.

    Raises:
      UserError: when a file is missing or no text, a line of JSON has no text, or --output_file is an input.
    """
    take_vocabulary(flags)
    if not flags.vocab_file:
        raise UserError(
            "--mode=tokenize needs --vocab_file: a vocab.txt, a SentencePiece model, or a folder with one; or "
            "--init_checkpoint"
        )
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case)
    paths = text_lines.input_paths(flags.input_file or [])
    if flags.output_file:
        for path in paths:
            if os.path.realpath(path) == os.path.realpath(flags.output_file):
                raise UserError(f"--output_file={flags.output_file} is an --input_file too: it would be overwritten")
    lines = (
        json.dumps({"text": line.text, "tokens": tokenizer.convert_ids_to_tokens(ids), "ids": ids}) + "\n"
        for line in text_lines.read_lines(paths, flags.text_field)
        for ids in [tokenizer.encode(line.text)]
    )
    if flags.output_file:
        with files.replacing(flags.output_file, "--output_file") as part, open(part, "w", encoding="ascii") as file:
            file.writelines(lines)
        return
    for line in lines:
        sys.stdout.write(line)
    sys.stdout.flush()
