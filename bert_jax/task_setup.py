"""The model of a task: what the flags, the data and a checkpoint make of it together."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from bert_jax import beside_checkpoint, initial_parameters, metrics
from bert_jax.config import BertConfig, config_from_flags
from bert_jax.convert import checkpoints
from bert_jax.finetuning import FinetuningTask
from bert_jax.heads import FEATURES, TaskHead, make_head, rescale
from bert_jax.task_data import TaskData
from bert_jax.task_modeling import BertForTask
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.family import Family
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.regression import Regression
from bert_jax.tasks.span import SpanTask
from bert_jax.tasks.tagging import Tagging
from input_pipeline import glue_data
from input_pipeline.choice_features import choice_features
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import PAIR_SPECIAL
from input_pipeline.tagging_features import tagging_features
from input_pipeline.text_features import text_features
from input_pipeline.tokenization import Tokenizer, load_tokenizer


class TaskModel(NamedTuple):
    """A model for a task.

    Attributes:
        loaded: the parameters that a checkpoint has, float32 on the host (see initial_parameters.merge); None where the
            model begins with random ones.
        task: what trains and predicts.
    """

    config: BertConfig
    tokenizer: Tokenizer
    loaded: dict[str, Any] | None
    task: FinetuningTask


def make_head_from_flags(flags: Any, data: TaskData) -> TaskHead:
    """The output layer that the task and the flags of the paper's ablations ask for."""
    head = make_head(data.kind, data.labels, "--labels")
    if data.scale:
        head = head._replace(mean=data.scale[0], deviation=data.scale[1])
    try:
        sizes = tuple(int(size) for size in flags.head_lstm)
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise UserError(f"--head_lstm={','.join(flags.head_lstm)}: sizes of LSTMs are whole numbers, such as 768,768")
    if flags.head_features != FEATURES[0] and not head.of_tokens:
        raise UserError(f"--head_features={flags.head_features} is for tagging and squad; {data.name} reads [CLS]")
    return head._replace(features=flags.head_features, lstm=sizes)


def make_family(flags: Any, data: TaskData, head: TaskHead, tokenizer: Tokenizer) -> Family:
    """The task family with everything decided.

    Args:
        flags: max_seq_length and the flags of the families.
    """
    sizes = {"tokenizer": tokenizer, "max_length": flags.max_seq_length}
    if head.kind == "span":
        return SpanTask(
            **sizes,
            doc_stride=flags.doc_stride,
            max_query_length=flags.max_query_length,
            n_best_size=flags.n_best_size,
            max_answer_length=flags.max_answer_length,
            version_2=data.version_2,
            null_score_diff_threshold=flags.null_score_diff_threshold,
            head=head,
        )
    if head.kind == "multiple_choice":
        endings = {len(example.endings) for split in data.splits.values() for example in split.examples}
        if len(endings) > 1:
            counts = ", ".join(f"{split.source} has {len(split.examples[0].endings)}" for split in data.splits.values())
            raise UserError(f"all examples need as many endings: {counts}")
        return MultipleChoice(head, functools.partial(choice_features, **sizes), num_choices=endings.pop())
    if head.kind == "tagging":
        features = functools.partial(
            tagging_features, **sizes, labels=head.labels, document_context=flags.document_context
        )
        return Tagging(head, features, strict=flags.strict_entities)
    features = functools.partial(text_features, **sizes, kind=head.kind, labels=head.labels)
    if head.kind == "regression":
        return Regression(head, features, bounds=data.bounds)
    if flags.positive_label is not None and flags.positive_label not in head.labels:
        raise UserError(f"--positive_label={flags.positive_label} must be one of {', '.join(head.labels)}")
    names = metrics.glue_metrics(data.name) if data.name in glue_data.TASKS else None
    return Classification(head, features, metric_names=names, positive_label=flags.positive_label)


