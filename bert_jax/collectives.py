"""Transfers between devices in a compiled program: bytes, the mesh axes they go over, and a bound of their time.

Devices of a slice have links to each other (ICI). A program is that of a slice: what goes to other slices, over the
network of the data center (DCN), are sends to the host, which name the collective that they are.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.chips import Chip
from bert_jax.hlo_reading import Instruction, Program, shape_bytes, shape_parts

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")

_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}")
_SLICES = re.compile(r'_xla_megascale_target="\{(\{?)([\d,:]+)\}')
_SLICE_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_PART_OF_AXIS = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")


class Collective(NamedTuple):
    """A transfer between devices.

    Attributes:
        axes: the mesh axes over which it goes, such as "data" or "data+fsdp".
        network: ICI between devices of a slice, DCN between slices.
        bytes: of the operands on a device (of an all-gather, of what is gathered).
        seconds: bound by the links that the devices have to each other.
        hidden_seconds: of them beside other work.
    """

    opcode: str
    axes: str
    network: str
    bytes: int
    dtype: str
    seconds: float
    hidden_seconds: float
    times: int


class Placement(NamedTuple):
    """Where the devices of a slice are, and the slices of a mesh.

    Attributes:
        mesh: axis -> size within a slice; the last axis is the fastest in the order of the devices.
        chips: of each device in that order, the place of its chip in the topology.
        slices: axis -> how many slices lie on it; in their order the last axis is the fastest.
        slice_of: device id -> number of its slice, from 0.
    """

    mesh: dict[str, int]
    chips: list[tuple[int, ...]]
    slices: dict[str, int] = {}  # noqa: RUF012
    slice_of: dict[int, int] = {}  # noqa: RUF012


class Kind(NamedTuple):
    """By which transfers are summed; see Collective."""

    opcode: str
    axes: str
    network: str
    dtype: str


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction is a transfer between devices, or the start or end of one."""
    return instruction.work in COLLECTIVES or (
        instruction.work in ("send", "recv") and "is_host_transfer=true" in instruction.rest
    )


def fused_collectives(program: Program, fusion: Instruction) -> list[tuple[str, Instruction]]:
    """Transfers in a fusion, with the computation that they stand in.

    The compiler puts one transfer into several: one that starts it, some that do other work meanwhile, and one that
    ends it. They have the same channel and chain.
    """
    return [(place, inner) for place, inner in program.fused(fusion) if is_collective(inner)]


def collectives(program: Program, chip: Chip, placement: Placement) -> Iterator[Collective]:
    """The transfers between devices, with how much of each is beside other work."""
    fused: dict[tuple[str, ...], list] = {}  # of each: computation, instruction, how often, cycles beside
    for computation, instruction, times in program.executed():
        for place, inner in fused_collectives(program, instruction):
            # Transfers of equal kind may have one channel; the chain is of one transfer.
            marks = re.findall(r'(?:channel_id|chain_id)="?(\d+)', inner.rest)
            row = fused.setdefault((computation, *(marks or [inner.name])), [place, inner, times, 0])
            row[3] += instruction.cycles or 0
        if instruction.opcode == "send" and _SLICE_TRANSFER.search(instruction.rest):
            yield _between_slices(program, chip, placement, computation, instruction, times)
        elif instruction.work in COLLECTIVES and not instruction.opcode.endswith("-done"):
            beside = _beside(program, computation, instruction) if instruction.opcode.endswith("-start") else 0
            yield from _collective(program, chip, placement, computation, instruction, times, beside)
    for row in fused.values():
        yield from _collective(program, chip, placement, *row)


def _collective(
    program: Program,
    chip: Chip,
    placement: Placement,
    computation: str,
    instruction: Instruction,
    times: int,
    beside: int,
) -> Iterator[Collective]:
    """One transfer beside which so many cycles of work run; none where a device has no other to send to."""
    group = first_group(instruction.rest, len(placement.chips))
    if len(group) < 2:
        return
    whole = _bytes(program, computation, instruction)
    seconds = _passes(instruction.work, len(group)) * whole / speed(chip, placement, group)
    sources = program.operands(computation, instruction)
    dtypes = sorted({match for source in sources for match in re.findall(r"([a-z]\w*)\[", source.shape)})
    axes = group_axes(group, placement.mesh)
    hidden = min(beside / chip.clock, seconds)
    yield Collective(instruction.work, axes, "ICI", whole, "+".join(dtypes), seconds, hidden, times)


def _passes(opcode: str, size: int) -> float:
    """How often a device of a group sends its bytes: a ring's, which is the least there is."""
    share = (size - 1) / size
    return {"all-reduce": 2 * share, "collective-permute": 1, "collective-broadcast": 1}.get(opcode, share)


def _between_slices(
    program: Program, chip: Chip, placement: Placement, computation: str, send: Instruction, times: int
) -> Collective:
    """A transfer to other slices, which ends with the receipt of the same name."""
    opcode = _SLICE_TRANSFER.search(send.rest)[1].lower().replace("_", "-")
    group = slice_group(send.rest, placement)
    name = _RENDEZVOUS.search(send.rest)
    sent = program.operands(computation, send)[0]
    received = next(
        (
            other
            for other in program.computations[computation].values()
            if other.opcode == "recv" and name and name[0] in other.rest
        ),
        None,
    )
    whole = shape_parts(received.shape)[0] if opcode == "all-gather" and received else sent.shape
    size = shape_bytes(whole)
    # A device has its part of what its chip sends.
    speed = chip.dcn_bytes_per_second * len(set(placement.chips)) / len(placement.chips)
    seconds = _passes(opcode, len(group)) * size / speed
    beside = _beside(program, computation, send, received) if received else 0
    dtype = re.match(r"\w*", whole)[0]
    hidden = min(beside / chip.clock, seconds)
    return Collective(opcode, group_axes(group, placement.slices), "DCN", size, dtype, seconds, hidden, times)


