"""The notebook runs from top to bottom on the CPU, with text of one's own, and shows the curves and the words."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

NOTEBOOK = json.loads((Path(__file__).parents[1] / "launch" / "colab.ipynb").read_text())
CODE = {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"}
SENTENCES = ("the cat sat on the mat.", "a big dog ran under the tree.", "and then it was red and blue.")


def python_of(source: str, **values) -> str:
    """A cell as Python: shell commands become calls of `shell`, and form fields take other values."""
    for name, value in values.items():
        source, count = re.subn(rf"^{name} = .*# @param", f"{name} = {value!r}  # @param", source, flags=re.MULTILINE)
        assert count <= 1
    source = source.replace("\\\n", " ")
    return re.sub(r"^( *)!(.*)$", lambda match: f"{match[1]}shell(f{match[2]!r})", source, flags=re.MULTILINE)


class Kernel:
    """Runs cells one after the other; `shown` is what they display, `printed` what commands print."""

    def __init__(self, monkeypatch):
        self.values = {"shell": self._shell}
        self.shown, self.printed, self.commands = [], [], []
        self.runs_commands = True
        display = types.ModuleType("IPython.display")
        display.HTML, display.display = str, self.shown.append
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def _shell(self, command):
        self.commands.append(command)
        if self.runs_commands:
            result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=280)
            assert result.returncode == 0, result.stderr
            self.printed.append(result.stdout)

    def run(self, name, **values):
        exec(compile(python_of(CODE[name], **values), name, "exec"), self.values)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Kernel(monkeypatch)


def uploading(monkeypatch, folder, name, text):
    """What Colab does when the user chooses a file."""

    def upload():
        (folder / name).write_text(text)
        return {name: text.encode()}

    colab = types.ModuleType("google.colab")
    colab.files = types.SimpleNamespace(upload=upload)
    monkeypatch.setitem(sys.modules, "google.colab", colab)


def test_all_cells_run_on_a_text_of_ones_own(kernel, tmp_path, monkeypatch):
    documents = ["\n".join(SENTENCES[(number + k) % 3] for k in range(5)) for number in range(40)]
    uploading(monkeypatch, tmp_path, "my text.txt", "\n\n".join(documents))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")  # to compile takes longer than all else
    fields = {"OWN_TEXT": True, "VOCAB_SIZE": 45, "STEPS": 3, "BATCH": 4, "TEXT": "the [MASK] sat on the mat."}
    for name in CODE:
        kernel.run(name, **fields)
    assert kernel.values["INPUT"] == "my text.txt" and (tmp_path / "runs/notebook/checkpoints/3").is_dir()
    [shown] = kernel.shown
    assert shown.startswith("<iframe srcdoc=") and "&lt;svg" in shown and shown.count('"') == 8
    assert "[MASK]" in kernel.printed[-1]


def test_without_a_text_it_is_the_builtin_one_and_the_quick_start(kernel):
    kernel.runs_commands = False
    for name in ("install", "text", "pretrain"):
        kernel.run(name)
    from bert_jax.modes.pretrain_options import QUICK_START

    [command] = kernel.commands  # nothing is installed where bert_jax is
    for name, value in QUICK_START.items():
        value = ",".join(value) if isinstance(value, list) else value
        [given] = re.findall(rf'--{name}="?([^" ]+)', command)
        assert given == str(value) or float(given) == value, name


@pytest.mark.parametrize(
    ("source", "there", "package"),
    [
        ("https://host/bert_jax", (), "bert_jax @ git+https://host/bert_jax"),
        ("https://host/bert_jax", ("nvidia-smi",), "bert_jax[gpu] @ git+https://host/bert_jax"),
        ("https://host/bert_jax", ("/dev/accel0", "nvidia-smi"), "bert_jax[tpu] @ git+https://host/bert_jax"),
        ("https://host/bert_jax", ("/dev/vfio/0",), "bert_jax[tpu] @ git+https://host/bert_jax"),
        ("clone", ("nvidia-smi",), "clone[gpu]"),
        ("", ("../setup.py",), ".."),
    ],
)
def test_what_is_installed_is_for_the_device(kernel, monkeypatch, source, there, package):
    kernel.runs_commands = False
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(os.path, "exists", lambda path: path in there)
    monkeypatch.setattr("shutil.which", lambda name: name if name in there else None)
    kernel.run("install", SOURCE=source)
    assert kernel.commands == [f'{sys.executable} -m pip install --quiet "{package}"']


def test_a_missing_source_is_told(kernel, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="SOURCE is empty"):
        kernel.run("install")


def test_it_is_saved_without_output():
    assert NOTEBOOK["nbformat"] == 4
    for cell in NOTEBOOK["cells"]:
        assert cell["source"] and not cell.get("outputs") and not cell.get("execution_count")
