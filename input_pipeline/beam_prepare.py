"""`prepare` on Apache Beam, for corpora beyond one machine.

Sources are read in parallel, and their blocks split and tokenized in parallel; each becomes a file beside the store to
be, where all workers can write. The process that started the pipeline then puts them together in order, at the speed of
copying: the store has the same bytes as one of the local `prepare`.
"""

import functools
import os
import pickle
from collections.abc import Iterator
from typing import Any

from input_pipeline import corpus, files
from input_pipeline.corpus import Block, Source
from input_pipeline.errors import UserError
from input_pipeline.prepare import EncodedBlock, encode_block, text_settings, write_blocks
from input_pipeline.token_store import SHARD_TOKENS, TokenStore, TokenStoreWriter


def prepare(
    input_specs: list[str],
    tokenizer,
    output_folder: str | os.PathLike,
    *,
    runner: str,
    beam_options: list[str] | None = None,
    sentence_splitting: str = "auto",
    text_field: str = "text",
    flag: str = "--input_file",
    settings: dict[str, Any] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    block_bytes: int = corpus.BLOCK_BYTES,
) -> TokenStore:
    """Makes one token store of all `input_specs`, as `input_pipeline.prepare.prepare` does.

    Arguments:
      runner: name of a Beam runner, such as DirectRunner or DataflowRunner.
      beam_options: further options of Beam, each "--name=value". The workers need this package, and access to the
        inputs and to the folder of the store.

    Raises:
      UserError: when Beam is not installed or does not know the runner; and as the local `prepare`.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise UserError(
            f"--runner={runner} needs Apache Beam (pip install apache-beam); without --runner this machine does it"
        ) from None
    sources = [source for spec in input_specs for source in corpus.find_sources(spec, flag)]
    folder = files.reach(f"{os.fspath(output_folder).rstrip('/')}.blocks", "--output_dir")
    encode = functools.partial(encode_block, tokenizer, text_field, sentence_splitting)
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *(beam_options or [])]))
    except ValueError as error:
        raise UserError(f"--runner={runner}: {error}") from None
    with TokenStoreWriter(
        output_folder,
        tokenizer,
        [source.facts for source in sources],
        shard_tokens,
        text_settings(sentence_splitting, text_field) | (settings or {}),
    ) as writer:
        folder.rmtree(missing_ok=True)  # of a run that was killed
        folder.mkdir(parents=True)
        try:
            _ = (
                pipeline
                | "Sources" >> beam.Create(list(enumerate(sources)))
                | "SpreadSources" >> beam.Reshuffle()
                | "Read" >> beam.FlatMap(functools.partial(_read, text_field, flag, block_bytes))
                | "SpreadBlocks" >> beam.Reshuffle()
                | "Encode" >> beam.Map(functools.partial(_encode_to_file, encode, os.fspath(folder)))
            )
            pipeline.run().wait_until_finish()
            return write_blocks(writer, _read_encoded(folder), len(sources))
        finally:
            folder.rmtree(missing_ok=True)


def _read(
    text_field: str, flag: str, block_bytes: int, numbered: tuple[int, Source]
) -> Iterator[tuple[str, Block | UserError]]:
    """The blocks of a source, with names that sort in their order.

    A mistake of the user travels on like a block: an exception would be tried again, and wrapped into others.
    """
    number, source = numbered
    index = 0
    try:
        for index, block in enumerate(corpus.read_blocks(source, text_field, flag, block_bytes), 1):
            yield f"{number:08d}-{index:08d}", block
    except UserError as error:
        yield f"{number:08d}-{index + 1:08d}", error


def _encode_to_file(encode, folder: str, named: tuple[str, Block | UserError]) -> None:
    name, block = named
    try:
        result = encode(block) if isinstance(block, Block) else block
    except UserError as error:
        result = error
    files.write_bytes_atomic(f"{folder}/{name}", pickle.dumps(result))


def _read_encoded(folder) -> Iterator[EncodedBlock]:
    for path in sorted(folder.iterdir()):
        result = pickle.loads(path.read_bytes())
        if isinstance(result, UserError):
            raise result
        yield result
