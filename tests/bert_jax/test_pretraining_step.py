"""What the flags make of a step, before anything is compiled."""

import types

import jax
import pytest

from bert_jax import partitioning, pretraining_step
from bert_jax.config import BertConfig
from input_pipeline.errors import UserError


class Tpu:
    platform = "tpu"


def mesh_of(device, **sizes):
    devices = types.SimpleNamespace(flat=[device])
    shape = dict.fromkeys(partitioning.MESH_AXES, 1) | sizes
    size = 1
    for count in shape.values():
        size *= count
    return types.SimpleNamespace(devices=devices, shape=shape, size=size)


class Gpu:
    platform = "gpu"


def kernel(name, length, mesh, precision="bf16", **config):
    flags = types.SimpleNamespace(attention_kernel=name, max_seq_length=length, precision=precision)
    return pretraining_step._attention_kernel(flags, BertConfig.named("tiny", **config), mesh)


def test_the_kernel_is_chosen_on_tpu_for_long_sequences():
    assert kernel("auto", 512, mesh_of(Tpu(), data=4)) == "pallas"
    assert kernel("auto", 128, mesh_of(Tpu(), data=4)) == "xla"
    assert kernel("auto", 512, mesh_of(jax.devices()[0])) == "xla"
    assert kernel("pallas", 128, mesh_of(Tpu(), data=4)) == "pallas"


@pytest.mark.parametrize(
    "length, mesh, config",
    [
        (500, mesh_of(Tpu()), {}),
        (512, mesh_of(Tpu(), fsdp=4), {}),
        (512, mesh_of(Tpu()), {"attention": "left_to_right"}),
    ],
)
def test_auto_is_the_kernel_only_where_it_is_used(length, mesh, config):
    assert kernel("auto", length, mesh, **config) == "xla"


def test_a_reduction_that_has_no_effect_is_told():
    flags = types.SimpleNamespace(gradient_reduction="bf16")
    assert pretraining_step.unused_reduction(flags, mesh_of(Tpu(), data=4)) is None
    for mesh in (mesh_of(Tpu()), mesh_of(Tpu(), data=2, fsdp=2)):
        assert "--gradient_reduction=bf16 has no effect" in pretraining_step.unused_reduction(flags, mesh)


@pytest.mark.parametrize(
    "length, mesh, config",
    [
        (128, mesh_of(types.SimpleNamespace(platform="cpu")), {}),
        (100, mesh_of(Tpu()), {}),
        (2048, mesh_of(Tpu()), {}),
        (128, mesh_of(Tpu(), data=2, fsdp=2), {}),
        (128, mesh_of(Tpu()), {"attention": "left_to_right"}),
    ],
)
def test_a_kernel_that_cannot_be_used_is_refused(length, mesh, config):
    with pytest.raises(UserError, match="--attention_kernel=pallas is for TPUs"):
        kernel("pallas", length, mesh, **config)


def test_that_of_cudnn_is_for_gpus_without_dropout_on_attention():
    assert kernel("auto", 512, mesh_of(Gpu())) == "xla"
    assert kernel("cudnn", 512, mesh_of(Gpu(), data=8), attention_probs_dropout_prob=0.0) == "cudnn"


@pytest.mark.parametrize(
    "mesh, precision, config",
    [
        (mesh_of(Tpu()), "bf16", {"attention_probs_dropout_prob": 0.0}),
        (mesh_of(Gpu()), "bf16", {}),
        (mesh_of(Gpu()), "f32", {"attention_probs_dropout_prob": 0.0}),
        (mesh_of(Gpu(), tensor=2), "bf16", {"attention_probs_dropout_prob": 0.0}),
        (mesh_of(Gpu()), "bf16", {"attention_probs_dropout_prob": 0.0, "num_attention_heads": 32}),
    ],
)
def test_that_of_cudnn_is_refused_elsewhere(mesh, precision, config):
    with pytest.raises(UserError, match="--attention_kernel=cudnn is for GPUs"):
        kernel("cudnn", 128, mesh, precision, **config)
