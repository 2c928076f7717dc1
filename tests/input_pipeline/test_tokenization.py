"""WordPiece against golden values and the reference's rules followed literally; SentencePiece; loading and saving."""

import io
import json
import logging
import pickle
import random
import runpy
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipeline import tokenization
from input_pipeline.basic_tokenization import split_raw_word, split_raw_words
from input_pipeline.errors import UserError
from input_pipeline.tokenization import SentencePieceTokenizer, WordPieceTokenizer, load_tokenizer
from input_pipeline.vocabulary import read_vocabulary, train_vocabulary

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = (Path(__file__).parents[1] / "data" / "made_up_vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
UNICODE_OF_GOLDEN_VALUES = "14.0.0"

reference = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "reference_tokenization.py"))


def words(text, do_lower_case):
    return [word for raw_word in split_raw_words(text) for word in split_raw_word(raw_word, do_lower_case)]


@pytest.fixture(scope="module")
def uncased():
    return WordPieceTokenizer(VOCABULARY, do_lower_case=True)


@pytest.fixture(scope="module")
def cased():
    return WordPieceTokenizer(VOCABULARY, do_lower_case=False)


@pytest.fixture(scope="module")
def made_up_text():
    syllables = ["ka", "lo", "mi", "ren", "tas", "u", "vor", "xi", "bel"]
    draw = random.Random(0)
    vocabulary = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    return [" ".join(draw.choices(vocabulary, k=9)) + ". [2]" for _ in range(300)]


@pytest.fixture(scope="module")
def sentencepiece_folder(made_up_text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentencepiece")
    train_vocabulary("sentencepiece", made_up_text, 120, True, folder)
    return folder


@pytest.fixture(scope="module")
def sentencepiece_tokenizer(sentencepiece_folder):
    return load_tokenizer(sentencepiece_folder)


# ---- WordPiece: exactness


def test_code_points_as_the_reference_splits_them(data):
    lines = (data / "basic_tokenization.jsonl").read_text().split("\n")[:-1]
    assert len(lines) > 100
    for code_point, lower, cased in map(json.loads, lines):
        text = f"a{chr(int(code_point, 16))}b"
        assert (" ".join(words(text, True)), " ".join(words(text, False))) == (lower, cased), code_point


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_kind_of_code_point_follows_the_rules(do_lower_case):
    for code_point in [*range(0x3100), *range(0x3100, 0x110000, 37)]:
        text = f"a{chr(code_point)}b"
        assert words(text, do_lower_case) == reference["basic_words"](text, do_lower_case), hex(code_point)


ODD_CHARACTERS = st.one_of(
    st.characters(),
    st.sampled_from(
        "abcAxy un,.![]# \t\n\r\x00\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\u200b\ufffd\ud800ΣΑσς\u0301éÉİ北京\ue000"
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.text(ODD_CHARACTERS, max_size=40), st.booleans())
def test_random_text_follows_the_rules(text, do_lower_case):
    assert words(text, do_lower_case) == reference["basic_words"](text, do_lower_case)
    expected = reference["ReferenceTokenizer"](VOCABULARY, do_lower_case).encode(text)
    tokenizer = WordPieceTokenizer(VOCABULARY, do_lower_case)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text) == expected  # now from the cache


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("[CLS] [MASK] foo[SEP]bar", "[ cls ] [ mask ] foo [ sep ] [UNK]"),
        ("x\U0002b820y", "x \U0002b820 y"),
        ("ΟΔΟΣ", "ο ##δ ##ο ##ς"),
        ("ΟΔΟΣ.", "ο ##δ ##ο ##ς ."),
        ("a\ue000b", "a\ue000b"),
        ("I love 北京abc", "i love 北 京 abc"),
        ("한국어", "[UNK]"),
        ("❤\ufe0f ok", "❤ ok"),
        ("कि में", "[UNK] म"),
        ("UNAFFABLE, thé\u0301!", "un ##aff ##able , the !"),
        ("\x97 \u200b", ""),
        ("a\x0bb\x85c", "abc"),
        ("a\u2028b", "a b"),
        ("", ""),
    ],
)
def test_uncased_pieces(uncased, text, tokens):
    assert uncased.tokenize(text) == tokens.split()


