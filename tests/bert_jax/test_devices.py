"""Joining other processes: what is wrong is said at once."""

import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from bert_jax import devices
from input_pipeline.errors import UserError


def flags(**given):
    names = ("coordinator_address", "num_processes", "process_id", "matmul_precision")
    return SimpleNamespace(**{**dict.fromkeys(names), "precision": "f32", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"process_id": 0}, "belong together"),
        ({"coordinator_address": "localhost:1", "num_processes": 2}, "belong together"),
        ({"coordinator_address": "localhost:1", "num_processes": 2, "process_id": 2}, "--process_id=2 must be below"),
        ({"coordinator_address": "localhost", "num_processes": 2, "process_id": 0}, "must be HOST:PORT"),
    ],
)
def test_flags_that_do_not_fit(given, words):
    with pytest.raises(UserError, match=words):
        devices.start(flags(**given))


def test_processes_that_do_not_come_are_not_waited_for_long():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    script = f"""
from types import SimpleNamespace
from bert_jax import devices
devices.CONNECT_SECONDS = 1
devices.start(SimpleNamespace(coordinator_address="{address}", num_processes=2, process_id=0))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: --coordinator_address={address}: process 0 of 2 waited 1 s for the others: not all came\n"
    )


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({}, "highest"),
        ({"precision": "bf16"}, "default"),
        ({"matmul_precision": "high"}, "high"),
    ],
)
def test_precision_is_set_and_said(given, precision, capsys):
    before = jax.config.jax_default_matmul_precision
    try:
        devices.start(flags(**given))
        assert jax.config.jax_default_matmul_precision == precision
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    said = capsys.readouterr().err
    assert f"in {precision} precision" in said and "1 cpu device;" in said
