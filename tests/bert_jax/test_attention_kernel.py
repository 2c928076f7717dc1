"""The kernel of attention for TPU, run without one: it does what dot_product_attention does, where it is asked for."""

import functools
import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations, mesh_of
from plain_formulas import assert_close, value_and_gradients

from bert_jax import attention, attention_kernel, hlo_reading, modeling, partitioning, pretraining
from bert_jax.config import BertConfig

ROOT = Path(__file__).resolve().parents[2]
BATCH, LENGTH, HEADS, HEAD_DIM = 2, 128, 2, 8


def inputs(dtype=jnp.float32, length=LENGTH):
    """Query, key, value and a mask of keys; the second row is padded."""
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(key, (BATCH, length, HEADS, HEAD_DIM)).astype(dtype) for key in keys]
    mask = (jnp.arange(length) < jnp.array([length, length // 3])[:, None]).astype(jnp.int32)
    return arrays, attention.attention_mask(mask, "bidirectional")


def attend(kernel, dropout_key=None, rate=0.3, mask=None):
    def function(query, key, value):
        chosen = inputs(length=query.shape[1])[1] if mask is None else mask
        return attention.attend(query, key, value, chosen, rate, dropout_key, kernel)

    return function


def runs_the_kernel(function, *arrays):
    return bool(equations(function, *arrays, names=["pallas_call"]))


@pytest.mark.parametrize(("seed", "length"), [(None, 128), (4, 128), (4, 384), (None, 512)])
def test_values_and_gradients_are_those_of_the_fusions(seed, length):
    """In one block of queries, in three, and in two larger ones."""
    arrays, _ = inputs(length=length)
    dropout_key = None if seed is None else jax.random.key(seed)
    assert runs_the_kernel(attend("interpret", dropout_key), *arrays)
    ours, theirs = (value_and_gradients(attend(kernel, dropout_key), *arrays) for kernel in ("interpret", "xla"))
    assert_close(ours, theirs, 1e-5)


def test_the_same_elements_are_dropped():
    """An output is a dropped weight where the values are rows of one: of head_dim keys, at either end of the row."""
    length = 3 * 128
    (query, key, _), _ = inputs(length=length)
    for first in (0, length - HEAD_DIM):
        of_keys = jnp.eye(length, HEAD_DIM, -first)[None, :, None]
        value = jnp.broadcast_to(of_keys, query.shape)
        ours, theirs = (attend(kernel, jax.random.key(1), 0.5)(query, key, value) for kernel in ("interpret", "xla"))
        np.testing.assert_array_equal(ours == 0, theirs == 0)
        assert 0.45 < np.mean(np.asarray(ours[0]) == 0) < 0.55


def test_rows_that_may_attend_to_nothing():
    arrays, _ = inputs()
    mask = jnp.zeros((BATCH, 1, 1, LENGTH), bool)
    ours, theirs = (value_and_gradients(attend(kernel, mask=mask), *arrays) for kernel in ("interpret", "xla"))
    assert_close(ours, theirs, 1e-5)
    assert not np.asarray(ours[1]).any() and not np.asarray(ours[2]).any()


@pytest.mark.parametrize("seed", [None, 4])
def test_bf16(seed):
    """As close to f32 as the fusions in bf16 are, or within a rounding."""
    dropout_key = None if seed is None else jax.random.key(seed)
    arrays, _ = inputs(jnp.bfloat16)
    ours = value_and_gradients(attend("interpret", dropout_key), *arrays)
    exact = value_and_gradients(attend("xla", dropout_key), *(x.astype(jnp.float32) for x in arrays))
    assert {x.dtype for x in ours} == {jnp.dtype(jnp.bfloat16)}
    assert_close(ours, exact, 2**-7)


@pytest.mark.parametrize(
    ("length", "head_dim", "fits"),
    [(128, 64, True), (512, 64, True), (1024, 8, True), (1152, 64, False), (96, 64, False), (130, 64, False),
     (128, 12, False)],
)  # fmt: skip
def test_what_fits(length, head_dim, fits):
    assert attention_kernel.fits(length, head_dim) is fits


@pytest.mark.parametrize("direction, packed", [("left_to_right", False), ("bidirectional", True)])
def test_masks_of_pairs_go_without_the_kernel(direction, packed):
    arrays, _ = inputs()
    mask = attention.attention_mask(jnp.ones((BATCH, LENGTH), jnp.int32), direction, packed)
    assert not runs_the_kernel(attend("interpret", mask=mask), *arrays)
    np.testing.assert_array_equal(attend("interpret", mask=mask)(*arrays), attend("xla", mask=mask)(*arrays))


def test_other_lengths_go_without_the_kernel():
    arrays, _ = inputs(length=96)
    assert not runs_the_kernel(attend("interpret"), *arrays)
    np.testing.assert_array_equal(attend("interpret")(*arrays), attend("xla")(*arrays))


def test_fewer_queries_than_keys_go_without_the_kernel():
    (query, *others), mask = inputs()
    arrays = query[:, :21], *others
    assert not runs_the_kernel(attend("interpret", mask=mask), *arrays)
    np.testing.assert_allclose(
        attend("interpret", mask=mask)(*arrays), attend("xla")(query, *others)[:, :21], atol=1e-6
    )


def test_it_is_used_where_it_is_asked_for():
    arrays, _ = inputs()
    assert not runs_the_kernel(attend("xla"), *arrays)
    assert runs_the_kernel(attend("pallas"), *arrays)


def test_a_mesh_that_the_compiler_cuts_goes_without_the_kernel():
    """Only where each device has its own program, or there is one, can it run."""
    arrays, _ = inputs()

    def used(**sizes):
        with jax.sharding.use_abstract_mesh(mesh_of(**sizes)):
            return runs_the_kernel(attend("interpret"), *arrays)

    assert used(data=1)
    assert not any(used(**{axis: 2}) for axis in partitioning.MESH_AXES)


PARTS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec
sys.path.insert(0, {folder!r})
from test_attention_kernel import attend, inputs, runs_the_kernel
from bert_jax import attention, partitioning
arrays, mask = inputs()
def part(query, key, value, mask):
    return attention.attend(query, key, value, mask, 0.3, jax.random.key(4), "interpret")
with jax.set_mesh(partitioning.make_mesh()):
    mapped = jax.shard_map(part, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), check_vma=False)
    assert runs_the_kernel(mapped, *arrays, mask)
    cut = np.asarray(jax.jit(mapped)(*arrays, mask))
np.testing.assert_allclose(cut, attend("xla", jax.random.key(4))(*arrays), rtol=0, atol=1e-5)
print("same")
"""


def test_parts_of_the_data_axis_drop_what_the_whole_batch_does():
    """On two devices, each with one row, of which the second is number 1 for dropout."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    script = PARTS.format(folder=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


@pytest.mark.parametrize("scan_layers, remat", [(False, "none"), (True, "dots")])
def test_a_model_learns_the_same_with_it(scan_layers, remat):
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
    )
    module = functools.partial(modeling.BertForPreTraining, config, jnp.float32, scan_layers, remat)
    params = nn.unbox(modeling.initialize(module(), jax.random.key(0)))
    rng = np.random.default_rng(0)
    shapes = pretraining.batch_shapes(BATCH, LENGTH, 4)
    batch = {name: jnp.asarray(rng.integers(0, 2, x.shape), x.dtype) for name, x in shapes.items()}
    batch |= {"input_mask": inputs()[1][:, 0, 0].astype(jnp.int32), "example_weights": jnp.ones(BATCH)}

    def learned(kernel):
        task = pretraining.PretrainingTask(module(attention_kernel=kernel))

        def loss(params):
            return task.loss(params, batch, task.normalizers(batch), jax.random.key(3))[0]

        assert runs_the_kernel(loss, params) == (kernel == "interpret")
        return jax.jit(jax.value_and_grad(loss))(params)

    ours, theirs = jax.tree.leaves(learned("interpret")), jax.tree.leaves(learned("xla"))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
@pytest.mark.parametrize("topology", ["v5e:2x2", "v4:2x2x1"])
def test_the_compiler_for_tpu_takes_it(tmp_path, topology):
    """In a process of its own, since libtpu changes the environment."""
    config = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 256, "max_position_embeddings": 512, "type_vocab_size": 2}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    words = ["--mode=plan", f"--topology={topology}", f"--bert_config_file={tmp_path}/bert_config.json"]
    words += ["--train_batch_size=8", "--num_train_steps=100", "--max_seq_length=512", "--precision=bf16"]
    words += ["--attention_kernel=pallas", f"--output_dir={tmp_path}/plan"]
    command = [sys.executable, "-m", "bert_jax.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    program = hlo_reading.read(gzip.decompress((tmp_path / "plan" / "compiled.hlo.txt.gz").read_bytes()).decode())
    calls = [x for _, x, _ in program.executed() if x.opcode == "custom-call" and "tpu_custom_call" in x.rest]
    # Forward and backward, but for the last layer, which has queries at few positions only.
    assert len(calls) == 2 * (config["num_hidden_layers"] - 1)
