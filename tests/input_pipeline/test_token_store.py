import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import files, token_store
from input_pipeline.errors import UserError
from input_pipeline.token_store import DamagedStoreError, TokenStore, TokenStoreWriter
from input_pipeline.tokenization import WordPieceTokenizer

SOURCES = [{"path": "a.txt"}]


@dataclasses.dataclass
class Tokenizer:
    """As much of a tokenizer as a store asks for."""

    vocab_size: int = 100
    unk_id: int = 1
    kind: str = "wordpiece"
    do_lower_case: bool = True
    fingerprint: str = "f" * 64

    def save(self, folder):
        Path(folder, "vocab.txt").write_text("[PAD]\n")


def read(store: TokenStore) -> list[list[list[int]]]:
    documents = []
    for tokens, sentences, ends in zip(store.tokens, store.sentence_offsets, store.document_offsets):
        sentences = [tokens[a:b].tolist() for a, b in itertools.pairwise(sentences)]
        documents += [sentences[a:b] for a, b in itertools.pairwise(ends)]
    return documents


def write(folder, documents, tokenizer=None, **settings) -> TokenStore:
    with TokenStoreWriter(folder, tokenizer or Tokenizer(), SOURCES, **settings) as writer:
        for document in documents:
            writer.add(document)
        return writer.close(files=1)


def test_content_and_metadata(tmp_path):
    store = write(tmp_path / "deep" / "store", [[[5, 6], [], [1]], [], [[]], [[9]]])
    assert read(store) == [[[5, 6], [1]], [[9]]]
    assert store.metadata["counts"] == {
        "documents": 2, "sentences": 3, "tokens": 4, "unknown_tokens": 1, "files": 1
    }  # fmt: skip
    assert (store.num_documents, store.num_sentences, store.num_tokens) == (2, 3, 4)
    assert store.metadata["dtype"] == "uint16" and store.tokens[0].dtype == np.uint16
    wanted = [hashlib.blake2b(np.array(ids, "<u2").tobytes(), digest_size=8).digest() for ids in ([5, 6, 1], [9])]
    assert store.document_hashes[0].tobytes() == b"".join(wanted)
    assert sorted(os.listdir(store.folder)) == [
        "document_hashes-00000.npy", "document_offsets-00000.npy", "metadata.json", "sentence_offsets-00000.npy",
        "tokens-00000.npy", "vocab.txt",
    ]  # fmt: skip
    assert os.listdir(tmp_path / "deep") == ["store"]


def test_token_files_can_be_mapped_whole(tmp_path):
    for vocab_size, dtype in ((2**16, np.uint16), (2**16 + 1, np.uint32)):
        store = write(tmp_path / str(vocab_size), [[[5, 6, 7]]], Tokenizer(vocab_size=vocab_size))
        ((path, header, length),) = store.token_files
        assert np.fromfile(path, dtype)[header:].tolist() == [5, 6, 7] and length == 3
        assert header * np.dtype(dtype).itemsize == 128


def test_shards_end_with_documents(tmp_path):
    store = write(tmp_path / "store", [[[2, 3]], [[4]], [[5, 6, 7, 8], [9]], [[2]]], shard_tokens=3)
    assert [shard.tolist() for shard in store.tokens] == [[2, 3, 4], [5, 6, 7, 8, 9], [2]]
    assert [shard.tolist() for shard in store.sentence_offsets] == [[0, 2, 3], [0, 4, 5], [0, 1]]
    assert [shard.tolist() for shard in store.document_offsets] == [[0, 1, 2], [0, 2], [0, 1]]
    assert [shard["documents"] for shard in store.metadata["shards"]] == [2, 1, 1]
    store = write(tmp_path / "even", [[[2, 3, 4]], [[5, 6, 7]]], shard_tokens=3)
    assert [shard.tolist() for shard in store.tokens] == [[2, 3, 4], [5, 6, 7]]


DOCUMENTS = st.lists(st.lists(st.lists(st.integers(2, 99), max_size=4), max_size=4), max_size=6)


