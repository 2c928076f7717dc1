"""--mode=extract: a row a line in order, on any devices; files that fit; mistakes that are named."""

import gzip
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import bert_jax
from bert_jax.main import main

LINES = ["the cat sat .", "", "a dog ran ||| and then it sat", "tree " * 30, "big ||| red ||| blue"]


@pytest.fixture
def run(tiny_bert_folder, tmp_path, capsys):
    """Runs the mode; returns the exit code and what it said."""

    def run_mode(**flags):
        flags = {"init_checkpoint": tiny_bert_folder, "output_file": tmp_path / "out.npy", **flags}
        code = main(["main", "--mode=extract", *(f"--{name}={value}" for name, value in flags.items())])
        return code, capsys.readouterr().err

    return run_mode


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture(scope="module")
def expected(tiny_bert_folder):
    texts = [LINES[0], "", ("a dog ran", "and then it sat"), LINES[3], ("big ||| red", "blue")]
    return lambda **arguments: bert_jax.encode(bert_jax.load(tiny_bert_folder), texts, **arguments)


def near(value, expected):
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5)


def test_a_row_a_line(run, lines, tmp_path, expected):
    code, said = run(input_file=lines)
    assert code == 0
    near(np.load(tmp_path / "out.npy"), expected())
    assert "1 of 5 lines were longer than 20 tokens, and were cut" in said
    assert "5 lines in " in said and f"vectors [24] are in {tmp_path / 'out.npy'}" in said
    assert sorted(os.listdir(tmp_path)) == ["lines.txt", "out.npy"]


def test_flags_say_what_is_made(run, lines, tmp_path, expected):
    made = {"layers": "0,-1", "layer_combination": "list", "pooling": "none", "max_seq_length": 9}
    code, _ = run(input_file=lines, output_file=tmp_path / "out.npz", eval_batch_size=2, **made)
    assert code == 0
    tokens = expected(layers=(0, -1), layer_combination="list", pooling="none", max_seq_length=9)
    with np.load(tmp_path / "out.npz") as read:
        near(read["features"], np.concatenate(tokens))
        np.testing.assert_array_equal(np.diff(read["offsets"]), [6, 2, 9, 9, 9])


