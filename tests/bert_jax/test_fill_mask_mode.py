"""--mode=fill_mask: where texts come from, what is written, and which mistakes are named when."""

import dataclasses
import gzip
import io
import json
import os
import sys

import jax
import numpy as np
import pytest
from small_bert import CONFIG, loaded, write_run

import bert_jax
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.main import main
from bert_jax.mask_filling import Candidate, Filling, Text
from bert_jax.modes.fill_mask import json_line, table


@pytest.fixture(scope="module")
def bert():
    return loaded(dataclasses.replace(CONFIG, num_hidden_layers=1))


@pytest.fixture(scope="module")
def folder(bert, tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    export_huggingface(path, bert.config, None, bert.params, bert.tokenizer)
    return path


@pytest.fixture
def run(folder, capsys):
    """Runs the mode and returns exit code, standard output and standard error."""
    precision = jax.config.jax_default_matmul_precision

    def run_mode(*words, **flags):
        flags = {"mode": "fill_mask", "init_checkpoint": folder, **flags}
        code = main(["bert_jax", *(f"--{name}={value}" for name, value in flags.items()), *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run_mode
    jax.config.update("jax_default_matmul_precision", precision)


@pytest.fixture
def mistake(run, monkeypatch):
    """The one line of an error that comes before the weights are read."""

    def line(*words, **flags):
        with monkeypatch.context() as patch:
            patch.setattr("bert_jax.modes.fill_mask.load_from_flags", None)
            code, out, error = run(*words, **flags)
        assert code == 2 and out == "" and error.startswith("error: ") and error.count("\n") == 1
        return error

    return line


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def json_of(output):
    return [json.loads(line) for line in output.splitlines()]


def test_texts_on_the_command_line(run, bert):
    code, out, error = run("the [MASK] sat", " ", "a cat ||| it [MASK]", top_k=2, output_format="jsonl")
    assert code == 0 and "tensors used" in error
    lines = json_of(out)
    pairs = [(line["text"], line.get("text_pair")) for line in lines]
    assert pairs == [("the [MASK] sat", None), ("a cat", "it [MASK]")]
    expected = bert_jax.fill_mask(bert, ["the [MASK] sat", ("a cat", "it [MASK]")], top_k=2)
    for line, masks in zip(lines, expected):
        found = [[Candidate(*candidate.values()) for candidate in mask["candidates"]] for mask in line["masks"]]
        assert [[c[:2] for c in mask] for mask in found] == [[c[:2] for c in mask] for mask in masks]
        np.testing.assert_allclose(
            [c.probability for mask in found for c in mask], [c.probability for mask in masks for c in mask], rtol=1e-5
        )
    assert [[mask["position"] for mask in line["masks"]] for line in lines] == [[2], [5]]
    assert "next_sentence_probability" not in lines[0] and 0 <= lines[1]["next_sentence_probability"] <= 1


def test_files_keep_their_order_and_go_to_a_file(run, bert, tmp_path):
    words = [" ".join(["the"] * (1 + 7 * i % 11)) + " [MASK]" for i in range(40)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(words[:20]).encode()))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in words[20:]))
    target = tmp_path / "new" / "words.jsonl"
    names = f"{tmp_path}/a.txt.gz,{tmp_path}/b.jsonl"
    code, out, error = run(input_file=names, text_field="body", output_file=target, top_k=1, output_format="table")
    assert (code, out) == (0, "") and "40 texts in " in error
    lines = json_of(target.read_text())
    assert [line["text"] for line in lines] == words
    assert os.listdir(target.parent) == ["words.jsonl"]
    for number in (0, 39):
        ((candidate,),) = bert_jax.fill_mask(bert, words[number], top_k=1)
        assert lines[number]["masks"][0]["candidates"][0]["probability"] == pytest.approx(
            candidate.probability, rel=1e-5
        )