@given(DOCUMENTS, st.data())
def test_any_blocks_give_the_same_files(tmp_path_factory, documents, data):
    tmp_path = tmp_path_factory.mktemp("stores")
    wanted = [kept for document in documents if (kept := [sentence for sentence in document if sentence])]
    if not wanted:
        with pytest.raises(UserError, match=r"no usable documents in a\.txt"):
            write(tmp_path / "store", documents)
        assert os.listdir(tmp_path) == []
        return
    whole = write(tmp_path / "whole", documents, shard_tokens=7)
    assert read(whole) == wanted
    with TokenStoreWriter(tmp_path / "blocks", Tokenizer(), SOURCES, shard_tokens=7) as writer:
        rest = [
            (sentence, last) for d in documents for sentence, last in zip(d or [[]], [False] * (len(d) - 1) + [True])
        ]
        while rest:
            part = [rest.pop(0) for _ in range(data.draw(st.integers(1, len(rest))))]
            lasts = [last for _, last in part]
            ends = [i + 1 for i, last in enumerate(lasts) if last] + ([] if lasts[-1] else [len(part)])
            sentences = [sentence for sentence, _ in part]
            writer.add_block(
                np.array(list(itertools.chain(*sentences)), np.int64),
                np.array([len(sentence) for sentence in sentences]),
                np.diff([0, *ends]),
                continues=not lasts[-1],
            )
        blocks = writer.close(files=1)
    for name in os.listdir(whole.folder):
        assert Path(whole.folder, name).read_bytes() == Path(blocks.folder, name).read_bytes(), name


def test_a_document_in_parts_and_as_arrays(tmp_path):
    with TokenStoreWriter(tmp_path / "store", Tokenizer(), SOURCES) as writer:
        writer.add((np.array([2, 3, 4]), np.array([1, 2])), continues=True)
        writer.add([[5]])
        writer.add([[6]], continues=True)
        store = writer.close()
    assert read(store) == [[[2], [3, 4], [5]], [[6]]]


def test_fingerprint_is_of_the_data(tmp_path):
    def fingerprint(name, documents, **settings):
        return write(tmp_path / name, documents, **settings).fingerprint

    first = fingerprint("a", [[[2], [3]], [[4]]])
    assert fingerprint("b", [[[2], [3]], [[4]]]) == first
    others = [
        fingerprint("c", [[[2, 3]], [[4]]]),
        fingerprint("d", [[[2], [3], [4]]]),
        fingerprint("e", [[[2], [3]], [[5]]]),
        fingerprint("f", [[[2], [3]], [[4]]], tokenizer=Tokenizer(fingerprint="e")),
    ]
    assert len({first, *others}) == 5


def test_nothing_is_left_of_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), TokenStoreWriter(tmp_path / "store", Tokenizer(), SOURCES) as writer:
        writer.add([[2]])
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    writer = TokenStoreWriter(tmp_path / "store", Tokenizer(), SOURCES)
    (partial,) = tmp_path.iterdir()
    dead = partial.with_name(partial.name.replace(str(os.getpid()), str(2**22 + 1)))  # above Linux's largest process id
    alive = partial.with_name(partial.name.replace(str(os.getpid()), "1"))
    shutil.copytree(partial, dead)
    alive.mkdir()
    writer.discard()
    TokenStoreWriter(tmp_path / "store", Tokenizer(), SOURCES).discard()
    assert list(tmp_path.iterdir()) == [alive]


def test_refusals(tmp_path):
    store = write(tmp_path / "store", [[[2], [3]]])
    with pytest.raises(UserError, match=r"--output_dir: .*/store is not empty"):
        TokenStoreWriter(tmp_path / "store", Tokenizer(), SOURCES)
    (tmp_path / "empty").mkdir()
    assert read(write(tmp_path / "empty", [[[2]]])) == [[[2]]]
    with pytest.raises(UserError, match=r"--input_file: .*/none is not a token store"):
        TokenStore.open(tmp_path / "none")

    tokens = Path(store.folder, "tokens-00000.npy")
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"--input_file: .*/store: the token store is damaged \(tokens-00000\.npy: "):
        TokenStore.open(store.folder)
    np.save(tokens, np.zeros(5, np.uint16))
    with pytest.raises(UserError, match=r"tokens-00000\.npy has 5 entries, metadata\.json says 2"):
        TokenStore.open(store.folder)
    tokens.write_bytes(whole)
    metadata = Path(store.folder, "metadata.json")
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "format_version": 2}))
    with pytest.raises(UserError, match="format version 2, this program reads 1"):
        TokenStore.open(store.folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("[]", "no JSON object"),
        ("{", "no JSON object"),
        ("\xff", "no JSON object"),
        ({"format_version": None}, "format_version is None"),
        ({"tokenizer_fingerprint": 3}, "tokenizer_fingerprint is 3"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"sources": ["a.txt"]}, "sources have no path"),
        ({"shards": []}, "shards have no counts"),
        ({"shards": [{}]}, "shards have no counts"),
        ({"counts": {}}, "counts are no numbers"),
        ({"counts": {"documents": 1, "sentences": 2, "tokens": 3, "unknown_tokens": 0}}, "the documents of the shards"),
    ],
)
def test_damaged_metadata_is_named(tmp_path, change, problem):
    path = Path(write(tmp_path / "store", [[[2], [3]], [[4]]]).folder, "metadata.json")
    text = json.dumps(json.loads(path.read_text()) | change) if isinstance(change, dict) else change
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedStoreError, match=rf"the token store is damaged \(metadata\.json: {problem}.*; make it"):
        TokenStore.open(tmp_path / "store")


