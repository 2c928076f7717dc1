"""Joining other processes: what is wrong is said at once."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import pytest

from bert_jax import devices, joining
from input_pipeline.errors import UserError


def flags(**given):
    names = ("coordinator_address", "num_processes", "process_id", "matmul_precision")
    return SimpleNamespace(**{**dict.fromkeys(names), "precision": "f32", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"process_id": 0}, "belong together"),
        ({"coordinator_address": "localhost:1", "num_processes": 2}, "belong together"),
        ({"coordinator_address": "localhost:1", "process_id": 1}, "belong together"),
        ({"num_processes": 2}, "belong together"),
        ({"coordinator_address": "localhost:1", "num_processes": 2, "process_id": 2}, "--process_id=2 must be below"),
        ({"coordinator_address": "localhost", "num_processes": 2, "process_id": 0}, "must be HOST:PORT"),
        ({"coordinator_address": "localhost:99999", "num_processes": 2, "process_id": 0}, "from 1 to 65535"),
        ({"coordinator_address": "localhost:0", "num_processes": 1, "process_id": 0}, "from 1 to 65535"),
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
    assert done.stderr == (
        f"error: --coordinator_address={address}: process 0 of 2 waited 1 s for the others: not all came, or "
        "not all were given the same address (a process without others needs none of these flags, but "
        "--num_processes=1)\n"
    )


def test_a_host_without_an_address_is_told_at_once(monkeypatch):
    monkeypatch.setattr(devices, "RESOLVE_SECONDS", 0)
    given = {"coordinator_address": "nowhere.invalid:1234", "num_processes": 2, "process_id": 1}
    with pytest.raises(UserError, match=r"nowhere\.invalid:1234: there is no host nowhere\.invalid"):
        devices.start(flags(**given))


def test_a_port_in_use_is_told_at_once():
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        address = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(
            UserError, match=f"--coordinator_address={address}: port .* cannot be used: Address already"
        ):
            devices.start(flags(coordinator_address=address, num_processes=2, process_id=0))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_the_others(free_port, tmp_path, number):
    words = ["--mode=pretrain", f"--coordinator_address=localhost:{free_port}", "--num_processes=2", "--process_id=0"]
    script = f"""
import signal, sys
from bert_jax import background, main
signal.signal(signal.SIGINT, signal.default_int_handler)
wait_for = background.wait_for
def told(*arguments):
    print("waiting", flush=True)
    return wait_for(*arguments)
background.wait_for = told
main._end(main.main(["bert_jax", *{words!r}]))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert errors.splitlines()[-1].startswith("stopped; nothing that was written before is lost")


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
}
# On a machine that has a TPU, as far as JAX and we know.
TPU_HOST = """
import importlib.util
from jax._src.clusters import cloud_tpu_cluster
from bert_jax import joining
cloud_tpu_cluster.running_in_cloud_tpu_vm = True
joining._has_tpu = lambda environ: True
"""


