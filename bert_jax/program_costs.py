"""What a compiled program costs on a TPU, read from its text: time by kind of work, and what the compiler leaves out.

The compiler notes "estimated_cycles" at most fusions. It notes none for custom kernels, gathers, scatters, sorts,
random bits, copies that run beside other work (DMA), and collectives. These get a bound from their bytes and FLOPs and
are listed apart, so that nothing is free.
"""

import collections
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.chips import Chip
from bert_jax.collectives import Collective, Placement, collectives, fused_collectives, is_collective
from bert_jax.hlo_reading import Instruction, Program, shape_bytes, shape_parts

KINDS = ("matmul", "elementwise", "reduction", "copies", "random numbers", "optimizer")
OPTIMIZER_SCOPE = "optimizer"  # the name under which the train step updates the parameters

_MATMULS = ("convolution", "dot")
_COPIES = ("copy", "transpose", "pad", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "reshape")
_HASHING = ("xor", "shift-right-logical", "shift-left", "rng-bit-generator", "rng")
_QUIET = ("parameter", "constant", "broadcast", "bitcast", "fusion")
# What takes no time of its own: names for memory, and the ends of what was started before.
_FREE = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "opt-barrier")
_FREE += ("partition-id", "replica-id", "add-dependency", "while")
_NAMES_FOR_MEMORY = ("ConcatBitcast", "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


class Unaccounted(NamedTuple):
    """Work without an estimate of the compiler, of one kind.

    Attributes:
        seconds: bound from bytes and FLOPs.
        overlapped: whether it runs beside other work.
    """

    what: str
    count: int
    bytes: int
    seconds: float
    overlapped: bool


class Costs(NamedTuple):
    """Of one run of a program on one device.

    Attributes:
        cycles: kind of KINDS -> the compiler's estimate.
        matmul_flops: of matrix products, as compiled.
        loops_counted_once: because the program does not tell how often they run.
    """

    cycles: dict[str, int]
    matmul_flops: float
    unaccounted: list[Unaccounted]
    collectives: list[Collective]
    loops_counted_once: int


def costs(program: Program, chip: Chip, placement: Placement) -> Costs:
    """Reads the costs of a program; devices of one chip have an equal share of it each."""
    chip_share = len(set(placement.chips)) / len(placement.chips)
    cycles: dict[str, int] = dict.fromkeys(KINDS, 0)
    others: dict[tuple[str, bool], list[float]] = collections.defaultdict(lambda: [0, 0, 0.0])
    matmul_flops, loops = 0.0, 0
    for computation, instruction, times in program.executed():
        matmul_flops += times * flops(program, computation, instruction)
        loops += instruction.opcode == "while" and program.trip_count(instruction) is None
        if instruction.cycles is not None:
            cycles[kind_of(program, instruction)] += times * instruction.cycles
        elif not (is_free(instruction) or is_collective(instruction) or fused_collectives(program, instruction)):
            what, moved, work = _bound(program, computation, instruction)
            entry = others[what, instruction.opcode.endswith("-start")]
            entry[0] += times
            entry[1] += times * moved
            seconds = max(moved / chip.hbm_bytes_per_second, work / chip.flops_per_second) / chip_share
            entry[2] += times * seconds
    unaccounted = [
        Unaccounted(what, int(count), int(moved), seconds, overlapped)
        for (what, overlapped), (count, moved, seconds) in others.items()
    ]
    unaccounted.sort(key=lambda row: -row.seconds)
    return Costs(cycles, matmul_flops, unaccounted, list(collectives(program, chip, placement)), loops)


def kind_of(program: Program, instruction: Instruction) -> str:
    """Which of KINDS an instruction is, by what it is made of."""
    parts = list(program.inside(instruction)) or [instruction]
    opcodes = collections.Counter(part.opcode for part in parts)
    if any(opcodes[name] for name in _MATMULS):
        return "matmul"
    if any(f"/{OPTIMIZER_SCOPE}/" in part.op_name for part in (instruction, *parts)):
        return "optimizer"
    hashing = sum(opcodes[name] for name in _HASHING)
    if hashing and 2 * hashing > sum(count for name, count in opcodes.items() if name not in _QUIET):
        return "random numbers"
    if opcodes["reduce"] or opcodes["reduce-window"]:
        return "reduction"
    work = {part.opcode for part in parts} - {*_QUIET, "convert"}
    return "copies" if work <= set(_COPIES) else "elementwise"


def flops(program: Program, computation: str, instruction: Instruction) -> float:
    """FLOPs of the matrix products in an instruction; a multiplication with its addition counts 2."""
    total = 0.0
    if instruction.opcode in _MATMULS:
        total += _product_flops(instruction, program.operands(computation, instruction))
    for name in instruction.called("calls"):
        for inner in program.computations[name].values():
            total += flops(program, name, inner)
    return total


def is_free(instruction: Instruction) -> bool:
    """Whether an instruction takes no time of its own."""
    if re.search(r"-(update|done)$", instruction.opcode) or instruction.opcode in _FREE:
        return True
    return _target(instruction) in _NAMES_FOR_MEMORY


def _target(instruction: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.rest)
    return found[1] if found else ""


def _bound(program: Program, computation: str, instruction: Instruction) -> tuple[str, int, float]:
    """What an instruction without an estimate is, the bytes that it reads and writes, and its FLOPs."""
    inside = list(program.inside(instruction))
    parts = {part.opcode for part in inside} | {instruction.work}
    sources = program.operands(computation, instruction)
    moved = instruction.bytes + sum(source.bytes for source in sources)
    if instruction.opcode.endswith("-start") and instruction.work in _COPIES:
        return "copies beside other work (DMA)", _copied_bytes(instruction), 0.0
    product = flops(program, computation, instruction)
    if target := _target(instruction):  # a kernel may tell what it does, such as reading an operand many times
        told = re.search(r'"cost_estimate":\{([^}]*)\}', instruction.rest)
        told = dict(re.findall(r'"(\w+)":"?(\d+)', told[1])) if told else {}
        moved = max(moved, int(told.get("bytes_accessed", 0)))
        what = "custom kernels" if target == "tpu_custom_call" else f"the compiler's own calls ({target})"
        return what, moved, float(told.get("flops", product))
    if parts & {"rng-bit-generator", "rng"}:
        return "random bits", moved, product
    if "sort" in parts:  # each pass over the rows reads and writes them
        rows = max((math.prod(_dims(part)) for part in shape_parts(instruction.shape)), default=1)
        return "sort", moved * max(math.ceil(math.log2(max(rows, 2))), 1), product
    if "scatter" in parts:
        return "scatters", moved, product
    if "gather" in parts:  # of a table only the rows that are taken are read
        gathers = [part for part in (instruction, *inside) if part.opcode == "gather"]
        rest = sum(source.bytes for source in sources if source.bytes <= instruction.bytes)
        return "gathers", instruction.bytes + rest + sum(gather.bytes for gather in gathers), product
    if product:
        return "matrix products", moved, product
    return "scalars" if instruction.bytes <= 1024 else "others", moved, product


def _copied_bytes(start: Instruction) -> int:
    """Bytes that a copy or slice reads from HBM and writes to it; its shape is (one end, other end, flag)."""
    ends = [shape_parts(end)[0] for end in shape_parts(start.shape)[:2]]
    copied = min(map(shape_bytes, ends), default=0)
    return copied * sum(not re.search(r"S\(\d+\)", end) for end in ends)


def _product_flops(instruction: Instruction, sources: Sequence[Instruction]) -> float:
    """FLOPs of a dot or a convolution: 2 x elements of the result x elements that each sums over."""
    result = _dims(instruction.shape)
    if len(sources) < 2:
        return 0.0
    left, right = _dims(sources[0].shape), _dims(sources[1].shape)
    if instruction.opcode == "dot":
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
        summed = math.prod(left[int(i)] for i in found[1].split(",") if i) if found else 1
        return 2.0 * math.prod(result) * summed
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.rest)
    if not labels:
        return 0.0
    # Per element of the result: the input features of the kernel, and of its window as many as meet the input.
    kernel = dict(zip(labels[2], right))
    window = _window(instruction.rest)
    total = 2.0 * math.prod(result) * kernel.get("i", 1)
    source, output = dict(zip(labels[1], left)), dict(zip(labels[3], result))
    for axis in (label for label in labels[2] if label.isdigit()):
        total *= _window_hits(window, int(axis), kernel[axis], source.get(axis, 1), output.get(axis, 1))
    return total


