"""--mode=finetune: examples -> features -> packed batches -> losses -> checkpoint -> predictions and metrics."""

import functools
import os
from pathlib import Path
from typing import Any

from bert_jax import devices, partitioning, processes, task_data, training
from bert_jax.finetuning_options import apply_defaults
from bert_jax.finetuning_run import FinetuningRun, Work
from bert_jax.interruption import Interrupted
from bert_jax.modes.pretrain_inputs import cache_folder
from bert_jax.run_folder import RunFolder
from bert_jax.task_evaluation import Predictor, Split
from bert_jax.task_setup import open_model
from input_pipeline.errors import UserError
from input_pipeline.feature_cache import build_features


def run(flags: Any) -> int:
    """Fine-tunes, evaluates on the dev splits, and predicts the test splits that there are."""
    name = task_data.task_name(flags)
    if flags.output_dir is None:
        flags.output_dir = f"runs/{name}"
        processes.say(f"--output_dir={flags.output_dir}")
    data = task_data.open_data(flags, name, ("train", "dev", "test"))
    tell_of(data)
    apply_defaults(flags, data.kind, data.version_2, None, processes.say)
    model = open_model(flags, data, processes.say)
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    mesh = partitioning.make_mesh(flags.mesh)
    partitioning.check_batch_size(mesh, "--train_batch_size", flags.train_batch_size, flags.gradient_accumulation_steps)
    if flags.eval_batch_size:
        partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    with RunFolder(flags.output_dir) as folder:
        work = make_work(flags, data, model, mesh, cache_folder(folder.path))
        try:
            results = FinetuningRun(flags, work, folder).run()
        except Interrupted as stopped:
            processes.say(str(stopped))
            return stopped.leave()
        except training.TrainingError as error:
            processes.say(f"error: {error}")
            return 1
    if results is not None:
        path = os.fspath(folder.path)
        processes.say(f"done: {path} holds the model; look at {path}/report.html")
    return 0


def tell_of(data: task_data.TaskData) -> None:
    """Says what was read, and all that was odd about it."""
    for split, examples in data.splits.items():
        processes.say(f"{split}: {len(examples.examples):,} examples from {examples.source}")
        for note in examples.notes:
            processes.say(note)
    if data.labels:
        processes.say(f"{data.kind}: {', '.join(data.labels)}")


def make_work(flags: Any, data: task_data.TaskData, model: Any, mesh: Any, cache: Path) -> Work:
    """Builds the features of all splits."""
    family = model.task.family

    def features(split: str):
        examples = data.splits[split].examples
        features_of = family.features_of
        if data.kind == "span" and split == "train":
            features_of = functools.partial(features_of, training=True)
        built = build_features(
            features_of,
            examples,
            cache=cache,
            groups=getattr(family, "groups", None),
            num_workers=flags.num_workers,
        )
        if built.num_cut:
            processes.say(
                f"{split}: {built.num_cut:,} of {len(built.lengths):,} sequences were longer than "
                f"--max_seq_length={flags.max_seq_length}, and were cut"
            )
        return built

    train = features("train")
    if not len(train.lengths):
        raise UserError(f"{data.splits['train'].source}: there is nothing to train on")
    splits = [Split(name, data.splits[name].examples, features(name)) for name in data.splits if name != "train"]
    return Work(data, model, train, splits, Predictor(model.task, mesh, flags.eval_batch_size), mesh)
