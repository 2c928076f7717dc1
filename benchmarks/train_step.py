"""Time of one pretraining step on CPU here, in Hugging Face's PyTorch BERT and in KerasHub, in one process, in turns.

    python benchmarks/train_step.py [--model=base --batch_size=8 --max_seq_length=128] [--output_file=results.jsonl]

A step is forward, backward, clipping by global norm and an update of Adam with weight decay, with dropout 0.1, in
float32; ratios are to the time of bert_jax. Hugging Face's BertForPreTraining scores words at all positions; the third
contestant is the same model with its head at the masked positions only, as here; --torch_compile adds both compiled.
KerasHub runs on JAX with one compiled step; it has no next-sentence prediction, and its GELU is the tanh form, which
costs less than the erf form of the others. What is not installed is left out. Other work on the machine slows all:
trust the ratios, best on one core (taskset -c 0), where no thread waits for another.
"""

import functools
import importlib.util
import itertools
import math
import time
from collections.abc import Callable

import keras_bert
import numpy as np
import results
from absl import app, flags

from bert_jax.config import BertConfig
from bert_jax.host_memory import keep_freed_memory

_MODEL = flags.DEFINE_string("model", "base", "tiny, mini, small, medium, base or large.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Examples of a step.", lower_bound=1)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.", lower_bound=8)
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", None, "Default: 15% of the length, rounded up.")
_STEPS = flags.DEFINE_integer("steps", 5, "Timed steps of each contestant, after one that is not timed.", lower_bound=1)
_TORCH_COMPILE = flags.DEFINE_bool("torch_compile", False, "Time PyTorch's compiled models too; needs a C++ compiler.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "A file to which the results are added as one line of JSON.")

COLUMNS = ("seconds", "cpu_seconds", "ratio", "cpu_ratio")
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 1e-4, 0.01, 1.0


def made_up_batch(config: BertConfig, batch_size: int, length: int, predictions: int) -> dict[str, np.ndarray]:
    """Random tokens, as in a batch of pretraining whose examples are all full."""
    rng = np.random.default_rng(0)
    positions = np.stack([np.sort(rng.choice(length, predictions, replace=False)) for _ in range(batch_size)])
    return {
        "input_ids": rng.integers(5, config.vocab_size, (batch_size, length), np.int32),
        "input_mask": np.ones((batch_size, length), np.int32),
        "segment_ids": np.tile(np.arange(length) >= length // 2, (batch_size, 1)).astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(5, config.vocab_size, (batch_size, predictions), np.int32),
        "masked_lm_weights": np.ones((batch_size, predictions), np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch_size, np.int32),
        "example_weights": np.ones(batch_size, np.float32),
    }


def our_step(config: BertConfig, batch: dict[str, np.ndarray]) -> Callable[[], float]:
    """A function that does one step and returns its loss."""
    import jax

    from bert_jax import partitioning, pretraining, training
    from bert_jax.modeling import BertForPreTraining, initialize
    from bert_jax.optimization import make_optimizer

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    mesh = partitioning.make_mesh("", jax.devices()[:1])
    module = BertForPreTraining(config)

    def rate(step):
        return LEARNING_RATE

    optimizer = make_optimizer("bert_adam", rate, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM)
    shapes, shardings = training.state_shapes(mesh, lambda key: initialize(module, key), optimizer)
    state = training.create_state(lambda key: initialize(module, key), optimizer, shardings, seed=0)
    step_function = training.make_train_step(pretraining.PretrainingTask(module), optimizer, rate, 0, shardings)
    batch_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    compiled = training.compile_step(step_function, mesh, shardings, (shapes, batch_shapes), donate_state=True)
    batch = partitioning.to_global_batch(mesh, batch, len(batch["input_ids"]))

    def step() -> float:
        nonlocal state
        state, metrics = compiled(state, batch)
        return float(metrics["loss"])

    return step


def torch_steps(
    config: BertConfig, batch: dict[str, np.ndarray], threads: int, compile_too: bool
) -> dict[str, Callable[[], float]]:
    """The same in PyTorch, with words scored at all positions and at the masked ones."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    model = transformers.BertForPreTraining(transformers.BertConfig(**{name: getattr(config, name) for name in names}))
    decayed = [p for name, p in model.named_parameters() if not ("LayerNorm" in name or name.endswith("bias"))]
    others = [p for name, p in model.named_parameters() if "LayerNorm" in name or name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    model.train()
    tensors = {name: torch.from_numpy(x) for name, x in batch.items()}
    positions, words = tensors["masked_lm_positions"].long(), tensors["masked_lm_ids"].long()
    labels = torch.full(batch["input_ids"].shape, -100).scatter(1, positions, words)
    pairs = tensors["next_sentence_labels"].long()
    inputs = {
        "input_ids": tensors["input_ids"].long(),
        "attention_mask": tensors["input_mask"],
        "token_type_ids": tensors["segment_ids"].long(),
    }
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_at_all_positions():
        return model(**inputs, labels=labels, next_sentence_label=pairs).loss

    def loss_at_masked_positions():
        output = model.bert(**inputs)
        hidden = output.last_hidden_state
        masked = torch.gather(hidden, 1, positions[:, :, None].expand(-1, -1, hidden.shape[-1]))
        scores, pair_scores = model.cls(masked, output.pooler_output)
        return cross_entropy(scores.flatten(0, 1), words.flatten()) + cross_entropy(pair_scores, pairs)

    def step(loss_function):
        optimizer.zero_grad()
        loss = loss_function()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        return loss.item()

    losses = {"Hugging Face": loss_at_all_positions, "Hugging Face, masked positions": loss_at_masked_positions}
    if compile_too:
        losses |= {f"{name}, compiled": torch.compile(function) for name, function in losses.items()}
    return {name: functools.partial(step, function) for name, function in losses.items()}


def keras_step(config: BertConfig, batch: dict[str, np.ndarray]) -> Callable[[], float]:
    """The same in KerasHub, without next-sentence prediction."""
    import jax

    step_function, state = keras_bert.train_step(config, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM)
    compiled = jax.jit(step_function, donate_argnums=0)
    batch = jax.tree.map(jax.numpy.asarray, batch)

    def step() -> float:
        nonlocal state
        state, loss = compiled(state, batch)
        return float(loss)

    return step


def time_in_turns(contestants: dict[str, Callable[[], float]], steps: int) -> dict[str, np.ndarray]:
    """Seconds, and CPU seconds of all threads, of each step of each contestant: float64 [steps, 2]."""
    seconds = {name: [] for name in contestants}
    for i, (name, step) in itertools.product(range(1 + steps), contestants.items()):
        start = time.perf_counter(), time.process_time()
        loss = step()
        if i:
            seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        if not math.isfinite(loss):
            raise ValueError(f"{name}: loss {loss}")
    return {name: np.array(times) for name, times in seconds.items()}


def main(_):
    keep_freed_memory()
    config = BertConfig.named(_MODEL.value)
    length = _MAX_SEQ_LENGTH.value
    predictions = _MAX_PREDICTIONS.value or math.ceil(0.15 * length)
    batch = made_up_batch(config, _BATCH_SIZE.value, length, predictions)
    threads = results.threads()

    contestants = {"bert_jax": our_step(config, batch)}
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        contestants |= torch_steps(config, batch, threads, _TORCH_COMPILE.value)
    else:
        print("without Hugging Face: `pip install torch transformers` for it")
    if keras_bert.is_installed():
        contestants["KerasHub"] = keras_step(config, batch)
    else:
        print("without KerasHub: `pip install keras-hub` for it")
    seconds = time_in_turns(contestants, _STEPS.value)

    print(f"{_MODEL.value}, {_BATCH_SIZE.value} x {length}, {predictions} predictions, float32, {threads} threads")
    print(f"{'medians of a step':40}" + "".join(f"{column.replace('_', ' '):>16}" for column in COLUMNS))
    found = {}
    for name, times in seconds.items():
        median = np.median(times, axis=0)
        # Steps of one turn met the same load of the machine.
        ratio = np.median(times / seconds["bert_jax"], axis=0)
        found[name] = dict(zip(COLUMNS, [*median.tolist(), *ratio.tolist()], strict=True))
        print(f"{name:40}" + "".join(f"{found[name][column]:>16.3f}" for column in COLUMNS))
    results.add(
        _OUTPUT_FILE.value,
        {
            "model": _MODEL.value,
            "batch_size": _BATCH_SIZE.value,
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
            "threads": threads,
            "steps": _STEPS.value,
            "results": found,
        },
    )


if __name__ == "__main__":
    app.run(main)
