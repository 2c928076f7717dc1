"""Trains a small BERT for a few steps on eight devices and on one: run by test_gradients.py.

usage: eight_devices.py RESULT_FILE, with XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np

from bert_jax import collectives, hlo_reading, partitioning, pretraining_step, training
from bert_jax.config import BertConfig
from bert_jax.schedule import Schedule

CONFIG = BertConfig(
    vocab_size=1024,
    hidden_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=16,
)
STEPS = 3
VARIANTS = {
    "whole state": {"shard_optimizer": False},
    "cut state": {},
    "four parts": {"gradient_accumulation_steps": 4},
    "bf16": {"gradient_reduction": "bf16"},
    "one device": {"mesh": "data=1"},
    "four parts on one device": {"mesh": "data=1", "gradient_accumulation_steps": 4},
    "four parts on two axes": {"mesh": "data=2,fsdp=4", "gradient_accumulation_steps": 4},
}


def make_step(mesh="data=8", **options):
    usual = {
        "precision": "f32",
        "scan_layers": False,
        "remat": "none",
        "attention_kernel": "xla",
        "next_sentence_prediction": True,
        "learning_rate": 1e-3,
        "optimizer": "bert_adam",
        "trust_ratio": "all",
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "seed": 0,
        "shard_optimizer": True,
        "gradient_reduction": "f32",
        "gradient_accumulation_steps": 1,
        "train_batch_size": 32,
        "max_seq_length": 16,
        "max_predictions_per_seq": 3,
    }
    devices = jax.devices()[: 1 if mesh == "data=1" else 8]
    return pretraining_step.make(
        SimpleNamespace(**usual | options), CONFIG, partitioning.make_mesh(mesh, devices), Schedule(STEPS, 0)
    )


def batches():
    rng = np.random.default_rng(0)
    limits = {"input_ids": CONFIG.vocab_size, "masked_lm_ids": CONFIG.vocab_size, "masked_lm_positions": 16}
    shapes = make_step().batch_shapes(32)
    for _ in range(STEPS):
        yield {name: rng.integers(0, limits.get(name, 2), x.shape).astype(x.dtype) for name, x in shapes.items()}


def transfers(text):
    """[opcode, dtype, bytes of its operands] of each transfer of a program, as often as it runs."""
    program = hlo_reading.read(text)
    found = []
    for computation, instruction, times in program.executed():
        if collectives.is_collective(instruction):
            sources = program.operands(computation, instruction)
            found += times * [[instruction.work, x.shape.split("[")[0], x.bytes] for x in sources]
    return found


def results(name):
    """What test_gradients.py looks at, of one variant, and the first gradient."""
    step = make_step(**VARIANTS[name])
    compiled = step.compile_train()
    state = training.create_state(step.initialize, step.optimizer, step.shardings, seed=0)
    leaves = jax.tree.leaves({"params": state["params"], "moments": state["opt_state"][1:3]})
    found = {
        "transfers": transfers(compiled.as_text()),
        "parameter_bytes": sum(x.nbytes for x in jax.tree.leaves(state["params"])),
        "state": [[x.nbytes, x.addressable_shards[0].data.nbytes] for x in leaves],
        "losses": [],
    }
    for batch in batches():
        state, metrics = compiled(state, partitioning.to_global_batch(step.mesh, batch, 32))
        found["losses"].append(float(metrics["loss"]))
        if len(found["losses"]) == 1:  # a tenth of the clipped gradient
            moments = jax.tree.leaves(state["opt_state"].first_moment)
            gradient = np.concatenate([np.asarray(x).ravel() for x in moments])
    return found, gradient


def main(result_file):
    found = {name: results(name) for name in VARIANTS}
    reference = found["cut state"][1]
    for rows, gradient in found.values():
        rows["gradient_difference"] = float(np.linalg.norm(gradient - reference) / np.linalg.norm(reference))
    Path(result_file).write_text(json.dumps({name: rows for name, (rows, _) in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
