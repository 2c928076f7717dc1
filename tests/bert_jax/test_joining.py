"""The place of a process among others, by its environment."""

import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_jax import joining
from bert_jax.joining import ALONE, Place
from input_pipeline.errors import UserError

ROOT = Path(__file__).parents[2]
SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "node[7-8]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
GKE = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1"}
SLICES = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, ALONE),
        (SLURM, Place("Slurm", "slurm", 4, 3, (1,))),
        (SLURM | {"SLURM_NTASKS": "1"}, ALONE),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, ALONE),  # the shell of salloc
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_NODELIST"}, ALONE),  # the script of a job
        (OPEN_MPI, Place("Open MPI", None, 4, 3, (1,))),
        (OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1"}, Place("Open MPI", "ompi", 4, 3, (1,))),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, ALONE),
        (GKE | SLICES, ALONE),  # no TPU here
        ({"JOB_COMPLETION_INDEX": "3"}, Place("Kubernetes", None, 1, 3)),
    ],
)
def test_places(environ, place):
    assert joining.find(environ) == place


@pytest.mark.parametrize(
    ("environ", "devices"),
    [
        ({}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, (4, 5, 6, 7)),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ()),  # Slurm has given each task its own
        ({"SLURM_STEP_NUM_NODES": "4", "SLURM_LOCALID": "0"}, ()),
        ({"SLURM_STEP_NUM_NODES": "3"}, (1,)),  # 2, 1 and 1 tasks
    ],
)
def test_processes_on_a_host_share_its_gpus(environ, devices):
    assert joining.find(SLURM | environ).devices == devices


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (SLURM | {"SLURM_NTASKS": "many"}, "SLURM_NTASKS=many is no number"),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "a"}, "SLURM_LOCALID is not set"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK is not set"),
        ({"JOB_COMPLETION_INDEX": "abc"}, "JOB_COMPLETION_INDEX=abc is no number"),
    ],
)
def test_variables_that_make_no_sense(environ, words):
    with pytest.raises(UserError, match=words):
        joining.find(environ)


def test_libtpu_without_a_tpu_is_left_alone(monkeypatch):
    installed = {"libtpu"}
    monkeypatch.setattr(joining.importlib.util, "find_spec", lambda name: name if name in installed else None)
    monkeypatch.setattr(joining, "_tpu_devices", list)
    monkeypatch.setattr(joining.glob, "glob", lambda pattern: [])
    assert joining.has_libtpu_only({})
    assert not joining.has_libtpu_only({"JAX_PLATFORMS": "tpu"})
    assert not joining.has_libtpu_only({"TPU_WORKER_ID": "0"})
    monkeypatch.setattr(joining, "_tpu_devices", lambda: ["/dev/accel0"])
    assert not joining.has_libtpu_only({})
    monkeypatch.setattr(joining, "_tpu_devices", list)
    installed.add("jax_plugins")
    assert not joining.has_libtpu_only({})
    installed.clear()
    assert not joining.has_libtpu_only({})


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
def test_a_run_where_libtpu_is_installed_is_quiet(tmp_path):
    """Whatever the libraries put into the environment; on a machine with a TPU there is nothing to see."""
    words = ["--mode=pretrain", "--mesh=data=5", f"--output_dir={tmp_path}"]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax.main", *words], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 2
    assert not [line for line in done.stderr.splitlines() if "WARNING" in line or "INVALID_ARGUMENT" in line]


def test_a_device_of_google_may_be_a_tpu(tmp_path):
    (tmp_path / "vendor").write_text("0x1ae0\n")
    assert joining._is_of_google(tmp_path / "vendor")
    (tmp_path / "vendor").write_text("0x8086\n")
    assert not joining._is_of_google(tmp_path / "vendor") and not joining._is_of_google(tmp_path / "none")


@pytest.fixture
def on_tpu(monkeypatch):
    monkeypatch.setattr(joining, "_tpu_devices", lambda: ["/dev/accel0"])
    monkeypatch.setattr(joining.importlib.util, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (GKE, Place("Cloud TPU", "gketpu", 2, 1)),
        (GKE | SLICES, Place("Cloud TPU", "gketpu", 4, 3)),
        (GKE | {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, ALONE),
        (GKE | {"JAX_PLATFORMS": "cpu"}, ALONE),
        ({"TPU_SKIP_MDS_QUERY": "1"}, ALONE),
    ],
)
def test_hosts_of_slices_by_variables(on_tpu, environ, place):
    assert joining.find(environ) == place


@pytest.fixture
def metadata(on_tpu):
    """Attributes that a server has, which cannot answer at first, and the variables of a machine that it is for."""
    attributes, failures = {}, [503]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            value = attributes.get(self.path.rpartition("/")[2])
            code = 404 if value is None or self.headers["Metadata-Flavor"] != "Google" else 200
            self.send_response(failures.pop() if failures else code)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield attributes, {"GCE_METADATA_IP": f"localhost:{server.server_port}", "HTTP_PROXY": "http://nowhere:1"}
        server.shutdown()


@pytest.mark.parametrize(
    ("workers", "settings", "place"),
    [
        ("u:0:10.0.0.1", "", ALONE),
        ("u:0:10.0.0.1,u:1:10.0.0.2", "ACCELERATOR_TYPE: 'v4-16'\n", Place("Cloud TPU", "gcetpu", 2, 1)),
        ("host0,host1", "MEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '2'\n", Place("Cloud TPU", "gcetpu", 6, 5)),
    ],
)
def test_hosts_of_slices_by_metadata(metadata, workers, settings, place):
    attributes, environ = metadata
    attributes |= {"worker-network-endpoints": workers, "agent-worker-number": "1", "tpu-env": settings}
    assert joining.find(environ) == place


def test_a_machine_that_says_nothing_is_alone(metadata):
    assert joining.find(metadata[1]) == ALONE
    assert joining.find({"GCE_METADATA_IP": "localhost:1"}) == ALONE


@pytest.mark.parametrize(
    ("environ", "flags", "number", "several"),
    [
        ({}, {}, 0, False),
        (SLURM, {}, 3, True),
        (SLURM, {"num_processes": 1}, 0, False),
        ({}, {"num_processes": 2, "process_id": 1}, 1, True),
        ({"JOB_COMPLETION_INDEX": "3"}, {}, 0, False),
        ({"JOB_COMPLETION_INDEX": "3"}, {"num_processes": 4}, 3, True),
    ],
)
def test_flags_come_before_the_environment(monkeypatch, environ, flags, number, several):
    monkeypatch.setattr(joining, "found", lambda: joining.find(environ))
    flags = SimpleNamespace(**{"num_processes": None, "process_id": None, **flags})
    assert (joining.index(flags), joining.are_several(flags)) == (number, several)
