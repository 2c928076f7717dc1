"""Whatever holds the weights of a BERT: finds out what lies at a path, and reads it as one tree of parameters."""

import functools
import operator
import os
import re
from typing import Any, NamedTuple

from bert_jax import checkpointing
from bert_jax.config import BertConfig
from bert_jax.convert import hub, tf1
from bert_jax.convert.huggingface import CONFIG_FILE, find_head, has_safetensors, is_huggingface, load_huggingface
from bert_jax.convert.weights import ImportReport, Tensor, assemble, disassemble, unstack_layers
from bert_jax.heads import HEAD_FILE, TaskHead, read_head
from bert_jax.run_folder import CHECKPOINTS, RUN_FILE, find_checkpoint, read_run
from bert_jax.runs_table import best_run_in
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer
from input_pipeline.vocabulary import VOCABULARY_FILES

GOOGLE_CONFIG_FILE = "bert_config.json"


class Source(NamedTuple):
    """Weights that were found at a path.

    Attributes:
        kind: "run" (an output folder of ours, or one of its steps), "huggingface" or "tf1".
        path: what holds the weights: a folder, a file, or the prefix of a TF1 checkpoint.
        folder: where configuration, vocabulary and labels lie, if they do.
        name: the path as the user gave it.
        flag: the flag that named it.
        best_run: the name of the run, where the path holds several.
    """

    kind: str
    path: str
    folder: str
    name: str
    flag: str
    best_run: str | None = None

    def __str__(self) -> str:
        return f"{self.flag}: {self.name}"


def find(path: str, flag: str = "--init_checkpoint", allow_pickled: bool = False) -> Source:
    """Finds weights.

    Args:
        path: an output folder of ours (of several runs the best one is taken) or one step's own folder below it, a
            folder or file of Hugging Face, the prefix of a TF1 checkpoint (or one of its files, or the folder that
            holds it), or hf://ORG/NAME[@REVISION].
        flag: named in errors.
        allow_pickled: let a hub's pickled weights be fetched where there are no others.

    Raises:
        UserError: there is nothing, or nothing known, at `path`.
    """
    name = path
    if hub.is_hub(path):
        path = hub.fetch(path, flag, allow_pickled)
    source = functools.partial(Source, name=name, flag=flag)
    prefix = None if has_safetensors(path, flag) else tf1.find_prefix(path, flag)
    if prefix:
        return source("tf1", prefix, os.path.dirname(prefix) or ".")
    try:
        matches = files.expand([path], flag)
    except UserError as error:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", path):
            raise UserError(f"{error}; a model of the Hugging Face Hub is named hf://{path}") from None
        raise
    if len(matches) > 1:
        raise UserError(f"{flag}={path} names {len(matches)} files, but one checkpoint is needed: {', '.join(matches)}")
    place = files.as_path(matches[0])
    marks = [(place / name).exists() for name in (RUN_FILE, CHECKPOINTS)]
    if is_huggingface(place, flag) and not all(marks):
        return source("huggingface", os.fspath(place), os.fspath(place if place.is_dir() else place.parent))
    if place.parent.name == CHECKPOINTS and place.name.isdigit():
        return source("run", os.fspath(place), os.fspath(place.parent.parent))
    if any(marks):
        return source("run", os.fspath(place), os.fspath(place))
    if best := best_run_in(place, flag):
        return source("run", os.fspath(place / best), os.fspath(place / best), best_run=best)
    raise UserError(
        f"{flag}: {name} holds no weights that are known here: give the output folder of a run, a Hugging Face folder "
        "(model.safetensors), the prefix of a TF1 checkpoint (bert_model.ckpt), or hf://ORG/NAME"
    )


def flags_beside(source: Source) -> dict[str, Any]:
    """What lies with the weights, by the flags that would say the same: configuration, vocabulary, casing."""
    folder = files.as_path(source.folder)
    found: dict[str, Any] = {}
    names = (CONFIG_FILE, GOOGLE_CONFIG_FILE) if source.kind == "huggingface" else (GOOGLE_CONFIG_FILE, CONFIG_FILE)
    for name in names:
        if (folder / name).exists():
            found["bert_config_file"] = os.fspath(folder / name)
            break
    if any((folder / name).exists() for name in VOCABULARY_FILES):
        found["vocab_file"] = source.folder
        # Google's folders say it by their names only: uncased_L-12_H-768_A-12, multi_cased_...
        own_names = [os.path.basename(place) for place in (os.path.abspath(folder), os.path.realpath(folder))]
        casing = re.search(r"(?<![a-z])(un)?cased(?![a-z])", "/".join(own_names).lower())
        if source.kind == "tf1" and casing and not (folder / "tokenizer_config.json").exists():
            found["do_lower_case"] = casing[1] == "un"
    return found


