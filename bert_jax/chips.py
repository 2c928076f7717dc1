"""The TPU generations that programs can be compiled for, with the published figures of a chip.

Sources: Google Cloud's pages of the TPU versions (cloud.google.com/tpu/docs/v4 and so on); clocks follow from the peak
and the sizes of the matrix units.
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


class Topology(NamedTuple):
    """Slices of equal shape.

    Attributes:
        slice: the name of one, such as v5e:4x4.
    """

    chip: Chip
    slice: str
    num_slices: int


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
        raise UserError(
            f"--topology={text}: chips are {known}, as in v5e:4x4 or, of two slices, 2xv5e:4x4; or give cpu or gpu for "
            "this machine"
        )
    example = "x".join(["4"] * chip.dimensions)
    if not re.fullmatch("x".join([r"[1-9]\d*"] * chip.dimensions), sizes):
        raise UserError(f"--topology={text}: {kind} needs {chip.dimensions} sizes, as in {kind}:{example}")
    return Topology(chip, name, int(count or 1))
