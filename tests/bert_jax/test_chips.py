"""Figures of the chips hang together, and a bad --topology is told."""

import pytest

from bert_jax.chips import CHIPS, parse_topology, peak_flops_per_second
from input_pipeline.errors import UserError

# FLOPs of a cycle of a chip's matrix units: 4 of 128 x 128 in a core, on v6e of 256 x 256.
UNITS = {"v4": 2 * 4 * 128**2, "v5e": 4 * 128**2, "v5p": 2 * 4 * 128**2, "v6e": 4 * 256**2}


@pytest.mark.parametrize("kind", CHIPS)
def test_clock_and_matrix_units_give_the_peak(kind):
    chip = CHIPS[kind]
    assert 2 * UNITS[kind] * chip.clock == pytest.approx(chip.flops_per_second, rel=0.005)


@pytest.mark.parametrize(
    ("text", "name", "topology", "slices"),
    [
        ("v4:4x4x4", "TPU v4", "v4:4x4x4", 1),
        ("v5e:16x16", "TPU v5e", "v5e:16x16", 1),
        ("2xv5p:2x2x1", "TPU v5p", "v5p:2x2x1", 2),
        ("16xv6e:4x8", "TPU v6e", "v6e:4x8", 16),
    ],
)
def test_topologies(text, name, topology, slices):
    found = parse_topology(text)
    assert (found.chip.name, found.slice, found.num_slices) == (name, topology, slices)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v3:4x4", "--topology=v3:4x4: chips are v4, v5e, v5p, v6e, as in v5e:4x4 or"),
        ("v5e", "v5e needs 2 sizes, as in v5e:4x4"),
        ("v5e:4x4x4", "v5e needs 2 sizes, as in v5e:4x4"),
        ("v4:4x4", "v4 needs 3 sizes, as in v4:4x4x4"),
        ("v5e:0x4", "v5e needs 2 sizes"),
        ("v5e:4X4", "v5e needs 2 sizes"),
        ("0xv5e:4x4", "chips are v4"),
        ("2x:4x4", "chips are v4"),
        ("2xv5e", "--topology=2xv5e: v5e needs 2 sizes, as in v5e:4x4"),
        ("v5e: 4x4", "v5e needs 2 sizes"),
    ],
)
def test_mistakes(text, words):
    with pytest.raises(UserError, match=words):
        parse_topology(text)


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla T4", 65),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla V100-PCIE-32GB", 112),
    ],
)
def test_the_peak_of_bfloat16_goes_by_the_name_of_the_device(kind, tflops):
    assert peak_flops_per_second(kind, "bf16") == tflops * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A10G", "NVIDIA A1000", "NVIDIA T400", "TPU7x", ""])
def test_no_peak_is_better_than_a_wrong_one(kind):
    assert peak_flops_per_second(kind, "bf16") is None


@pytest.mark.parametrize(
    ("kind", "matmul_precision", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", None, 19.5),
        ("NVIDIA A100-SXM4-80GB", "highest", 19.5),
        ("NVIDIA A100-SXM4-80GB", "default", 156),
        ("Tesla T4", "default", 8.1),
        ("TPU v4", None, 275),
    ],
)
def test_float32_has_a_peak_by_how_it_is_multiplied(kind, matmul_precision, tflops):
    assert peak_flops_per_second(kind, "f32", matmul_precision) == tflops * 1e12
