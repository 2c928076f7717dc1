"""Schemes of tags: what is recognised, and one written as another."""

import pytest

from input_pipeline import tag_schemes
from input_pipeline.errors import UserError
from input_pipeline.tag_schemes import entities, in_scheme, label_names, scheme_of, strict_entities
from input_pipeline.task_examples import TaggedExample


def examples(*sentences: str) -> list[TaggedExample]:
    tags = [tuple(sentence.split()) for sentence in sentences]
    return [TaggedExample(str(i), ("w",) * len(one), one, 0, "here") for i, one in enumerate(tags)]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("I-PER I-PER B-PER O", [("PER", 0, 2), ("PER", 2, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("S-PER B-LOC I-LOC E-LOC E-LOC", [("PER", 0, 1), ("LOC", 1, 4), ("LOC", 4, 5)]),
        ("U-PER B-LOC L-LOC O", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("B I O S", [("", 0, 2), ("", 3, 4)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities(tags, found):
    assert entities(tags.split()) == found


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER B-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        ("I-PER B-PER I-LOC I-PER", [("PER", 1, 2)]),
        ("O I-PER I-PER", []),
    ],
)
def test_strict_entities(tags, found):
    assert strict_entities(tags.split()) == found


def test_strict_entities_are_those_of_iob2():
    with pytest.raises(UserError, match="'U-PER'"):
        strict_entities(["O", "U-PER"])


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["I-PER I-PER O", "I-LOC B-LOC"], "IOB1"),
        (["I-PER O"], "IOB1"),
        (["B-PER I-PER O"], "IOB2"),
        (["B-PER I-PER O I-LOC"], "IOB2"),
        (["I-PER I-PER O I-LOC O B-LOC"], "IOB1"),
        (["B-PER E-PER S-LOC"], "IOBES"),
        (["B-PER L-PER U-LOC"], "IOBES"),
        (["B M E S"], "IOBES"),
        (["O O"], None),
        (["NN VB O"], None),
        (["B-PER PER"], None),
        ([""], None),
        ([], None),
    ],
)
def test_scheme_of(sentences, scheme):
    assert scheme_of([sentence.split() for sentence in sentences]) == scheme


@pytest.mark.parametrize(
    ("tags", "iob2", "iobes"),
    [
        ("I-PER I-PER B-PER O I-LOC", "B-PER I-PER B-PER O B-LOC", "B-PER E-PER S-PER O S-LOC"),
        ("B-PER I-PER I-LOC", "B-PER I-PER B-LOC", "B-PER E-PER S-LOC"),
        ("B-X M-X E-X U-Y", "B-X I-X I-X B-Y", "B-X I-X E-X S-Y"),
        ("B I O", "B I O", "B E O"),
        ("O O", "O O", "O O"),
        ("NN O", "NN O", "NN O"),
    ],
)
def test_in_scheme(tags, iob2, iobes):
    assert in_scheme(tags.split(), "IOB2") == tuple(iob2.split())
    assert in_scheme(tags.split(), "IOBES") == tuple(iobes.split())
    assert in_scheme(tags.split(), None) == tuple(tags.split())


def test_label_names():
    assert label_names(examples("I-PER O", "B-LOC")) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert label_names(examples("S-PER O")) == ("O", "B-PER", "I-PER", "E-PER", "S-PER")
    assert label_names(examples("VB NN", "O")) == ("O", "NN", "VB")
    assert label_names(examples("O O")) == ("O",)
    assert label_names([TaggedExample("0", ("w",), None, 0, "here")]) == ()


def test_scheme_of_labels():
    assert tag_schemes.scheme_of_labels(("O", "B-X", "I-X")) == "IOB2"
    assert tag_schemes.scheme_of_labels(("O", "B-X", "I-X", "E-X", "S-X")) == "IOBES"
    assert tag_schemes.scheme_of_labels(("NN", "VB")) is None
