"""The commands of docs/pods.md are taken as they stand there."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bert_jax.main import parse

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "pods.md").read_text()
LINES = [
    part.strip()
    for block in re.findall(r"^```\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    for part in line.split("&&")
]


def commands(program):
    found = [words[words.index(program) + 1 :] for line in LINES if program in (words := shlex.split(line))]
    assert found
    return found


@pytest.mark.parametrize("words", commands("launch/tpu_vm.sh"), ids=lambda words: words[0])
def test_tpu_vm_takes_it(words, tmp_path):
    gcloud = tmp_path / "gcloud"
    gcloud.write_text("#!/bin/sh\nexit 9\n")  # never the one of this machine
    gcloud.chmod(0o755)
    script = ["bash", ROOT / "launch" / "tpu_vm.sh", words[0], "--dry_run", *words[1:]]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith(("gcloud ", "tar ")), result.stderr


@pytest.mark.parametrize("program", ["launch/tpu_vm.sh", "launch/slurm.sh", "bert_jax.main"])
def test_bert_jax_takes_the_flags(program, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in commands(program):
        if "--" in words or program == "bert_jax.main":
            mode = parse(["bert_jax", *words[words.index("--") + 1 if "--" in words else 0 :]]).mode
            assert mode == ("plan" if "--mode=plan" in words else "pretrain")


def test_all_verbs_are_there():
    assert {words[0] for words in commands("launch/tpu_vm.sh")} == set(
        "create install start logs status stop watch delete".split()
    )
