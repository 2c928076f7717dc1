"""--mode=describe on pipes and on terminals."""

import json
import sys

import pytest

from bert_jax.main import parse
from bert_jax.modes.describe import run
from input_pipeline.errors import UserError


@pytest.fixture
def describe(capsys):
    """Runs the mode with flags and returns the lines of its standard output, and its standard error."""

    def describe(*arguments):
        run(parse(["bert_jax", "--mode=describe", *arguments]))
        captured = capsys.readouterr()
        return captured.out.splitlines(), captured.err

    return describe


def cells(lines, *start):
    """The rest of the one line that begins with these words."""
    (found,) = [line.split()[len(start) :] for line in lines if line.split()[: len(start)] == list(start)]
    return found


def test_base_by_default(describe):
    lines, errors = describe()
    assert errors == ""
    assert lines[0] == "base: 110.1M parameters (110M in the paper), 109.5M without heads"
    assert cells(lines, "encoder", "attention") == ["4", "H^2", "2,359,296", "12", "28,311,552"]
    assert cells(lines, "feed-forward", "8") == ["H^2", "4,718,592", "12", "56,623,104"]
    assert cells(lines, "=", "12", "layers") == ["7,087,872", "85,054,464"]
    assert cells(lines, "total", "with") == ["both", "heads", "110,106,428"]
    assert "GFLOPs of a sequence of L = 128 tokens with M = 20 predictions" in lines
    assert cells(lines, "total", "23.308") == ["69.925"]
    assert cells(lines, "total", "1,762.6") == []


def test_large_at_full_length(describe):
    lines, _ = describe("--model=large", "--max_seq_length=512", "--max_predictions_per_seq=80")
    assert lines[0] == "large: 336.2M parameters (340M in the paper), 335.1M without heads"
    assert "GFLOPs of a sequence of L = 512 tokens with M = 80 predictions" in lines


def test_columns_are_aligned(describe):
    lines, _ = describe("--model=tiny")
    table = lines[2 : lines.index("")]
    assert len({line.rindex(" ") for line in table[1:] if line.endswith("256")}) == 1
    assert {len(line) for line in table} == {len(table[0])}


def test_a_configuration_file_and_a_vocabulary(describe, tmp_path):
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps({"vocab_size": 9, "max_position_embeddings": 64, "type_vocab_size": 2, "pooler": 1}))
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    lines, errors = describe(f"--bert_config_file={config}", f"--vocab_file={vocabulary}")
    assert lines[0].startswith(f"{config}: 8")
    assert cells(lines, "embeddings", "words") == ["V", "H", "6,912", "1", "6,912"]
    assert "GFLOPs of a sequence of L = 64 tokens with M = 10 predictions" in lines
    assert errors.splitlines() == [
        f"{config}: ignored keys pooler",
        f"--vocab_file={vocabulary} has 6 entries, vocab_size is 9: the rest stays unused",
    ]
    lines, _ = describe("--model=tiny", f"--vocab_file={vocabulary}")
    assert cells(lines, "embeddings", "words") == ["V", "H", "768", "1", "768"]


def test_the_configuration_beside_a_checkpoint(describe, tmp_path):
    (tmp_path / "bert_model.ckpt.index").touch()
    checkpoint = f"--init_checkpoint={tmp_path}/bert_model.ckpt"
    with pytest.raises(UserError, match=r"bert_model\.ckpt: no configuration lies beside the weights"):
        describe(checkpoint)
    (tmp_path / "bert_config.json").write_text(json.dumps({"vocab_size": 9, "max_position_embeddings": 64}))
    lines, _ = describe(checkpoint)
    assert lines[0].startswith(f"{tmp_path}/bert_model.ckpt: 8")
    assert cells(lines, "embeddings", "words") == ["V", "H", "6,912", "1", "6,912"]
    assert describe(checkpoint, "--model=tiny")[0][0].startswith("tiny: ")
    with pytest.raises(UserError, match="--init_checkpoint: no such file or folder: /nowhere"):
        describe("--init_checkpoint=/nowhere")


def test_too_long_a_sequence_is_refused(describe):
    with pytest.raises(UserError, match=r"--max_seq_length=513 is more than max_position_embeddings 512"):
        describe("--max_seq_length=513")


def test_a_share_that_is_none_is_refused(describe):
    with pytest.raises(UserError, match="--masked_lm_prob=nan"):
        describe("--masked_lm_prob=nan")
    with pytest.raises(UserError, match=r"--masked_lm_prob=0\.0: must be above 0 and at most 1"):
        describe("--masked_lm_prob=0", "--max_predictions_per_seq=20")


def test_more_predictions_than_tokens_are_refused(describe):
    with pytest.raises(UserError, match="--max_predictions_per_seq=129 is more than the 128 tokens of a sequence"):
        describe("--max_predictions_per_seq=129")


def test_a_configuration_that_is_not_json_is_refused(describe, tmp_path):
    config = tmp_path / "bert_config.json"
    config.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not JSON: nested too deeply"):
        describe(f"--bert_config_file={config}")


def test_a_terminal_gets_a_drawn_table(describe, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines, _ = describe("--model=large")
    assert any("336,226,108" in line for line in lines)
    assert any(line.strip().startswith("────") for line in lines)
