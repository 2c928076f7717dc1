"""Transfers between devices in a compiled program: bytes, the mesh axes they go over, and a bound of their time."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.chips import Chip
from bert_jax.hlo_reading import Instruction, Program

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


class Collective(NamedTuple):
    """A transfer between devices.

    Attributes:
        axes: the mesh axes over which it goes, such as "data" or "data+fsdp".
        bytes: of the result (of an all-gather, the whole; of a reduce-scatter, the operand), on a device.
        seconds: bound by the links of a chip.
        hidden_seconds: of them beside other work.
    """

    opcode: str
    axes: str
    bytes: int
    dtype: str
    seconds: float
    hidden_seconds: float
    times: int


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction is a transfer between devices, or the start or end of one."""
    return _base(instruction) in COLLECTIVES


def _base(instruction: Instruction) -> str:
    return re.sub(r"-(start|done)$", "", instruction.opcode)


def collectives(program: Program, chip: Chip, mesh: dict[str, int], chip_share: float) -> Iterator[Collective]:
    """The transfers between devices, with how much of each is beside other work."""
    for computation, instruction, times in program.executed():
        if not is_collective(instruction) or instruction.opcode.endswith("-done"):
            continue
        kind = _base(instruction)
        sources = program.operands(computation, instruction)
        sent = sum(source.bytes for source in sources)
        started = instruction.opcode.endswith("-start")
        whole = sent
        if kind == "all-gather":  # that of a start has the operand beside the whole
            whole = instruction.bytes - (sent if started else 0)
        axes, size = group_axes(instruction, mesh)
        if size < 2:
            continue
        passes = 2 if kind == "all-reduce" else 1
        seconds = passes * whole * (size - 1) / size / chip.link_bytes_per_second / chip_share
        if kind == "collective-permute":
            seconds = whole / chip.link_bytes_per_second / chip_share
        beside = _beside(program, computation, instruction) / chip.clock if started else 0.0
        dtypes = sorted({match for source in sources for match in re.findall(r"([a-z]\w*)\[", source.shape)})
        yield Collective(kind, axes, whole, "+".join(dtypes), seconds, min(beside, seconds), times)


def _beside(program: Program, computation: str, start: Instruction) -> int:
    """Cycles of the work between the start of a transfer and its end."""
    cycles, running = 0, False
    for instruction in program.computations[computation].values():
        if instruction.name == start.name:
            running = True
        elif running and start.name in instruction.operands and instruction.opcode.endswith("-done"):
            return cycles
        elif running:
            cycles += instruction.cycles or 0
    return cycles


def group_axes(instruction: Instruction, mesh: dict[str, int]) -> tuple[str, int]:
    """The mesh axes, joined by +, and the number of devices of a group of a collective.

    Device numbers of the program go through the mesh with the last axis fastest.
    """
    group = first_group(instruction.rest, math.prod(mesh.values()))
    sizes = list(mesh.values())
    places = [_place(device, sizes) for device in group]
    axes = [name for i, name in enumerate(mesh) if len({place[i] for place in places}) > 1]
    return "+".join(axes) or "none", len(group)


def first_group(text: str, devices: int) -> list[int]:
    """Numbers of the devices that a collective joins with the first of them.

    The forms are {{0,1},{2,3}}, [groups,size]<=[dims]T(order), mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, and pairs of a
    permutation.
    """
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return [int(number) for number in found[1].split(",")]
    if found := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text):
        return [int(found[1]), int(found[2])]
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        size, dims = int(found[2]), [int(n) for n in found[3].split(",")]
        order = [int(n) for n in found[4].split(",")] if found[4] else list(range(len(dims)))
        return _transposed(dims, order)[:size]
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*(?:\([^)]*\)\s*)?\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
        wanted = re.findall(r"'(\w+)'", found[2])
        names = list(sizes)
        rest = [names.index(name) for name in names if name not in wanted]
        order = rest + [names.index(name) for name in names if name in wanted]
        return _transposed(list(sizes.values()), order)[: math.prod(sizes[name] for name in wanted)]
    return list(range(devices))


def _transposed(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers of an array of `dims`, counted with the last axis fastest, after its axes are put in `order`."""
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    numbers = [0]
    for axis in order:
        numbers = [number + i * strides[axis] for number in numbers for i in range(dims[axis])]
    return numbers


def _place(device: int, sizes: Sequence[int]) -> tuple[int, ...]:
    place = []
    for size in reversed(sizes):
        device, index = divmod(device, size)
        place.append(index)
    return tuple(reversed(place))


def by_axes(rows: Iterable[Collective]) -> dict[tuple[str, str, str], tuple[int, int, float]]:
    """Sums over (opcode, axes, dtype): transfers, bytes, seconds."""
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for row in rows:
        key = (row.opcode, row.axes, row.dtype)
        count, size, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (count + row.times, size + row.times * row.bytes, seconds + row.times * row.seconds)
    return sums
