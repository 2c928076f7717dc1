"""A small training run on all that a real one has for being stopped and started again: run by test_interruption.py.

usage: small_run.py OUTPUT_DIR NUM_STEPS RESULT_FILE [SLOW: eval|compile] [COORDINATOR NUM_PROCESSES PROCESS_ID]
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax import processes
from bert_jax.checkpointing import Checkpointer
from bert_jax.interruption import Interrupted, Interruption
from bert_jax.run_folder import RunFolder


def update(state, batch):
    gradient = jax.grad(lambda params: jnp.mean((batch @ params["kernel"] - 1.0) ** 2))(state["params"])
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["opt_state"], gradient)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments)
    return {"step": state["step"] + 1, "params": params, "opt_state": moments}


def train(run, interruption, num_steps, result_file, slow):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    by_row = NamedSharding(mesh, PartitionSpec("data"))

    def create():
        params = {"kernel": jnp.zeros((64, 8))}
        return {"step": jnp.int32(0), "params": params, "opt_state": jax.tree.map(jnp.zeros_like, params)}

    def compile_update():
        if slow == "compile":
            tell("compiling")
            time.sleep(60)
        return jax.jit(update, donate_argnums=0, out_shardings=replicated)

    start = run.start(mode="test", settings={"seed": 0}, num_train_steps=num_steps, flags={})
    tell(start.message or "new")
    if start.finished:
        return
    step_function = interruption.run_interruptibly(compile_update)
    with Checkpointer(run.checkpoints, keep=2) as checkpointer:
        state = jax.jit(create, out_shardings=replicated)()
        if start.step:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
            state = checkpointer.restore(start.step, shapes)
        step = start.step
        while step < num_steps and not interruption.requested(step):
            batch = np.random.default_rng(step).standard_normal((8, 64), np.float32)
            state = step_function(state, jax.make_array_from_callback(batch.shape, by_row, batch.__getitem__))
            step += 1
            if step % 5 == 0:
                checkpointer.save(step, state)
            tell(f"step {step}")
            if slow == "eval" and step == 7:
                for _ in range(10_000):
                    if interruption.requested(step):
                        break
                    tell("evaluating")
                    time.sleep(0.01)
            time.sleep(0.005)
        checkpointer.save(step, state)
        checkpointer.wait()
        if step < num_steps:
            raise interruption.exception(step)
        if processes.is_first():
            np.save(result_file, jax.device_get(state["params"]["kernel"]))
        run.finish(step)


def tell(text):
    print(text, flush=True)


def main(output_dir, num_steps, result_file, slow="", *distributed):
    if distributed:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(distributed[0], int(distributed[1]), int(distributed[2]))
    try:
        with Interruption() as interruption, RunFolder(output_dir) as run:
            train(run, interruption, int(num_steps), Path(result_file), slow)
    except Interrupted as interrupted:
        tell(str(interrupted))
        return interrupted.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
