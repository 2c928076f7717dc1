"""--mode=extract: a file of lines -> vectors of lines or of tokens, in the order of the lines."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax import devices, feature_files, features, joining, partitioning, processes
from bert_jax.loading import LoadedBert, load_from_flags
from bert_jax.rate_display import RateDisplay
from input_pipeline import files, text_lines
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import Layout


def run(flags: Any) -> None:
    """Writes the vectors of each line of --input_file, or of standard input, to --output_file.

    "A ||| B" is a pair of texts, as is a line of JSON with a field "text_pair". An empty line has vectors
    too, those of [CLS] and [SEP].

    Raises:
        UserError: a flag, a file or a line that cannot be used.
    """
    layers = parse_layers(flags.layers)
    check_output_file(flags)
    paths = text_lines.input_paths(flags.input_file or [])
    if not paths and joining.are_several(flags):
        raise UserError("--input_file is missing: several processes cannot share one standard input")
    check_not_an_input(flags.output_file, paths)
    total = text_lines.count_lines(paths, flags.text_field)
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    bert = load_from_flags(flags, processes.say)
    features.check_tokenizer(bert)
    with flag_names():
        spec = features.feature_spec(bert, layers, flags.layer_combination, flags.pooling)
        limit = features.length_limit(bert, flags.max_seq_length)
    lines = _Lines(bert, paths, flags.text_field, limit)
    shape = spec.vector_shape(bert.config.hidden_size)
    results = features.extract(bert, spec, lines, mesh=mesh, limit=limit, batch_size=flags.eval_batch_size)
    with (
        processes.on_first(
            lambda: feature_files.open_feature_file(flags.output_file, spec, shape, bert.tokenizer)
        ) as file,
        RateDisplay("lines", total, shown=processes.is_first()) as display,
    ):
        for number, (layout, vectors) in enumerate(results, start=1):
            if not np.isfinite(vectors).all():
                raise UserError(f"text {number}: its vectors hold NaN or infinity: the weights are damaged or overflow")
            if file:
                file.write(vectors, layout.input_ids)
            display.advance()
        if not lines.count:
            raise UserError(f"--input_file: there is no line in {', '.join(paths) or 'standard input'}")
    if lines.cut:
        processes.say(f"{lines.cut:,} of {lines.count:,} lines were longer than {limit} tokens, and were cut")
    kind = "vectors of tokens" if spec.of_tokens else "vectors"
    processes.say(f"{display.summary()}; {kind} [{', '.join(map(str, shape))}] are in {flags.output_file}")


class _Lines:
    """The laid-out lines; counts them, and those that were cut."""

    def __init__(self, bert: LoadedBert, paths: list[str], text_field: str, limit: int):
        self._bert, self._paths, self._text_field, self._limit = bert, paths, text_field, limit
        self.count = self.cut = 0

    def __iter__(self) -> Iterator[Layout]:
        for line in text_lines.read_lines(self._paths, self._text_field):
            texts = text_lines.pair_of(line, self._text_field)
            layout = features.encode_text(self._bert, *texts, self._limit, line.where())
            self.count += 1
            self.cut += layout.was_cut
            yield layout


@contextlib.contextmanager
def flag_names() -> Iterator[None]:
    """Errors about arguments of a function become errors about the flags of the same names."""
    try:
        yield
    except UserError as error:
        is_argument = str(error).startswith(("layers", "layer_combination", "pooling", "max_seq_length"))
        raise UserError(f"--{error}" if is_argument else str(error)) from None


def parse_layers(words: list[str]) -> list[int]:
    """The numbers of --layers. Raises: UserError."""
    try:
        return [int(word) for word in words]
    except ValueError:
        raise UserError(f"--layers={','.join(words)} must be whole numbers, such as -1 or -4,-3,-2,-1") from None


def check_output_file(flags: Any) -> None:
    """Raises UserError when --output_file is missing, has no known ending, or is there already."""
    path = flags.output_file
    if not path:
        endings = ", ".join(feature_files.ENDINGS)
        raise UserError(f"--mode=extract needs --output_file, whose ending says the format: {endings}")
    feature_files.ending_of(path, flags.pooling == "none")
    files.check_new_file(path, feature_files.FLAG, flags.overwrite)


def check_not_an_input(output_file: str, paths: list[str]) -> None:
    """Raises UserError when the output would replace an input."""
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(output_file):
            raise UserError(f"--output_file={output_file} is an --input_file too: it would be overwritten")
