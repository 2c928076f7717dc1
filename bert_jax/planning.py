"""What a train step costs on devices that need not be there: memory, time, traffic (see program_costs.py)."""

import contextlib
import dataclasses
import gzip
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from bert_jax import collectives, hlo_reading, joining, partitioning, program_costs
from bert_jax.chips import Chip, parse_topology
from bert_jax.model_costs import parameter_rows, training_flops
from bert_jax.pretraining_step import PretrainingStep
from input_pipeline.errors import UserError

PRESENT = ("cpu", "gpu")
INSTALL_HINT = "pip install -e '.[plan]' installs it (no TPU is needed)"

# libtpu looks for the machine it is on, takes a lock, and talks on standard error; a plan needs none of that.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOAD_LIBRARY": "1",
    "TPU_MIN_LOG_LEVEL": "4",
    "TPU_STDERR_LOG_LEVEL": "4",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


# Flags that change what a step does, as a plan records them.
_SETTINGS = ("optimizer", "precision", "remat", "scan_layers", "shard_optimizer", "gradient_reduction")
_SETTINGS += ("gradient_accumulation_steps",)


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices of a plan.

    Attributes:
        chip: None for the present machine, whose speed is not known.
        chips: how many; a device is a core of one where they are fewer than the devices.
    """

    name: str
    chip: Chip | None
    devices: Sequence[jax.Device]
    chips: int
    hosts: int

    @property
    def num_slices(self) -> int:
        return len(set(map(partitioning.slice_of, self.devices)))

    @property
    def chip_share(self) -> float:
        """Share of a chip that a device is."""
        return self.chips / len(self.devices)

    @property
    def capacity(self) -> int | None:
        """Bytes of memory of a device, where they are known."""
        if self.chip:
            return int(self.chip.hbm_bytes * self.chip_share)
        stats = self.devices[0].memory_stats() or {}
        return stats.get("bytes_limit")


def check(topology: str) -> None:
    """Finds mistakes in --topology before anything is loaded.

    Raises:
        UserError: no such topology, or no compiler for it.
    """
    if topology in PRESENT:
        return
    parse_topology(topology)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"--topology={topology} needs the compiler for TPUs, libtpu: {INSTALL_HINT}")


def open_target(topology: str) -> Target:
    """The devices of --topology; call before anything touches a device.

    Raises:
        UserError: the compiler does not know the topology, or this machine has no such devices.
    """
    check(topology)
    if topology in PRESENT:
        if topology == "cpu" or joining.has_libtpu_only(os.environ):
            jax.config.update("jax_platforms", "cpu")
        try:
            devices = jax.devices(topology)
        except RuntimeError:
            raise UserError(f"--topology={topology}: this machine has no {topology.upper()} that JAX can use") from None
        return Target(topology, None, devices, len(devices), jax.process_count())
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")  # a TPU that is here stays free for whoever trains on it
    chip, name, slices = parse_topology(topology)
    options = {"chip_config_name": "megacore"} if chip.cores > 1 else {}  # else each core is a device
    if slices > 1:
        options["num_slices"] = slices
    if name.endswith(":1x1"):  # a host of its own, smaller than libtpu takes them to be
        options["chips_per_host_bounds"] = [1, 1, 1]
    try:
        with _quiet_stderr():
            found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
        if threading.current_thread() is threading.main_thread():
            # libtpu has taken SIGTERM over; this gives it back to the handler that Python knows of.
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--topology={topology}: libtpu does not take it: {reason}") from None
    devices = list(found.devices)
    chips = len(set(map(_place, devices)))
    hosts = len({device.process_index for device in devices})
    return Target(topology, chip, devices, chips, hosts)


def _place(device: jax.Device) -> tuple[int, ...]:
    """Where its chip is."""
    return (partitioning.slice_of(device), *device.coords)


def placement(mesh: jax.sharding.Mesh) -> collectives.Placement:
    """Where a program runs: its devices are those of one slice, numbered in the order of the mesh."""
    devices = list(mesh.devices.flat)
    first = [device for device in devices if partitioning.slice_of(device) == partitioning.slice_of(devices[0])]
    slices = partitioning.slices_of(mesh)
    sizes = {name: int(size) // slices[name] for name, size in mesh.shape.items()}
    return collectives.Placement(
        sizes, [_place(device) for device in first], slices, {d.id: partitioning.slice_of(d) for d in devices}
    )


@contextlib.contextmanager
def _quiet_stderr():
    """Keeps what C++ libraries write to standard error away; Python's own goes on."""
    saved, stream = os.dup(2), sys.stderr
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        if stream is sys.__stderr__:
            sys.stderr = open(saved, "w", closefd=False)  # noqa: SIM115
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = stream
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def compile_plan(step: PretrainingStep, target: Target, num_train_steps: int) -> tuple[dict[str, Any], str]:
    """Compiles the train step.

    Returns:
        What plan.json holds, and the text of the compiled program; it is empty where the compiler gives up because the
        step does not fit into memory, and of memory the plan then holds the peak.
    """
    started = time.monotonic()
    compiled, text = None, ""
    try:
        with _quiet_stderr() if target.chip else contextlib.nullcontext():
            compiled = step.compile_train()
        text = compiled.as_text()
        memory = _memory(compiled, target)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or not target.chip or "memory space vmem" in str(error):
            raise
        memory = _memory_of(str(error))
    plan = _outline(step, target, num_train_steps) | {"memory": memory}
    if compiled:
        plan = describe(plan, step, target, compiled, text)
    plan["compile_seconds"] = round(time.monotonic() - started, 1)
    return plan, text