def slice_group(text: str, placement: Placement) -> list[int]:
    """Numbers, from 0, of the slices that a transfer joins with the first.

    The forms are {1,2}x{0:7}, slices from 1 and all their devices, and {{100000,200000},...}, groups of device ids.
    """
    found = _SLICES.search(text)
    if not found:
        return list(range(math.prod(placement.slices.values())))
    numbers = []
    for part in found[2].split(","):
        first, _, last = part.partition(":")
        numbers += range(int(first), int(last or first) + 1)
    return [placement.slice_of[number] for number in numbers] if found[1] else [number - 1 for number in numbers]


def _bytes(program: Program, computation: str, instruction: Instruction) -> int:
    sent = sum(source.bytes for source in program.operands(computation, instruction))
    if instruction.work != "all-gather":
        return sent
    # The shape of a start has the operands before the whole.
    return instruction.bytes - (sent if instruction.opcode.endswith("-start") else 0)


def speed(chip: Chip, placement: Placement, group: Sequence[int]) -> float:
    """Bytes a second that a device sends to others of a group at most.

    In each dimension in which the group lies, a ring has two ways around, of which a line is one. Devices of one chip
    share its links, and need not send to each other over them what they have in common.
    """
    places = {placement.chips[device] for device in group}
    if len(places) == 1:
        return chip.hbm_bytes_per_second
    links = 0
    for dimension, sizes in enumerate(zip(*placement.chips)):
        size, used = len(set(sizes)), len({place[dimension] for place in places})
        if used > 1:
            links += 2 if used == size and size % chip.ring == 0 else 1
    on_chip = len(placement.chips) / len(set(placement.chips))
    return links * chip.link_bytes_per_second * len(group) / len(places) / on_chip


def _beside(program: Program, computation: str, start: Instruction, awaited: Instruction | None = None) -> int:
    """Cycles of the work between the start of a transfer and its end, or that of `awaited` in its place."""
    name = (awaited or start).name
    cycles, running = 0, False
    for instruction in program.computations[computation].values():
        if instruction.name == start.name:
            running = True
        elif running and name in instruction.operands and instruction.opcode.endswith("-done"):
            return cycles
        elif running:
            cycles += instruction.cycles or 0
    return cycles


def group_axes(group: Sequence[int], mesh: dict[str, int]) -> str:
    """The mesh axes, joined by +, over which devices differ."""
    sizes = list(mesh.values())
    places = [_place(device, sizes) for device in group]
    axes = [name for i, name in enumerate(mesh) if len({place[i] for place in places}) > 1]
    return "+".join(axes) or "none"


def first_group(text: str, devices: int) -> list[int]:
    """Numbers of the devices that a collective joins with the first of them.

    The forms are {{0,1},{2,3}}, [groups,size]<=[dims]T(order), mesh['a'=4,'b'=2] {'a'}, and pairs of a permutation.
    Of a mesh, {'a':(2)2} is the part of size 2 of axis a that has a part of size 2 before it; with
    device_ids=([2,4]T(1,0)) its places hold these devices instead of 0, 1, 2, and so on.
    """
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return [int(number) for number in found[1].split(",")]
    if found := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", text):
        return [int(found[1]), int(found[2])]
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        return _transposed(_numbers(found[3]), _numbers(found[4]))[: int(found[2])]
    if found := _MESH.search(text):
        dims, wanted = [], []
        parts = {name: (before, size) for name, before, size in _PART_OF_AXIS.findall(found[4])}
        for name, size in re.findall(r"'(\w+)'=(\d+)", found[1]):
            before, own = parts.get(name, ("", "1"))
            before, own = int(before or 1), int(own or size)
            wanted += [len(dims) + 1] if name in parts else []
            dims += [before, own, int(size) // before // own]
        order = [i for i in range(len(dims)) if i not in wanted] + wanted
        places = _transposed(dims, order)[: math.prod(dims[i] for i in wanted)]
        numbers = _transposed(_numbers(found[2]), _numbers(found[3])) if found[2] else range(math.prod(dims))
        return [numbers[place] for place in places]
    return list(range(devices))


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number]


def _transposed(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers of an array of `dims`, counted with the last axis fastest, after its axes are put in `order`."""
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    numbers = [0]
    for axis in order or range(len(dims)):
        numbers = [number + i * strides[axis] for number in numbers for i in range(dims[axis])]
    return numbers


def _place(device: int, sizes: Sequence[int]) -> tuple[int, ...]:
    place = []
    for size in reversed(sizes):
        device, index = divmod(device, size)
        place.append(index)
    return tuple(reversed(place))


class Sums(NamedTuple):
    """Of the transfers of a kind; exposed_seconds: in which the device does nothing else."""

    count: int
    bytes: int
    seconds: float
    exposed_seconds: float


def by_axes(rows: Iterable[Collective]) -> dict[Kind, Sums]:
    """Sums of each kind, the longest first."""
    sums: dict[Kind, Sums] = {}
    for row in rows:
        key = Kind(row.opcode, row.axes, row.network, row.dtype)
        of_one = (1, row.bytes, row.seconds, row.seconds - row.hidden_seconds)
        before = sums.get(key, Sums(0, 0, 0.0, 0.0))
        sums[key] = Sums(*(total + row.times * each for total, each in zip(before, of_one, strict=True)))
    return dict(sorted(sums.items(), key=lambda item: -item[1].seconds))
