"""Gradients of a global batch on eight devices: added up once, and the same however the state lies."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jaxprs import equations, mesh_of

from bert_jax import gradients, partitioning

# What a transfer costs besides the gradients: metrics, and the sums of normalizers and of the gradient's norm.
MORE = 1.001


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What eight_devices.py tells of each variant."""
    result = tmp_path_factory.mktemp("gradients") / "result.json"
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, Path(__file__).with_name("eight_devices.py"), result]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(result.read_text())


def added_up(rows):
    """Bytes that a step adds up over devices."""
    return sum(size for opcode, _, size in rows["transfers"] if opcode in ("all-reduce", "reduce-scatter"))


@pytest.mark.parametrize("variant", ["whole state", "cut state", "four parts"])
def test_each_gradient_is_added_up_once(found, variant):
    rows = found[variant]
    assert rows["parameter_bytes"] <= added_up(rows) <= MORE * rows["parameter_bytes"]


def test_one_device_sends_nothing(found):
    assert found["one device"]["transfers"] == found["four parts on one device"]["transfers"] == []


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_dtype_in_which_gradients_are_added_up(dtype):
    """Of the program as it goes to the compiler: that for CPU widens what it adds up."""
    mesh = mesh_of(data=8)
    shardings = {"cut": PartitionSpec(None, "data"), "whole": PartitionSpec()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in shardings.items()}
    params = {"cut": jnp.ones((4, 16)), "whole": jnp.ones(4)}

    def found(params, rows, scale):
        weights = {name: jnp.sum(rows) * scale * x for name, x in params.items()}
        return weights, {"loss": jnp.sum(rows)}

    def step(params, rows):
        return gradients.by_rows(found, params, rows, jnp.float32(2.0), shardings, dtype)

    with jax.sharding.use_abstract_mesh(mesh):
        sums = equations(step, params, jnp.ones(32), names=["psum", "psum_invariant", "reduce_scatter"])
        shapes = jax.eval_shape(step, params, jnp.ones(32))
    operands = sorted((str(x.aval.dtype), x.aval.shape) for equation in sums for x in equation.invars)
    assert operands == sorted([(jnp.dtype(dtype).name, (4, 16)), (jnp.dtype(dtype).name, (4,)), ("float32", ())])
    (scattered,) = (equation for equation in sums if equation.primitive.name == "reduce_scatter")
    assert scattered.params["scatter_dimension"] == 1
    assert {(x.dtype, x.shape) for x in jax.tree.leaves(shapes)} == {
        (jnp.dtype(jnp.float32), shape) for shape in [(4, 16), (4,), ()]
    }


def test_gradients_added_up_in_bf16_are_close_and_not_the_same(found):
    assert 1e-5 < found["bf16"]["gradient_difference"] < 2**-8
    np.testing.assert_allclose(found["bf16"]["losses"], found["cut state"]["losses"], rtol=1e-3)


def test_a_cut_state_learns_the_same(found):
    np.testing.assert_allclose(found["cut state"]["losses"], found["whole state"]["losses"], rtol=0, atol=1e-6)
    assert found["whole state"]["gradient_difference"] < 1e-6


def test_a_cut_state_takes_an_eighth_of_the_memory(found):
    assert all(own == whole for whole, own in found["whole state"]["state"])
    large = [(whole, own) for whole, own in found["cut state"]["state"] if whole >= 4 * 2**14]
    assert large and all(own == whole / 8 for whole, own in large)
    whole, own = map(sum, zip(*found["cut state"]["state"]))
    assert own < whole / 8 * 1.2


@pytest.mark.parametrize("name", ["cut state", "four parts", "four parts on one device", "four parts on two axes"])
def test_losses_and_dropout_are_the_same_on_any_devices_in_any_parts(found, name):
    np.testing.assert_allclose(found[name]["losses"], found["one device"]["losses"], rtol=0, atol=1e-5)


def test_gradients_are_the_same_on_one_device_and_on_eight(found):
    assert found["one device"]["gradient_difference"] < 1e-5


def test_parts_of_a_batch_take_every_row_once_and_add_up():
    batch = {"x": jnp.arange(12.0), "y": jnp.arange(24.0).reshape(12, 2)}
    seen = []

    def gradient(params, rows):
        seen.append(rows["x"].shape)
        weights = (partitioning.row_numbers(4)[0] + 1) * params["kernel"]
        return {"kernel": weights * jnp.sum(rows["y"])}, {"rows": jnp.sum(rows["x"] ** 2)}

    total, metrics = gradients.accumulated(gradient, {"kernel": jnp.ones(())}, batch, 3)
    assert set(seen) == {(4,)}
    # Part i has the rows i, i + 3, i + 6 and so on.
    y = np.arange(24.0).reshape(12, 2)
    assert total["kernel"] == sum((i + 1) * y[i::3].sum() for i in range(3))
    assert metrics["rows"] == sum(i**2 for i in range(12))
    assert math.isclose(gradients.accumulated(gradient, {"kernel": jnp.ones(())}, batch, 1)[0]["kernel"], y.sum())
