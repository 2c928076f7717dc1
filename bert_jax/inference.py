"""Runs a function of the parameters over a stream of tokenised examples of any lengths, and gives results in order.

The stream is read a window at a time. The examples of a window are packed into rows of few static widths, several in a
row where they are short, each attending to itself only: hardly anything is computed for padding, and little is
compiled. The results are put back in order.
"""

import collections
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax import partitioning
from input_pipeline.packing import SLOTS, packed_arrays

# Tokens of a batch on each device. On CPU more of them no longer fit the caches and fewer are not worth a thread.
_CPU_TOKENS = 1024
_ACCELERATOR_TOKENS = 8192

_LEAST_WIDTH = 64  # of a row

# Attention looks at the whole row: in one of this width a token takes twice the time.
_DOUBLING_WIDTH = 700

# What it costs to compile a width, in seconds for each array of the parameters, and the speed of what is compiled, in
# floating-point operations a second: rough values of two CPU cores and of an accelerator.
_CPU_COSTS = (0.015, 1.5e11)
_ACCELERATOR_COSTS = (0.1, 5e13)

# Two batches are in the works at once: while one is computed the other is made or fetched. On CPU they share the cores,
# and one fills in where the other has work for a single thread only. Several processes have one: nothing else keeps the
# collectives of two programs in the same order in all of them.
_BATCHES_AT_ONCE = 2


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


class _History:
    """What a function was compiled for (pairs of a batch's size and its width), and how many tokens it has seen."""

    def __init__(self):
        self.compiled: set[tuple[int, int]] = set()
        self.tokens = 0


class _Batch(NamedTuple):
    """Which examples of a window share which row, the width of the rows, and what becomes of them."""

    rows: list[list[int]]
    width: int
    output: concurrent.futures.Future


