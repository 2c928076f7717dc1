"""The Dockerfile has what the package needs, and runs it as a user without rights."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "launch" / "Dockerfile"


def stages():
    """Of each stage the instructions, as (name, arguments) in order."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = [[]]
    for line in filter(None, text.splitlines()):
        name, _, arguments = line.partition(" ")
        assert name in {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}, line
        if name == "FROM":
            found.append([])
        found[-1].append((name, " ".join(arguments.split())))
    return found[1:]


def values(stage, name):
    return [arguments for key, arguments in stage if key == name]


def copied(stage):
    """Sources of COPY, of those that are not of another stage."""
    return [source for line in values(stage, "COPY") if not line.startswith("--from=") for source in line.split()[:-1]]


@pytest.mark.skipif(not shutil.which("hadolint"), reason="no hadolint")
def test_hadolint_finds_nothing():
    result = subprocess.run(["hadolint", DOCKERFILE], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_what_is_copied_is_there():
    for stage in stages():
        for source in copied(stage):
            assert (ROOT / source).exists(), source


def test_what_is_copied_makes_the_whole_package(tmp_path):
    source = tmp_path / "source"
    for name in copied(stages()[0]):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(path, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    ours = {
        str(path.relative_to(ROOT)) for name in ("bert_jax", "input_pipeline") for path in (ROOT / name).rglob("*.py")
    }
    assert ours <= set(zipfile.ZipFile(wheel).namelist())


def test_the_extra_is_none_by_default_and_one_of_setup():
    [build, _] = stages()
    assert values(build, "ARG") == ['EXTRA=""']
    [install] = values(build, "RUN")
    assert install.endswith('pip install --no-cache-dir ".${EXTRA:+[$EXTRA]}"')
    setup = (ROOT / "setup.py").read_text()
    for extra, word in (("", "."), ("gpu", ".[gpu]"), ("tpu", ".[tpu]")):
        shell = subprocess.run(
            ["sh", "-c", 'echo ".${EXTRA:+[$EXTRA]}"'], env={"EXTRA": extra}, capture_output=True, text=True
        )
        assert shell.stdout.strip() == word and (not extra or f'"{extra}": [' in setup)


def test_it_runs_the_command_of_the_readme_without_rights():
    final = stages()[-1]
    assert values(final, "USER") == ["1000:1000"]
    command = json.loads(values(final, "ENTRYPOINT")[0]) + json.loads(values(final, "CMD")[0])
    assert " ".join(command) in (ROOT / "README.md").read_text()
    assert values(final, "COPY")[0] == "--from=build /environment /environment"
    assert "PATH=/environment/bin:$PATH" in values(final, "ENV")[0]


def test_its_python_is_one_that_the_package_takes():
    [version] = re.findall(r"^ARG PYTHON=3\.(\d+)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    [least] = re.findall(r'python_requires=">=3\.(\d+)"', (ROOT / "setup.py").read_text())
    assert int(version) >= int(least)
    assert all(stage[0][1].startswith("python:${PYTHON}-slim") for stage in stages())
