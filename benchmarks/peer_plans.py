"""Train steps here and in KerasHub through the compiler for TPUs, read by the same code; needs no TPU.

    pip install -e '.[plan]' keras-hub
    python benchmarks/peer_plans.py [--topology=v5e:4x4] [--output_file=results.jsonl] [-- FLAGS OF OUR RUN]

Both train a masked LM of the same sizes with dropout 0.1, Adam with weight decay and bf16 products, the batch cut over
all chips. Each is compiled with 1 and 3 layers, and its time extrapolated to all layers. Ours is --mode=plan with its
defaults: it also has next-sentence prediction and the erf form of GELU, where KerasHub has the tanh form. KerasHub's
step is the stateless one of keras_bert.py, with parameters and optimizer whole on each chip, as its data parallelism
has them, and compiled with the same options. The times are the compiler's estimates, with bounds for what it leaves
out, and no measurements.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import keras_bert
import plans
import results
from absl import app, flags

from bert_jax import hlo_reading, partitioning, planning, pretraining, program_costs
from bert_jax.compiler_options import compile_lowered
from bert_jax.config import BertConfig
from bert_jax.model_costs import training_flops

_MODEL = flags.DEFINE_string("model", "base", "Name of a size.")
_TOPOLOGY = flags.DEFINE_string("topology", "v5e:4x4", "See --mode=plan.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Tokens of a sequence.")
_DEVICE_BATCH = flags.DEFINE_integer("device_batch", 64, "Sequences of a device.", lower_bound=1)
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "A file to which the results are added as one line of JSON.")

LAYERS = (1, 3)
COLUMNS = "contestant | 1 layer, ms | 3 layers, ms | all layers, ms | MFU | sequences/s | ratio"


def our_seconds(config: BertConfig, extra: list[str]) -> float:
    """Of the plan of a run."""
    folder = Path(plans._OUTPUT_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{_MODEL.value}_{config.num_hidden_layers}_layers.json"
    file.write_text(config.to_json())
    plan = plans.plan(str(file), str(_LENGTH.value), str(_DEVICE_BATCH.value), _TOPOLOGY.value, extra)
    if plan.get("estimated_step_seconds") is None:
        raise app.UsageError(f"no plan: {plan.get('error', 'the step does not fit into memory')}")
    return plan["estimated_step_seconds"]


def keras_seconds(config: BertConfig, target: planning.Target) -> float:
    """Of KerasHub's step for the same devices."""
    mesh = partitioning.make_mesh("", list(target.devices))
    whole, cut = partitioning.replicated(mesh), partitioning.batch_sharding(mesh)
    step, state = keras_bert.train_step(config, 1e-4, 0.01, 1.0, "mixed_bfloat16")
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), state)
    predictions = math.ceil(0.15 * _LENGTH.value)
    batch = pretraining.batch_shapes(_DEVICE_BATCH.value * mesh.size, _LENGTH.value, predictions)
    batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut) for name, x in batch.items()}
    lowered = jax.jit(step, donate_argnums=0, out_shardings=whole).lower(state, batch)
    program = hlo_reading.read(compile_lowered(lowered, mesh).as_text())
    return program_costs.total_seconds(program_costs.costs(program, target.chip, planning.placement(mesh)), target.chip)


def row(name: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    few = [f"{1e3 * seconds:.2f}" for seconds in found["seconds_of_layers"].values()]
    cells = [
        name,
        *few,
        f"{1e3 * found['seconds']:.1f}",
        f"{found['mfu']:.1%}",
        f"{found['sequences_per_second']:,.0f}",
    ]
    return " | ".join([*cells, f"{found['ratio']:.2f}"])


def main(arguments):
    target = planning.open_target(_TOPOLOGY.value)
    if target.chip is None or not keras_bert.is_installed():
        raise app.UsageError("needs a topology of TPUs, and keras-hub beside libtpu")
    config = BertConfig.named(_MODEL.value)
    batch = _DEVICE_BATCH.value * len(target.devices)
    flops = batch * training_flops(config, _LENGTH.value, math.ceil(0.15 * _LENGTH.value)) / target.chips
    contestants = {
        "bert_jax": lambda few: our_seconds(few, arguments[1:]),
        "KerasHub": lambda few: keras_seconds(few, target),
    }
    found: dict[str, Any] = {}
    for name, seconds_of in contestants.items():
        print(f"{name} ...", flush=True)
        few = {layers: seconds_of(dataclasses.replace(config, num_hidden_layers=layers)) for layers in LAYERS}
        a_layer = (few[3] - few[1]) / 2
        seconds = few[1] + (config.num_hidden_layers - 1) * a_layer
        found[name] = {"seconds_of_layers": few, "seconds": seconds, "sequences_per_second": batch / seconds}
        found[name]["mfu"] = flops / (seconds * target.chip.flops_per_second)
        found[name]["ratio"] = seconds / found["bert_jax"]["seconds"]
    print(f"{_MODEL.value} on {_TOPOLOGY.value}, length {_LENGTH.value}, {batch:,} sequences a step, bf16; estimates")
    print(f"of the compiler for {' and '.join(map(str, LAYERS))} layers, extrapolated to {config.num_hidden_layers}")
    lines = [COLUMNS, plans.rule(COLUMNS), *(row(name, of_one) for name, of_one in found.items())]
    print("".join(f"| {line} |\n" for line in lines), end="")
    results.add(
        _OUTPUT_FILE.value,
        {
            "model": _MODEL.value,
            "topology": _TOPOLOGY.value,
            "max_seq_length": _LENGTH.value,
            "device_batch": _DEVICE_BATCH.value,
            "flags": arguments[1:],
            "results": found,
        },
    )


if __name__ == "__main__":
    flags.set_default(plans._OUTPUT_DIR, "runs/peer_plans")
    app.run(main)