def test_hangul_falls_apart_into_eight_letters():
    assert [len(word) for word in words("한국어", True)] == [8]


def test_longest_piece_wins_even_where_a_shorter_one_would_go_further(cased):
    assert cased.tokenize("abcabcabc") == ["abcabcabc"]
    assert cased.tokenize("xabcabcb") == ["x", "##abcabc", "##b"]
    assert cased.tokenize("Theés") == ["The", "##é", "##s"]
    assert cased.tokenize("abc#a") == ["abc", "#", "a"]


@pytest.mark.parametrize("length", [199, 200, 201])
def test_word_limit_counts_what_is_left_without_accents(uncased, cased, length):
    pieces = ["1"] + ["##1"] * (length - 1)
    assert uncased.tokenize("1" * length) == (pieces if length <= 200 else ["[UNK]"])
    assert uncased.tokenize("1\u0301" * length) == (pieces if length <= 200 else ["[UNK]"])
    assert cased.tokenize("1" * length + ".") == [*(pieces if length <= 200 else ["[UNK]"]), "."]
    assert uncased.tokenize("한" * 70) == ["[UNK]"]


def test_lone_surrogates_do_not_crash(uncased):
    assert uncased.tokenize("a \ud800 \udfffb cat") == ["a", "[UNK]", "[UNK]", "cat"]


@pytest.mark.parametrize(
    ("name", "vocabulary", "do_lower_case"),
    [
        ("uncased", "uncased", True),
        ("cased", "cased", False),
        ("chinese", "chinese", True),
        ("multilingual", "multilingual_cased", False),
    ],
)
def test_golden_values_of_the_published_vocabularies(shared, name, vocabulary, do_lower_case):
    tokenizer = load_tokenizer(shared / "data" / "vocab" / vocabulary / "vocab.txt", do_lower_case)
    lines = (shared / "golden" / f"tokenization_{name}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    for expected in map(json.loads, lines):
        text = expected["text"]
        assert (tokenizer.encode(text), tokenizer.tokenize(text)) == (expected["ids"], expected["tokens"]), text
    column = 3 + ["uncased", "cased", "chinese", "multilingual"].index(name)
    for line in (shared / "golden" / "tokenization_codepoints.jsonl").read_text().split("\n")[:-1]:
        row = json.loads(line)
        if row[0] in ("558", "58C", "5C8", "1171E") and unicodedata.unidata_version != UNICODE_OF_GOLDEN_VALUES:
            continue  # other categories in later versions of Unicode
        assert " ".join(tokenizer.tokenize(f"a{chr(int(row[0], 16))}b")) == row[column], row[0]


# ---- WordPiece: the tokenizer as an object


def test_batches_and_conversions(uncased):
    texts = ["The cat sat.", "", "un cat"]
    assert uncased.encode_batch(texts) == [uncased.encode(text) for text in texts]
    assert uncased.convert_tokens_to_ids(["cat", "[PAD]"]) == [VOCABULARY.index("cat"), 0]
    assert uncased.convert_ids_to_tokens([4, 0]) == ["[MASK]", "[PAD]"]
    with pytest.raises(KeyError):
        uncased.convert_tokens_to_ids(["dog"])


def test_typed_masks_are_kept_only_on_request(uncased):
    ids = uncased.encode_with_masks("[MASK] cat [MASK].")
    assert uncased.convert_ids_to_tokens(ids) == ["[MASK]", "cat", "[MASK]", "."]
    assert uncased.mask_id not in uncased.encode("[MASK] cat [MASK].")


def test_special_ids_are_found_by_name():
    tokenizer = WordPieceTokenizer(["a", "[MASK]", "[UNK]", "[CLS]", "[SEP]", "b", "[PAD]"])
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        6,
        2,
        3,
        4,
        1,
    )
    assert tokenizer.special_ids == {1, 2, 3, 4, 6}


