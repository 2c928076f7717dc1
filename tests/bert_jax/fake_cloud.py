"""A `gcloud` for tests: keeps the state of one TPU in a folder, and runs what goes to workers in folders that stand for
their disks. `fake_cloud.py ROOT ARGUMENTS` is one call of it; Cloud is how a test looks at it and changes it.

Workers have a `curl` that knows their metadata and a `python3` whose uv makes environments with a made-up Python: that
one notes its arguments, and runs until SIGTERM, which it answers with exit code 75, or until the bucket has a file
`exit` with its exit code. A file `broken` in the bucket lets the next installation of packages fail.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_PYTHON = r"""#!/bin/sh
ps -o pgid= -p "$$" >> "$BUCKET/pids"
printf '%s\n' "$@" "" >> "$BUCKET/commands"
trap 'exit 75' TERM
left=10000 # should nobody end it
until [ -e "$BUCKET/exit" ] || [ "$left" -eq 0 ]; do sleep 0.05; left=$((left - 1)); done
exit "$(cat "$BUCKET/exit")"
"""
_PYTHON3 = r"""#!/bin/sh
echo "$*" >> "$BUCKET/installs"
for last in "$@"; do :; done
case "$*" in *"uv pip"*) [ ! -e "$BUCKET/broken" ] || { rm "$BUCKET/broken"; exit 1; } ;; esac
case "$*" in *"uv venv"*) mkdir -p "$last/bin" && cp "$BUCKET/python" "$last/bin/python" ;; esac
"""
_CURL = r"""#!/bin/sh
for last in "$@"; do :; done
case $last in
  */agent-worker-number) printf %s "$WORKER" ;;
  */worker-network-endpoints) printf %s "$ENDPOINTS" ;;
  *) exit 22 ;;
esac
"""


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Cloud:
    """What is in the folder `root`: state.json, calls.jsonl, disks/WORKER, bucket/, bin/."""

    def __init__(self, root: Path):
        self.root = root
        self.bucket = root / "bucket"

    def make(self, workers: int = 1, **state) -> "Cloud":
        """A new one, without any TPU unless the state says so.

        Args:
            state: values of the state. `states` are those that the queued resource goes through, the last one stays;
                `creations` has these for each queued resource that is asked for. `preempt_at` has the numbers of the
                calls of status, from 1, before which the TPU is preempted; at `finish_at` its runs end well.
        """
        self.bucket.mkdir(parents=True)
        _write_program(self.root / "bin/gcloud", f'#!/bin/sh\nexec {sys.executable} {__file__} {self.root} "$@"\n')
        _write_program(self.root / "tools/curl", _CURL)
        _write_program(self.root / "tools/python3", _PYTHON3)
        _write_program(self.bucket / "python", _PYTHON)
        self.change(**{"workers": workers, "states": ["ABSENT"], "vm": "ABSENT", "statuses": 0} | state)
        return self

    @property
    def state(self) -> dict:
        return json.loads((self.root / "state.json").read_text())

    def change(self, **values) -> None:
        path = self.root / "state.json"
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps((self.state if path.exists() else {}) | values))
        new.replace(path)  # another call may be reading it

    def calls(self) -> list[list[str]]:
        """The arguments of all calls so far."""
        path = self.root / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        """Of all calls that change something: create, delete, or what a worker was told to do."""
        told = [re.search(r"tpu_worker\.sh (\w+)", " ".join(call)) for call in self.calls()]
        verbs = [match[1] if match else call[3] for match, call in zip(told, self.calls())]
        return [verb for verb in verbs if verb not in ("describe", "status", "scp")]

    def commands(self) -> list[list[str]]:
        """The arguments of all runs of Python so far."""
        path = self.bucket / "commands"
        return [part.split("\n") for part in path.read_text().split("\n\n")[:-1]] if path.exists() else []

    def preempt(self) -> None:
        self.end_runs()
        shutil.rmtree(self.root / "disks", ignore_errors=True)
        self.change(states=["SUSPENDED"], vm="ABSENT")

    def end_runs(self) -> None:
        """Kills them, with what waits for them on the worker."""
        path = self.bucket / "pids"
        for pid in path.read_text().split() if path.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)
        path.unlink(missing_ok=True)

    def answer(self, arguments: list[str]) -> int:
        with (self.root / "calls.jsonl").open("a") as calls:
            calls.write(json.dumps(arguments) + "\n")
        group, verb, *rest = arguments[2:]
        return getattr(self, f"_{group}_{verb}".replace("-", "_"))(rest)

    def _queued_resources_describe(self, rest: list[str]) -> int:
        state, *later = self.state["states"]
        if state == "ABSENT":
            return _no_such("queuedResources")
        print(state)
        self.change(states=later or [state], vm="READY" if state == "ACTIVE" and later == [] else self.state["vm"])
        return 0

    def _queued_resources_create(self, rest: list[str]) -> int:
        if self.state["states"] != ["ABSENT"]:
            print("ERROR: ALREADY_EXISTS", file=sys.stderr)
            return 1
        creations = self.state.get("creations") or [["ACTIVE"]]
        self.change(states=creations[0], creations=creations[1:], vm="READY")
        return 0

    def _queued_resources_delete(self, rest: list[str]) -> int:
        shutil.rmtree(self.root / "disks", ignore_errors=True)
        self.change(states=["ABSENT"], vm="ABSENT")
        return 0

    def _tpu_vm_describe(self, rest: list[str]) -> int:
        if self.state["vm"] == "ABSENT":
            return _no_such("nodes")
        print(self.state["vm"])
        return 0

    def _tpu_vm_scp(self, rest: list[str]) -> int:
        source, target = rest[:2]
        for disk in self._disks(rest):
            shutil.copy(source, disk / target.partition(":")[2])
        return 0

    def _tpu_vm_ssh(self, rest: list[str]) -> int:
        command = next(word for word in rest if word.startswith("--command=")).partition("=")[2]
        if "tpu_worker.sh status" in command:
            self.change(statuses=self.state["statuses"] + 1)
            if self.state["statuses"] in self.state.get("preempt_at", []):
                self.preempt()
            if self.state["statuses"] == self.state.get("finish_at"):
                (self.bucket / "exit").write_text("0")
        if self.state["vm"] != "READY":
            print("ERROR: cannot connect", file=sys.stderr)
            return 255
        count, code = self.state["workers"], 0
        endpoints = ",".join(f"host-{index}:{index}:10.0.0.{index + 1}" for index in range(count))
        for index, disk in enumerate(self._disks(rest)):
            environment = {
                "HOME": str(disk),
                "PATH": f"{self.root / 'tools'}:{os.environ['PATH']}",
                "BUCKET": str(self.bucket),
                "WORKER": str(index),
                "ENDPOINTS": endpoints,
            }
            code = subprocess.run(["bash", "-c", command], cwd=disk, env=environment).returncode or code
        return code

    def _disks(self, rest: list[str]) -> list[Path]:
        count = self.state["workers"] if "--worker=all" in rest else 1
        disks = [self.root / "disks" / str(index) for index in range(count)]
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
        return disks


def _no_such(kind: str) -> int:
    print(f"ERROR: (gcloud.compute.tpus.describe) NOT_FOUND: Resource '{kind}/it' was not found", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(Cloud(Path(sys.argv[1])).answer(sys.argv[2:]))
