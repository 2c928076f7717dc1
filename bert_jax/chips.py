"""The TPU generations that programs can be compiled for, with the published figures of a chip; the peaks of devices.

Sources: Google Cloud's pages of the TPU versions (cloud.google.com/tpu/docs/v4 and so on); clocks follow from the peak
and the sizes of the matrix units. For GPUs NVIDIA's data sheets, without the doubling for sparse matrices.
"""

import re
from typing import NamedTuple

from input_pipeline.errors import UserError


class Chip(NamedTuple):
    """Figures of a whole chip.

    Attributes:
        flops_per_second: peak of bfloat16 matrix products.
        clock: cycles a second.
        hbm_bytes, hbm_bytes_per_second: memory, and how fast it is read or written.
        link_bytes_per_second: to one neighbour, one way: the published figure of a chip, over its links.
        dimensions: of the topology's name; a chip has two links in each.
        cores: of a chip, which JAX runs as one device.
        dcn_bytes_per_second: to other slices, over the network of the data center, one way: the published figure of a
            pod or host, over its chips; of v4, for which there is none, that of v5p.
        ring: a dimension whose size is a multiple of this is closed to a ring, a smaller one is a line.
    """

    name: str
    flops_per_second: float
    clock: float
    hbm_bytes: float
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    dcn_bytes_per_second: float
    dimensions: int
    cores: int
    ring: int


CHIPS = {
    "v4": Chip("TPU v4", 275e12, 1.05e9, 32 * 2**30, 1228e9, 50e9, 6.25e9, 3, 2, 4),
    "v5e": Chip("TPU v5e", 197e12, 1.5e9, 16 * 2**30, 819e9, 50e9, 3.125e9, 2, 1, 16),
    "v5p": Chip("TPU v5p", 459e12, 1.75e9, 95 * 2**30, 2765e9, 100e9, 6.25e9, 3, 2, 4),
    "v6e": Chip("TPU v6e", 918e12, 1.75e9, 32 * 2**30, 1640e9, 112e9, 12.5e9, 2, 1, 16),
}


# Names by which JAX calls the devices (device_kind) -> FLOP/s of bfloat16. Of v2 and v3 a device is half a chip.
_TPUS = {
    "TPU v2": 45e12 / 2,
    "TPU v3": 123e12 / 2,
    "TPU v4": CHIPS["v4"].flops_per_second,
    "TPU v5 lite": CHIPS["v5e"].flops_per_second,
    "TPU v5e": CHIPS["v5e"].flops_per_second,
    "TPU v5": CHIPS["v5p"].flops_per_second,
    "TPU v5p": CHIPS["v5p"].flops_per_second,
    "TPU v6 lite": CHIPS["v6e"].flops_per_second,
    "TPU v6e": CHIPS["v6e"].flops_per_second,
}

# Words of a name, all of which are in it -> FLOP/s of bfloat16, TF32 and float32 products; the first that fits counts.
# V100 and T4 have no bfloat16, so that it is their float16, and no TF32.
_GPUS = {
    "H200 NVL": (835e12, 417e12, 60e12),
    "H200": (989e12, 494e12, 67e12),
    "GH200": (989e12, 494e12, 67e12),
    "H100 NVL": (835e12, 417e12, 60e12),
    "H100 PCIe": (756e12, 378e12, 51e12),
    "H100": (989e12, 494e12, 67e12),
    "A100": (312e12, 156e12, 19.5e12),
    "A30": (165e12, 82e12, 10.3e12),
    "L40S": (362e12, 183e12, 91.6e12),
    "L4": (121e12, 60e12, 30.3e12),
    "V100 PCIE": (112e12, 14e12, 14e12),
    "V100": (125e12, 15.7e12, 15.7e12),
    "T4": (65e12, 8.1e12, 8.1e12),
}


def peak_flops_per_second(kind: str, precision: str, matmul_precision: str | None = None) -> float | None:
    """The published peak of a device in matrix products.

    Args:
        kind: as JAX names the device, such as "TPU v5 lite" or "NVIDIA H100 80GB HBM3".
        precision, matmul_precision: as the flags of these names. A GPU multiplies float32 as TF32 below "highest".
            A TPU multiplies all in bfloat16, float32 in several passes; its peak is that of bfloat16.

    Returns:
        FLOP/s; None where it is not known.
    """
    if kind in _TPUS:
        return _TPUS[kind]
    words = set(re.split(r"[\s-]", kind))
    for name, (bf16, tf32, f32) in _GPUS.items():
        if words.issuperset(name.split()):
            if precision == "bf16":
                return bf16
            return f32 if matmul_precision in (None, "highest") else tf32
    return None


class Topology(NamedTuple):
    """Slices of equal shape.

    Attributes:
        slice: the name of one, such as v5e:4x4.
    """

    chip: Chip
    slice: str
    num_slices: int


# Of Google Cloud's accelerator types, such as v5litepod-16, which count chips or cores and do not tell the shape.
_CLOUD_NAMES = {"v5litepod": "v5e:4x4", "v6e": "v6e:4x4", "v5p": "v5p:2x2x2", "v4": "v4:2x2x2"}


def parse_topology(text: str) -> Topology:
    """Reads --topology: a slice, such as v5e:4x4, or several, such as 2xv5e:4x4.

    Raises:
        UserError: no such chip, or sizes that do not fit it.
    """
    count, name = re.fullmatch(r"(?:([1-9]\d*)x)?(.*)", text, re.DOTALL).groups()
    kind, _, sizes = name.partition(":")
    chip = CHIPS.get(kind)
    if chip is None:
        known = ", ".join(CHIPS)
        if example := _CLOUD_NAMES.get(kind.partition("-")[0]):
            raise UserError(f"--topology={text}: give the chip and its sizes, as in {example}")
        raise UserError(
            f"--topology={text}: chips are {known}, as in v5e:4x4 or, of two slices, 2xv5e:4x4; or give cpu or gpu for "
            "this machine"
        )
    example = "x".join(["4"] * chip.dimensions)
    if not re.fullmatch("x".join([r"[1-9]\d*"] * chip.dimensions), sizes):
        raise UserError(f"--topology={text}: {kind} needs {chip.dimensions} sizes, as in {kind}:{example}")
    return Topology(chip, name, int(count or 1))
