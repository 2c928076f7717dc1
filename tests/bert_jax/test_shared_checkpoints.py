"""Checkpoints of states that lie on several devices, or that several processes write."""

import os
import socket
import subprocess
import sys
import textwrap

from bert_jax.checkpointing import latest_step

MESH_SCRIPT = textwrap.dedent(
    """
    import sys
    import jax, numpy as np
    from bert_jax import modeling, optimization, partitioning, training
    from bert_jax.checkpointing import Checkpointer, restore
    from bert_jax.config import BertConfig

    (folder,) = sys.argv[1:]
    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=48, max_position_embeddings=384)
    module = modeling.BertForPreTraining(config)
    optimizer = optimization.make_optimizer("bert_adam", lambda step: 1e-3)

    def shapes_on(mesh, shard_optimizer=True):
        initialize = lambda key: modeling.initialize(module, key)
        return training.state_shapes(mesh, initialize, optimizer, shard_optimizer)

    def check(mesh, **options):
        shapes, shardings = shapes_on(mesh, **options)
        restored = restore(folder, 2, shapes)
        jax.tree.map(np.testing.assert_array_equal, restored, state)
        assert jax.tree.map(lambda x: x.sharding, restored) == shardings

    devices = jax.devices()
    shapes, shardings = shapes_on(partitioning.make_mesh("data=4,tensor=2" if len(devices) == 8 else ""))
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: np.asarray(rng.standard_normal(x.shape), x.dtype), shapes)
    state["step"] = np.int32(2)
    if len(devices) == 8:
        axes = {axis for sharding in jax.tree.leaves(shardings) for axis in sharding.spec}
        assert {"data", "tensor"} <= axes, axes
        change = jax.jit(lambda state: jax.tree.map(lambda x: 2 * x + 1, state), donate_argnums=0)
        with Checkpointer(folder, keep=1) as checkpointer:
            placed = jax.device_put(state, shardings)
            checkpointer.save(2, placed)
            change(placed)  # takes the buffers over, as the next update does
        check(partitioning.make_mesh("data=4,tensor=2"), shard_optimizer=False)
        check(partitioning.make_mesh("data=8"))
        check(partitioning.make_mesh("fsdp=2,tensor=2", devices[2:6]))
    check(partitioning.make_mesh("", devices[:3]))
    """
)


def test_a_training_state_fits_any_mesh_on_any_number_of_devices(tmp_path):
    for devices in (8, 3, 1):
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_PLATFORMS": "cpu",
        }
        outcome = subprocess.run(
            [sys.executable, "-W", "error", "-c", MESH_SCRIPT, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


FAILING_SCRIPT = textwrap.dedent(
    """
    import resource, sys
    import jax, jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from bert_jax.checkpointing import Checkpointer
    from input_pipeline.errors import UserError

    folder, address, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, index)
    mesh = jax.make_mesh((2,), ("data",))
    shardings = {
        "step": NamedSharding(mesh, PartitionSpec()),
        "params": NamedSharding(mesh, PartitionSpec("data")),
    }
    make = jax.jit(lambda step: {"step": step, "params": jnp.ones((2, 500_000)) * step}, out_shardings=shardings)
    try:
        with Checkpointer(folder, keep=1) as checkpointer:
            checkpointer.save(1, make(1))
            checkpointer.wait()
            if index == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
            checkpointer.save(2, make(2))
            checkpointer.wait()
    except UserError as error:
        print(error)
        sys.exit(2)
    """
)


def test_a_save_that_fails_in_one_process_fails_in_all(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", FAILING_SCRIPT, str(tmp_path), address, str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process, cause in zip(both, ("another process failed", "File too large")):
        output, errors = process.communicate(timeout=100)
        assert output.splitlines()[-1].startswith(
            f"saving a checkpoint in {tmp_path} failed: {cause}; the last complete checkpoint is step 1, "
        )
        assert (process.returncode, errors) == (2, "")
    assert latest_step(tmp_path) == 1
