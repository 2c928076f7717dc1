"""slurm.sh starts the processes that JAX joins, and puts a job that was stopped back into the queue."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jax._src.clusters.slurm_cluster import SlurmCluster

SCRIPT = Path(__file__).parents[1] / "launch" / "slurm.sh"
FLAGS = ["--mode=pretrain", "--text=it's  a $HOME", ""]

# srun runs the tasks of all nodes in turn.
_PROGRAMS = {
    "srun": """#!/bin/sh
echo "$@" >> "$NOTES/srun"
while case $1 in --*) true ;; *) false ;; esac; do shift; done
export SLURM_NTASKS=$((SLURM_NNODES * TASKS_PER_NODE)) SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST
worst=0 task=0
while [ "$task" -lt "$SLURM_NTASKS" ]; do
  SLURM_PROCID=$task SLURM_LOCALID=$((task % TASKS_PER_NODE)) "$@" || worst=$?
  task=$((task + 1))
done
exit $worst
""",
    "python": f"""#!{sys.executable}
import json, os, sys
with open(os.environ["NOTES"] + "/tasks", "a") as file:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=file)
sys.exit(int(os.environ["EXIT"]))
""",
    "scontrol": """#!/bin/sh
echo "$@" >> "$NOTES/scontrol"
[ "$1" = requeue ] || printf 'node7\\nnode8\\n'
""",
    "squeue": '#!/bin/sh\necho "$STATE"\n',
}


class Job:
    """What Slurm does with the script, in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in _PROGRAMS.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def run(self, *arguments, code=0, nodes=2, tasks_per_node=1, state="RUNNING", **more):
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "NOTES": str(self.folder),
            "EXIT": str(code),
            "STATE": state,
            "TASKS_PER_NODE": str(tasks_per_node),
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_ID": "5000",
            "SLURM_JOB_NODELIST": "node[7-8]",
        }
        return subprocess.run(["bash", SCRIPT, *arguments], env=environment | more, capture_output=True, text=True)

    def noted(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def tasks(self):
        """Arguments and environment of each Python."""
        return [json.loads(line) for line in self.noted("tasks")]


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_a_node_alone_gets_just_the_flags(job):
    assert job.run("--", *FLAGS, nodes=1).returncode == 0
    [[arguments, environment]] = job.tasks()
    assert arguments == ["-m", "bert_jax.main", *FLAGS]
    assert "SLURM_LOCALID" not in environment


def test_two_nodes_have_a_process_each_that_sees_all_its_gpus(job, monkeypatch):
    assert job.run("--", *FLAGS).returncode == 0
    for index, (arguments, environment) in enumerate(job.tasks()):
        processes = ["--coordinator_address=node7:62344", "--num_processes=2", f"--process_id={index}"]
        assert arguments == ["-m", "bert_jax.main", *FLAGS, *processes]
        monkeypatch.setattr(os, "environ", environment)
        assert not SlurmCluster.is_env_present()  # JAX would take one GPU of each node


def test_with_several_tasks_on_a_node_each_takes_one_gpu(job, monkeypatch):
    assert job.run("--", *FLAGS, tasks_per_node=2).returncode == 0
    places = []
    for arguments, environment in job.tasks():
        monkeypatch.setattr(os, "environ", environment)
        assert SlurmCluster.is_env_present()
        places.append((arguments[-1], SlurmCluster.get_local_process_id()))
    assert places == [("--process_id=0", 0), ("--process_id=1", 1), ("--process_id=2", 0), ("--process_id=3", 1)]


def test_the_port_is_the_one_that_jax_would_take(job, monkeypatch):
    job.run("--", *FLAGS, tasks_per_node=2)
    arguments, environment = job.tasks()[0]
    monkeypatch.setattr(os, "environ", environment)
    assert f"--coordinator_address={SlurmCluster.get_coordinator_address(1, None)}" in arguments


@pytest.mark.parametrize(
    ("code", "state", "requeued"),
    [
        (75, "RUNNING", True),
        (75, "COMPLETING", False),  # cancelled
        (75, "PREEMPTED", False),  # Slurm does it
        (0, "RUNNING", False),
        (1, "RUNNING", False),
        (2, "RUNNING", False),
    ],
)
def test_only_a_stopped_job_goes_back_into_the_queue(job, code, state, requeued):
    assert job.run("--", *FLAGS, code=code, state=state).returncode == code
    assert ("requeue 5000" in job.noted("scontrol")) == requeued


def test_processes_may_save_when_one_has_ended_and_have_their_cores(job):
    job.run("--", *FLAGS, SLURM_CPUS_PER_TASK="16")
    assert job.noted("srun")[0].startswith("--kill-on-bad-exit=0 --cpu-bind=none --cpus-per-task=16 bash -c ")


def test_options_are_the_first_lines_after_the_comment(job):
    """sbatch reads no further than the first command."""
    lines = SCRIPT.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines[: lines.index("set -euo pipefail")] if "#SBATCH" in line]
    assert {"--ntasks-per-node=1", "--signal=TERM@120", "--requeue", "--open-mode=append"} <= set(options)
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", option) for option in options)


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_missing_flags_are_told(job, arguments):
    result = job.run(*arguments)
    assert result.returncode == 2 and result.stderr.startswith("error: the flags of bert_jax are missing")
    assert job.noted("srun") == []


def test_outside_of_slurm_it_is_told_what_to_do(job):
    result = job.run("--", *FLAGS, SLURM_JOB_ID="")
    assert result.returncode == 2
    assert result.stderr == "error: this is a job of Slurm: sbatch launch/slurm.sh -- --mode=pretrain ...\n"
