"""Which process of how many this is, as far as the environment says; nothing here waits or touches a device.

Slurm, Open MPI and Cloud TPUs say it, and JAX then finds the first process by itself. Where they say that there is one
process only, there is nobody to join.
"""

import functools
import glob
import importlib.util
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from input_pipeline.errors import UserError

METADATA_SECONDS = 5
# A host that took a moment's silence for being alone would train by itself, in the folder of the others.
METADATA_TRIES = 3


class Place(NamedTuple):
    """A process among others.

    Attributes:
        source: what says so, for messages.
        method: the name under which JAX (jax.distributed.initialize) finds the first process there; None where it
            cannot.
        count: how many processes there are; 1 where nothing says that there are more.
        index: which one this is; None where nothing says so.
        devices: numbers of the GPUs on this host that are for this process; empty: all that it sees.
    """

    source: str
    method: str | None
    count: int
    index: int | None
    devices: tuple[int, ...] = ()


ALONE = Place("", None, 1, None)


def index(flags: Any) -> int:
    """Which process this is, before any others are joined; 0 where there are no others."""
    if flags.process_id is not None:
        return flags.process_id
    return (found().index or 0) if are_several(flags) else 0


def are_several(flags: Any) -> bool:
    """Whether there are other processes, before any are joined."""
    count = flags.num_processes
    return (found().count if count is None else count) > 1


@functools.cache
def found() -> Place:
    """The place of this process, by its environment."""
    return find(os.environ)


def find(environ: Mapping[str, str]) -> Place:
    """The place of a process with these variables on this machine."""
    return _open_mpi(environ) or _slurm(environ) or _tpu(environ) or _indexed_job(environ) or ALONE


def _open_mpi(environ: Mapping[str, str]) -> Place | None:
    """`mpirun` of Open MPI; version 5 and later do not tell where the first process is."""
    count = _number(environ, "OMPI_COMM_WORLD_SIZE", 1)
    if count < 2:
        return None
    method = "ompi" if "OMPI_MCA_orte_hnp_uri" in environ else None
    on_host = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    devices = _share(environ, on_host, _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"))
    return Place("Open MPI", method, count, _number(environ, "OMPI_COMM_WORLD_RANK"), devices)


def _slurm(environ: Mapping[str, str]) -> Place | None:
    """A step of `srun`; the script of a job knows its tasks too, but is none of them."""
    count = _number(environ, "SLURM_NTASKS", 1)
    if count < 2 or "SLURM_STEP_NODELIST" not in environ or environ.get("SLURM_STEP_NUM_TASKS") == "1":
        return None
    on_host = -(-count // _number(environ, "SLURM_STEP_NUM_NODES", 1))
    devices = _share(environ, on_host, _number(environ, "SLURM_LOCALID"))
    return Place("Slurm", "slurm", count, _number(environ, "SLURM_PROCID"), devices)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable that is a whole number; an empty one counts as none."""
    text = environ.get(name) or ("" if default is None else str(default))
    if not re.fullmatch(r"\d+", text):
        found = f"{name}={text} is no number" if text else f"{name} is not set, but others of its kind are"
        raise UserError(f"environment: {found} (--num_processes=1 is for a process without others)")
    return int(text)


def _share(environ: Mapping[str, str], processes: int, local_index: int) -> tuple[int, ...]:
    """The GPUs of one of several processes on a host: equal parts of those that all of them see.

    A process that sees fewer than there are processes was given its own. Without CUDA_VISIBLE_DEVICES there are as many
    as processes, as JAX assumes too.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    each = (len(visible.split(",")) if visible else processes) // processes
    return tuple(range(local_index * each, (local_index + 1) * each)) if processes > 1 else ()


def _tpu(environ: Mapping[str, str]) -> Place | None:
    """Hosts of one slice or of several: variables on GKE, the metadata server on TPU VMs."""
    if not _has_tpu(environ):
        return None
    hosts = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES")
    if hosts:
        method, settings, worker = "gketpu", environ, environ.get("TPU_WORKER_ID", "0")
    elif environ.get("TPU_SKIP_MDS_QUERY") is None:
        method, settings = "gcetpu", _tpu_settings(environ) | environ
        hosts = _metadata(environ, "worker-network-endpoints")
        worker = _metadata(environ, "agent-worker-number")
    if not hosts or not worker:
        return None
    each = len(hosts.split(","))
    count = each * _number(settings, "MEGASCALE_NUM_SLICES", 1)
    index = each * _number(settings, "MEGASCALE_SLICE_ID", 0) + _number({"TPU_WORKER_ID": worker}, "TPU_WORKER_ID")
    return Place("Cloud TPU", method, count, index) if count > 1 else None


# What JAX and TensorFlow set by themselves when they are imported.
_SET_BY_LIBRARIES = ("TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION")


def has_libtpu_only(environ: Mapping[str, str]) -> bool:
    """Whether libtpu is here for plans only: it would look for a TPU when JAX starts, and talk about finding none.

    False where anything speaks for a TPU or a GPU, or where JAX is told what to use.
    """
    names = set(environ) - set(_SET_BY_LIBRARIES)
    told = environ.get("JAX_PLATFORMS") or any(name.startswith(("TPU_", "MEGASCALE_", "COLAB_TPU")) for name in names)
    has_plugin = importlib.util.find_spec("jax_plugins") is not None  # such as that for CUDA
    if told or has_plugin or importlib.util.find_spec("libtpu") is None:
        return False
    return not _tpu_devices() and not any(map(_is_of_google, glob.glob("/sys/bus/pci/devices/*/vendor")))


def _is_of_google(file: str) -> bool:
    try:
        with open(file) as vendor:
            return vendor.read().strip() == "0x1ae0"
    except OSError:
        return False


def _has_tpu(environ: Mapping[str, str]) -> bool:
    platforms = environ.get("JAX_PLATFORMS", "")
    wanted = not platforms or "tpu" in platforms.split(",")
    return wanted and importlib.util.find_spec("libtpu") is not None and bool(_tpu_devices())


def _tpu_devices() -> list[str]:
    return glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")


def _tpu_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The lines NAME: 'VALUE' of the metadata."""
    lines = (_metadata(environ, "tpu-env") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip().strip("'") for name, _, value in pairs}


def _metadata(environ: Mapping[str, str], name: str) -> str | None:
    """An attribute of this virtual machine; None where there is none, or no metadata server."""
    host = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/attributes/{name}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for left in reversed(range(METADATA_TRIES)):
        try:
            with opener.open(request, timeout=METADATA_SECONDS) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
        except OSError:
            pass
        time.sleep(0.5 if left else 0)
    return None


def _indexed_job(environ: Mapping[str, str]) -> Place | None:
    """A pod of an Indexed Job of Kubernetes knows its number, and nothing of the others."""
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    return Place("Kubernetes", None, 1, _number(environ, "JOB_COMPLETION_INDEX"))