def test_only_the_mask_may_be_missing():
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    assert tokenizer.mask_id is None
    assert tokenizer.special_ids == {0, 1, 2, 3}
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        tokenizer.encode_with_masks("[MASK]")
    with pytest.raises(UserError, match=r"no \[CLS\] and no \[SEP\]"):
        WordPieceTokenizer(["[PAD]", "[UNK]"])


def test_continuations_are_marked(uncased):
    assert uncased.is_continuation.dtype == np.bool_
    assert uncased.is_continuation.tolist() == [piece.startswith("##") for piece in VOCABULARY]


def test_cache_is_bounded_and_changes_nothing(uncased, monkeypatch):
    monkeypatch.setattr(tokenization, "_CACHED_WORDS", 10)
    monkeypatch.setattr(tokenization, "_LONGEST_CACHED_WORD", 5)
    tokenizer = WordPieceTokenizer(VOCABULARY)
    text = " ".join(f"{'x' * (i % 9)}{i % 13}a" for i in range(200))
    for _ in range(2):
        assert tokenizer.encode(text) == uncased.encode(text)
    assert 0 < len(tokenizer._ids_of_word) <= 10
    assert max(map(len, tokenizer._ids_of_word)) <= 5


def test_pickling_keeps_the_tokenizer_and_drops_the_cache(cased):
    cased.encode("The cat")
    assert len(pickle.dumps(cased)) < 3 * sum(map(len, VOCABULARY)) + 1000
    copy = pickle.loads(pickle.dumps(cased))
    assert copy.encode("The cat") == cased.encode("The cat")
    assert (copy.fingerprint, copy.do_lower_case) == (cased.fingerprint, False)


def test_fingerprint_tells_casing_and_vocabulary(uncased, cased):
    others = [cased.fingerprint, WordPieceTokenizer([*VOCABULARY, "dog"]).fingerprint]
    assert uncased.fingerprint not in others
    assert WordPieceTokenizer(list(VOCABULARY)).fingerprint == uncased.fingerprint


# ---- Loading and saving


def test_saved_folder_gives_the_same_tokenizer(tmp_path, cased):
    path = cased.save(tmp_path / "new" / "folder")
    for place in (tmp_path / "new" / "folder", path):  # the settings beside the file count, too
        assert load_tokenizer(place).fingerprint == cased.fingerprint
    assert load_tokenizer(path, do_lower_case=True).do_lower_case is True


def test_plain_vocabulary_is_uncased_and_says_so_to_a_cased_one(tmp_path, caplog):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "a", "b", "c"]))
    assert load_tokenizer(path).do_lower_case is True
    assert not caplog.records
    path.write_text("\n".join([*SPECIALS, "A", "B", "c"]))
    with caplog.at_level(logging.WARNING):
        load_tokenizer(path)
    assert "2 of 8 pieces hold capital letters" in caplog.text
    caplog.clear()
    load_tokenizer(path, do_lower_case=False)
    assert not caplog.records


def test_errors_name_the_flag_and_the_file(tmp_path):
    for content, message in [(b"[PAD]\n[UNK]\n[CLS]\n", r"no \[SEP\]"), (b"[PAD]\n\xff\n", "line 2: not UTF-8")]:
        path = tmp_path / "vocab.txt"
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"--vocab_file={path}: .*{message}"):
            load_tokenizer(path)
    with pytest.raises(UserError, match=f"--vocab_file: no such file or folder: {tmp_path}/none.txt"):
        load_tokenizer(tmp_path / "none.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no vocab.txt or sentencepiece.model"):
        load_tokenizer(tmp_path / "empty")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "yes"}')
    with pytest.raises(UserError, match=r"do_lower_case in .* is 'yes', not true or false"):
        load_tokenizer(path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UserError, match="no JSON object"):
        load_tokenizer(path)


# ---- SentencePiece


