"""Seconds from the command of the quick start to what it prints, in an empty folder, up to the first step.

    python benchmarks/quick_start.py [--output_file=results.jsonl]

The command is `python -m bert_jax.main --mode=pretrain`, with a line for every step so that the first is seen. The run
is ended then.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results
from absl import app, flags

_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "A file to which the results are added as one line of JSON.")

CLONE = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "bert_jax.main", "--mode=pretrain", "--log_every_steps=1")


def run(folder: str) -> list[tuple[float, str]]:
    """(seconds since the start, line) of all that the command prints up to the first step."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(CLONE), environment.get("PYTHONPATH"))))
    lines = []
    start = time.perf_counter()
    process = subprocess.Popen(
        COMMAND, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in process.stdout:
            lines.append((time.perf_counter() - start, line.rstrip()))
            print(f"{lines[-1][0]:6.1f} s  {lines[-1][1][:110]}", flush=True)
            if re.match(r"\s*step \d", line):
                return lines
    finally:
        process.kill()
        process.communicate()
    raise app.UsageError("the command ended before its first step")


def main(_):
    with tempfile.TemporaryDirectory() as folder:
        lines = run(folder)
    results.add(
        _OUTPUT_FILE.value,
        {"threads": results.threads(), "seconds": lines[-1][0], "lines": [[s, line[:110]] for s, line in lines]},
    )


if __name__ == "__main__":
    app.run(main)
