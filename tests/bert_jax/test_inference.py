"""Results come in order and are those of each example alone, however it is batched and over whatever devices."""

import dataclasses
import functools
import itertools
import os
import socket
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import CONFIG, loaded

from bert_jax import partitioning
from bert_jax.inference import (
    SLOTS,
    Example,
    _pack,
    choose_widths,
    encode,
    map_examples,
    token_mask,
    unpack,
    width_ladder,
)


def examples(count, longest=40):
    rng = np.random.default_rng(0)
    for number in range(count):
        ids = rng.integers(1, 100, rng.integers(2, longest + 1))
        yield Example(ids.tolist(), (ids % 2).tolist(), {"positions": list(range(number % 4))}, note=number)


def function(params, batch):
    """Something of every entry: a value an example and one a token."""
    tokens = unpack(batch, batch["input_ids"] * params["scale"] + batch["segment_ids"]) * token_mask(batch)
    return {"sum": tokens.sum(1), "tokens": tokens, "positions": batch["positions"].sum(1)}


def expected(example):
    tokens = 0.5 * np.array(example.input_ids) + example.segment_ids
    return {"sum": tokens.sum(), "tokens": tokens, "positions": sum(example.extra["positions"])}


def run(stream, mesh=None, **options):
    mesh = mesh or partitioning.make_mesh("", jax.devices()[:1])
    return map_examples(function, {"scale": np.float32(0.5)}, stream, mesh=mesh, **({"max_length": 40} | options))


def check(results, count):
    number = -1
    for number, (example, result) in enumerate(results):
        assert example.note == number
        result["tokens"] = result["tokens"][: len(example.input_ids)]
        for name, value in expected(example).items():
            np.testing.assert_allclose(result[name], value, rtol=1e-6, err_msg=name)
    assert number + 1 == count


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_size": 1, "window_tokens": 100}])
@pytest.mark.parametrize("count", [0, 1, 5, 101])
def test_every_example_has_its_result_in_order(count, options):
    check(run(examples(count), **options), count)


def test_an_endless_stream_is_read_a_window_at_a_time():
    read = itertools.count()
    stream = (example for example in itertools.cycle(list(examples(100))) if next(read) >= 0)
    results = run(stream, window_tokens=200)
    first = list(itertools.islice(results, 50))
    assert [example.note for example, _ in first] == list(range(50))
    assert next(read) < 50 + 2 * 100 + 2  # an example has at least two tokens
    threads = threading.active_count()
    results.close()
    assert threading.active_count() < threads


def test_few_shapes_are_compiled_and_kept_with_the_function():
    shapes = []

    def ids(params, batch):
        shapes.append(batch["input_ids"].shape)
        return unpack(batch, batch["input_ids"])[:, 0]

    mesh = partitioning.make_mesh("", jax.devices()[:1])
    stream = [example._replace(extra={}) for example in examples(400)]
    for _ in range(2):
        got = [int(result) for _, result in map_examples(ids, {}, stream, mesh=mesh, max_length=40, batch_size=8)]
        assert got == [example.input_ids[0] for example in stream]
    assert (8, 40) in shapes and len(shapes) <= 2


def test_widths():
    assert width_ladder(512) == [64, 128, 256, 512]
    assert width_ladder(100) == [64, 100]
    assert width_ladder(64) == [64]
    assert width_ladder(3) == [3]


def test_mistakes_reach_the_caller():
    with pytest.raises(ValueError, match="example 0 has 41 tokens, more than 40"):
        list(run([Example([1] * 41, [0] * 41)]))
    with pytest.raises(KeyError, match="positions"):
        list(run([Example([1], [0])]))

    def broken():
        yield from examples(30)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(run(broken(), window_tokens=100))
    mesh = partitioning.make_mesh("", jax.devices()[:1])
    with pytest.raises(ValueError, match="outputs need 8 examples"):
        list(map_examples(lambda params, batch: jnp.zeros(7), {}, examples(1), mesh=mesh, max_length=40))