def test_standard_input_and_pairs_without_masks(run, bert, monkeypatch):
    standard_input(monkeypatch, b"\xef\xbb\xbfthe cat ||| it was red\r\n\r\na dog ||| a tree")
    code, out, _ = run(output_format="jsonl")
    assert code == 0
    values = bert_jax.next_sentence_probability(bert, [("the cat", "it was red"), ("a dog", "a tree")])
    first, second = json_of(out)
    assert first == {"text": "the cat", "text_pair": "it was red", "masks": []} | {
        "next_sentence_probability": pytest.approx(float(values[0]), rel=1e-5)
    }
    assert second["next_sentence_probability"] == pytest.approx(float(values[1]), rel=1e-5)


def test_a_terminal_is_answered_line_by_line(run, monkeypatch):
    standard_input(monkeypatch, b"the [MASK]\nnothing to fill\nthe " + b"the " * 30 + b"[MASK]\na [MASK]\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    code, out, error = run(top_k=1)
    assert code == 0 and out.count("the [MASK]\n  1  0.") == 1 and out.count("a [MASK]\n  1  0.") == 1
    assert "error: standard input, line 2: it has no [MASK] and is no pair (A ||| B)" in error
    assert "error: standard input, line 3 has 34 tokens" in error


FILLING = Filling([2, 4], [[Candidate("##ing", 7, 0.75), Candidate("北", 8, 1e-7)]] * 2, 0.123456789)


def test_table_and_json():
    assert table(Text("a [MASK]", None, ""), Filling([2], FILLING.candidates[:1], None)) == (
        "a [MASK]\n  1  0.750000  ##ing\n  2  0.000000  北\n\n"
    )
    assert table(Text("a [MASK]", "b [MASK]", ""), FILLING) == (
        "a [MASK] ||| b [MASK]\n  B follows A: 0.123457\n"
        "  [MASK] 1 of 2\n  1  0.750000  ##ing\n  2  0.000000  北\n"
        "  [MASK] 2 of 2\n  1  0.750000  ##ing\n  2  0.000000  北\n\n"
    )
    candidates = [{"token": "##ing", "id": 7, "probability": 0.75}, {"token": "北", "id": 8, "probability": 1e-7}]
    assert json.loads(json_line(Text("a", "b", ""), FILLING)) == {
        "text": "a",
        "text_pair": "b",
        "masks": [{"position": 2, "candidates": candidates}, {"position": 4, "candidates": candidates}],
        "next_sentence_probability": 0.123457,
    }
    assert json_line(Text("北", None, ""), FILLING).isascii()


def test_characters_that_the_terminal_lacks(run, monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "latin-1"))
    assert run("caf\xe9 北 [MASK]", top_k=1)[0] == 0
    assert out.getvalue().startswith(b"caf\xe9 \\u5317 [MASK]\n  1  0.")


def test_a_file_is_replaced_when_told(run, tmp_path):
    (tmp_path / "out.jsonl").write_text("old")
    assert run("--overwrite", "a [MASK]", output_file=tmp_path / "out.jsonl", top_k=1)[0] == 0
    assert json_of((tmp_path / "out.jsonl").read_text())[0]["text"] == "a [MASK]"


def test_words_that_the_locale_could_not_decode(run):
    words = "caf\xe9 [MASK]".encode().decode("ascii", "surrogateescape")
    broken = b"\xff [MASK]".decode("ascii", "surrogateescape")
    code, out, _ = run(words, f"--text={broken}", output_format="jsonl", top_k=1)
    assert code == 0 and [line["text"] for line in json_of(out)] == ["\ufffd [MASK]", "caf\xe9 [MASK]"]


def test_mistakes_that_need_no_model(mistake, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a [MASK]\n\nno\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a [MASK]"}\n{"txt": "a"}\n')
    assert "the text 'a cat': it has no [MASK] and is no pair (A ||| B)" in mistake("[MASK]", "a cat")
    assert f"--input_file: {path}, line 3: it has no [MASK]" in mistake(input_file=path)
    assert "empty.txt: there is no text" in mistake(input_file=tmp_path / "empty.txt")
    assert "bad.jsonl, line 2: field 'text' is missing" in mistake(input_file=tmp_path / "bad.jsonl")
    assert "--text: it is blank" in mistake(" ")
    assert "not from both" in mistake("[MASK]", input_file=path)
    assert "no such file or folder: /nowhere" in mistake("--input_file=/nowhere")
    assert "is an --input_file too" in mistake("--overwrite", input_file=path, output_file=path)
    assert f"--output_file={path} is there already: give --overwrite" in mistake("[MASK]", output_file=path)
    assert "is a folder, a file is needed" in mistake("[MASK]", output_file=tmp_path)
    assert "cannot share standard input" in mistake(num_processes=2, process_id=0, coordinator_address="localhost:1")
    assert "--top_k=0" in mistake("[MASK]", top_k=0)
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "bad.jsonl", "empty.txt"]


