"""slurm.sh starts the processes, and puts a job that was stopped back into the queue."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import joining

SCRIPT = Path(__file__).parents[1] / "launch" / "slurm.sh"
FLAGS = ["--mode=pretrain", "--text=it's  a $HOME", ""]

# srun runs the tasks of all nodes in turn.
_PROGRAMS = {
    "srun": """#!/bin/sh
echo "$@" >> "$NOTES/srun"
while case $1 in --*) true ;; *) false ;; esac; do shift; done
export SLURM_NTASKS=$SLURM_NNODES SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST
export SLURM_STEP_NUM_NODES=$SLURM_NNODES
worst=0 task=0
while [ "$task" -lt "$SLURM_NTASKS" ]; do
  SLURM_PROCID=$task SLURM_LOCALID=0 "$@" || worst=$?
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
""",
    "squeue": '#!/bin/sh\n[ -n "$STATE" ] && echo "$STATE"\n',
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

    def run(self, *arguments, code=0, nodes=2, state="RUNNING", **more):
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "NOTES": str(self.folder),
            "EXIT": str(code),
            "STATE": state,
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


@pytest.mark.parametrize("nodes", [1, 2])
def test_tasks_get_just_the_flags_and_a_place_in_their_environment(job, nodes):
    assert job.run("--", *FLAGS, nodes=nodes).returncode == 0
    assert [arguments for arguments, _ in job.tasks()] == [["-m", "bert_jax.main", *FLAGS]] * nodes
    places = [joining.find(environment) for _, environment in job.tasks()]
    if nodes == 1:
        assert places == [joining.ALONE]
    else:
        assert places == [joining.Place("Slurm", "slurm", 2, index) for index in range(2)]


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


def test_a_stopped_job_of_unknown_state_stays_out_and_says_so(job):
    result = job.run("--", *FLAGS, code=75, state="")
    assert result.returncode == 75 and "submit it again to go on" in result.stderr
    assert job.noted("scontrol") == []


def test_processes_may_save_when_one_has_ended_and_have_their_cores(job):
    job.run("--", *FLAGS, SLURM_CPUS_PER_TASK="16")
    assert job.noted("srun")[0].startswith(
        "--kill-on-bad-exit=0 --cpu-bind=none --cpus-per-task=16 python -m bert_jax.main "
    )


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


def test_help_is_the_head_of_the_script(job):
    result = job.run("--help", SLURM_JOB_ID="")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith("A Slurm job that runs bert_jax") and "#" not in result.stdout
