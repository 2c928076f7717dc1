"""--mode=export: folders that are whole or not there, and never over something else."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from small_bert import CONFIG, loaded, write_run

import bert_jax
from bert_jax.main import main
from bert_jax.modes import export
from input_pipeline.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("export") / "run", loaded())


def command(*words, **flags):
    return main(["bert_jax", "--mode=export", *words, *(f"--{name}={value}" for name, value in flags.items())])


@pytest.mark.parametrize("form", ["huggingface", "tf1"])
def test_export_and_import_are_the_identity(run, tmp_path, form, capsys):
    target = tmp_path / "new" / "model"
    assert command(init_checkpoint=run, format=form, output_dir=target) == 0
    assert f"done: {target} holds the {form} export" in capsys.readouterr().err
    again = bert_jax.load(target)
    assert again.config == CONFIG
    assert again.tokenizer.fingerprint == loaded().tokenizer.fingerprint
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded().params)
    assert json.loads((target / "export.json").read_text())["format"] == form
    assert os.listdir(tmp_path / "new") == ["model"]


def test_stablehlo(run, tmp_path):
    assert command(init_checkpoint=run, format="stablehlo", platforms="cpu", output_dir=tmp_path / "out") == 0
    assert {"model.stablehlo", "signature.json", "vocab.txt"} <= set(os.listdir(tmp_path / "out"))


def test_a_full_folder_is_left_alone(run, tmp_path, capsys):
    flags = {"init_checkpoint": run, "format": "huggingface", "output_dir": tmp_path}
    (tmp_path / "thesis.txt").write_text("years of work")
    assert command(**flags) == 2
    assert "is not empty: choose a new folder, or give --overwrite" in capsys.readouterr().err
    assert command("--overwrite", **flags) == 2
    assert (
        "holds something else than an export, which --overwrite will not delete: thesis.txt" in capsys.readouterr().err
    )
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_export_is_written_over_when_told(run, tmp_path, capsys):
    flags = {"init_checkpoint": run, "output_dir": tmp_path / "out"}
    assert command(format="huggingface", **flags) == 0
    assert command(format="tf1", **flags) == 2
    assert command("--overwrite", format="tf1", **flags) == 0
    assert "model.safetensors" not in os.listdir(tmp_path / "out")
    assert "bert_model.ckpt.index" in os.listdir(tmp_path / "out")


def test_nothing_is_left_of_an_export_that_failed(run, tmp_path, monkeypatch, capsys):
    def fail(folder, *rest):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "export_huggingface", fail)
    assert command(init_checkpoint=run, format="huggingface", output_dir=tmp_path / "out") == 2
    assert capsys.readouterr().err.endswith(f"error: --output_dir={tmp_path}/out: No space left on device\n")
    assert os.listdir(tmp_path) == []


def test_what_lies_beside_an_export_is_not_deleted(run, tmp_path, capsys):
    flags = {"init_checkpoint": run, "output_dir": tmp_path / "out", "format": "tf1"}
    assert command(**flags) == 0
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    before = sorted(os.listdir(tmp_path / "out"))
    assert command("--overwrite", **flags) == 2
    assert "will not delete: thesis.txt" in capsys.readouterr().err
    (tmp_path / "out" / "thesis.txt").unlink()
    (tmp_path / "out" / "export.json").write_text("{}")
    assert command("--overwrite", **flags) == 2
    assert sorted([*os.listdir(tmp_path / "out"), "thesis.txt"]) == before


def test_a_full_disk_is_named_without_the_folder_that_is_written(run, tmp_path, monkeypatch, capsys):
    def fail(folder, *rest):
        raise UserError(f"writing: cannot access {folder}/vocab.txt: File too large")

    monkeypatch.setattr(export, "export_tf1", fail)
    assert command(init_checkpoint=run, format="tf1", output_dir=tmp_path / "a" / "out") == 2
    assert capsys.readouterr().err.endswith(f"error: --output_dir={tmp_path}/a/out: File too large\n")
    assert os.listdir(tmp_path) == []


def test_files_have_the_usual_mode(run, tmp_path):
    before = os.umask(0o027)
    try:
        assert command(init_checkpoint=run, format="huggingface", output_dir=tmp_path / "out") == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "out", *(tmp_path / "out").iterdir()]}
    assert modes.pop("out") == 0o750 and "model.safetensors" in modes
    assert set(modes.values()) == {0o640}, modes


def test_an_empty_folder_is_filled_where_it_is(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert command(init_checkpoint=run, format="tf1", output_dir=".") == 0
    assert "export.json" in os.listdir(".") and os.listdir(tmp_path) == ["here"]
    assert command("--overwrite", init_checkpoint=run, format="huggingface", output_dir=".") == 0
    assert "model.safetensors" in os.listdir(".") and "bert_model.ckpt.index" not in os.listdir(".")


def test_links_are_followed(run, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for form in ("tf1", "huggingface"):
        assert command("--overwrite", init_checkpoint=run, format=form, output_dir=tmp_path / "link") == 0
        assert json.loads((tmp_path / "out" / "export.json").read_text())["format"] == form
    assert (tmp_path / "link").is_symlink() and sorted(os.listdir(tmp_path)) == ["link", "out"]


def test_what_a_killed_run_left_is_no_obstacle(run, tmp_path):
    (tmp_path / "out" / ".out.1234.tmp").mkdir(parents=True)
    assert command(init_checkpoint=run, format="tf1", output_dir=tmp_path / "out") == 0


def test_a_mistake_ends_all_processes(tmp_path, free_port):
    words = [sys.executable, "-m", "bert_jax.main", "--mode=export", "--format=tf1", f"--init_checkpoint={tmp_path}/no"]
    words += [f"--output_dir={tmp_path}/out", f"--coordinator_address=localhost:{free_port}", "--num_processes=2"]
    running = [subprocess.Popen([*words, f"--process_id={i}"], stderr=subprocess.PIPE, text=True) for i in range(2)]
    try:
        said = [process.communicate(timeout=120)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [2, 2]
    assert {errors.splitlines()[-1] for errors in said} == {
        f"error: --init_checkpoint: no such file or folder: {tmp_path}/no"
    }


def test_sigterm_is_a_stop(run, tmp_path, monkeypatch, capsys):
    def wait(folder, *rest):
        (folder / "half").touch()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(export, "export_tf1", wait)
    assert command(init_checkpoint=run, format="tf1", output_dir=tmp_path / "out") == 75
    assert "stopped; nothing that was written before is lost" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"format": "onnx"}, "--format=onnx"),
        ({"format": None}, "--mode=export needs --format"),
        ({"output_dir": None}, "--mode=export needs --output_dir"),
        ({"init_checkpoint": None}, "--mode=export needs --init_checkpoint"),
        ({"init_checkpoint": "/nowhere"}, "--init_checkpoint: no such file or folder: /nowhere"),
        # before the weights are read
        (
            {"platforms": "gpu", "format": "stablehlo", "init_checkpoint": "/nowhere"},
            "--platforms: 'gpu' is not one of",
        ),
    ],
)
def test_mistakes(run, tmp_path, capsys, flags, complaint):
    usual = {"init_checkpoint": run, "format": "tf1", "output_dir": tmp_path / "out"}
    assert command(**{name: value for name, value in (usual | flags).items() if value is not None}) == 2
    errors = capsys.readouterr().err
    assert complaint in errors and "Traceback" not in errors
    assert not (tmp_path / "out").exists()
