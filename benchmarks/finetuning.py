"""Time of fine-tuning on CPU here and in Hugging Face's PyTorch, in one process, taking turns, in float32.

    python benchmarks/finetuning.py --model=FOLDER --task_name=sst2 --data_dir=GLUE [--output_file=results.jsonl]

Both train on the same examples with AdamW, dropout, clipping and weight decay. Hugging Face pads each batch to its
longest sequence: batches as they come, and batches of like length (which are less random: its Trainer's group_by_length
takes the longest of 50 batches together). Here batches are random and packed. Tokenizing is not timed on either side;
compiling is, and is reported apart. Other work on the machine slows all: trust the ratios.
"""

import itertools
import json
import os
import time

import numpy as np
from absl import app, flags

from bert_jax import main as command_line
from bert_jax import partitioning, task_data
from bert_jax.finetuning_options import apply_defaults
from bert_jax.finetuning_run import FinetuningRun
from bert_jax.host_memory import keep_freed_memory
from bert_jax.modes.finetune import make_work
from bert_jax.task_setup import open_model

_MODEL = flags.DEFINE_string("model", None, "Folder of a BERT of Hugging Face, with its vocab.txt.", required=True)
_TASK_NAME = flags.DEFINE_string("task_name", "sst2", "A task of texts, as --task_name of bert_jax.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Its files.", required=True)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut.", lower_bound=2)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Examples of a batch.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 20, "Updates of a round.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Timed rounds after the first.", lower_bound=1)
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "A file to which the results are added as one line of JSON.")

_GROUPED_BATCHES = 50


def our_work():
    """The run that the command line would make."""
    arguments = ["bert_jax", "--mode=finetune", "--num_train_epochs=3", "--learning_rate=2e-5"]
    arguments += [
        f"--task_name={_TASK_NAME.value}",
        f"--data_dir={_DATA_DIR.value}",
        f"--init_checkpoint={_MODEL.value}",
    ]
    arguments += [f"--max_seq_length={_MAX_SEQ_LENGTH.value}", f"--train_batch_size={_BATCH_SIZE.value}"]
    values = command_line.parse(arguments)
    data = task_data.open_data(values, task_data.task_name(values), ("train",))
    apply_defaults(values, data.kind, data.version_2, print)
    model = open_model(values, data, print)
    work = make_work(values, data, model, partitioning.make_mesh(""), None)
    return FinetuningRun(values, work, None)


def our_trainer(run: FinetuningRun):
    """A function that makes so many updates from a step on."""
    state = run.initial_state()
    step = run.stepper(lambda compile_it: compile_it())

    def train(first, count):
        nonlocal state
        for batch in run.global_batches(first, first + count):
            state, metrics = step(state, batch)
        return float(metrics["loss"])

    return train


def torch_trainer(features, num_labels: int, grouped: bool, threads: int):
    """The same in PyTorch."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        _MODEL.value, num_labels=num_labels, attn_implementation="sdpa", dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    ends = np.cumsum(features.lengths)
    size = _BATCH_SIZE.value

    def order():
        """Numbers of examples for ever."""
        for epoch in itertools.count():
            numbers = np.random.default_rng(epoch).permutation(len(features.lengths))
            for start in range(0, len(numbers), _GROUPED_BATCHES * size):
                part = numbers[start : start + _GROUPED_BATCHES * size]
                if grouped:
                    part = part[np.argsort(-features.lengths[part], kind="stable")]
                    batches = [part[i : i + size] for i in range(0, len(part), size)]
                    np.random.default_rng((epoch, start)).shuffle(batches)
                    part = np.concatenate(batches)
                yield from part

    examples = order()

    def batch():
        numbers = list(itertools.islice(examples, size))
        width = max(features.lengths[number] for number in numbers)
        arrays = {name: np.zeros((size, width), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        for row, number in enumerate(numbers):
            place = slice(ends[number] - features.lengths[number], ends[number])
            length = features.lengths[number]
            arrays["input_ids"][row, :length] = features.input_ids[place]
            arrays["token_type_ids"][row, :length] = features.segment_ids[place]
            arrays["attention_mask"][row, :length] = 1
        labels = features.labels[numbers]
        labels = labels.astype(np.float32) if num_labels == 1 else labels.astype(np.int64)
        return {name: torch.from_numpy(array) for name, array in (arrays | {"labels": labels}).items()}

    def train(first, count):
        for _ in range(count):
            loss = model(**batch()).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return train


def main(_):
    keep_freed_memory()
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    run = our_work()
    features = run.work.train
    outputs = len(run.task.family.head.labels)
    contestants = {
        "bert_jax": our_trainer(run),
        "Hugging Face": torch_trainer(features, outputs, False, threads),
        "Hugging Face, like lengths": torch_trainer(features, outputs, True, threads),
    }
    count = _STEPS.value
    seconds = {name: [] for name in contestants}
    for number, (name, train) in itertools.product(range(1 + _ROUNDS.value), contestants.items()):
        start = time.perf_counter()
        loss = train(number * count, count)
        seconds[name].append(time.perf_counter() - start)
        print(f"round {number}: {name} {seconds[name][-1]:.2f} s, loss {loss:.3f}", flush=True)

    print(
        f"{_TASK_NAME.value}: {len(features.lengths):,} examples of {features.lengths.mean():.0f} tokens, "
        f"{run.batches.row_counts} rows of {run.batches.width}, float32, {threads} threads"
    )
    ours = np.array(seconds["bert_jax"][1:])
    results = {}
    for name, rounds in seconds.items():
        others = np.array(rounds[1:])
        results[name] = {
            "examples_per_second": count * _BATCH_SIZE.value / float(np.median(others)),
            "ratio": float(np.median(others / ours)),
            "first_seconds": rounds[0],
        }
        shown = ", ".join(f"{column.replace('_', ' ')} {value:.3g}" for column, value in results[name].items())
        print(f"{name:28}{shown}")
    if _OUTPUT_FILE.value:
        result = {"task": _TASK_NAME.value, "batch_size": _BATCH_SIZE.value, "threads": threads, "results": results}
        with open(_OUTPUT_FILE.value, "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    app.run(main)
