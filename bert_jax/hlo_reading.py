"""Reads the text of a compiled program: instructions with their shapes, what they call, and how often they run.

The text is what `jax.stages.Compiled.as_text()` gives: scheduled HLO, one instruction a line, computations in braces.
"""

import collections
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
    def cycles(self) -> int | None:
        """The compiler's estimate, where it gives one."""
        found = _CYCLES.search(self.rest)
        return int(found[1]) if found else None

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

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """What a fusion is made of, fusions within it included."""
        for name in instruction.called("calls"):
            for inner in self.computations[name].values():
                yield inner
                yield from self.inside(inner)

    def executed(self, computation: str | None = None, times: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Every instruction that the device runs by itself: its computation, itself, and how often it runs.

        Bodies of loops count as often as they run, of conditionals each branch counts; fusions are not opened.
        """
        computation = computation or self.entry
        for instruction in self.computations[computation].values():
            if instruction.opcode == "while":
                trips = times * self.trip_count(instruction)
                for name in instruction.called("body", "condition"):
                    yield from self.executed(name, trips)
            elif instruction.opcode in ("call", "conditional", "async-start"):
                yield computation, instruction, times
                for name in instruction.called():
                    yield from self.executed(name, times)
            else:
                yield computation, instruction, times

    def trip_count(self, loop: Instruction) -> int:
        """How often the body of a while runs: what the compiler says, else the constant of its condition; else 1."""
        found = _TRIPS.search(loop.rest)
        if found:
            return int(found[1])
        constants = [
            int(match[1])
            for name in loop.called("condition")
            for inner in self.computations[name].values()
            if inner.opcode == "constant" and (match := re.match(r"(\d+)\)?", ",".join(inner.operands)))
        ]
        return constants[0] if len(constants) == 1 else 1


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


def opcodes(program: Program) -> collections.Counter:
    """How often each opcode runs, fusions opened."""
    counts: collections.Counter = collections.Counter()
    for _, instruction, times in program.executed():
        counts[instruction.opcode] += times
        for inner in program.inside(instruction):
            counts[inner.opcode] += times
    return counts
