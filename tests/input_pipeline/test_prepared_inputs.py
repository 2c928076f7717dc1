import os
from pathlib import Path

import pytest

from input_pipeline import corpus, prepare
from input_pipeline.errors import UserError
from input_pipeline.prepared_inputs import TextOptions, VocabularyOptions, check_same, open_or_prepare
from input_pipeline.tokenization import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("a b c\nd e\n\nf g h\n")
    return path


@pytest.fixture
def vocab_file(tmp_path) -> str:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return str(tmp_path / "vocab.txt")


def test_text_is_prepared_once(tmp_path, text, vocab_file):
    (tmp_path / "b.txt").write_text("a\n\nb\n")
    said = []

    def get(*specs, splitting="auto", **vocabulary):
        choice = VocabularyOptions(**({"vocab_file": vocab_file} | vocabulary))
        options = TextOptions(sentence_splitting=splitting)
        return open_or_prepare([str(spec) for spec in specs], tmp_path / "cache", choice, options, said.append)

    first, second = get(text, tmp_path / "b.txt")
    assert (first.num_documents, second.num_documents) == (2, 2)
    assert (first.num_tokens, second.num_tokens) == (8, 2)
    assert any(line.startswith("1 file, 2 documents, 3 sentences, 8 tokens") for line in said)
    folders = set(os.listdir(tmp_path / "cache"))
    assert len(folders) == 2

    said.clear()
    again = get(tmp_path / "b.txt", text)
    assert [store.folder for store in again] == [second.folder, first.folder]
    assert all("already prepared in" in line for line in said) and len(said) == 2

    get(text, splitting="always")
    get(text, do_lower_case=False)
    assert len(os.listdir(tmp_path / "cache")) == 4
    text.write_text("a b c\n\nd\n")
    (changed,) = get(text)
    assert changed.num_tokens == 4 and len(os.listdir(tmp_path / "cache")) == 5


@pytest.mark.parametrize("name", ["metadata.json", "tokens-00000.npy", "vocab.txt"])
@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_damaged_cache_is_made_again(tmp_path, text, vocab_file, name, content):
    said = []

    def get():
        choice = VocabularyOptions(vocab_file)
        return open_or_prepare([str(text)], tmp_path / "cache", choice, TextOptions(), said.append)[0]

    folder = Path(get().folder)
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    get()
    assert said.count(f"{folder} is damaged and is made again") == 1
    assert (folder / name).read_bytes() == whole


def test_stores_are_opened_and_bring_their_vocabulary(tmp_path, text):
    tokenizer = WordPieceTokenizer(PIECES)
    store = prepare.prepare([str(text)], tokenizer, tmp_path / "store")

    def get(*specs, tokenizer=None, **vocabulary):
        return open_or_prepare(
            list(map(str, specs)),
            tmp_path / "cache",
            VocabularyOptions(**vocabulary),
            TextOptions(),
            print,
            tokenizer=tokenizer,
        )

    opened, prepared = get(tmp_path / "store", text)
    assert opened.folder == store.folder
    assert prepared.metadata["tokenizer_fingerprint"] == tokenizer.fingerprint
    assert [store.fingerprint for store in get(text, tokenizer=tokenizer)] == [prepared.fingerprint]
    cased = WordPieceTokenizer(PIECES, do_lower_case=False)
    with pytest.raises(UserError, match=r"the token store .*/store was made with another vocabulary or casing"):
        get(tmp_path / "store", tokenizer=cased)
    with pytest.raises(UserError, match=r"--do_lower_case=False: the token store .*/store was made with True"):
        get(tmp_path / "store", do_lower_case=False)


def test_a_vocabulary_is_trained_once(tmp_path, text, monkeypatch):
    said = []

    def get(size):
        vocabulary = VocabularyOptions(vocab_size=size)
        return open_or_prepare([str(text)], tmp_path / "cache", vocabulary, TextOptions(), said.append)[0]

    with pytest.raises(UserError, match=r"--vocab_file is missing; or give --vocab_size"):
        get(None)
    store = get(21)
    assert store.metadata["vocab_size"] == store.tokenizer.vocab_size == 21
    assert store.metadata["counts"]["unknown_tokens"] == 0
    assert said[0] == "training a wordpiece vocabulary of 21 pieces"
    said.clear()
    assert get(21).folder == store.folder
    assert not any("training" in line for line in said)
    text.write_text("\n\n")
    with pytest.raises(UserError, match=r"no usable documents in .*a\.txt"):
        get(21)


def test_differences_are_named(tmp_path, text):
    tokenizer = WordPieceTokenizer(PIECES)
    settings = prepare.text_settings("auto", "text")
    store = prepare.prepare([str(text)], tokenizer, tmp_path / "store")

    def check(spec=str(text), settings=settings, fingerprint=tokenizer.fingerprint):
        check_same(store, corpus.find_sources(spec), settings, fingerprint)

    check()
    moved = tmp_path / "moved" / "a.txt"
    moved.parent.mkdir()
    text.rename(moved)
    check(str(moved))
    moved.rename(text)
    with pytest.raises(
        UserError, match=r"--output_dir: .*/store holds .* --sentence_splitting was auto, now it is never"
    ):
        check(settings=prepare.text_settings("never", "text"))
    with pytest.raises(UserError, match=r"--vocab_size was None, now it is 21"):
        check(settings=settings | {"vocab_size": 21})
    with pytest.raises(UserError, match="another vocabulary or casing"):
        check(fingerprint="0")
    (tmp_path / "b.txt").write_text("a")
    with pytest.raises(UserError, match=r"b\.txt was not part of it"):
        check(str(tmp_path / "?.txt"))
    with pytest.raises(UserError, match=r"b\.txt was not part of it"):
        check(str(tmp_path / "b.txt"))
    os.utime(text, (1, 1))
    with pytest.raises(UserError, match=r"a\.txt has changed since"):
        check()
