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


def compile_lowered(lowered: jax.stages.Lowered, mesh: Mesh) -> Any:
    """Compiles a program for the devices of a mesh."""
    if mesh.devices.flat[0].platform == "tpu" and mesh.size > 1:
        try:
            return lowered.compile(compiler_options=_TPU)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            logging.warning("this compiler lacks an option that hides transfers: %s", error)
    return lowered.compile()
