"""--mode=fill_mask: the most probable words for each [MASK] of a text; whether one sentence follows another."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax import devices, joining, partitioning, processes
from bert_jax.inference import Example
from bert_jax.loading import load_from_flags
from bert_jax.mask_filling import MASK, Filling, Text, check_parts, check_top_k, encode_text, fill, has_mask
from bert_jax.rate_display import RateDisplay
from input_pipeline import files, text_lines
from input_pipeline.errors import UserError

LONGEST_QUOTE = 60


def run(flags: Any) -> None:
    """Fills in the texts of --text and of the words on the command line, of --input_file, or of standard input.

    "A ||| B", or a line of JSON with a field "text_pair", is a pair, for which the probability that B follows A is
    told too; a pair needs no [MASK]. Blank lines are skipped. What is typed on a terminal is answered line by line.

    Args:
        flags: text, input_file, text_field, output_file, overwrite, output_format, top_k, max_seq_length,
            eval_batch_size, mesh and those of loading.load_from_flags and devices.start.

    Raises:
        UserError: flags that do not fit together or a text with nothing to predict, before the weights are read; too
            long a text, or one that asks for what the model lacks, before any is run. What comes from standard
            input is looked at when it comes.
    """
    paths = _input_paths(flags)
    # What a pipe holds can be read only once.
    can_check = bool(flags.text) or bool(paths and all(files.is_remote(path) or os.path.isfile(path) for path in paths))
    if can_check and not sum(1 for _ in _texts(flags, paths)):
        raise UserError("--text: it is blank" if flags.text else f"--input_file: {', '.join(paths)}: there is no text")
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    if flags.eval_batch_size:
        partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    bert = load_from_flags(flags, processes.say)
    most = bert.config.max_position_embeddings
    if (flags.max_seq_length or 0) > most:
        raise UserError(f"--max_seq_length={flags.max_seq_length} is more than max_position_embeddings {most}")
    check_top_k(bert, flags.top_k, "--top_k")

    def encode(text: Text) -> Example:
        check_parts(bert, text)
        return encode_text(bert, text, flags.max_seq_length)

    def answers(texts: Iterable[Text]) -> Iterator[tuple[Text, Filling]]:
        for example, filling in fill(
            bert,
            map(encode, texts),
            flags.top_k,
            mesh=mesh,
            batch_size=flags.eval_batch_size,
            max_seq_length=flags.max_seq_length,
        ):
            yield example.note, filling

    if not (flags.text or paths or flags.output_file) and sys.stdin.isatty():
        _converse(flags, answers)
        return
    if can_check:
        for text in _texts(flags, paths):
            encode(text)
    with (
        processes.on_first(lambda: _open_output(flags)) as write,
        RateDisplay("texts", shown=bool(flags.output_file) and processes.is_first()) as display,
    ):
        found = False
        for text, filling in answers(_texts(flags, paths)):
            found = True
            if write:
                write(_form(flags)(text, filling))
            display.advance()
        if not found:
            raise UserError(f"{', '.join(paths) or text_lines.STANDARD_INPUT}: there is no text")
    if flags.output_file:
        processes.say(f"{display.summary()}: {flags.output_file}")


def table(text: Text, filling: Filling) -> str:
    """Lines for the eye: the text, whether the second follows the first, and for each mask rank, probability, piece."""
    lines = [text.first if text.second is None else f"{text.first}{text_lines.PAIR_MARK}{text.second}"]
    if filling.next_sentence_probability is not None:
        lines.append(f"  B follows A: {filling.next_sentence_probability:.6f}")
    for number, candidates in enumerate(filling.candidates, start=1):
        if len(filling.candidates) > 1:
            lines.append(f"  {MASK} {number} of {len(filling.candidates)}")
        for rank, (token, _, probability) in enumerate(candidates, start=1):
            lines.append(f"  {rank:{len(str(len(candidates)))}}  {probability:.6f}  {token}")
    return "\n".join(lines) + "\n\n"


def json_line(text: Text, filling: Filling) -> str:
    """The same as a line of JSON; the probabilities have the six digits that float32 holds."""
    line: dict[str, Any] = {"text": text.first}
    if text.second is not None:
        line["text_pair"] = text.second
    line["masks"] = [
        {
            "position": position,
            "candidates": [
                {"token": token, "id": token_id, "probability": _six_digits(probability)}
                for token, token_id, probability in candidates
            ],
        }
        for position, candidates in zip(filling.positions, filling.candidates)
    ]
    if filling.next_sentence_probability is not None:
        line["next_sentence_probability"] = _six_digits(filling.next_sentence_probability)
    return json.dumps(line) + "\n"


def _form(flags: Any) -> Callable[[Text, Filling], str]:
    return json_line if flags.output_file or flags.output_format == "jsonl" else table


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _input_paths(flags: Any) -> list[str]:
    """The files of --input_file; none for texts from elsewhere.

    Raises:
        UserError: flags that do not fit together, or files that cannot be read or written.
    """
    if flags.text and flags.input_file:
        raise UserError("texts come from --text (and the words that are no flags) or from --input_file, not from both")
    if not (flags.text or flags.input_file) and joining.are_several(flags):
        raise UserError("several processes cannot share standard input: give --input_file or --text")
    paths = text_lines.input_paths(flags.input_file or [])
    if flags.output_file:
        files.check_new_file(flags.output_file, "--output_file", flags.overwrite)
        for path in paths:
            if os.path.realpath(path) == os.path.realpath(flags.output_file):
                raise UserError(f"--output_file={flags.output_file} is an --input_file too: it would be overwritten")
    return paths


def _lines(flags: Any, paths: list[str]) -> Iterator[Text]:
    """All texts that are not blank."""
    if flags.text:
        for text in flags.text:
            if text.strip():
                quote = text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "..."
                yield Text(*text_lines.split_pair(text), f"the text {quote!r}")
        return
    for line in text_lines.read_lines(paths, flags.text_field):
        first, second = text_lines.pair_of(line, flags.text_field)
        if first.strip() or second is not None:
            yield Text(first, second, line.where() if paths else f"{line.path}, line {line.number}")


def _check(flags: Any, text: Text) -> Text:
    """Raises UserError where there is nothing to predict."""
    if text.second is None and not has_mask(text):
        hint = ""
        if MASK.lower() in text.first.lower():
            hint = f"; {MASK} is written in capitals"
        elif len(flags.text or []) > 1 and len(text.first.split()) == 1:
            hint = "; put a text of several words in quotes"
        raise UserError(f"{text.place}: it has no {MASK} and is no pair (A{text_lines.PAIR_MARK}B){hint}")
    return text


def _texts(flags: Any, paths: list[str]) -> Iterator[Text]:
    return (_check(flags, text) for text in _lines(flags, paths))


def _converse(flags: Any, answers: Callable[[Iterable[Text]], Iterator[tuple[Text, Filling]]]) -> None:
    """Answers each line of a terminal before the next one; a mistake ends nothing."""
    processes.say(f"a text with {MASK}, or A{text_lines.PAIR_MARK}B, on each line; Ctrl-D ends")
    with _open_output(flags) as write:
        for line in _lines(flags, []):
            try:
                for text, filling in answers([_check(flags, line)]):
                    write(_form(flags)(text, filling))
            except UserError as error:
                processes.say(f"error: {error}")


@contextlib.contextmanager
def _open_output(flags: Any) -> Iterator[Callable[[str], None]]:
    """Gives a function that writes a string to --output_file, which appears when all is written, or standard output."""
    if not flags.output_file:
        encoding = sys.stdout.encoding or "utf-8"

        def write(line: str) -> None:
            # A terminal may not have all characters.
            sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
            if sys.stdout.isatty():
                sys.stdout.flush()

        yield write
        sys.stdout.flush()  # here, where a closed pipe is looked after
        return
    with files.replacing(flags.output_file, "--output_file") as part, open(part, "w", encoding="ascii") as file:
        yield file.write
