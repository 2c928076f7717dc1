"""Bringing up JAX: several processes, and the precision of matrix products."""

import signal
from collections.abc import Callable
from typing import Any

import jax

from input_pipeline.errors import UserError

CONNECT_SECONDS = 120


def start(flags: Any, message: Callable[[str], None] = lambda text: None) -> None:
    """Joins the other processes, if any, and sets the matmul precision; call before anything touches a device.

    Raises:
        UserError: the three flags of several processes do not fit together, or the others do not answer in time.
    """
    address, count, index = flags.coordinator_address, flags.num_processes, flags.process_id
    if address or count is not None or index is not None:
        if not address or count is None or index is None:
            raise UserError("--coordinator_address, --num_processes and --process_id belong together: give all or none")
        if index >= count:
            raise UserError(f"--process_id={index} must be below --num_processes={count}")
        try:
            jax.distributed.initialize(address, count, index, initialization_timeout=CONNECT_SECONDS)
        except Exception as error:
            raise UserError(
                f"--coordinator_address={address}: process {index} of {count} could not join within "
                f"{CONNECT_SECONDS} s: {str(error).strip().splitlines()[0]}"
            ) from None
        # JAX's runtime has taken SIGTERM over; this gives it back to the handler that Python knows of.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    precision = flags.matmul_precision or ("highest" if flags.precision == "f32" else "default")
    jax.config.update("jax_default_matmul_precision", precision)
    devices = jax.devices()
    text = f"{len(devices)} {devices[0].device_kind} device{'s' * (len(devices) > 1)}"
    if jax.process_count() > 1:
        text += f", process {jax.process_index()} of {jax.process_count()}"
    message(f"{text}; {flags.precision}, matrix products in {precision} precision")