def config_of(source: Source, config: BertConfig, hidden_act: str | None = None) -> tuple[BertConfig, list[str]]:
    """The configuration as the weights mean it, with lines for the user: "gelu" is the tanh form in Google's code.

    Args:
        config: as the file says.
        hidden_act: that of the user, which counts more.
    """
    if source.kind == "tf1" and config.hidden_act == "gelu" and hidden_act is None:
        return tf1.google_activation(config, source.folder)
    return config, []


def head_of(source: Source, allow_pickled: bool = False) -> TaskHead | None:
    """The head of a task that the weights were trained with; None for those of pretraining."""
    if source.kind == "huggingface":
        return find_head(source.path, source.flag, allow_pickled)
    if source.kind == "tf1":
        return tf1.find_head(source.path, source.flag)
    return read_head(source.folder, source.flag)


def read(
    source: Source,
    config: BertConfig,
    head: TaskHead | None = None,
    *,
    extend_positions: bool = False,
    allow_pickled: bool = False,
) -> tuple[dict[str, Any], ImportReport]:
    """Reads the parameters that `config` and `head` need.

    Args:
        head: of a task; None for the pretraining heads.
        extend_positions: see weights.assemble.
        allow_pickled: see huggingface.load_huggingface.

    Returns:
        A nested dict of float32 NumPy arrays, each layer on its own (layer_0, ...), for the parts that are there, and
        what became of what.

    Raises:
        UserError: weights that cannot be read, or do not fit; see weights.assemble.
    """
    if source.kind == "huggingface":
        _, params, report = load_huggingface(
            source.path, config, source.flag, head, extend_positions=extend_positions, allow_pickled=allow_pickled
        )
        return params, report
    if source.kind == "tf1":
        return tf1.load_tf1(source.path, config, source.flag, head, extend_positions)
    folder, step = find_checkpoint(source.path, source.flag)
    own_file = files.as_path(source.folder) / GOOGLE_CONFIG_FILE
    own = BertConfig.from_file(own_file, source.flag) if own_file.exists() else config
    tree = unstack_layers(checkpointing.read_parameters(folder, step))
    own_head = read_head(source.folder, source.flag)
    plain = own_head is None or own_head.is_plain
    try:
        tensors = {
            weight.name: Tensor("/".join(weight.path), array.shape, lambda array=array: array)
            for weight, array in disassemble(own, own_head, tree if plain else {"bert": tree["bert"]})
        }
    except ValueError:
        beside = GOOGLE_CONFIG_FILE if own_head is None else f"{GOOGLE_CONFIG_FILE} and {HEAD_FILE}"
        raise UserError(f"{source}: its arrays are not those that {beside} beside them describe") from None
    params, report = assemble(config, head, tensors, str(source), extend_positions)
    if not plain and head == own_head:  # what no table knows: LSTMs, weights of layers, and what reads them
        params |= {name: part for name, part in tree.items() if name != "bert"}
        report = report._replace(initialized=(), missing_parts=())
    of_run = f" of {source.best_run}, the best of the runs" if source.best_run else ""
    return params, report._replace(notes=(f"parameters of step {step}{of_run}", *report.notes))


def check_vocabulary(source: Source, tokenizer: Any) -> None:
    """Compares the vocabulary in use with that of the parameters, where both are known.

    A run of ours has to have the same one. Elsewhere half of the pieces have to be in the same places: a vocabulary may
    have been extended.

    Raises:
        UserError: they differ, so that the rows of the embedding would stand for other words.
    """
    if tokenizer is None:
        return
    if source.kind == "run":
        if not (files.as_path(source.folder) / RUN_FILE).exists():
            return
        theirs = read_run(source.folder, source.flag)["settings"].get("vocabulary")
        if theirs and theirs != tokenizer.fingerprint:
            raise UserError(
                f"{source.flag}={source.name} was trained with another vocabulary or casing than is used here"
            )
    elif beside := flags_beside(source).get("vocab_file"):
        theirs = load_tokenizer(beside, tokenizer.do_lower_case)
        if theirs.fingerprint == tokenizer.fingerprint:
            return
        ids = range(min(theirs.vocab_size, tokenizer.vocab_size))
        equal = sum(map(operator.eq, theirs.convert_ids_to_tokens(ids), tokenizer.convert_ids_to_tokens(ids)))
        if equal < tokenizer.vocab_size / 2:
            raise UserError(
                f"{source.flag}={source.name} has a vocabulary beside it, and only {equal:,} of the "
                f"{tokenizer.vocab_size:,} pieces used here have the same place there: the embeddings would stand for "
                "other words. Leave the vocabulary to the checkpoint"
            )


def trained_length(source: Source) -> int | None:
    """Tokens of the sequences that a run of ours was trained on; positions beyond are as they were at the start."""
    if source.kind != "run" or not (files.as_path(source.folder) / RUN_FILE).exists():
        return None
    length = read_run(source.folder, source.flag)["settings"].get("max_seq_length")
    return length if isinstance(length, int) else None
