import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax import main
from bert_jax.modes.prepare import ProgressDisplay
from input_pipeline.token_store import TokenStore


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "in" / "a.txt"
    path.parent.mkdir()
    path.write_text("The cat sat.\nIt sat on the mat.\n\nA dog ran.\nIt ran off.\n\n" * 20)
    return path


def run(**flags) -> int:
    return main.main(["bert_jax", "--mode=prepare", *(f"--{name}={value}" for name, value in flags.items())])


def test_a_store_is_made_once(tmp_path, text, capsys):
    def again(**changes):
        code = run(**({"input_file": text, "output_dir": tmp_path / "store", "vocab_size": 40} | changes))
        return code, *capsys.readouterr()

    code, out, _ = again()
    assert code == 0
    assert out.splitlines() == [
        "training a wordpiece vocabulary of 40 pieces",
        "1 file, 40 documents, 80 sentences, 540 tokens (6.8 a sentence, 0.00% unknown)",
    ]
    store = TokenStore.open(tmp_path / "store")
    assert store.tokenizer.vocab_size == 40 and store.tokenizer.do_lower_case is True
    before = {name: os.stat(tmp_path / "store" / name).st_mtime_ns for name in os.listdir(tmp_path / "store")}

    code, out, _ = again()
    assert code == 0 and "is complete already: 1 file, 40 documents" in out
    assert {name: os.stat(tmp_path / "store" / name).st_mtime_ns for name in before} == before

    vocab_file = tmp_path / "store" / "vocab.txt"
    assert again(output_dir=tmp_path / "second", vocab_file=vocab_file)[0] == 0
    assert again(output_dir=tmp_path / "second", vocab_file=vocab_file)[0] == 0
    assert TokenStore.open(tmp_path / "second").fingerprint == store.fingerprint

    for changes, problem in (
        ({"vocab_size": 41}, "--vocab_size was 40, now it is 41"),
        ({"do_lower_case": False}, "--do_lower_case was True, now it is False"),
        ({"input_file": "builtin"}, "builtin was not part of it"),
        ({"sentence_splitting": "always"}, "--sentence_splitting was auto, now it is always"),
    ):
        code, _, err = again(**changes)
        assert code == 2 and err.count("\n") == 1 and problem in err


def test_the_vocabulary_beside_a_checkpoint(tmp_path, text, capsys):
    assert run(input_file=text, output_dir=tmp_path / "cased_L-2", vocab_size=40, do_lower_case=False) == 0
    (tmp_path / "cased_L-2" / "tokenizer_config.json").unlink()
    (tmp_path / "cased_L-2" / "bert_model.ckpt.index").touch()
    flags = {"input_file": text, "init_checkpoint": tmp_path / "cased_L-2" / "bert_model.ckpt"}
    assert run(output_dir=tmp_path / "store", **flags) == 0
    tokenizer = TokenStore.open(tmp_path / "store").tokenizer
    assert tokenizer.vocab_size == 40 and tokenizer.do_lower_case is False
    assert run(output_dir=tmp_path / "store", **flags) == 0
    assert "is complete already" in capsys.readouterr().out
    assert run(output_dir=tmp_path / "other", vocab_size=38, **flags) == 0
    assert TokenStore.open(tmp_path / "other").tokenizer.vocab_size == 38


def test_sentencepiece_and_several_inputs(tmp_path, text):
    (tmp_path / "in" / "b.txt").write_text("Birds fly far.\n" * 30)
    both = f"{text},{tmp_path / 'in' / 'b*.txt'}"
    assert run(input_file=both, output_dir=tmp_path / "store", vocab_size=25, vocab_kind="sentencepiece") == 0
    store = TokenStore.open(tmp_path / "store")
    assert store.num_documents == 41 and store.metadata["tokenizer_kind"] == "sentencepiece"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"output_dir": "new"}, "needs --input_file"),
        ({"input_file": "in/a.txt"}, "needs --output_dir"),
        ({"input_file": "in/a.txt", "output_dir": "new"}, "--vocab_file is missing; or give --vocab_size"),
        (
            {"input_file": "in/no.txt", "output_dir": "new", "vocab_size": 40},
            "--input_file: no such file or folder: in/no",
        ),
        ({"input_file": "in/a.txt", "output_dir": "in", "vocab_size": 40}, "--output_dir: in is not empty"),
        ({"input_file": "in/a.txt", "output_dir": "in/a.txt/b", "vocab_size": 40}, "--output_dir: in/a.txt/b"),
        ({"input_file": "in/a.txt", "output_dir": "new", "vocab_size": 40_000}, "--vocab_size=40000 is too large"),
        ({"input_file": "in/empty.txt", "output_dir": "new", "vocab_size": 40}, "no usable documents in in/empty.txt"),
        ({"input_file": "in/a.txt", "output_dir": "gs://none/x", "vocab_size": 40}, "gs://none/x"),
        ({"input_file": "gs://none/a.txt", "output_dir": "new", "vocab_size": 40}, "gs://none/a.txt"),
        (
            {"input_file": "in/a.txt", "output_dir": "new", "vocab_size": 40, "init_checkpoint": "none"},
            "--init_checkpoint: no such file or folder: none",
        ),
        ({"input_file": "in/a.txt", "output_dir": "new", "vocab_file": "gs://none/vocab.txt"}, "gs://none/vocab.txt"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, text, capsys, monkeypatch, flags, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "empty.txt").touch()
    assert run(**flags) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
    assert os.listdir(tmp_path) == ["in"]


def test_beam_is_asked_for_by_name(tmp_path, text, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    assert run(input_file=text, output_dir=tmp_path / "store", vocab_size=40, runner="DirectRunner") == 2
    assert "pip install apache-beam" in capsys.readouterr().err


def test_progress_lines(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("bert_jax.modes.prepare.time.monotonic", lambda: clock[0])
    with ProgressDisplay() as progress:
        for second in range(0, 31, 5):
            clock[0] = second
            progress(int(second * 1e6), int(30e6), {"documents": 1000 * second, "tokens": 2000 * second})
    assert capsys.readouterr().err.splitlines() == [
        "preparing: 10 of 30 MB, 10,000 documents, 2,000 tokens/s, 20 s left",
        "preparing: 20 of 30 MB, 20,000 documents, 2,000 tokens/s, 10 s left",
        "preparing: 30 of 30 MB, 30,000 documents, 2,000 tokens/s, 0 s left",
    ]


def test_text_needs_neither_jax_nor_tensorflow(tmp_path, text):
    code = (
        "import sys; from bert_jax import main; code = main.main(sys.argv); "
        "print(code, *(name for name in ('jax', 'tensorflow') if name in sys.modules))"
    )
    flags = [f"--input_file={text}", f"--output_dir={tmp_path / 'store'}", "--vocab_size=40", "--num_workers=2"]
    result = subprocess.run([sys.executable, "-c", code, "--mode=prepare", *flags], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "0", result.stderr
