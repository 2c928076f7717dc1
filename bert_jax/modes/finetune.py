"""--mode=finetune: examples -> features -> packed batches -> losses -> checkpoint -> predictions and metrics."""

import os
from pathlib import Path
from typing import Any

from bert_jax import (
    devices,
    finetuning_options,
    glue_submission,
    partitioning,
    processes,
    profiling,
    several_runs,
    suite,
    task_data,
    training,
)
from bert_jax.convert import checkpoints
from bert_jax.finetuning_run import FinetuningRun, Work
from bert_jax.interruption import Interrupted
from bert_jax.run_folder import RunFolder, cache_folder
from bert_jax.task_evaluation import Predictor, make_splits
from bert_jax.task_setup import open_model
from input_pipeline.errors import UserError


def run(flags: Any) -> int:
    """Fine-tunes, evaluates on the dev splits, and predicts the test splits that there are.

    With several runs (--num_runs, --grid_search), or for all of GLUE, one after the other.
    """
    finetuning_options.check(flags)
    profiling.parse_steps(flags.profile_steps, flags.num_train_steps)
    name = task_data.task_name(flags)
    if flags.output_dir is None:
        flags.output_dir = f"runs/{name}"
        processes.say(f"--output_dir={flags.output_dir}")
    try:
        if name == suite.NAME:
            return suite.run(flags, run_task)
        run_task(flags, name)
        if line := processes.from_first(lambda: glue_submission.missing_tables(flags.output_dir)):
            processes.say(line)
        return 0
    except Interrupted as stopped:
        processes.say(str(stopped))
        return stopped.leave()
    except training.TrainingError as error:
        processes.say(f"error: {error}")
        return 1


def run_task(flags: Any, name: str) -> dict[str, Any]:
    """Runs one task in --output_dir.

    Returns:
        The metrics of the run, or of the best of several.

    Raises:
        UserError: flags, files or weights that cannot be used.
        Interrupted, TrainingError: see FinetuningRun.run.
    """
    searched = several_runs.searched(flags)
    trained_length = None
    if flags.init_checkpoint:
        source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
        trained_length = checkpoints.trained_length(source)
    data = task_data.open_data(flags, name, ("train", "dev", "test"), task_data.given_labels(flags, name))
    task_data.tell_of(data, processes.say)
    if data.kind == "span":
        flags.version_2_with_negative = data.version_2
    finetuning_options.apply_defaults(flags, data.kind, data.version_2, processes.say, searched, trained_length)
    # The other processes have to be joined before JAX is used, and reading weights does that.
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    model = open_model(flags, data, processes.say)
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    partitioning.check_length(mesh, flags.max_seq_length)
    is_evaluated = any(split.startswith("dev") for split in data.splits)
    planned = several_runs.plan(flags, searched, is_evaluated)
    for size in sorted({settings["train_batch_size"] for settings in planned}):
        partitioning.check_batch_size(mesh, "--train_batch_size", size, flags.gradient_accumulation_steps)
    if flags.eval_batch_size:
        partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    with RunFolder(flags.output_dir) as folder:
        folder.refuse_others(mode="finetune", task=name)
        work = make_work(flags, data, model, mesh, cache_folder(folder.path))
        if len(planned) > 1:
            return several_runs.run_all(flags, planned, work, folder)
        results = FinetuningRun(flags, work, folder).run()
    processes.say(f"{flags.output_dir} holds the model; look at {os.path.join(flags.output_dir, 'report.html')}")
    return results


def make_work(flags: Any, data: task_data.TaskData, model: Any, mesh: Any, cache: Path) -> Work:
    """Builds the features of all splits."""
    train, *splits = make_splits(flags, model.task.family, data, cache)
    if not len(train.features.lengths):
        raise UserError(f"{data.splits['train'].source}: there is nothing to train on")
    return Work(data, model, train.features, splits, Predictor(model.task, mesh, flags.eval_batch_size), mesh, {})