SCRIPT = """
import sys
import jax
import test_inference as tests
from bert_jax import partitioning
if len(sys.argv) > 1:
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
assert jax.device_count() == 8
for sizes, count in (("", 1012), ("", 5), ("data=2,fsdp=2,tensor=2", 101)):
    mesh = partitioning.make_mesh(sizes)
    tests.check(tests.run(tests.examples(count), mesh, batch_size=16, window_tokens=9000), count)
"""


@pytest.mark.parametrize("num_processes", [1, 2])
def test_eight_devices_of_one_or_two_processes(num_processes):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // num_processes}",
        "PYTHONPATH": os.path.dirname(__file__),
    }
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    words = [[address, str(index)] if num_processes > 1 else [] for index in range(num_processes)]
    running = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, *own], env=environment, stderr=subprocess.PIPE, text=True)
        for own in words
    ]
    try:
        errors = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * num_processes, "\n".join(errors)


@pytest.mark.parametrize(
    ("lengths", "known", "compile_tokens", "chosen"),
    [
        ([30, 100, 500], set(), 0, [64, 128, 512]),  # compiling is free: every width that is needed
        ([30, 100, 500], set(), 1000, [512]),  # and dear: one
        ([30] * 100 + [500], set(), 1000, [64, 512]),  # saves 3000 x (512 - 64) / 700
        ([30] * 50 + [500], set(), 1000, [512]),  # saves 1500 x (512 - 64) / 700
        ([30, 40], {128}, 1000, [128]),
        ([30] * 1000, {128}, 1000, [64]),
    ],
)
def test_widths_are_worth_their_compilation(lengths, known, compile_tokens, chosen):
    assert choose_widths(lengths, width_ladder(512), known, compile_tokens) == chosen


def test_rows_are_packed_tightly_and_examples_know_nothing_of_each_other():
    """Against each example in a row of its own, for a model whose weights are large."""
    bert = loaded(dataclasses.replace(CONFIG, max_position_embeddings=64))
    shapes = []

    def hidden(params, batch):
        shapes.append(batch["input_ids"].shape)
        states, mask = encode(bert.module, params, batch)
        return jnp.stack([state * mask[:, :, None] for state in states], axis=1)

    stream = [example._replace(extra={}) for example in examples(200, longest=30)]
    stream = [example._replace(input_ids=np.array(example.input_ids) % 24) for example in stream]
    mesh = partitioning.make_mesh("", jax.devices()[:1])
    results = list(map_examples(hidden, bert.params, stream, mesh=mesh, max_length=64, batch_size=8))
    alone = jax.jit(functools.partial(bert.module.apply, method="encode"))
    for example, states in results[::9]:
        length = len(example.input_ids)
        row = np.zeros((3, 1, 64), np.int32)
        row[:, 0, :length] = example.input_ids, np.ones(length), example.segment_ids
        expected = np.stack(alone({"params": bert.params}, *row))[:, 0, :length]
        np.testing.assert_allclose(states[:, :length], expected, atol=2e-5)
    assert shapes[0] == (8, 64) and len(shapes) <= 2


def test_hardly_anything_is_computed_for_padding():
    lengths = np.random.default_rng(0).integers(5, 50, 3000).tolist()
    rows = [row for batch, _ in _pack(lengths, [64], 1024, 1, is_last=True) for row in batch]
    assert sorted(number for row in rows for number in row) == list(range(3000))
    assert all(sum(lengths[number] for number in row) <= 64 and len(row) <= SLOTS for row in rows)
    assert sum(lengths) / (64 * len(rows)) > 0.97


def test_ctrl_c_does_not_wait_for_a_compilation():
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(params, batch):
        begun.set()
        may_end.wait(10)
        ended.set()
        return batch["lengths"].reshape(-1)

    def stream():
        yield from examples(2)
        begun.wait(10)
        raise KeyboardInterrupt

    mesh = partitioning.make_mesh("", jax.devices()[:1])
    with pytest.raises(KeyboardInterrupt):
        list(map_examples(slow, {}, stream(), mesh=mesh, max_length=40, window_tokens=1))
    assert not ended.is_set()
    may_end.set()
