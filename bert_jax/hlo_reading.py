"""Reads the text of a compiled program: instructions with their shapes, what they call, and how often they run.

The text is what `jax.stages.Compiled.as_text()` gives: scheduled HLO, one instruction a line, computations in braces.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Bytes of an element; types below a byte are counted as one.
_BYTES = {"pred": 1, "f64": 8, "c64": 8, "c128": 16, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|branch_computations|called_computations)=(\{[^}]*\}|%[\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPENED = ("call", "conditional", "async-start")  # what these run is read in their place
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Instruction(NamedTuple):
    """One line of a program.

    Attributes:
        shape: of the result, as written; of a tuple, with its parts.
        operands: names within the same computation.
        rest: the attributes, as written.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def bytes(self) -> int:
        """Bytes of the result, without padding of its layout."""
        return shape_bytes(self.shape)

    @property
    def work(self) -> str:
        """The opcode, without what tells the start or end of one that runs beside others."""
        return re.sub(r"-(start|update|done)$", "", self.opcode)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it gives none, or 0, which it says of random bits."""
        found = _CYCLES.search(self.rest)
        return int(found[1]) or None if found else None

    @property
    def op_name(self) -> str:
        """The operation of the program that this came from; empty where the compiler made it."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    def called(self, *attributes: str) -> list[str]:
        """Names of the computations in attributes such as calls, body, to_apply; of all without any."""
        found = (match for match in _CALLED.finditer(self.rest) if not attributes or match[1] in attributes)
        return [name for match in found for name in _NAME.findall(match[2])]


class Program(NamedTuple):
    """Computations by name, each its instructions by name in the order in which they run."""

    entry: str
    computations: dict[str, dict[str, Instruction]]

    def operands(self, computation: str, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results go into one."""
        own = self.computations[computation]
        return [own[name] for name in instruction.operands if name in own]

    def fused(self, instruction: Instruction) -> Iterator[tuple[str, Instruction]]:
        """What a fusion is made of, with the computation that it stands in; fusions within it included."""
        for name in instruction.called("calls"):
            for inner in self.computations[name].values():
                yield name, inner
                yield from self.fused(inner)

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """What a fusion is made of, fusions within it included."""
        return (inner for _, inner in self.fused(instruction))

    def executed(self, computation: str | None = None, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Every instruction that the device runs by itself: its computation, itself, and how often it runs.

        Bodies of loops count as often as they run, of conditionals each branch counts; fusions are not opened.
        """
        computation = computation or self.entry
        for instruction in self.computations[computation].values():
            if instruction.opcode not in _OPENED:
                yield computation, instruction, times
            if instruction.opcode == "while":
                trips = times * (self.trip_count(instruction) or 1)
                for name in instruction.called("body", "condition"):
                    yield from self.executed(name, trips)
            elif instruction.opcode in _OPENED:
                for name in instruction.called():
                    yield from self.executed(name, times)

    def trip_count(self, loop: Instruction) -> int | None:
        """How often the body of a while runs: what the compiler says, else the constant of its condition.

        JAX's loops count from 0. None where the condition has no constant, or several.
        """
        found = _TRIPS.search(loop.rest)
        if found:
            return int(found[1])
        conditions = [inner for name in loop.called("condition") for inner in self.computations[name].values()]
        inside = [inner for instruction in conditions for inner in self.inside(instruction)]
        constants = {
            inner.operands[0] for inner in conditions + inside if inner.opcode == "constant" and "[]" in inner.shape
        }
        numbers = [int(constant) for constant in constants if constant.isdigit()]
        return numbers[0] if len(numbers) == 1 else None


def shape_parts(shape: str) -> list[str]:
    """The shapes of a tuple, which may be tuples in turn; of anything else, itself."""
    if not shape.startswith("("):
        return [shape]
    parts, depth, start = [], 0, 1
    for match in re.finditer(r"[(){}\[\],]", shape):
        depth += (match[0] in "({[") - (match[0] in ")}]")
        if (match[0] == "," and depth == 1) or depth == 0:
            parts.append(shape[start : match.start()].strip())
            start = match.end()
    return [re.sub(r"^/\*.*?\*/", "", part) for part in parts if part]


def shape_bytes(shape: str) -> int:
    """Bytes of a shape such as "f32[8,128]{1,0:T(8,128)}", or of a tuple of them."""
    total = 0
    for kind, sizes in _SHAPE.findall(shape):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        digits = re.search(r"\d+", kind)
        total += count * _BYTES.get(kind, max(int(digits[0]) // 8, 1) if digits else 0)
    return total


def read(text: str) -> Program:
    """Reads a program.

    Raises:
        ValueError: the text is no HLO with an entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = None, None
    for line in text.splitlines():
        if current is None:
            if head := _HEAD.match(line):
                current = computations[head[2]] = {}
                entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif found := _LINE.match(line):
            instruction = _instruction(found[2], found[3])
            current[instruction.name] = instruction
    if entry is None:
        raise ValueError("no entry computation: this is not the text of a compiled program")
    return Program(entry, computations)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    start = text.index("(")
    end = _closing(text, start)
    inside = text[start + 1 : end]
    # Operands of a constant are its value.
    operands = (inside,) if text[:start] in ("constant", "parameter") else tuple(_NAME.findall(inside))
    return Instruction(name, shape, text[:start], operands, text[end + 1 :])


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"parentheses do not close: {text[:80]}")
