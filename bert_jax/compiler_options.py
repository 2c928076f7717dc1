"""What the compiler is told beyond the program."""

from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh

# Left to itself the compiler for TPUs adds all gradients up in one transfer after the backward pass. In pieces of about
# the size of a weight, each is under way beside the work of the layers below it. The last option is about the gathering
# of cut parameters, which it would make a sum of whole arrays where the parts are small.
_TPU = {
    "xla_jf_crs_combiner_threshold_in_bytes": "1000000",
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}


# What an error says for which the options are to blame: an older compiler, and (always on v4, with its 16 MiB of fast
# memory) pieces of transfers that do not fit beside the work.
_BLAMED = ("No such compile option", "memory space vmem")


def compile_lowered(lowered: jax.stages.Lowered, mesh: Mesh) -> Any:
    """Compiles a program for the devices of a mesh."""
    device = mesh.devices.flat[0]
    if device.platform == "tpu" and mesh.size > 1 and device.device_kind != "TPU v4":
        try:
            return lowered.compile(compiler_options=_TPU)
        except jax.errors.JaxRuntimeError as error:
            if not any(words in str(error) for words in _BLAMED):
                raise
            logging.warning("transfers are not hidden beside work: %s", str(error).strip().splitlines()[0])
    return lowered.compile()