def test_sentencepiece_special_ids_come_from_the_model(sentencepiece_tokenizer):
    tokenizer = sentencepiece_tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.do_lower_case) == ("sentencepiece", 120, None)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.convert_ids_to_tokens(range(5)) == SPECIALS


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("kalo\nmiren", "kalo miren"),
        ("kalo  miren", "kalo miren"),
        ("kalo\u200bmiren", "kalo miren"),
        ("\ufe30", ".."),
        ("\uff12", "2"),
        ("KALO", "kalo"),
        ("kalo \ud800", "kalo \ufffd"),
    ],
)
def test_sentencepiece_rules_of_the_model(sentencepiece_tokenizer, text, same_as):
    ids = sentencepiece_tokenizer.encode(text)
    assert ids == sentencepiece_tokenizer.encode(same_as)
    assert ids


def test_sentencepiece_odd_texts(sentencepiece_tokenizer):
    tokenizer = sentencepiece_tokenizer
    assert tokenizer.encode_batch(["", "   "]) == [[], []]
    assert tokenizer.encode("ꙮꙮꙮ").count(tokenizer.unk_id) == 1
    assert tokenizer.tokenize("ꙮ")[-1] == "[UNK]"
    assert tokenizer.mask_id not in tokenizer.encode("kalo [MASK]")
    assert tokenizer.encode_with_masks("kalo [MASK]") == [*tokenizer.encode("kalo "), tokenizer.mask_id]


def test_sentencepiece_continuations(sentencepiece_tokenizer):
    pieces = sentencepiece_tokenizer.convert_ids_to_tokens(range(120))
    expected = [not piece.startswith("▁") and piece not in SPECIALS for piece in pieces]
    assert sentencepiece_tokenizer.is_continuation.tolist() == expected
    assert any(expected)


def test_sentencepiece_saved_and_pickled(sentencepiece_tokenizer, sentencepiece_folder, tmp_path):
    text = "Miren vorxi belbel. [2]"
    copies = [
        pickle.loads(pickle.dumps(sentencepiece_tokenizer)),
        load_tokenizer(sentencepiece_tokenizer.save(tmp_path / "copy")),
    ]
    (tmp_path / "unnamed").write_bytes((sentencepiece_folder / "sentencepiece.model").read_bytes())
    copies.append(load_tokenizer(tmp_path / "unnamed"))
    for copy in copies:
        assert copy.fingerprint == sentencepiece_tokenizer.fingerprint
        assert copy.encode(text) == sentencepiece_tokenizer.encode(text)
        assert copy.convert_tokens_to_ids(copy.tokenize(text)) == copy.encode(text)


def train_sentencepiece(made_up_text, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up_text), model_writer=model, vocab_size=100, minloglevel=2, **options
    )
    return model.getvalue()


def test_foreign_sentencepiece_names_and_symbols_that_could_be_typed(made_up_text):
    model = train_sentencepiece(made_up_text, pad_id=3, user_defined_symbols="<mask>")
    tokenizer = SentencePieceTokenizer(model)
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id) == (0, 1, 2, 3)
    assert tokenizer.mask_id == tokenizer.convert_tokens_to_ids(["<mask>"])[0]
    assert not {1, 2, 3, tokenizer.mask_id} & set(tokenizer.encode("kalo <mask> </s> <pad> miren"))
    assert SentencePieceTokenizer(model, do_lower_case=True).encode("KALO") == tokenizer.encode("kalo")
    assert tokenizer.encode("KALO") != tokenizer.encode("kalo")


def test_no_model_and_no_padding_are_errors(made_up_text, tmp_path, capfd):
    for content in (b"", b"abc\0def"):
        (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.model: the file holds no SentencePiece model"):
            load_tokenizer(tmp_path / "a.model")
    with pytest.raises(UserError, match=r"no \[PAD\]"):
        SentencePieceTokenizer(train_sentencepiece(made_up_text))
    assert capfd.readouterr().err == ""


def test_real_vocabularies_by_line_number(shared):
    assert len(read_vocabulary(shared / "data" / "vocab" / "chinese" / "vocab.txt")) == 21128
