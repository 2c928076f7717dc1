"""Vocabulary files line by line, and trained vocabularies: exact size, same bytes every time, clear limits."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from input_pipeline import vocabulary
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer
from input_pipeline.vocabulary import parse_vocabulary, read_vocabulary, train_vocabulary

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = "[PAD]\n\u2028\nfoo\n\nbar\n"


def made_up_texts():
    draw = random.Random(0)
    syllables = ["ka", "lo", "mi", "ren", "tas", "u", "vor", "xi", "bel"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    return [" ".join(draw.choices(words, weights=range(400, 0, -1), k=12)) + ", (Ünï)." for _ in range(400)]


TEXTS = made_up_texts()


# ---- Files


@pytest.mark.parametrize(
    "content",
    [LINES, LINES.replace("\n", "\r\n"), "\ufeff" + LINES, LINES[:-1], LINES.replace("foo", " foo\t")],
    ids=["plain", "CRLF", "byte order mark", "no last newline", "white space"],
)
def test_ids_are_line_numbers(content, tmp_path, caplog):
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    assert read_vocabulary(tmp_path / "vocab.txt") == ["[PAD]", "\u2028", "foo", "", "bar"]
    assert not caplog.records


def test_of_equal_pieces_the_last_counts_and_the_size_stays(caplog):
    content = "\n".join([*SPECIALS, "foo", "bar", "foo"])
    assert parse_vocabulary(content.encode(), "v.txt") == content.split("\n")
    assert "v.txt: 1 pieces stand on several lines" in caplog.text
    assert "'foo'" in caplog.text


def test_saved_vocabulary_keeps_odd_lines(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\n".join([*SPECIALS, "\u2028", "", "foo", ""]).encode())
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    assert read_vocabulary(tokenizer.save(tmp_path / "copy")) == [*SPECIALS, "\u2028", "", "foo"]
    assert tokenizer.encode("a\u2028foo") == [1, 7]


def test_files_that_are_no_vocabulary(tmp_path):
    with pytest.raises(UserError, match=r"v\.txt, line 3: not UTF-8"):
        parse_vocabulary(b"a\nb\n\xe9\n", "v.txt")
    with pytest.raises(UserError, match="--vocab_file: no such file"):
        read_vocabulary(tmp_path / "none.txt")


# ---- Training


def train(kind, size, folder, texts=TEXTS, do_lower_case=True):
    return load_tokenizer(train_vocabulary(kind, iter(texts), size, do_lower_case, folder))


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_trained_vocabulary_has_the_size_and_knows_the_text(kind, tmp_path):
    tokenizer = train(kind, 150, tmp_path)
    assert (tokenizer.kind, tokenizer.vocab_size) == (kind, 150)
    pieces = tokenizer.convert_ids_to_tokens(range(150))
    assert pieces[:5] == SPECIALS
    assert len(set(pieces)) == 150
    ids = [i for text in TEXTS for i in tokenizer.encode(text)]
    assert tokenizer.unk_id not in ids
    assert len(ids) < 0.5 * sum(len(text.replace(" ", "")) for text in TEXTS)  # pieces are longer than characters


def test_wordpiece_vocabulary_has_both_forms_of_a_character_but_not_of_punctuation(tmp_path):
    pieces = read_vocabulary(train_vocabulary("wordpiece", [*TEXTS, *["北京。"] * 50], 150, True, tmp_path))
    letters = set("".join(TEXTS).lower()) - set(" (,).ïü")
    assert {form for letter in letters for form in (letter, f"##{letter}")} <= set(pieces)
    assert {",", "(", "北"} <= set(pieces)
    assert not {"##,", "##(", "##北", "##京"} & set(pieces)


def test_casing_is_part_of_the_trained_vocabulary(tmp_path):
    cased = train("wordpiece", 150, tmp_path / "cased", do_lower_case=False)
    assert cased.do_lower_case is False
    assert cased.tokenize("(Ünï)")[1].startswith("Ü")
    assert train("wordpiece", 150, tmp_path / "uncased").tokenize("(Ünï)")[1].startswith("u")
    folding = train("sentencepiece", 150, tmp_path / "folding")
    assert folding.encode("KALO") == folding.encode("kalo")
    keeping = train("sentencepiece", 150, tmp_path / "keeping", do_lower_case=False)
    assert keeping.encode("KALO") != keeping.encode("kalo")


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_the_same_bytes_in_every_process(kind, tmp_path):
    script = (
        "import json, os, sys; from input_pipeline.vocabulary import train_vocabulary;"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"  # a single core
        f"train_vocabulary({kind!r}, json.load(sys.stdin), 250, True, sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "there")],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        input=json.dumps(TEXTS),
        text=True,
        check=True,
    )
    contents = [Path(train_vocabulary(kind, TEXTS, 250, True, tmp_path / name)).read_bytes() for name in ("a", "b")]
    there = next(path for path in (tmp_path / "there").iterdir() if path.name != "tokenizer_config.json").read_bytes()
    assert contents == [there, there]


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_a_huge_size_is_refused_before_the_text_is_read(kind, tmp_path):
    with pytest.raises(UserError, match="--vocab_size=99999999999 is too large: at most 1048576"):
        train_vocabulary(kind, iter(lambda: 1 / 0, None), 99999999999, True, tmp_path)
    with pytest.raises(UserError, match="--vocab_size=1048576 is too large for this text"):
        train(kind, vocabulary.LARGEST_SIZE, tmp_path)


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_limits_are_named_and_right(kind, tmp_path):
    with pytest.raises(UserError, match=r"--vocab_size=90000 is too large for this text: at most (\d+)") as error:
        train(kind, 90000, tmp_path)
    largest = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train(kind, largest, tmp_path).vocab_size == largest
    with pytest.raises(UserError, match=f"is too large for this text: at most {largest}"):
        train(kind, largest + 1, tmp_path)
    with pytest.raises(
        UserError, match=r"--vocab_size=9 is too small for the characters of this text: at least (\d+)"
    ) as error:
        train(kind, 9, tmp_path)
    smallest = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert train(kind, smallest, tmp_path).vocab_size == smallest
    with pytest.raises(UserError, match="too small"):
        train(kind, smallest - 1, tmp_path)


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 35), ("sentencepiece", 18)])
def test_odd_texts(kind, size, tmp_path, capfd):
    for texts in ([], ["", " \n\t"]):
        with pytest.raises(UserError, match="no words"):
            train(kind, 100, tmp_path, texts)
    odd = "\ud800 a\udfffb x\u2581y \u2585 \u2047 ⁇ \x00\x07 " + "z" * 5000
    train(kind, size, tmp_path, [odd, *["kalo miren"] * 20])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_errors_of_the_reader_are_passed_on(kind, tmp_path):
    def texts():
        yield "kalo"
        raise UserError("corpus.txt is unreadable")

    with pytest.raises(UserError, match=r"^corpus\.txt is unreadable$"):
        train(kind, 100, tmp_path, texts())


def test_counted_words_stay_bounded_and_the_frequent_ones_stay(monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_COUNTED_WORDS", 1000)
    texts = [f"often rare{i} rare{i}x" for i in range(5000)]
    words = vocabulary._count_words(texts, True)
    assert len(words) < 1100
    assert words["often"] == 5000


def test_long_texts_are_sampled_from_all_places(monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_SAMPLED_CHARACTERS", 10_000)
    sample = list(vocabulary._sample(f"{i:05d}" for i in range(20_000)))
    assert 4_000 < sum(map(len, sample)) <= 10_000
    assert all(sum(i * 5000 <= int(text) < (i + 1) * 5000 for text in sample) > 100 for i in range(4))
    assert list(vocabulary._sample(iter(["a", "b", "a"]))) == ["a", "b", "a"]


def test_chinese_text_has_its_characters_before_merges(tmp_path):
    texts = ["".join(chr(0x4E00 + (i * j) % 300) for j in range(20)) + " kalo miren kalo" for i in range(1, 400)]
    pieces = read_vocabulary(train_vocabulary("wordpiece", texts, 330, True, tmp_path))
    assert (
        sum(0x4E00 <= ord(piece[0]) < 0x4E00 + 300 for piece in pieces) == 299
    )  # of 300: the rarest makes up less than 0.05%


def test_unknown_kind(tmp_path):
    with pytest.raises(UserError, match="wordpiece or sentencepiece, not 'bpe'"):
        train_vocabulary("bpe", TEXTS, 100, True, tmp_path)
