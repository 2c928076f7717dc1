"""Bringing up JAX: several processes, and the precision of matrix products; what the devices are capable of."""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax import background, chips, joining, processes
from input_pipeline.errors import UserError

CONNECT_SECONDS = 120
RESOLVE_SECONDS = 20
LEAVE_SECONDS = 20
GOODBYE_SECONDS = 2
# When nothing was heard of a process for so long, JAX ends the others. A thread of its own sends the signs of life, so
# steps and compilations may take longer.
SILENCE_SECONDS = 30


_joining = threading.Event()  # set while this process waits for the others, with whom it cannot leave yet


def start(flags: Any) -> None:
    """Joins the other processes, if any, and sets the matmul precision; call before anything touches a device.

    Each process says on standard error which one it is, and what devices there are.

    Raises:
        UserError: the three flags of several processes do not fit together, or the others cannot be joined. When they
            do not come in time, the process ends here with such a message.
    """
    if joining.has_libtpu_only(os.environ):
        jax.config.update("jax_platforms", "cpu")
    if (others := _others(flags)) and not jax.distributed.is_initialized():  # a suite's tasks follow one another
        _join(**others)
    if others:
        # JAX's runtime has taken SIGTERM over; this gives it back to the handler that Python knows of.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    precision = flags.matmul_precision or ("highest" if flags.precision == "f32" else "default")
    jax.config.update("jax_default_matmul_precision", precision)
    try:
        devices = jax.devices()
    except RuntimeError as error:  # no such device, or another process has it
        raise UserError(f"JAX finds no device it can use: {str(error).strip().splitlines()[0]}") from None
    text = f"{len(devices)} {devices[0].device_kind} device{'s' * (len(devices) > 1)}"
    if jax.process_count() > 1:
        text += f", process {jax.process_index()} of {jax.process_count()}"
    processes.tell(f"{text}; {flags.precision}, matrix products in {precision} precision")


def _others(flags: Any) -> dict[str, Any] | None:
    """What _join needs to know, from the flags and, where they do not say it, from the environment; None: no others."""
    address, count, index = flags.coordinator_address, flags.num_processes, flags.process_id
    if address is None and index is None and count in (None, 1):
        if count == 1 or joining.found().count == 1:
            return None
        place = joining.found()
        who = f"{place.source}: process {place.index} of {place.count}"
        if place.method is None:
            raise UserError(
                f"{who}: {place.source} does not tell where the first one is: give --coordinator_address=HOST:PORT, or "
                "--num_processes=1 for processes that have nothing to do with each other"
            )
        return {"who": who, "local_device_ids": place.devices, "cluster_detection_method": place.method}
    place = joining.found() if address else joining.ALONE
    if count is None and place.count > 1:
        count = place.count
    if index is None:
        index = place.index
    if not address or count is None or index is None:
        raise UserError(
            "--coordinator_address, --num_processes and --process_id belong together: give all, or none where the "
            "environment (Slurm, Open MPI, a Cloud TPU) says it"
        )
    if not re.fullmatch(r".+:\d+", address):
        raise UserError(f"--coordinator_address={address} must be HOST:PORT, the same for all processes")
    if not 1 <= int(address.rpartition(":")[2]) <= 65535:
        raise UserError(f"--coordinator_address={address}: a port is a number from 1 to 65535")
    if index >= count:
        raise UserError(f"--process_id={index} must be below --num_processes={count}")
    return {
        "who": f"--coordinator_address={address}: process {index} of {count}",
        "coordinator_address": address,
        "num_processes": count,
        "process_id": index,
        "local_device_ids": place.devices,
    }


