"""Runs a function of the parameters over a stream of tokenised examples of any lengths, and gives results in order.

The stream is read a window at a time. Within a window examples are sorted by length and cut into batches of few static
shapes, so that little is computed for padding and little is compiled; the results are put back in order. How few is
weighed up: another length has to save more padding than it costs to compile.
"""

import bisect
import collections
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax import partitioning

# Tokens of a batch on each device. On CPU more of them no longer fit the caches and fewer are not worth a thread.
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768

# What it costs to compile a shape, in seconds for each array of the parameters, and the speed of what is compiled, in
# floating-point operations a second: rough values of two CPU cores and of an accelerator.
_CPU_COSTS = (0.015, 1.5e11)
_ACCELERATOR_COSTS = (0.1, 5e13)

# Two batches are in the works at once: while one is computed the other is made or fetched. On CPU they share the cores,
# and one fills in where the other has work for a single thread only.
_BATCHES_AT_ONCE = 2


# For each function the sizes and lengths of batches that it was compiled for.
_compiled: weakref.WeakKeyDictionary[Callable, set[tuple[int, int]]] = weakref.WeakKeyDictionary()


class Example(NamedTuple):
    """One input.

    Attributes:
        input_ids, segment_ids: ints [length], with [CLS] and [SEP], without padding.
        extra: more entries of the batch, such as masked positions: name -> ints [count], any count at each example.
        note: whatever the caller wants to find beside the result; not looked at.
    """

    input_ids: Sequence[int]
    segment_ids: Sequence[int]
    extra: Mapping[str, Sequence[int]] = {}
    note: Any = None


class _Batch(NamedTuple):
    """Which examples of a window go together, the shape that they are padded to, and what becomes of them."""

    numbers: Sequence[int]
    rows: int
    length: int
    output: concurrent.futures.Future


