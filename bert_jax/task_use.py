"""A fine-tuned model and new data: what evaluate and predict have in common."""

import os
import tempfile
from typing import Any

import jax

from bert_jax import devices, glue_submission, partitioning, processes, task_data
from bert_jax.convert import checkpoints
from bert_jax.heads import TaskHead
from bert_jax.loading import load_from_flags
from bert_jax.metric_names import metrics_text
from bert_jax.report_html import write_report
from bert_jax.run_folder import RUN_FILE, read_run
from bert_jax.runs_table import RUNS_FILE
from bert_jax.task_evaluation import Answers, Predictor, joined_metrics, make_splits, warnings_of, write_answers
from bert_jax.task_setup import check_length, make_task
from input_pipeline import files
from input_pipeline.errors import UserError

# Flags of the run that mean the same for new data.
_OF_THE_RUN = ("task_name", "max_seq_length", "text_field", "text_pair_field", "label_field", "id_field")
_OF_THE_RUN += ("positive_label", "version_2_with_negative", "null_score_diff_threshold", "doc_stride")
_OF_THE_RUN += ("max_query_length", "n_best_size", "max_answer_length", "document_context", "strict_entities")
_DEFAULT_LENGTHS = {"span": 384}


def answer(flags: Any, wanted: str) -> None:
    """Predicts the splits of one kind, and writes what there is to say to --output_dir.

    Args:
        flags: init_checkpoint, or as output_dir the folder of a run; where that does not say it, task_name.
        wanted: "dev" or "test".

    Raises:
        UserError: no model, no data, or such as do not fit together.
    """
    folder = _take_run(flags)
    name = task_data.task_name(flags)
    source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    head = _named(checkpoints.head_of(source, flags.allow_pickled_weights), flags.labels, source, name)
    data = task_data.open_data(flags, name, (wanted,), head.labels)
    _check_labels(data, head, source)
    task_data.tell_of(data, processes.say)
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    if flags.eval_batch_size:
        partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    bert = load_from_flags(flags, processes.say)
    if bert.tokenizer is None:
        raise UserError(f"{source}: no vocabulary lies beside the weights: give --vocab_file")
    if flags.max_seq_length is None:
        flags.max_seq_length = min(_DEFAULT_LENGTHS.get(head.kind, 128), bert.config.max_position_embeddings)
    check_length(flags, bert.config)
    if head.pools:
        bert.needs("pooler", head.kind)
    task = make_task(flags, data, bert.config, head, bert.tokenizer)
    predictor = Predictor(task, mesh, flags.eval_batch_size)
    params = jax.device_put(bert.params, partitioning.replicated(mesh))
    if processes.is_first():
        _make_writable(folder)  # before hours of work that could not be written
    answers = [predictor(params, split) for split in make_splits(flags, task.family, data, cache=None)]
    if processes.is_first():
        _write(folder, task.family, answers, data, flags.init_checkpoint)


def take_folder(flags: Any) -> None:
    """The folder of a run may be named by --output_dir alone.

    Raises:
        UserError: no model is named.
    """
    if not flags.init_checkpoint:
        folder = files.as_path(flags.output_dir or "", "--output_dir")
        if not (flags.output_dir and any((folder / name).exists() for name in (RUN_FILE, RUNS_FILE))):
            raise UserError(
                f"--mode={flags.mode} needs --init_checkpoint: the output folder of a run, or another model with the "
                "output layer of a task"
            )
        flags.init_checkpoint, flags.output_dir = flags.output_dir, None


def is_pretrained(flags: Any) -> bool:
    """Whether --init_checkpoint has the heads of pretraining, and no task is named."""
    source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    return flags.task_name is None and checkpoints.head_of(source, flags.allow_pickled_weights) is None


def _take_run(flags: Any) -> str:
    """Fills flags with what the run says, where they were not given; returns the folder to write to."""
    take_folder(flags)
    source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    if source.kind == "run" and (files.as_path(source.folder) / RUN_FILE).exists():
        run = read_run(source.folder, "--init_checkpoint")
        if run["mode"] != "finetune":
            raise UserError(f"{source} is a run of {run['mode']}: it has no task; fine-tune it first (--mode=finetune)")
        for name in _OF_THE_RUN:
            if not flags[name].present and run["flags"].get(name) is not None:
                setattr(flags, name, run["flags"][name])
    return results_folder(flags, source)


def results_folder(flags: Any, source: checkpoints.Source) -> str:
    """--output_dir, or the folder named like the mode in that of the model: the run's own results stay.

    Raises:
        UserError: it is the folder of another run.
    """
    own = [source.folder, *[os.path.dirname(source.folder)] * bool(source.best_run)]
    if not flags.output_dir or files.as_path(flags.output_dir, "--output_dir") in map(files.as_path, own):
        return os.path.join(source.folder, flags.mode)
    folder = files.reach(flags.output_dir, "--output_dir")
    if any((folder / name).exists() for name in (RUN_FILE, RUNS_FILE)):
        raise UserError(f"--output_dir={folder} holds a run, whose results would be lost: choose another folder")
    return flags.output_dir


def _named(head: TaskHead | None, labels: list[str] | None, source: Any, name: str) -> TaskHead:
    """The head of the weights, its outputs named by --labels where that is given."""
    kind = task_data.kind_of(name)
    if head is None:
        raise UserError(f"{source} has no output layer of a task: fine-tune it first (--mode=finetune)")
    if head.kind != kind:
        raise UserError(f"{source} is a model for {head.kind}, but --task_name={name} is {kind}")
    if not labels:
        return head
    if len(labels) != len(head.labels) or len(set(labels)) < len(labels):
        raise UserError(f"--labels={','.join(labels)}: {len(head.labels)} different names are needed, one an output")
    return head._replace(labels=tuple(labels))


def _check_labels(data: task_data.TaskData, head: TaskHead, source: Any) -> None:
    """Refuses a model whose outputs have other names than the task's labels: by number they could mean anything."""
    known = task_data.labels_of(data.name)
    if known and set(known) != set(head.labels):
        raise UserError(
            f"{source} has the labels {', '.join(head.labels)}, but --task_name={data.name} has {', '.join(known)}: "
            "name the outputs in their order with --labels"
        )


def _make_writable(path: str) -> None:
    folder = files.reach(path, "--output_dir")
    with files.user_errors(folder, "--output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        if not files.is_remote(folder):
            tempfile.TemporaryFile(dir=folder).close()


def _write(path: str, family: Any, answers: list[Answers], data: task_data.TaskData, model: str) -> None:
    folder = files.as_path(path)
    names = write_answers(folder, family, answers, data.submission)
    results = joined_metrics(answers)
    for answer in answers:
        for warning in warnings_of(answer):
            processes.say(f"warning: {warning}")
    if results:
        sources = ", ".join(dict.fromkeys(examples.source for examples in data.splits.values()))
        facts = {"evaluation": {"model": model, "task": data.name, "data": sources}}
        files.write_json_atomic(folder / "facts.json", facts)
        files.write_json_atomic(folder / "eval_results.json", results)
        names += ["eval_results.json", "report.html"]
        processes.say(f"evaluation: {metrics_text(results)}")
        write_report(folder)
    processes.say(f"written to {path}: {', '.join(names)}")
    if glue_submission.ZIP in names and (line := glue_submission.missing_tables(folder)):
        processes.say(line)
