import gzip
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from input_pipeline import prepare
from input_pipeline.errors import UserError
from input_pipeline.token_store import TokenStore
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

WORDS = [
    "alone",
    "document",
    "first",
    "follows",
    "in",
    "its",
    "last",
    "line",
    "mask",
    "new",
    "only",
    "second",
    "sentence",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "control", "sep", "tab", "with", "without", "##line"]
TOKENIZER = WordPieceTokenizer([*PIECES, *"[],.", *"abcdefgh"])


def read(store: TokenStore, tokenizer=TOKENIZER) -> list[list[list[str]]]:
    documents = []
    for tokens, offsets, ends in zip(store.tokens, store.sentence_offsets, store.document_offsets):
        sentences = [tokenizer.convert_ids_to_tokens(tokens[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
        documents += [sentences[a:b] for a, b in itertools.pairwise(ends)]
    return documents


def content(store: TokenStore) -> dict[str, bytes]:
    return {name: Path(store.folder, name).read_bytes() for name in os.listdir(store.folder)}


def test_the_reference_documents(tmp_path):
    """Odd text and what create_pretraining_data.py of google-research/bert makes of it."""
    text = (
        "\n\n  \n\nFirst document, first sentence.\nSecond   sentence with\ttab.\n \t \nAlone in its document\n\n\u200b"
        "\n\nControl \x00only line follows\n\x07\u200e\nLast line without newline [MASK] [SEP]"
    )
    (tmp_path / "a.txt").write_text(text)
    store = prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store")
    assert read(store) == [
        [["first", "document", ",", "first", "sentence", "."], ["second", "sentence", "with", "tab", "."]],
        [["alone", "in", "its", "document"]],
        [
            ["control", "only", "line", "follows"],
            ["last", "line", "without", "new", "##line", "[", "mask", "]", "[", "sep", "]"],
        ],
    ]


def test_golden_documents(tmp_path, shared):
    cases = json.loads((shared / "golden/pretraining_counts.json").read_text())["documents"]["cases"]
    for i, case in enumerate(cases):
        tokenizer = load_tokenizer(str(shared / "data/vocab" / case["vocab"] / "vocab.txt"))
        path = shared / "data/sample_text/sample_text.txt"
        if "text" in case:
            path = tmp_path / f"{i}.txt"
            path.write_text(case["text"])
        documents = read(prepare.prepare([str(path)], tokenizer, tmp_path / str(i)), tokenizer)
        assert [[len(sentence) for sentence in document] for document in documents] == case["tokens_per_sentence"]
        assert documents == case.get("documents", documents)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_line_ends_and_marks_change_nothing(tmp_path, ending):
    lines = [b"a b", b"c d", b"", b"", b" \t ", b"e f", b"g h"]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf" + ending.join(lines) + ending)
    first = prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "1")
    second = prepare.prepare([str(tmp_path / "b.txt")], TOKENIZER, tmp_path / "2")
    assert read(first) == [[["a", "b"], ["c", "d"]], [["e", "f"], ["g", "h"]]]
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("text", ["", "\n\n\n", "\u200b\n"])
def test_no_usable_documents(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=r"no usable documents in .*/a\.txt"):
        prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store")
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.fixture
def corpus(tmp_path) -> list[str]:
    """Documents of all sizes in files of all kinds."""
    words = ["first", "document", "second", "sentence", "with", "a", "b", "c", "unknown"]
    lines = [" ".join(words[i % 9 : i % 9 + 4]) for i in range(600)]
    text = "\n".join(line + "\n" * (i % 11 == 0) for i, line in enumerate(lines))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "long.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.jsonl").write_text(
        "\n".join(json.dumps({"text": f"{line} document. Second. \n\n{line}"}) for line in lines)
    )
    return [str(tmp_path / "*.txt"), str(tmp_path / "b.txt.gz"), str(tmp_path / "c.jsonl")]


def test_any_number_of_workers_makes_the_same_bytes(tmp_path, corpus):
    calls = []
    stores = [
        prepare.prepare(
            corpus,
            TOKENIZER,
            tmp_path / f"store{workers}",
            num_workers=workers,
            progress=lambda done, total, counts: calls.append((done, total, dict(counts))),
            shard_tokens=2000,
            block_bytes=1000,
        )
        for workers in (1, 3)
    ]
    assert content(stores[0]) == content(stores[1])
    counts = stores[0].metadata["counts"]
    assert len(stores[0].tokens) > 3
    assert counts["files"] == 4 and counts["documents"] == 56 + 1 + 56 + 600
    assert counts["sentences"] == 600 * 3 + 600 * 3, "JSON lines are split, text files are not"
    half = len(calls) // 2
    assert calls[:half] == calls[half:]
    total = sum(os.path.getsize(source["path"]) for source in stores[0].metadata["sources"])
    assert [done for done, _, _ in calls[:half]] == sorted(done for done, _, _ in calls[:half])
    assert calls[-1][:2] == (total, total) and calls[-1][2]["tokens"] == counts["tokens"]
    assert multiprocessing.active_children() == []


def test_blocks_of_any_size_make_the_same_store(tmp_path, corpus):
    stores = [
        prepare.prepare(corpus, TOKENIZER, tmp_path / f"store{size}", num_workers=1, block_bytes=size)
        for size in (100, 1 << 20)
    ]
    assert content(stores[0]) == content(stores[1])


def test_sentence_splitting_can_be_forced(tmp_path):
    (tmp_path / "a.txt").write_text("First document. Second sentence.")
    (tmp_path / "a.jsonl").write_text(json.dumps({"body": "First document. Second sentence."}))
    found = {}
    for setting in ("always", "never", "auto"):
        for kind in ("txt", "jsonl"):
            store = prepare.prepare(
                [str(tmp_path / f"a.{kind}")],
                TOKENIZER,
                tmp_path / f"{setting}-{kind}",
                sentence_splitting=setting,
                text_field="body",
            )
            found[setting, kind] = store.num_sentences
            assert store.metadata["settings"] == {"sentence_splitting": setting, "text_field": "body"}
    assert found == {
        ("always", "txt"): 2, ("never", "txt"): 1, ("auto", "txt"): 1,
        ("always", "jsonl"): 2, ("never", "jsonl"): 1, ("auto", "jsonl"): 2,
    }  # fmt: skip


def test_a_long_line_is_cut_with_a_warning(tmp_path):
    (tmp_path / "a.txt").write_text("a b c d " * 1000)
    store = prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store", num_workers=1, block_bytes=1000)
    assert store.num_tokens == 4000 and store.num_documents == 1
    assert store.metadata["counts"]["cut_lines"] == store.num_sentences - 1 > 3
    assert any("lines longer than a block were cut at" in warning for warning in prepare.warnings(store))


def test_totals_and_warnings(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a b\xff c d e f\nzzz g h")
    store = prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store")
    assert prepare.totals(store) == "1 file, 1 document, 2 sentences, 9 tokens (4.5 a sentence, 11.11% unknown)"
    one_document, unknown, replaced = prepare.warnings(store)
    assert one_document.startswith("all text is one document")
    assert unknown.startswith("11.1% of the tokens are unknown") and "--do_lower_case=True" in unknown
    assert replaced.startswith("1 bad bytes")
    (tmp_path / "b.txt").write_text("a b c\n\nd e f")
    assert prepare.warnings(prepare.prepare([str(tmp_path / "b.txt")], TOKENIZER, tmp_path / "good")) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_leaves_nothing(tmp_path, workers):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 100 + "no JSON\n" + '{"text": "a"}\n' * 100)
    with pytest.raises(UserError, match=r"a\.jsonl, line 101: not JSON"):
        prepare.prepare(
            [str(tmp_path / "a.jsonl")], TOKENIZER, tmp_path / "store", num_workers=workers, block_bytes=100
        )
    (tmp_path / "b.txt").write_text("a b\n" * 1000)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare.prepare([str(tmp_path / "b.txt")], TOKENIZER, tmp_path / "store", num_workers=workers, progress=stop)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.txt"]
    assert multiprocessing.active_children() == []


def test_sigterm_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("a b c d\n" * 1_000_000)
    (tmp_path / "out").mkdir()
    code = (
        "import sys\n"
        "from input_pipeline import prepare\n"
        "from input_pipeline.tokenization import WordPieceTokenizer\n"
        "tokenizer = WordPieceTokenizer(['[PAD]', '[UNK]', '[CLS]', '[SEP]', *'abcd'])\n"
        "say = lambda *a, **k: print('block', flush=True)\n"
        "prepare.prepare(sys.argv[1:2], tokenizer, sys.argv[2], num_workers=2, progress=say, block_bytes=10_000)\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.txt"), str(tmp_path / "out" / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout.readline() == b"block\n"
    assert len(os.listdir(tmp_path / "out")) == 1
    program.send_signal(signal.SIGTERM)
    start = time.monotonic()
    _, errors = program.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert program.returncode == 128 + signal.SIGTERM and errors == b""
    assert os.listdir(tmp_path / "out") == []


def test_a_huge_number_of_workers_is_bounded(tmp_path, monkeypatch):
    asked = []

    def one_process(function, items, num_workers):
        asked.append(num_workers)
        return (function(item) for item in items)

    monkeypatch.setattr(prepare, "ordered_map", one_process)
    monkeypatch.setattr(prepare, "available_cores", lambda: 3)
    (tmp_path / "a.txt").write_text("a\n")
    prepare.prepare([str(tmp_path / "a.txt")], TOKENIZER, tmp_path / "store", num_workers=10**6)
    assert asked == [12]