def _window(text: str) -> dict[str, list]:
    found = re.search(r"window=\{([^}]*)\}", text)
    return {key: value.split("x") for key, value in re.findall(r"(\w+)=([^\s}]+)", found[1])} if found else {}


def _window_hits(window: dict[str, list], axis: int, size: int, source: int, output: int) -> float:
    """Mean number of elements of a kernel of `size` that meet the input and not its padding, on one spatial axis."""
    low = int(window.get("pad", ["0_0"] * (axis + 1))[axis].partition("_")[0])
    stride = int(window.get("stride", ["1"] * (axis + 1))[axis])
    spread = int(window.get("lhs_dilate", ["1"] * (axis + 1))[axis])
    step = int(window.get("rhs_dilate", ["1"] * (axis + 1))[axis])
    last = (source - 1) * spread
    hits = 0
    for place in range(output):
        first = place * stride - low
        hits += sum(0 <= first + k * step <= last and (first + k * step) % spread == 0 for k in range(size))
    return hits / max(output, 1)


def _dims(shape: str) -> list[int]:
    found = re.search(r"\[([\d,]*)\]", shape)
    return [int(size) for size in found[1].split(",") if size] if found else []


def total_seconds(found: Costs, chip: Chip) -> float:
    """The time of a run: the compiler's cycles, the bounds of what runs alone, and transfers that nothing hides.

    Copies beside other work cost what they take longer than all that work.
    """
    busy = sum(found.cycles.values()) / chip.clock
    busy += sum(row.seconds for row in found.unaccounted if not row.overlapped)
    beside = sum(row.seconds for row in found.unaccounted if row.overlapped)
    exposed = sum(row.times * (row.seconds - row.hidden_seconds) for row in found.collectives)
    return max(busy, beside) + exposed
