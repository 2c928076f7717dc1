"""A BERT to use: configuration, tokenizer, module and parameters from any checkpoint, in one call."""

import os
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.config import BertConfig, config_from_flags
from bert_jax.convert import checkpoints
from bert_jax.convert.weights import PART_NAMES
from bert_jax.modeling import BertForPreTraining
from bert_jax.task_modeling import BertForTask
from input_pipeline.errors import UserError
from input_pipeline.tokenization import Tokenizer, load_tokenizer

PRECISIONS = {"f32": jnp.float32, "bf16": jnp.bfloat16}


class LoadedBert(NamedTuple):
    """What `load` gives; the four can be used on their own.

    Attributes:
        config: sizes and constants.
        tokenizer: text to ids; None where no vocabulary was found.
        module: a Flax module: BertForPreTraining, or BertForTask for weights with the head of a task (`module.head`).
        params: a nested dict of float32 arrays, for `module.apply({"params": params}, ...)`. Parts that the checkpoint
            does not have (a pooler, a head) are not in it: `module.apply(..., method="encode")` needs none of them.
    """

    config: BertConfig
    tokenizer: Tokenizer | None
    module: nn.Module
    params: dict[str, Any]

    def __repr__(self) -> str:
        sizes = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        return f"<{type(self.module).__name__} of {sizes:,} parameters: config, tokenizer, module, params>"

    def needs(self, part: str, use: str) -> None:
        """Raises UserError when the parameters lack `part` ("pooler", "predictions", "seq_relationship")."""
        if part not in self.params.get("cls", {}) and part not in self.params["bert"]:
            raise UserError(f"these weights have no {PART_NAMES[part]}, which {use} needs")


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr)


def load(
    path: str | os.PathLike,
    *,
    bert_config_file: str | None = None,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    hidden_act: str | None = None,
    max_position_embeddings: int | None = None,
    extend_positions: bool = False,
    allow_pickled_weights: bool = False,
    precision: str = "f32",
    message: Callable[[str], None] | None = _to_standard_error,
    flag: str = "path",
) -> LoadedBert:
    """Loads a checkpoint of any kind.

        config, tokenizer, module, params = bert_jax.load("runs/pretrain")
        hidden_states = module.apply({"params": params}, input_ids, input_mask, segment_ids, method="encode")

    Args:
        path: the output folder of a run, a Hugging Face folder or file, the prefix of a TF1 checkpoint, or
            hf://ORG/NAME.
        bert_config_file, vocab_file, do_lower_case: instead of what lies beside the weights.
        hidden_act, max_position_embeddings: instead of what the configuration says.
        extend_positions: repeat a position table that is shorter than max_position_embeddings.
        allow_pickled_weights: read .bin files, with PyTorch's loader for weights only.
        precision: "f32" or "bf16", the dtype that the module computes in.
        message: takes lines about what was found and used; None drops them.
        flag: what the path is called in lines and errors.

    Raises:
        UserError: nothing readable, or weights, configuration and vocabulary that do not fit together.
    """
    if precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UserError(f"a checkpoint is named by a path, which is a str or a pathlib.Path, not by {path!r}")
    message = message or (lambda line: None)
    source = checkpoints.find(os.fspath(path), flag, allow_pickled=allow_pickled_weights)
    beside = checkpoints.flags_beside(source)
    do_lower_case = beside.get("do_lower_case") if do_lower_case is None and vocab_file is None else do_lower_case
    vocab_file = vocab_file or beside.get("vocab_file")
    tokenizer = load_tokenizer(vocab_file, do_lower_case) if vocab_file else None
    settings = types.SimpleNamespace(
        model=None,
        bert_config_file=bert_config_file or beside.get("bert_config_file"),
        hidden_act=hidden_act,
        max_position_embeddings=max_position_embeddings,
        hidden_dropout_prob=None,
        attention_probs_dropout_prob=None,
        attention=None,
    )
    if settings.bert_config_file is None:
        raise UserError(f"{source}: no configuration lies beside the weights: give --bert_config_file")
    vocab_size = tokenizer.vocab_size if tokenizer else None
    config = config_from_flags(settings, "base", vocab_size, f"--vocab_file={vocab_file}", message)
    config, notes = checkpoints.config_of(source, config, hidden_act)
    checkpoints.check_vocabulary(source, tokenizer)
    head = checkpoints.head_of(source, allow_pickled_weights)
    params, report = checkpoints.read(
        source, config, head, extend_positions=extend_positions, allow_pickled=allow_pickled_weights
    )
    for line in [*notes, *report.lines()]:
        message(f"{source}: {line}")
    dtype = PRECISIONS[precision]
    module = BertForTask(config, head, dtype) if head else BertForPreTraining(config, dtype)
    return LoadedBert(config, tokenizer, module, params)


def load_from_flags(flags: Any, message: Callable[[str], None]) -> LoadedBert:
    """`load` as the flags of the command line say; fills --max_seq_length with that of a run of ours.

    Raises:
        UserError: as load; and when --init_checkpoint or a vocabulary is missing.
    """
    if not flags.init_checkpoint:
        raise UserError(
            f"--mode={flags.mode} needs --init_checkpoint: the output folder of a run, a Hugging Face folder, the "
            "prefix of a TF1 checkpoint, or hf://ORG/NAME"
        )
    names = ("bert_config_file", "vocab_file", "do_lower_case", "hidden_act", "max_position_embeddings")
    names += ("extend_positions", "allow_pickled_weights", "precision")
    given = {name: getattr(flags, name) for name in names}
    bert = load(flags.init_checkpoint, **given, message=message, flag="--init_checkpoint")
    if flags.max_seq_length is None:
        source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
        if (length := checkpoints.trained_length(source)) and length < bert.config.max_position_embeddings:
            flags.max_seq_length = length
            message(f"--max_seq_length={length}, as in the training of {source.name}")
    return bert