def _join(who: str, local_device_ids: Sequence[int], **others: Any) -> None:
    """Joins the other processes.

    Args:
        who: this process, for messages.
        local_device_ids: of this process; empty: all. JAX by itself takes one for each process of Slurm.
        others: further arguments of jax.distributed.initialize.
    """

    def give_up():
        processes.tell(
            f"error: {who} waited {CONNECT_SECONDS} s for the others: not all came, or not all were given the same "
            "address (a process without others needs none of these flags, but --num_processes=1)"
        )
        os._exit(2)

    # When its own time is over, JAX does not raise an error but aborts the process.
    timer = threading.Timer(CONNECT_SECONDS, give_up)
    timer.start()
    try:
        _joining.set()
        if address := others.get("coordinator_address"):
            _check_address(address, is_first=others["process_id"] == 0)
        background.wait_for(
            lambda: jax.distributed.initialize(
                local_device_ids=None if "JAX_LOCAL_DEVICE_IDS" in os.environ else list(local_device_ids),
                initialization_timeout=2 * CONNECT_SECONDS,
                heartbeat_timeout_seconds=SILENCE_SECONDS,
                **others,
            )
        )
        _joining.clear()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{who} could not join: {str(error).strip().splitlines()[0]}") from None
    finally:
        timer.cancel()
    processes.service()  # an unusable one is told now, not when it is first needed


def _check_address(address: str, is_first: bool) -> None:
    """Finds out early what JAX would not tell: a host without an address, and on the first process a port in use.

    The name of a host that starts together with this one may come late.
    """
    host, _, port = address.rpartition(":")
    ends = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            socket.getaddrinfo(host.strip("[]"), port)
            break
        except OSError as error:
            if time.monotonic() > ends:
                raise UserError(f"--coordinator_address={address}: there is no host {host}: {error.strerror}") from None
        time.sleep(1)
    if is_first:
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", int(port)))
        except OSError as error:
            raise UserError(
                f"--coordinator_address={address}: port {port} of this machine, the first, cannot be used: "
                f"{error.strerror}"
            ) from None


def seconds_at_peak(flops: float, flags: Any) -> float | None:
    """What `flops` floating-point operations would take all devices at their peak; None where it is not known.

    Args:
        flags: precision and matmul_precision, which say what peak.
    """
    peak = chips.peak_flops_per_second(jax.devices()[0].device_kind, flags.precision, flags.matmul_precision)
    return None if peak is None else flops / (peak * jax.device_count())


def memory_metrics() -> dict[str, int]:
    """memory_peak_bytes, the most memory in use so far on one of this process's devices; nothing on a CPU."""
    found = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    known = [size for size in found if size is not None]
    return {"memory_peak_bytes": max(known)} if known else {}


def check_same_flags(values: Mapping[str, Any]) -> None:
    """Makes sure that all processes were given the same flags, each its --process_id aside.

    Args:
        values: name -> value.

    Raises:
        UserError: on all processes, when they were not.
    """
    if not jax.distributed.is_initialized():
        return
    own = json.loads(json.dumps(values))
    first = processes.from_first(lambda: own)
    differences = [
        f"--{name} is {value} for process {jax.process_index()}, but {first[name]} for process 0"
        for name, value in own.items()
        if value != first[name] and name != "process_id"
    ]
    if not processes.all_true(not differences):
        raise UserError("all processes need the same flags: " + "; ".join(differences or ["see what another one says"]))


def lost_others(error: Exception) -> str | None:
    """What to tell the user about an `error` that only says that another process is gone; None for any other."""
    has_others = jax.distributed.is_initialized()
    if not (has_others and isinstance(error, jax.errors.JaxRuntimeError) and processes.are_lost(error)):
        return None
    return (
        f"process {jax.process_index()} lost contact with another one, which may have said why ("
        f"{str(error).strip().splitlines()[0]}); the same command, given to all again, goes on from the last complete "
        "checkpoint, if there is one"
    )


def leave(code: int) -> int:
    """Returns `code` when all processes leave after an error or a stop; if some do not, ends this one with it.

    At its end a process waits for the others, and they may be waiting for what this one will not do any more. When it
    is gone they get to know, and end too.
    """
    if jax.distributed.is_initialized() and not _joining.is_set():
        try:
            processes.counts("leaving", code, LEAVE_SECONDS)
            if code and processes.is_first():  # the others go first: without this one JAX's runtime aborts them
                time.sleep(GOODBYE_SECONDS)
        except jax.errors.JaxRuntimeError:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code