def test_standard_input_json_and_gzip(run, tmp_path, monkeypatch, expected):
    content = "\n".join(LINES).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert run()[0] == 0
    near(np.load(tmp_path / "out.npy"), expected())
    (tmp_path / "a.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES[:2]).encode()))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in LINES[2:]))
    given = f"{tmp_path / 'a.gz'},{tmp_path / 'b.json*'}"
    assert run(input_file=given, text_field="body", overwrite="true")[0] == 0
    near(np.load(tmp_path / "out.npy"), expected())
    (tmp_path / "b.jsonl").write_text('{"text": "a dog ran", "text_pair": "and then it sat"}\n')
    assert run(input_file=tmp_path / "b.jsonl", overwrite="true")[0] == 0
    near(np.load(tmp_path / "out.npy"), expected()[2:3])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"output_file": "x.csv"}, "--output_file=x.csv must end in .npy"),
        ({"pooling": "none"}, "with --pooling=none write .npz"),
        ({"layers": "top"}, "--layers=top must be whole numbers, such as -1"),
        ({"layers": "7"}, "--layers: there is no layer 7: this model has 0 (the embeddings) to 2"),
        ({"layers": "1", "pooling": "pooled"}, "--layers: pooling=pooled reads the top layer only"),
        ({"max_seq_length": "30"}, "--max_seq_length=30 must be between 3"),
        ({"input_file": "none.txt"}, "--input_file: no such file or folder: none.txt"),
        ({"init_checkpoint": "none"}, "--init_checkpoint: "),
        ({"mesh": "data=3"}, "--mesh=data=3 is for 3 devices"),
        ({"num_processes": "2", "process_id": "0"}, "--coordinator_address, --num_processes and --process_id belong"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(run, lines, tmp_path, flags, message):
    code, said = run(**{"input_file": lines, **flags})
    assert code == 2 and said.splitlines()[-1].startswith("error: --") and message in said
    assert os.listdir(tmp_path) == ["lines.txt"]


def test_files_that_are_there(run, lines, tmp_path):
    (tmp_path / "out.npy").write_text("old")
    code, said = run(input_file=lines)
    assert code == 2 and f"--output_file={tmp_path / 'out.npy'} is there already: give --overwrite" in said
    assert run(input_file=lines, overwrite="true")[0] == 0
    assert np.load(tmp_path / "out.npy").shape == (5, 24)
    (tmp_path / "in.jsonl").write_text('{"text": "cat"}\n')
    flags = {"input_file": tmp_path / "*.jsonl", "output_file": tmp_path / "in.jsonl", "overwrite": "true"}
    code, said = run(**flags)
    assert code == 2 and "in.jsonl is an --input_file too" in said


def test_bad_and_missing_lines(run, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "cat"}\n{"title": "dog"}\n')
    code, said = run(input_file=tmp_path / "a.jsonl")
    assert code == 2 and "a.jsonl, line 2: field 'text' is missing; there are: title (--text_field)" in said
    (tmp_path / "b.txt").write_text("")
    code, said = run(input_file=tmp_path / "b.txt")
    assert code == 2 and "--input_file: there is no line in" in said
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.txt"]


def test_a_remote_output_that_cannot_be_reached(run, lines, tmp_path, monkeypatch):
    from input_pipeline import files

    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    code, said = run(input_file=lines, output_file="gs://nonexistent-bucket/x.npy")
    assert code == 2 and "gs://nonexistent-bucket/x.npy" in said
    assert os.listdir(tmp_path) == ["lines.txt"]


def test_eight_devices_give_the_rows_of_one(tiny_bert_folder, tmp_path, expected):
    """1012 lines in batches of 64, and 5 lines, fewer than devices: each line has its row."""
    rng = np.random.default_rng(0)
    words = ["the", "a", "cat", "dog", "sat", "tree", "big"]
    (tmp_path / "1012.txt").write_text("".join(" ".join(rng.choice(words, n % 12)) + "\n" for n in range(1012)))
    (tmp_path / "5.txt").write_text("\n".join(LINES))
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    script = "import sys; from bert_jax.main import main; sys.exit(any([main(a.split()) for a in sys.argv[1:]]))"
    runs = [
        f"main --mode=extract --init_checkpoint={tiny_bert_folder} --input_file={tmp_path}/{name}.txt "
        f"--output_file={tmp_path}/{name}.npy --eval_batch_size=64 --mesh={mesh}"
        for name, mesh in (("1012", "data=8"), ("5", "data=2,fsdp=2,tensor=2"))
    ]
    subprocess.run([sys.executable, "-c", script, *runs], env=os.environ | {"XLA_FLAGS": flags}, check=True)
    bert = bert_jax.load(tiny_bert_folder)
    vectors = np.load(tmp_path / "1012.npy")
    assert vectors.shape == (1012, 24)
    near(vectors, bert_jax.encode(bert, (tmp_path / "1012.txt").read_text().split("\n")[:-1]))
    near(np.load(tmp_path / "5.npy"), expected())


def test_two_processes_write_one_file(tiny_bert_folder, lines, tmp_path, expected, free_port):
    words = [sys.executable, "-m", "bert_jax.main", "--mode=extract", f"--init_checkpoint={tiny_bert_folder}"]
    words += [
        f"--input_file={lines}",
        f"--output_file={tmp_path}/out.npy",
        f"--coordinator_address=localhost:{free_port}",
    ]
    running = [
        subprocess.Popen([*words, "--num_processes=2", f"--process_id={index}"], stderr=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    near(np.load(tmp_path / "out.npy"), expected())
    assert "5 lines in" in said[0] and "5 lines in" not in said[1]
