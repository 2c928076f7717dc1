"""--plan_search: which mesh, batch of a device and rematerialisation is the quickest that fits into memory.

A deep model takes minutes to compile. So one and two layers are compiled, from which time and memory of all layers
follow: layers are equal, and the rest is there once. Only the best is then compiled in full.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.config import BertConfig

REMATS = ("none", "dots", "full")  # each needs less memory and more time than the one before
TOKENS_PER_DEVICE = (4096, 8192, 16384, 32768)  # at a time; batches are the powers of two nearest below
LARGE_HIDDEN_SIZE = 1024  # from which it may pay to cut layers over two devices


class Candidate(NamedTuple):
    """Flags of a run: --mesh, --train_batch_size, --gradient_accumulation_steps, --remat."""

    mesh: str
    train_batch_size: int
    gradient_accumulation_steps: int
    remat: str

    def flags(self) -> str:
        return " ".join(f"--{name}={value}" for name, value in self._asdict().items())


class Result(NamedTuple):
    """What a candidate costs.

    Attributes:
        peak: bytes of memory of a device; None where the compiler does not tell.
        seconds: of a step; None where it does not fit with one or two layers already.
        fits: whether the peak is within the memory.
    """

    candidate: Candidate
    per_device_batch: int
    peak: int | None
    seconds: float | None
    fits: bool

    @property
    def sequences_per_second(self) -> float:
        """0 where the time is not known."""
        return self.candidate.train_batch_size / self.seconds if self.seconds else 0.0


def meshes(devices: int, config: BertConfig, slices: int = 1) -> list[tuple[str, int]]:
    """Values of --mesh to try, and into how many parts each cuts a batch.

    fsdp cuts parameters and optimizer over up to 16 devices of a slice, tensor cuts wide layers over 2.
    """
    found = [(f"data={devices}", devices)]
    size = next(size for size in (16, 8, 4, 2, 1) if devices // slices % size == 0 and config.hidden_size % size == 0)
    if size > 1:
        found.append((f"data={devices // size},fsdp={size}", devices))
    even = all(size % 2 == 0 for size in (devices // slices, config.num_attention_heads, config.intermediate_size))
    if config.hidden_size >= LARGE_HIDDEN_SIZE and even:
        found.append((f"data={devices // 2},tensor=2", devices // 2))
    return found


def batches(parts: int, length: int, train_batch_size: int | None) -> list[tuple[int, int, int]]:
    """Sizes to try: of a device at a time, of an update, and accumulation steps; the smallest first.

    Args:
        parts: into which the mesh cuts a batch.
        train_batch_size: keeps the update at this size, in as many accumulation steps as it takes.
    """
    sizes = sorted({1 << max(tokens // length, 1).bit_length() - 1 for tokens in TOKENS_PER_DEVICE})
    if train_batch_size is None:
        return [(size, size * parts, 1) for size in sizes]
    each, rest = divmod(train_batch_size, parts)
    if rest:
        return []
    # The sizes, or the next below that divide the batch; and all at once where they divide it into very small parts.
    fixed = {max(part for part in range(1, size + 1) if each % part == 0) for size in sizes}
    if 2 * max(fixed) < sizes[0]:
        fixed.add(each)
    return [(size, train_batch_size, each // size) for size in sorted(fixed)]


def search(
    meshes: Sequence[tuple[str, int]],
    length: int,
    train_batch_size: int | None,
    remats: Sequence[str],
    layers: int,
    compile: Callable[[Candidate, int], dict[str, Any]],
) -> Iterator[Result]:
    """Tries what may be the best, in the order of growing batches.

    Where a step fits, more rematerialisation would only be slower; where it does not fit with the most of it, no larger
    batch does. Neither is tried.

    Args:
        remats: of REMATS, in their order.
        compile: (candidate, number of layers) -> what plan.json holds.
    """
    for mesh, parts in meshes:
        for size, total, steps in batches(parts, length, train_batch_size):
            for remat in remats:
                candidate = Candidate(mesh, total, steps, remat)
                result = extrapolate(candidate, size, layers, [compile(candidate, count) for count in (1, 2)])
                yield result
                if result.fits:
                    break
            else:
                break


def extrapolate(candidate: Candidate, per_device_batch: int, layers: int, plans: Sequence[dict[str, Any]]) -> Result:
    """What a candidate costs with all layers, by the plans of one and two layers."""
    peaks = [plan["memory"]["peak"] for plan in plans]
    seconds = [plan["estimated_step_seconds"] for plan in plans]
    peak = None if None in peaks else _line(*peaks, layers)
    if None in seconds:
        return Result(candidate, per_device_batch, peak, None, False)
    capacity = plans[-1]["memory"]["capacity"]
    return Result(candidate, per_device_batch, peak, _line(*seconds, layers), capacity is None or peak <= capacity)


def _line(one, two, count):
    return one + (count - 1) * (two - one)


def ranked(results: Sequence[Result]) -> list[Result]:
    """What fits before what does not, the quickest first."""
    return sorted(results, key=lambda result: (not result.fits, -result.sequences_per_second))


def compile_best(
    results: Sequence[Result], compile: Callable[[Candidate], tuple[dict[str, Any], str]]
) -> tuple[Result, dict[str, Any], str] | None:
    """Compiles in full the best that should fit, and the next best as long as one does not after all.

    Args:
        compile: candidate -> what plan.json holds, and the text of the program.

    Returns:
        The candidate as it was estimated, and its plan and text; None where nothing fits.
    """
    for result in ranked(results):
        if not result.fits:
            break
        plan, text = compile(result.candidate)
        if plan["memory"]["fits"]:
            return result, plan, text
    return None