def test_mistakes_that_the_model_shows(run, tmp_path, monkeypatch):
    def error(*words, **flags):
        code, out, error = run(*words, **flags)
        assert (code, out) == (2, "")
        return error.splitlines()[-1]

    path = tmp_path / "long.txt"
    path.write_text("a [MASK]\n" * 5 + "the " * 22 + "[MASK]\n")
    assert "line 6 has 25 tokens with [CLS] and [SEP], more than the 24 positions of the model" in error(
        input_file=path
    )
    assert "the text 'a cat [MASK]' has 5 tokens with [CLS] and [SEP], more than --max_seq_length=4" in error(
        "a cat [MASK]", max_seq_length=4
    )
    assert "--max_seq_length=25 is more than max_position_embeddings 24" in error("[MASK]", max_seq_length=25)
    assert "--top_k=32 must be between 1 and the 31 pieces" in error("[MASK]", top_k=32)
    standard_input(monkeypatch, b"\n")
    target = tmp_path / "out.jsonl"
    assert "standard input: there is no text" in error(output_file=target)
    standard_input(monkeypatch, b"a [MASK]\nno\n")
    assert "standard input, line 2: it has no [MASK]" in error(output_file=target)
    assert os.listdir(tmp_path) == ["long.txt"]


def test_missing_parts(run, bert, tmp_path):
    params = {"bert": {name: bert.params["bert"][name] for name in ("embeddings", "encoder")}}
    export_huggingface(tmp_path, bert.config, None, params, bert.tokenizer)
    for text, part in (("[MASK]", "masked-LM head"), ("a ||| b", "next-sentence head")):
        code, _, error = run(text, init_checkpoint=tmp_path)
        assert code == 2 and f"error: these weights have no {part}" in error


def test_a_run_is_used_at_the_length_it_was_trained_with(tmp_path, capsys):
    folder = write_run(tmp_path / "run", loaded(), settings={"max_seq_length": 6})
    assert main(["bert_jax", "--mode=fill_mask", f"--init_checkpoint={folder}", "the cat [MASK]"]) == 0
    assert f"--max_seq_length=6, as in the training of {folder}" in capsys.readouterr().err
    assert main(["bert_jax", "--mode=fill_mask", f"--init_checkpoint={folder}", "the cat sat on [MASK]"]) == 2
    assert "has 7 tokens with [CLS] and [SEP], more than --max_seq_length=6" in capsys.readouterr().err


def test_its_output_can_be_its_input(run, tmp_path):
    lines = run("the [MASK]", "a ||| b ||| it [MASK]", "a cat ||| it", output_format="jsonl", top_k=1)[1]
    (tmp_path / "first.jsonl").write_text(lines)
    assert run(input_file=tmp_path / "first.jsonl", output_format="jsonl", top_k=1)[1] == lines


def test_hints_about_texts_without_a_mask(mistake, tmp_path):
    assert "is no pair (A ||| B); put a text of several words in quotes\n" in mistake("the", "[MASK]", "sat")
    assert "is no pair (A ||| B); [MASK] is written in capitals\n" in mistake("the [Mask] sat")
    assert "is no pair (A ||| B)\n" in mistake("cat")
    (tmp_path / "a.jsonl").write_text('{"text": "[MASK]"}\n{"text": "a", "text_pair": 1}\n')
    assert "a.jsonl, line 2: field 'text_pair' is no string" in mistake(input_file=tmp_path / "a.jsonl")
