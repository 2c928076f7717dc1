import functools

import numpy as np
import pytest

from input_pipeline import feature_cache
from input_pipeline.feature_cache import build_features
from input_pipeline.task_examples import TextExample
from input_pipeline.task_features import make_features


class Speller:
    """Stands for a tokenizer."""

    def __init__(self, fingerprint="a"):
        self.fingerprint = fingerprint


def spell(examples, *, tokenizer, shift=0):
    sequences = [([ord(letter) + shift for letter in example.text], [0] * len(example.text)) for example in examples]
    labels = np.array([int(example.label) for example in examples], np.int32)
    info = {"letter": np.concatenate([np.asarray(ids) for ids, _ in sequences])}
    return make_features(sequences, range(len(examples)), labels, info, len(examples))


EXAMPLES = [TextExample(str(number), "abc"[: 1 + number % 3], None, str(number % 2), "") for number in range(20)]


def same(a, b):
    for one, other in zip(a[:5], b[:5]):
        np.testing.assert_array_equal(one, other)
    assert a.token_info.keys() == b.token_info.keys()
    for name in a.token_info:
        np.testing.assert_array_equal(a.token_info[name], b.token_info[name])
    assert a.num_cut == b.num_cut


def build(tmp_path, examples=EXAMPLES, **options):
    function = functools.partial(spell, **{"tokenizer": Speller()} | options)
    return build_features(function, examples, cache=tmp_path, num_workers=1)


def test_what_was_built_is_found_again(tmp_path, monkeypatch):
    built = build(tmp_path)
    monkeypatch.setattr(feature_cache, "ordered_map", lambda *arguments: pytest.fail("built again"))
    same(build(tmp_path), built)


@pytest.mark.parametrize(
    "options",
    [{"shift": 1}, {"tokenizer": Speller("b")}, {"examples": [EXAMPLES[0]._replace(text="x"), *EXAMPLES[1:]]}],
    ids=["setting", "tokenizer", "example"],
)
def test_whatever_it_depends_on_makes_other_features(tmp_path, options):
    build(tmp_path)
    build(tmp_path, **options)
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_features_are_built_again(tmp_path):
    built = build(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    same(build(tmp_path), built)


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (b"(20000,)", b"(20000,("),
        (b"-" + bytes(5), b"\xff" + bytes(5)),
        (b"num_cut", b"num_cat"),
        (b"(20000,)", b"(10000,)"),
    ],
    ids=["array header", "version of the archive", "name", "shape"],
)
def test_whatever_is_damaged_in_features_they_are_built_again(tmp_path, sound, damaged):
    many = EXAMPLES * 1000
    built = build(tmp_path, many)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert sound in content
    path.write_bytes(content.replace(sound, damaged))
    same(build(tmp_path, many), built)


def test_pieces_of_work_make_the_same_features(tmp_path, monkeypatch):
    whole = build_features(functools.partial(spell, tokenizer=Speller()), EXAMPLES, cache=None, num_workers=1)
    monkeypatch.setattr(feature_cache, "_CHARACTERS_A_CHUNK", 100)
    parts = build_features(functools.partial(spell, tokenizer=Speller()), EXAMPLES, cache=None, num_workers=1)
    same(parts, whole)
    assert parts.examples.tolist() == list(range(20))


def test_groups_stay_together(monkeypatch):
    monkeypatch.setattr(feature_cache, "_CHARACTERS_A_CHUNK", 100)
    seen = []

    def record(examples, *, tokenizer):
        seen.append([int(example.id) for example in examples])
        return spell(examples, tokenizer=tokenizer)

    groups = lambda examples: [examples[:13], examples[13:]]
    build_features(functools.partial(record, tokenizer=Speller()), EXAMPLES, cache=None, groups=groups, num_workers=1)
    assert seen == [list(range(13)), list(range(13, 20))]