def _outline(step: PretrainingStep, target: Target, num_train_steps: int) -> dict[str, Any]:
    """What is known of a step without compiling it."""
    flags, config = step.flags, step.task.module.config
    mesh = {name: int(size) for name, size in step.mesh.shape.items()}
    devices = len(target.devices)
    model_flops = training_flops(config, flags.max_seq_length, flags.max_predictions_per_seq) * flags.train_batch_size
    parts = partitioning.batch_shards(step.mesh) * flags.gradient_accumulation_steps
    return {
        "topology": target.name,
        "chip": target.chip.name if target.chip else target.devices[0].device_kind,
        "devices": devices,
        "chips": target.chips,
        "hosts": target.hosts,
        "mesh": mesh,
        "slices": partitioning.slices_of(step.mesh),
        "model": json.loads(config.to_json()),
        "parameters": sum(row.total for row in parameter_rows(config)),
        **{name: getattr(flags, name) for name in _SETTINGS},
        "gradient_reduction": flags.gradient_reduction if partitioning.cuts_rows_only(step.mesh) else "f32",
        "attention_kernel": step.task.module.attention_kernel,
        "train_batch_size": flags.train_batch_size,
        "per_device_batch": flags.train_batch_size / parts,
        "max_seq_length": flags.max_seq_length,
        "max_predictions_per_seq": flags.max_predictions_per_seq,
        "flops": {"model": model_flops / devices},
        "estimated_step_seconds": None,
        "mfu": None,
        "hfu": None,
        "sequences_per_second": None,
        "num_train_steps": num_train_steps,
        "days": None,
        "chip_hours": None,
    }


def describe(plan: dict[str, Any], step: PretrainingStep, target: Target, compiled: Any, text: str) -> dict[str, Any]:
    """Adds what a compiled step tells; seconds, bytes and FLOPs are of one device and one step."""
    compiler = compiled.cost_analysis() or {}
    flops = plan["flops"] | {"compiler": float(compiler.get("flops", 0.0))}
    if target.chip is None:
        return plan | {"flops": flops}
    found = program_costs.costs(hlo_reading.read(text), target.chip, placement(step.mesh))
    seconds = program_costs.total_seconds(found, target.chip)
    peak = target.chip.flops_per_second * target.chip_share  # of a device
    flops |= {"matmul": found.matmul_flops, "waste": found.matmul_flops / flops["model"] - 1}
    return plan | {
        "flops": flops,
        "cycles": found.cycles,
        "clock": target.chip.clock,
        "loops_counted_once": found.loops_counted_once,
        "unaccounted": [row._asdict() for row in found.unaccounted],
        "collectives": [key._asdict() | sums._asdict() for key, sums in collectives.by_axes(found.collectives).items()],
        "exposed_collective_seconds": sum(r.times * (r.seconds - r.hidden_seconds) for r in found.collectives),
        "estimated_step_seconds": seconds,
        "mfu": flops["model"] / (seconds * peak),
        "hfu": flops["matmul"] / (seconds * peak),
        "sequences_per_second": plan["train_batch_size"] / seconds,
        "days": seconds * plan["num_train_steps"] / 86400,
        "chip_hours": seconds * plan["num_train_steps"] * target.chips / 3600,
    }


def _memory(compiled: Any, target: Target) -> dict[str, Any]:
    """Bytes on a device; the results of a step lie in the place of its arguments where they are donated."""
    stats = compiled.memory_analysis()
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "results": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    peak, capacity = sum(memory.values()), target.capacity
    return memory | {"peak": peak, "capacity": capacity, "fits": None if capacity is None else peak <= capacity}


def _memory_of(message: str) -> dict[str, Any]:
    """What the compiler tells of a program that does not fit: "... (43.02G) exceeds available HBM (15.75G)"."""
    sizes = [float(number) * 1024 ** " KMGT".index(unit) for number, unit in re.findall(r"([\d.]+)([KMGT])\b", message)]
    peak, capacity = (*map(int, sizes), None, None)[:2]
    return {"peak": peak, "capacity": capacity, "fits": False}


def compressed(text: str) -> bytes:
    """The text of a program for compiled.hlo.txt.gz; the same text gives the same bytes."""
    return gzip.compress(text.encode(), mtime=0)