def open_model(flags: Any, data: TaskData, message: Callable[[str], None]) -> TaskModel:
    """The model to fine-tune, as the flags say, with the parameters of --init_checkpoint.

    The head of a checkpoint that was trained for the same labels is kept, in its order of them; any other begins anew.

    Raises:
        UserError: flags or weights that are missing or do not fit together.
    """
    source = None
    if flags.init_checkpoint:
        beside_checkpoint.take_all(flags)
        source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    if not flags.vocab_file:
        raise UserError(
            "--vocab_file is missing, and no vocabulary lies beside --init_checkpoint"
            if flags.init_checkpoint
            else "--init_checkpoint is missing: the weights to fine-tune; or, to begin with random ones, give "
            "--vocab_file and --model or --bert_config_file"
        )
    if not (flags.init_checkpoint or flags.model or flags.bert_config_file):
        raise UserError("--init_checkpoint is missing; to begin with random weights give --model or --bert_config_file")
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case)
    config = config_from_flags(flags, "base", tokenizer.vocab_size, f"--vocab_file={flags.vocab_file}", message)
    if source:
        checkpoints.check_vocabulary(source, tokenizer)
        config, notes = checkpoints.config_of(source, config, flags.hidden_act)
        for note in notes:
            message(f"{source}: {note}")
    check_length(flags, config)
    head = make_head_from_flags(flags, data)
    if head.features.endswith("last_4") and config.num_hidden_layers < 4:
        raise UserError(f"--head_features={head.features}: the model has {config.num_hidden_layers} layers only")
    loaded = None
    if source:
        head, loaded = _load(flags, config, head, source, message)
    return TaskModel(config, tokenizer, loaded, make_task(flags, data, config, head, tokenizer))


def make_task(flags: Any, data: TaskData, config: BertConfig, head: TaskHead, tokenizer: Tokenizer) -> FinetuningTask:
    dtype = jnp.bfloat16 if flags.precision == "bf16" else jnp.float32
    module = BertForTask(config, head, dtype, flags.scan_layers, flags.remat)
    return FinetuningTask(module, make_family(flags, data, head, tokenizer), flags.freeze_encoder)


def check_length(flags: Any, config: BertConfig) -> None:
    """Raises UserError for a --max_seq_length that the model cannot have."""
    most = config.max_position_embeddings
    least = PAIR_SPECIAL + 2
    if not least <= flags.max_seq_length <= most:
        raise UserError(
            f"--max_seq_length={flags.max_seq_length} must be between {least} (the special tokens of a pair, and a "
            f"token of each text) and {most} (max_position_embeddings)"
        )


def _load(flags, config, head, source, message) -> tuple[TaskHead, dict[str, Any]]:
    """The checkpoint's parameters, and the head with the order of labels that they are for."""
    theirs = checkpoints.head_of(source, flags.allow_pickled_weights)
    same = theirs is not None and theirs.without_scale()._replace(labels=()) == head.without_scale()._replace(labels=())
    kept = same and set(theirs.labels) == set(head.labels)
    loaded, report = initial_parameters.read(flags, config, theirs if kept else head)
    if kept:
        if "classifier" in loaded:
            loaded = rescale(loaded, theirs, head)
        head = theirs._replace(mean=head.mean, deviation=head.deviation)
    elif theirs is not None:
        parts = set(loaded) - {"bert"}
        if parts:
            loaded = {"bert": loaded["bert"]}
            message(
                f"{source}: its output layer is for {theirs.kind} of {', '.join(theirs.labels)}; this task has "
                f"{', '.join(head.labels)}, so it begins with a new one"
            )
    for line in report.lines(fresh=True):
        message(f"{source}: {line}")
    if "pooler" in report.missing_parts and not flags.allow_new_pooler:
        raise UserError(
            f"{source}: there is no pooler, whose output {head.kind} reads: it was left out when the weights were "
            "saved; give --allow_new_pooler to begin with a new one"
        )
    if not head.pools:
        loaded["bert"].pop("pooler", None)
    if flags.reinit_layers:
        if flags.reinit_layers > config.num_hidden_layers:
            raise UserError(f"--reinit_layers={flags.reinit_layers}: there are {config.num_hidden_layers} layers")
        loaded = _without_top(loaded, config.num_hidden_layers, flags.reinit_layers)
        message(f"--reinit_layers={flags.reinit_layers}: the top layers and the pooler begin anew")
    return head, loaded


def _without_top(loaded: dict[str, Any], num_layers: int, count: int) -> dict[str, Any]:
    """The parameters without the pooler and the top layers (Zhang et al., 2021)."""
    dropped = {f"layer_{number}" for number in range(num_layers - count, num_layers)}
    encoder = {name: layer for name, layer in loaded["bert"]["encoder"].items() if name not in dropped}
    bert = {name: part for name, part in loaded["bert"].items() if name != "pooler"}
    return loaded | {"bert": bert | {"encoder": encoder}}