def map_examples(
    function: Callable[[Any, dict[str, jax.Array]], Any],
    params: Any,
    examples: Iterable[Example],
    *,
    mesh: Mesh,
    max_length: int,
    batch_size: int | None = None,
    window_tokens: int = 1 << 17,
) -> Iterator[tuple[Example, Any]]:
    """Yields each example with its result, in the order of the examples.

    The examples may be endless: at most two windows are held. Several processes all pass the same examples and all get
    all results. What is compiled is kept with `function`: pass the same one again rather than a new lambda.

    Args:
        function: (params, batch) -> tree of arrays [rows, ...], jitted here. The batch has int32 "input_ids",
            "input_mask" (1 on real tokens) and "segment_ids" [rows, l] and the entries of `extra`, padded with 0 to a
            power of two. Rows must not depend on each other.
        params: tree of arrays; those that are not on the mesh yet are copied to every device.
        examples: none longer than max_length, all with the same names in `extra`.
        mesh: a batch is cut over its axes data and fsdp.
        max_length: tokens of the longest example allowed.
        batch_size: examples in a batch of the greatest length; shorter ones are put together in greater numbers. By
            default what suits the device.
        window_tokens: tokens read before they are sorted. No result comes before a window is full or the stream ends.

    Returns:
        (example, tree of NumPy arrays [...]); an output for each token has padding at its end: cut it to
        len(example.input_ids).

    Raises:
        ValueError: an example is too long, or an output has no axis of rows.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if batch_size is None:
        tokens = _CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS
        batch_size = max(1, tokens // max_length) * partitioning.batch_shards(mesh)
    compile_tokens = _compile_tokens(params, *(_CPU_COSTS if on_cpu else _ACCELERATOR_COSTS))
    compiled = _compiled.setdefault(function, set())  # pairs of the size of a batch and the length
    params = jax.tree.map(lambda x: _on_mesh(x, mesh), params)
    jitted = jax.jit(function, out_shardings=partitioning.replicated(mesh))
    ladder = length_ladder(max_length)
    waiting: collections.deque[tuple[list[Example], _Batch]] = collections.deque()
    lock = threading.Lock()

    def run_next() -> None:
        # Batches start one at a time and in order, the same in all processes: collectives would wait for each other.
        with lock:
            window, batch = waiting.popleft()
            try:
                with jax.set_mesh(mesh):
                    output = jitted(params, _arrays(window, batch, mesh))
            except BaseException as error:
                batch.output.set_exception(error)
                return
        try:
            batch.output.set_result(jax.tree.map(np.asarray, output))
        except BaseException as error:
            batch.output.set_exception(error)

    pool = concurrent.futures.ThreadPoolExecutor(_BATCHES_AT_ONCE)
    started: collections.deque[tuple[list[Example], list[_Batch]]] = collections.deque()
    try:
        for number, (window, is_last) in enumerate(_windows(examples, max_length, window_tokens), start=1):
            # A stream that has lasted for some windows is expected to last as long again.
            known = {length for size, length in compiled if size == batch_size}
            lengths = choose_lengths([len(x.input_ids) for x in window], ladder, known, compile_tokens / number)
            compiled.update((batch_size, length) for length in lengths)
            batches = _cut(window, lengths, batch_size * max_length, partitioning.batch_shards(mesh), is_last)
            started.append((window, batches))
            for batch in batches:
                waiting.append((window, batch))
                pool.submit(run_next)
            if len(started) == 2:
                yield from _in_order(*started.popleft())
        while started:
            yield from _in_order(*started.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def length_ladder(max_length: int) -> list[int]:
    """The lengths that batches are padded to, ascending: steps of 4 tokens, and from 32 on four steps an octave."""
    lengths = [4]
    while lengths[-1] < max_length:
        lengths.append(lengths[-1] + max(4, 1 << (lengths[-1].bit_length() - 3)))
    return [*lengths[:-1], max_length]


def choose_lengths(counts: Sequence[int], ladder: Sequence[int], known: set[int], compile_tokens: float) -> list[int]:
    """The lengths to pad examples to, ascending, so that padding and compilation together cost least.

    Args:
        counts: tokens of each example.
        ladder: lengths to choose from, ascending.
        known: those that are compiled already.
        compile_tokens: in how many tokens' time another one is compiled.
    """
    slots = np.bincount(np.searchsorted(ladder, counts), minlength=len(ladder))
    below = np.concatenate([[0], np.cumsum(slots)])  # examples that fit into less than ladder[i]
    cost = [0.0] + [np.inf] * len(ladder)  # least cost of the first i slots, the last of them being a chosen length
    previous = [0] * (len(ladder) + 1)
    for i, length in enumerate(ladder, start=1):
        for j in range(i):
            here = cost[j] + (below[i] - below[j]) * length + (0 if length in known else compile_tokens)
            if here < cost[i]:
                cost[i], previous[i] = here, j
    last = min(range(int(np.flatnonzero(slots)[-1]) + 1, len(ladder) + 1), key=lambda i: cost[i])
    chosen = []
    while last:
        chosen.append(ladder[last - 1])
        last = previous[last]
    return chosen[::-1]


def _compile_tokens(params: Any, seconds: float, speed: float) -> float:
    sizes = sorted(leaf.size for leaf in jax.tree.leaves(params))
    operations = 2 * sum(sizes[:-1])  # of a token; all but the largest table, which is only looked up
    return seconds * len(sizes) * speed / max(operations, 1)


def _on_mesh(x: Any, mesh: Mesh) -> jax.Array:
    if isinstance(x, jax.Array) and getattr(x.sharding, "mesh", None) == mesh:
        return x
    return jax.device_put(x, partitioning.replicated(mesh))


def _windows(examples: Iterable[Example], max_length: int, window_tokens: int) -> Iterator[tuple[list[Example], bool]]:
    """Cuts the stream; says of each part whether it is the last."""
    window: list[Example] = []
    tokens = 0
    for number, example in enumerate(examples):
        if len(example.input_ids) > max_length:
            raise ValueError(f"example {number} has {len(example.input_ids)} tokens, more than {max_length}")
        if tokens >= window_tokens:
            yield window, False
            window, tokens = [], 0
        window.append(example)
        tokens += len(example.input_ids)
    if window:
        yield window, True


def _cut(window: list[Example], lengths: list[int], tokens: int, shards: int, is_last: bool) -> list[_Batch]:
    """Cuts a window into batches of `tokens`, the longest examples first."""
    numbers = sorted(range(len(window)), key=lambda number: -len(window[number].input_ids))
    batches = []
    start = 0
    while start < len(numbers):
        longest = len(window[numbers[start]].input_ids)
        length = lengths[bisect.bisect_left(lengths, longest)]
        rows = max(1, tokens // (length * shards))
        left = -(-(len(numbers) - start) // shards)
        if is_last and left < rows:
            rows = 1 << (left - 1).bit_length()  # a shape of its own costs less than many empty rows, and comes once
        batches.append(
            _Batch(numbers[start : start + rows * shards], rows * shards, length, concurrent.futures.Future())
        )
        start += rows * shards
    return batches


def _arrays(window: list[Example], batch: _Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """The padded batch on the devices; this process pads only the rows that it feeds."""
    # What fills the batch up is the first example again, with which no function can go wrong.
    examples = [window[number] for number in batch.numbers]
    examples += examples[:1] * (batch.rows - len(examples))
    examples = [examples[row] for row in partitioning.local_rows(mesh, batch.rows)]
    arrays = {
        "input_ids": _padded([example.input_ids for example in examples], batch.length),
        "input_mask": _padded([np.ones(len(example.input_ids)) for example in examples], batch.length),
        "segment_ids": _padded([example.segment_ids for example in examples], batch.length),
    }
    for name in examples[0].extra:
        longest = max(len(window[number].extra[name]) for number in batch.numbers)
        length = 1 << max(0, longest - 1).bit_length()
        arrays[name] = _padded([example.extra[name] for example in examples], length)
    return partitioning.to_global_batch(mesh, arrays, batch.rows)


def _padded(rows: list[Sequence[int]], length: int) -> np.ndarray:
    array = np.zeros((len(rows), length), np.int32)
    for target, row in zip(array, rows):
        target[: len(row)] = row
    return array


def _in_order(window: list[Example], batches: list[_Batch]) -> Iterator[tuple[Example, Any]]:
    """Waits for the batches of a window and deals their rows out."""
    results: list[Any] = [None] * len(window)
    for batch in batches:
        leaves, tree = jax.tree.flatten(batch.output.result())
        if any(leaf.shape[:1] != (batch.rows,) for leaf in leaves):
            raise ValueError(f"outputs need {batch.rows} rows as the batch, not {[leaf.shape for leaf in leaves]}")
        for row, number in enumerate(batch.numbers):
            results[number] = jax.tree.unflatten(tree, [leaf[row] for leaf in leaves])
    yield from zip(window, results)