_histories: weakref.WeakKeyDictionary[Callable, _History] = weakref.WeakKeyDictionary()


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
        function: (params, batch) -> tree of arrays [examples, ...], jitted here. It gets at the examples of the packed
            batch by `encode`, or by `unpack` and `token_mask`; entries of `extra` are [examples, count], padded with 0
            to a power of two. Examples must not depend on each other.
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
        ValueError: an example is too long, or an output has no axis of examples.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    shards = partitioning.batch_shards(mesh)
    if batch_size is None:
        batch_size = max(1, (_CPU_TOKENS if on_cpu else _ACCELERATOR_TOKENS) // max_length) * shards
    params = jax.tree.map(lambda x: _on_mesh(x, mesh), params)
    jitted = jax.jit(function, out_shardings=partitioning.replicated(mesh))
    tokens_to_compile = compile_tokens(params, *(_CPU_COSTS if on_cpu else _ACCELERATOR_COSTS))
    history = _histories.setdefault(function, _History())
    waiting: collections.deque[tuple[list[Example], _Batch]] = collections.deque()
    lock = threading.Lock()
    at_once = _BATCHES_AT_ONCE if jax.process_count() == 1 else 1

    def run_next() -> None:
        # Batches start one at a time and in order.
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

    def batches_of(window: list[Example], is_last: bool) -> list[_Batch]:
        lengths = [len(example.input_ids) for example in window]
        known = {width for size, width in history.compiled if size == batch_size}
        tokens = sum(lengths)
        # As much as has come is expected to come again.
        expected = tokens_to_compile * tokens / (tokens + history.tokens)
        widths = choose_widths(lengths, width_ladder(max_length), known, expected)
        history.tokens += tokens
        history.compiled.update((batch_size, width) for width in widths)
        return [
            _Batch(rows, width, concurrent.futures.Future())
            for rows, width in _pack(lengths, widths, batch_size * max_length, shards, is_last)
        ]

    pool = concurrent.futures.ThreadPoolExecutor(at_once)
    started: collections.deque[tuple[list[Example], list[_Batch]]] = collections.deque()
    waits = True
    try:
        for window, is_last in _windows(examples, max_length, window_tokens):
            started.append((window, batches_of(window, is_last)))
            for batch in started[-1][1]:
                waiting.append((window, batch))
                pool.submit(run_next)
            if len(started) == 2:
                yield from _in_order(*started.popleft())
        while started:
            yield from _in_order(*started.popleft())
    except KeyboardInterrupt:
        waits = False  # for a compilation that could be minutes
        raise
    finally:
        pool.shutdown(waits, cancel_futures=True)


def encode(module: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The hidden states of each example of a packed batch, and their mask.

    Args:
        module: has the method `encode` of BertForPreTraining and BertForTask.
        params: its parameters.
        batch: as map_examples hands it to a function.

    Returns:
        Arrays [examples, width, hidden], the embeddings and then each layer, and int32 [examples, width], 1 on the
        tokens of the example. What follows these tokens has no meaning.
    """
    names = ("input_ids", "sequence_ids", "segment_ids", "position_ids")
    states = module.apply({"params": params}, *(batch[name] for name in names), method="encode")
    return tuple(unpack(batch, state) for state in states), token_mask(batch)


def unpack(batch: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """[rows, width, ...] of a packed batch -> [examples, width, ...]; see token_mask for what belongs to an example."""
    rows, width = x.shape[:2]
    places = batch["starts"][:, :, None] + jnp.arange(width)
    taken = jax.vmap(lambda row, where: jnp.take(row, where, axis=0, mode="clip"))(x, places.reshape(rows, -1))
    return taken.reshape(-1, *x.shape[1:])


def token_mask(batch: Mapping[str, jax.Array]) -> jax.Array:
    """int32 [examples, width]: 1 on the tokens of each example."""
    width = batch["input_ids"].shape[1]
    return (jnp.arange(width) < batch["lengths"].reshape(-1, 1)).astype(jnp.int32)


def width_ladder(max_length: int) -> list[int]:
    """The widths that rows may have, ascending: powers of two, and max_length."""
    widths = []
    width = _LEAST_WIDTH
    while width < max_length:
        widths.append(width)
        width *= 2
    return [*widths, max_length]


def choose_widths(lengths: Sequence[int], ladder: Sequence[int], known: set[int], compile_tokens: float) -> list[int]:
    """The widths for examples of these lengths, ascending, with which attention and compilation together cost least.

    Args:
        lengths: tokens of each example.
        ladder: widths to choose from, ascending.
        known: those that are compiled already.
        compile_tokens: in how many tokens' time another one is compiled.
    """
    tokens = np.bincount(np.searchsorted(ladder, lengths), lengths, len(ladder))
    below = np.concatenate([[0], np.cumsum(tokens)])  # tokens of examples that fit into less than ladder[i]
    cost = [0.0] + [np.inf] * len(ladder)  # least cost of what fits the first i widths, the last of them being chosen
    previous = [0] * (len(ladder) + 1)
    for i, width in enumerate(ladder, start=1):
        for j in range(i):
            here = (below[i] - below[j]) * (1 + width / _DOUBLING_WIDTH) + (0 if width in known else compile_tokens)
            if cost[j] + here < cost[i]:
                cost[i], previous[i] = cost[j] + here, j
    last = min(range(int(np.flatnonzero(tokens)[-1]) + 1, len(ladder) + 1), key=lambda i: cost[i])
    chosen = []
    while last:
        chosen.append(ladder[last - 1])
        last = previous[last]
    return chosen[::-1]


def compile_tokens(params: Any, seconds: float, speed: float) -> float:
    """In how many tokens' time a function of the parameters is compiled.

    Args:
        params: tree of arrays or shapes.
        seconds: to compile, for each array.
        speed: floating-point operations a second.
    """
    sizes = sorted(leaf.size for leaf in jax.tree.leaves(params)) or [1]
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
        if not len(example.input_ids):
            raise ValueError(f"example {number} has no tokens")
        if len(example.input_ids) > max_length:
            raise ValueError(f"example {number} has {len(example.input_ids)} tokens, more than {max_length}")
        if tokens >= window_tokens:
            yield window, False
            window, tokens = [], 0
        window.append(example)
        tokens += len(example.input_ids)
    if window:
        yield window, True


def _pack(
    lengths: list[int], widths: list[int], tokens: int, shards: int, is_last: bool
) -> Iterator[tuple[list[list[int]], int]]:
    """Packs a window, the longest examples first: the rows of each batch, and their width.

    Args:
        lengths: tokens of each example.
        widths: ascending.
        tokens: of a batch.
        shards: a batch has a multiple of so many rows.
        is_last: no window follows, so that the last batch may have a size of its own.
    """
    by_length: dict[int, list[int]] = collections.defaultdict(list)
    for number in range(len(lengths) - 1, -1, -1):
        by_length[lengths[number]].append(number)
    longest = max(lengths)
    remaining = len(lengths)
    while remaining:
        while not by_length[longest]:
            longest -= 1
        width = next(width for width in widths if width >= longest)
        most = max(1, tokens // (width * shards)) * shards
        rows: list[list[int]] = []
        while remaining and len(rows) < most:
            row: list[int] = []
            room = width
            length = min(longest, room)
            while remaining and len(row) < SLOTS and length > 0:
                if length > room or not by_length[length]:
                    length -= 1
                    continue
                row.append(by_length[length].pop())
                room -= length
                remaining -= 1
            rows.append(row)
        if is_last and not remaining:
            # A size of its own costs less than many empty rows, and comes once.
            most = min(most, (1 << (-(-len(rows) // shards) - 1).bit_length()) * shards)
        yield rows + [[]] * (most - len(rows)), width


def _arrays(window: list[Example], batch: _Batch, mesh: Mesh) -> dict[str, jax.Array]:
    """The packed batch on the devices; this process packs only the rows that it feeds."""
    rows = [batch.rows[row] for row in partitioning.local_rows(mesh, len(batch.rows))]
    sequences = {number: window[number][:2] for numbers in rows for number in numbers}
    arrays = packed_arrays(sequences, rows, batch.width)
    extra = {name: _padded_length(window, batch, name) for name in window[batch.rows[0][0]].extra}
    slots = {name: np.zeros((len(rows) * SLOTS, length), np.int32) for name, length in extra.items()}
    for row, numbers in enumerate(rows):
        for slot, number in enumerate(numbers):
            for name, array in slots.items():
                values = window[number].extra[name]
                array[row * SLOTS + slot, : len(values)] = values
    batched = partitioning.to_global_batch(mesh, arrays, len(batch.rows))
    return batched | partitioning.to_global_batch(mesh, slots, len(batch.rows) * SLOTS)


def _padded_length(window: list[Example], batch: _Batch, name: str) -> int:
    longest = max(len(window[number].extra[name]) for row in batch.rows for number in row)
    return 1 << max(0, longest - 1).bit_length()


def _in_order(window: list[Example], batches: list[_Batch]) -> Iterator[tuple[Example, Any]]:
    """Waits for the batches of a window and deals their results out."""
    results: list[Any] = [None] * len(window)
    for batch in batches:
        leaves, tree = jax.tree.flatten(batch.output.result())
        count = len(batch.rows) * SLOTS
        if any(leaf.shape[:1] != (count,) for leaf in leaves):
            raise ValueError(f"outputs need {count} examples as the batch, not {[leaf.shape for leaf in leaves]}")
        for row, numbers in enumerate(batch.rows):
            for slot, number in enumerate(numbers):
                place = row * SLOTS + slot
                results[number] = jax.tree.unflatten(tree, [leaf[place] for leaf in leaves])
    yield from zip(window, results)
