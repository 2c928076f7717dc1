import json
import os
import sys
from pathlib import Path

import pytest

from input_pipeline import beam_prepare, prepare
from input_pipeline.errors import UserError
from input_pipeline.tokenization import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh."])


@pytest.fixture
def beam():
    return pytest.importorskip("apache_beam", reason="Apache Beam is not installed (extra: beam)")


def test_without_beam_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"--runner=DirectRunner needs Apache Beam \(pip install apache-beam\)"):
        beam_prepare.prepare(["builtin"], TOKENIZER, tmp_path / "store", runner="DirectRunner")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("options", [[], ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]])
def test_the_bytes_are_those_of_the_local_runner(tmp_path, beam, options):
    lines = ["a b c d", "e f", "", "g h a", "b"] * 200
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("\n".join(line for line in lines if line))
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": f"{line} ab. Cd ef."}) for line in lines))
    specs = [str(tmp_path / "*.txt"), str(tmp_path / "c.jsonl")]
    local = prepare.prepare(specs, TOKENIZER, tmp_path / "local", shard_tokens=1000, block_bytes=500)
    store = beam_prepare.prepare(
        specs,
        TOKENIZER,
        tmp_path / "beam",
        runner="DirectRunner",
        beam_options=options,
        shard_tokens=1000,
        block_bytes=500,
    )
    assert sorted(os.listdir(local.folder)) == sorted(os.listdir(store.folder))
    for name in os.listdir(local.folder):
        assert Path(local.folder, name).read_bytes() == Path(store.folder, name).read_bytes(), name
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt", "beam", "c.jsonl", "local"]


def test_mistakes_of_the_user(tmp_path, beam):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: field 'text' is missing; there are: body"):
        beam_prepare.prepare([str(tmp_path / "a.jsonl")], TOKENIZER, tmp_path / "store", runner="DirectRunner")
    (tmp_path / "a.txt").write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match=r"a\.txt is a zip archive"):
        beam_prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store", runner="DirectRunner")
    with pytest.raises(UserError, match=r"--runner=NoRunner: .*DirectRunner"):
        beam_prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store", runner="NoRunner")
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.txt"]