def test_missing_metadata_is_named(tmp_path):
    path = Path(write(tmp_path / "store", [[[2]]]).folder, "metadata.json")
    whole = json.loads(path.read_text())
    for name in whole:
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        with pytest.raises(DamagedStoreError, match=rf"{name} is missing"):
            TokenStore.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("tokens", np.array([2, 3, 4], np.uint32), "is no vector of uint16"),
        ("tokens", np.array([[2, 3, 4]], np.uint16), "is no vector of uint16"),
        ("document_hashes", np.array([1, 2], np.int64), "is no vector of uint64"),
        ("sentence_offsets", np.array([1, 1, 2, 3]), "does not rise from 0 to 3"),
        ("sentence_offsets", np.array([0, 2, 2, 3]), "does not rise from 0 to 3"),
        ("sentence_offsets", np.array([0, 2, 1, 3]), "does not rise from 0 to 3"),
        ("sentence_offsets", np.array([0, 1, 2, 4]), "does not rise from 0 to 3"),
        ("document_offsets", np.array([0, 3, 3]), "does not rise from 0 to 3"),
        ("document_offsets", None, ": No data left in file"),
    ],
)
def test_damaged_arrays_are_named(tmp_path, name, values, problem):
    path = Path(write(tmp_path / "store", [[[2], [3]], [[4]]]).folder, f"{name}-00000.npy")
    path.write_bytes(b"")
    if values is not None:
        np.save(path, values)
    with pytest.raises(DamagedStoreError, match=rf"damaged \({name}-00000\.npy ?{problem}"):
        TokenStore.open(tmp_path / "store")


def test_offsets_are_checked_across_portions(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "_CHECKED_AT_ONCE", 2)
    path = Path(write(tmp_path / "store", [[[2], [3], [4], [5]]]).folder, "sentence_offsets-00000.npy")
    assert TokenStore.open(tmp_path / "store").num_tokens == 4
    for place in range(1, 4):
        offsets = np.arange(5)
        offsets[place] = offsets[place - 1]
        np.save(path, offsets)
        with pytest.raises(DamagedStoreError):
            TokenStore.open(tmp_path / "store")


def test_another_vocabulary_is_damage(tmp_path):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    store = write(tmp_path / "store", [[[2]]], tokenizer)
    assert store.tokenizer.fingerprint == tokenizer.fingerprint
    (tmp_path / "store" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\n")
    with pytest.raises(DamagedStoreError, match="its vocabulary is not the one"):
        TokenStore.open(tmp_path / "store").tokenizer  # noqa: B018
    (tmp_path / "store" / "vocab.txt").unlink()
    with pytest.raises(DamagedStoreError, match=r"holds no vocab\.txt"):
        TokenStore.open(tmp_path / "store").tokenizer  # noqa: B018


def test_remote_store_is_uploaded_and_read_through_the_cache(tmp_path, monkeypatch):
    """A local folder stands for the remote one."""
    remote = tmp_path / "remote"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "is_remote", lambda path: os.fspath(path).startswith(str(remote)))
    (remote / "store").mkdir(parents=True)
    store = write(remote / "store", [[[2], [3]]])
    assert read(store) == [[[2], [3]]]
    assert Path(store.folder).parent == tmp_path / "cache" / "bert_jax"
    assert sorted(os.listdir(remote / "store")) == sorted(os.listdir(store.folder))
