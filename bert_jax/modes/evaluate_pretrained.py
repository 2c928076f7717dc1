"""A pretrained model on new text: how well it predicts masked words and next sentences."""

import os
from typing import Any

import jax

from bert_jax import devices, partitioning, pretraining, processes, task_use, training
from bert_jax.convert import checkpoints
from bert_jax.loading import load_from_flags
from bert_jax.metric_names import metrics_text
from bert_jax.modes.prepare import prepare_inputs
from bert_jax.modes.pretrain_options import data_config, masked_positions
from bert_jax.rate_display import RateDisplay
from bert_jax.run_folder import cache_folder
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.pretraining_data import PretrainingData, open_stores
from input_pipeline.token_store import TokenStore

_BATCH_TOKENS = 8192


def evaluate(flags: Any) -> None:
    """Evaluates on the text of --eval_input_file or --input_file, masked as that held out in training is.

    Writes eval_results.json to --output_dir, by default the folder evaluate in that of the run.

    Raises:
        UserError: no text, or a model without the masked-LM head.
    """
    name = "eval_input_file" if flags.eval_input_file else "input_file"
    if not getattr(flags, name):
        raise UserError("--eval_input_file is missing: the text to evaluate a pretrained model on")
    source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    path = task_use.results_folder(flags, source)
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    bert = load_from_flags(flags, processes.say)
    bert.needs("predictions", "evaluating masked words")
    flags.max_seq_length = flags.max_seq_length or min(128, bert.config.max_position_embeddings)
    if flags.max_seq_length > bert.config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={flags.max_seq_length} is more than max_position_embeddings "
            f"{bert.config.max_position_embeddings}"
        )
    partitioning.check_length(mesh, flags.max_seq_length)
    masked_positions(flags)
    shards = partitioning.batch_shards(mesh)
    size = flags.eval_batch_size or max(1, _BATCH_TOKENS // (flags.max_seq_length * shards)) * shards
    partitioning.check_batch_size(mesh, "--eval_batch_size", size)
    flags.next_sentence_prediction &= "seq_relationship" in bert.params["cls"] and "pooler" in bert.params["bert"]
    data = _open(flags, name, cache_folder(path), bert.tokenizer)
    task = pretraining.PretrainingTask(bert.module, flags.next_sentence_prediction)
    results = _evaluate(task, bert.params, data, mesh, size, flags)
    if processes.is_first():
        files.write_json_atomic(files.as_path(path) / "eval_results.json", results)
        processes.say(metrics_text(results))
        processes.say(f"written to {path}: eval_results.json")


def _open(flags: Any, name: str, cache: Any, tokenizer: Any) -> PretrainingData:
    def prepare() -> list[str]:
        return [store.folder for store in prepare_inputs(flags, os.fspath(cache), processes.say, name, tokenizer)]

    stores = [TokenStore.open(folder, f"--{name}") for folder in processes.from_first(prepare)]
    flags.eval_fraction = 0.0
    return open_stores(stores, "all", data_config(flags), cache)


def _evaluate(task, params, data, mesh, size, flags) -> dict[str, float | int]:
    replicated = partitioning.replicated(mesh)
    params = jax.device_put(params, replicated)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    shardings = jax.tree.map(lambda _: replicated, params)
    batch = pretraining.batch_shapes(size, flags.max_seq_length, flags.max_predictions_per_seq)
    compiled = training.compile_step(task.eval_sums, mesh, shardings, (shapes, batch), donate_state=False)
    count = min(data.num_eval_batches(size), flags.max_eval_steps or data.num_eval_batches(size))
    with (
        data.eval_batches(size, partitioning.local_rows(mesh, size)) as batches,
        RateDisplay("batches", count, shown=processes.is_first()) as display,
    ):
        on_devices = (partitioning.to_global_batch(mesh, batch, size) for _, batch in zip(range(count), batches))
        return training.evaluate(task, compiled, params, on_devices, lambda done: display.advance())
