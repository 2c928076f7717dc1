"""--mode=tokenize: one JSON line a text, from files and standard input."""

import gzip
import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bert_jax.modes import tokenize
from input_pipeline.errors import UserError


@pytest.fixture
def run(data, capsys):
    def run_mode(**given):
        flags = {"vocab_file": str(data / "made_up_vocab.txt"), "do_lower_case": None, "input_file": None}
        flags |= {"text_field": "text", "init_checkpoint": None, "vocab_size": None, "allow_pickled_weights": False}
        tokenize.run(SimpleNamespace(**{**flags, "output_file": None, **given}))
        return [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]

    return run_mode


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_a_text_a_line_with_empty_ones(run, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffThe cat!\r\n\nunaffable x\u2028y\u0085\n \nlast".encode())
    results = run(input_file=[str(path)])
    assert [result["text"] for result in results] == ["The cat!", "", "unaffable x\u2028y\u0085", " ", "last"]
    assert results[0] == {"text": "The cat!", "tokens": ["the", "cat", "!"], "ids": [13, 14, 22]}
    assert results[1] == {"text": "", "tokens": [], "ids": []}
    assert results[2]["tokens"] == ["un", "##aff", "##able", "x", "y"]


def test_json_lines_and_several_files_in_the_order_given(run, tmp_path):
    (tmp_path / "a.txt").write_text("cat\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a\\nb", "id": 1}\n\n{"text": ""}\n{"text": "\\ud800"}\n')
    results = run(input_file=[str(tmp_path / "b.jsonl"), str(tmp_path / "a.txt")])
    assert [result["text"] for result in results] == ["a\nb", "", "\ud800", "cat"]
    assert results[2]["tokens"] == ["[UNK]"]
    assert run(input_file=str(tmp_path / "a.txt"))[0]["tokens"] == ["cat"]


def test_standard_input_and_casing(run, monkeypatch):
    standard_input(monkeypatch, b"The cat\n\xff\n")
    assert [result["tokens"] for result in run(do_lower_case=False)] == [["The", "cat"], []]


def test_output_is_ascii(run, monkeypatch, data, capsys):
    standard_input(monkeypatch, "北\n".encode())
    flags = SimpleNamespace(
        vocab_file=str(data / "made_up_vocab.txt"),
        do_lower_case=None,
        input_file=None,
        output_file=None,
        text_field="text",
        init_checkpoint=None,
    )
    tokenize.run(flags)
    assert capsys.readouterr().out.startswith('{"text": "\\u5317", "tokens": ["\\u5317"], "ids": [')


def test_output_file(run, monkeypatch, tmp_path):
    standard_input(monkeypatch, b"cat\n\n")
    assert run(output_file=str(tmp_path / "new" / "tokens.jsonl")) == []
    lines = (tmp_path / "new" / "tokens.jsonl").read_text().split("\n")
    assert [json.loads(line)["tokens"] for line in lines[:-1]] == [["cat"], []]


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', "{}", '{"text": 1}', "null"])
def test_lines_without_a_text_are_named(run, tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "cat"}\n' + line + "\n")
    with pytest.raises(UserError, match=rf"--input_file: {path}, line 2: (not JSON|not a JSON object|field \'text\')"):
        run(input_file=[str(path)])


def test_missing_files_are_named(run):
    with pytest.raises(UserError, match=r"--input_file: no such file or folder: none\.txt"):
        run(input_file=["none.txt"])
    with pytest.raises(UserError, match="--mode=tokenize needs --vocab_file"):
        run(vocab_file=None)


def test_vocabulary_and_casing_beside_a_checkpoint(run, data, tmp_path, monkeypatch):
    folder = tmp_path / "cased_L-2"
    folder.mkdir()
    (folder / "vocab.txt").write_bytes((data / "made_up_vocab.txt").read_bytes())
    (folder / "bert_model.ckpt.index").touch()

    def tokens(**flags):
        standard_input(monkeypatch, b"The cat\n")
        return run(init_checkpoint=str(folder / "bert_model.ckpt"), **flags)[0]["tokens"]

    assert tokens(vocab_file=None) == ["The", "cat"]
    assert tokens(vocab_file=None, do_lower_case=True) == ["the", "cat"]
    assert tokens() == ["the", "cat"]  # a folder says nothing about another vocabulary
    (folder / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"--init_checkpoint: .*bert_model\.ckpt: no vocabulary lies beside"):
        tokens(vocab_file=None)
    with pytest.raises(UserError, match="--init_checkpoint: no such file or folder: /nowhere"):
        run(init_checkpoint="/nowhere")


def test_gzip_is_known_by_content(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"cat\nthe\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "sat"}\n'))
    results = run(input_file=[str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl.gz")])
    assert [result["text"] for result in results] == ["cat", "the", "sat"]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"cat\nthe\n")[:-9])
    with pytest.raises(UserError, match=r"--input_file: .*/cut\.gz is a damaged or cut-off gzip file"):
        run(input_file=[str(tmp_path / "cut.gz")])


RECORD = (20).to_bytes(8, "little") + b"\1\2\3\4" + b"\n" + b"x" * 19 + b"\1\2\3\4"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (RECORD, "bad holds TFRecords"),
        (b"the cat" + bytes(10), r"bad: is this a text file\? 59% is zeros or no UTF-8"),
        (b"the cat" + b"\xff" * 10, r"bad: is this a text file\? 59% is zeros or no UTF-8"),
        (b"\xff\xfet\0", "bad is UTF-16 text"),
    ],
)
def test_what_is_no_text_is_refused(run, tmp_path, content, problem):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(UserError, match=f"--input_file: .*/{problem}"):
        run(input_file=[str(tmp_path / "bad")])


def test_an_input_is_not_overwritten(run, tmp_path):
    (tmp_path / "a.txt").write_text("cat\n")
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"--output_file=.*/link is an --input_file too"):
        run(input_file=[str(tmp_path / "?.txt")], output_file=str(tmp_path / "link"))
    assert (tmp_path / "a.txt").read_text() == "cat\n"


def test_quick_start_and_a_reader_that_stops_early(data, tmp_path):
    (tmp_path / "long.txt").write_text("the cat sat\n" * 20000)
    words = ["--mode=tokenize", f"--vocab_file={data}/made_up_vocab.txt", f"--input_file={tmp_path}/long.txt"]
    script = f"""
import sys
from bert_jax.main import main
code = main(["bert_jax", *{words}])
sys.exit(3 if {{"jax", "tensorflow"}} & set(sys.modules) else code)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert json.loads(process.stdout.readline())["tokens"] == ["the", "cat", "sat"]
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