@pytest.mark.parametrize(
    ("environ", "own", "prelude", "given", "gpus"),
    [
        (SLURM, lambda i: {"SLURM_PROCID": i, "SLURM_LOCALID": i}, "", {}, "{i}"),
        (
            SLURM | {"SLURM_STEP_NUM_NODES": "2"},
            lambda i: {"SLURM_PROCID": i, "SLURM_LOCALID": 0},
            "",
            {},
            "all",
        ),
        (
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911"},
            lambda i: {"OMPI_COMM_WORLD_RANK": i, "OMPI_COMM_WORLD_LOCAL_RANK": i},
            "",
            {},
            "{i}",
        ),
        (
            OPEN_MPI,  # of version 5
            lambda i: {"OMPI_COMM_WORLD_RANK": i, "OMPI_COMM_WORLD_LOCAL_RANK": i},
            "",
            {"coordinator_address": "localhost:{port}"},
            "{i}",
        ),
        (
            {
                "TPU_WORKER_HOSTNAMES": "localhost",
                "TPU_WORKER_ID": "0",
                "MEGASCALE_NUM_SLICES": "2",
                "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8080",
            },
            lambda i: {"MEGASCALE_SLICE_ID": i},
            TPU_HOST,
            {},
            "all",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "nowhere"},
            lambda i: {"JOB_COMPLETION_INDEX": i},
            "",
            {"coordinator_address": "localhost:{port}", "num_processes": 2},
            "all",
        ),
    ],
    ids=["slurm", "slurm nodes", "open mpi 4", "open mpi 5", "two slices", "indexed job"],
)
def test_two_processes_join_by_their_environment(environ, own, prelude, given, gpus, free_port):
    given = {name: value.format(port=free_port) if name[0] == "c" else value for name, value in given.items()}
    names = dict.fromkeys(("coordinator_address", "num_processes", "process_id", "matmul_precision"))
    script = f"""{prelude}
from types import SimpleNamespace
import jax
from bert_jax import devices
jax.config.update("jax_cpu_collectives_implementation", "gloo")
devices.start(SimpleNamespace(**{ {**names, "precision": "f32", **given}!r}))
print(jax.process_index(), jax.process_count(), jax.device_count(), jax.config._read("jax_cuda_visible_devices"))
"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ
            | environ
            | {"JAX_COORDINATOR_PORT": str(free_port)}
            | {name: str(value) for name, value in own(index).items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for index, process in enumerate(running):
        out, said = process.communicate(timeout=100)
        assert process.returncode == 0, said
        assert out.split() == [str(index), "2", "2", gpus.format(i=index)]
        assert f"2 cpu devices, process {index} of 2" in said


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "Open MPI: process 1 of 2: "),
        (SLURM | {"SLURM_PROCID": "1"}, "Slurm: process 1 of 2 could not join: "),
    ],
)
def test_what_the_environment_does_not_say_is_asked_for(monkeypatch, environ, words):
    monkeypatch.setattr(devices.joining, "found", lambda: joining.find({"SLURM_LOCALID": "1", **environ}))
    with pytest.raises(UserError, match=words):
        devices.start(flags())


def test_devices_that_cannot_be_used_are_told(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'tpu': ABORTED: The TPU is already in use\nmore")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(UserError, match=r"^JAX finds no device it can use: Unable to .* already in use$"):
        devices.start(flags(num_processes=1))


def test_a_process_that_is_said_to_be_alone_is(monkeypatch, capsys):
    monkeypatch.setattr(devices.joining, "found", lambda: pytest.fail("looked"))
    devices.start(flags(num_processes=1))
    assert "1 cpu device;" in capsys.readouterr().err


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


def devices_of(kind, *peaks):
    stats = [lambda peak=peak: peak and {"peak_bytes_in_use": peak} for peak in peaks]
    return [SimpleNamespace(device_kind=kind, memory_stats=read) for read in stats]


def test_the_time_at_peak_is_that_of_all_devices(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: devices_of("TPU v5 lite", 1, 1))
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert devices.seconds_at_peak(197e12, flags()) == 0.5
    monkeypatch.setattr(jax, "devices", lambda: devices_of("cpu", None))
    assert devices.seconds_at_peak(197e12, flags()) is None


def test_the_peak_of_memory_is_that_of_the_fullest_device(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: devices_of("TPU v4", 3, 7, 5))
    assert devices.memory_metrics() == {"memory_peak_bytes": 7}
    monkeypatch.setattr(jax, "local_devices", lambda: devices_of("cpu", None, None))
    assert devices.memory_metrics() == {}


def test_the_loss_of_another_process_is_told_in_one_line(monkeypatch):
    lost = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [::1]:80\nand more")
    assert devices.lost_others(lost) is None  # there is no other one
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert devices.lost_others(lost) == (
        "process 0 lost contact with another one, which may have said why (UNKNOWN: Gloo all-reduce failed: Connection "
        "closed by peer [::1]:80); the same command, given to all again, goes on from the last complete checkpoint, "
        "if there is one"
    )
    assert devices.lost_others(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")) is None
    assert devices.lost_others(OSError("UNAVAILABLE")) is None
