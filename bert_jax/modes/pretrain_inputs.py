"""From --input_file to the two data sets of a pretraining run: for training, and held out."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax import processes
from bert_jax.config import config_from_flags
from bert_jax.modes.prepare import prepare_inputs
from bert_jax.run_folder import cache_folder
from input_pipeline import corpus
from input_pipeline.errors import UserError
from input_pipeline.pretraining_data import PretrainingData, PretrainingDataConfig, open_stores, open_tfrecords
from input_pipeline.token_store import TokenStore
from input_pipeline.tokenization import load_tokenizer


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a run trains and is evaluated on.

    Attributes:
        tokenizer: of the vocabulary, or None when masked TFRecords come without one.
        vocab_source: where the vocabulary is from, for errors.
        eval: None when nothing is held out.
        counts: totals of the training text, by name.
        warnings: one line each.
    """

    train: PretrainingData
    eval: PretrainingData | None
    tokenizer: Any
    vocab_source: str
    counts: dict[str, int]
    warnings: list[str]


FEW_EXAMPLES = 50  # the error of an accuracy is 7% with so many


def few_held_out(count: int) -> str:
    examples = f"{count} examples are" if count != 1 else "1 example is"
    return (
        f"only {examples} held out, whose evaluation says little: give a larger --eval_fraction, or --eval_input_file"
    )


def open_inputs(
    flags: Any, config: PretrainingDataConfig, output_dir: str | os.PathLike, say: Callable[[str], None]
) -> Inputs:
    """Prepares text that is not prepared yet, and opens both data sets.

    Raises:
        UserError: inputs that are missing, damaged, of kinds that cannot be mixed, or do not fit the vocabulary.
    """
    kinds = {corpus.kind_of(spec) for spec in flags.input_file}
    if "tfrecord" in kinds and len(kinds) > 1:
        raise UserError("--input_file: masked TFRecords and other inputs cannot be mixed")
    if kinds == {"tfrecord"}:
        return _open_records(flags, config, cache_folder(output_dir))
    return _open_text(flags, config, cache_folder(output_dir), say)


def _open_records(flags: Any, config: PretrainingDataConfig, cache: Path) -> Inputs:
    """Google's masked TFRecords; their masks and pairs are taken as they are."""
    if flags.vocab_file is None and flags.bert_config_file is None:
        raise UserError(
            "--input_file: masked TFRecords need --vocab_file or --bert_config_file, which say how many words there are"
        )
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case) if flags.vocab_file else None
    vocab_size = config_from_flags(flags, "base", tokenizer and tokenizer.vocab_size).vocab_size

    def open_all(specs: list[str], flag: str) -> PretrainingData:
        paths = []
        for spec in specs:
            if corpus.kind_of(spec, flag) != "tfrecord":
                raise UserError(f"{flag}: {spec} holds no masked TFRecords, as the other inputs do")
            paths += corpus.files_of(spec, flag)
        # One process reads and checks the records into the cache, in which all others find them.
        processes.from_first(lambda: open_tfrecords(paths, config, vocab_size, cache, flag=flag).fingerprint)
        return open_tfrecords(paths, config, vocab_size, cache, flag=flag)

    train = open_all(flags.input_file, "--input_file")
    held_out = open_all(flags.eval_input_file, "--eval_input_file") if flags.eval_input_file else None
    return Inputs(train, held_out, tokenizer, f"--vocab_file={flags.vocab_file}", {}, train.warnings)


def _open_text(flags: Any, config: PretrainingDataConfig, cache: Path, say: Callable[[str], None]) -> Inputs:
    """Text and token stores; text is prepared into the cache first, by one process for all."""

    def stores_of(flag: str, tokenizer: Any = None) -> list[TokenStore]:
        def prepare() -> list[str]:
            return [store.folder for store in prepare_inputs(flags, os.fspath(cache), say, flag, tokenizer)]

        return [TokenStore.open(folder, f"--{flag}") for folder in processes.from_first(prepare)]

    stores = stores_of("input_file")
    tokenizer = stores[0].tokenizer
    split = bool(config.eval_fraction) and not flags.eval_input_file
    train = open_stores(stores, "train" if split else "all", config, cache)
    warnings = list(train.warnings)
    held_out = None
    if flags.eval_input_file:
        held_out = open_stores(stores_of("eval_input_file", tokenizer), "all", config, cache)
    elif split:
        held_out = open_stores(stores, "eval", config, cache)
        if not held_out.num_eval_examples():
            held_out = None
            warnings.append("nothing is held out, since one document cannot be split: give --eval_input_file")
        elif (count := held_out.num_eval_examples()) < FEW_EXAMPLES:
            warnings.append(few_held_out(count))
    counts = {name: sum(store.metadata["counts"][name] for store in stores) for name in stores[0].metadata["counts"]}
    source = f"--vocab_file={flags.vocab_file}" if flags.vocab_file else f"the vocabulary of {stores[0].folder}"
    return Inputs(train, held_out, tokenizer, source, counts, warnings)
