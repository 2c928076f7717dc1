"""Schemes in which the tags of words mark entities: IOB1, IOB2, IOBES, and others that differ from it by letters.

"O" is a word outside of any entity; else a tag is a prefix, "-" and the entity's type. B begins an entity and I goes on
with it; in IOB1 B stands only where an entity follows one of its own type, and I begins all others. IOBES has E for the
last word of an entity and S for one of a single word (BILOU: L, U; BMES: M for I). Tags like "NN" are of no scheme.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from input_pipeline.errors import UserError
from input_pipeline.task_examples import TaggedExample

OUTSIDE = "O"
IOB1, IOB2, IOBES = "IOB1", "IOB2", "IOBES"
_ENTITY_TAG = re.compile(r"([BIESLUM])(?:-(.+))?", re.DOTALL)
_SAME_PREFIX = {"L": "E", "U": "S", "M": "I"}
_PREFIXES = {IOB2: "BI", IOBES: "BIES"}


class Entity(NamedTuple):
    """Words start to end - 1 of a sentence."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix (one of B, I, E and S) and type of a tag; ("O", "") for "O" and for what is of no scheme."""
    match = _ENTITY_TAG.fullmatch(tag)
    if not match:
        return OUTSIDE, ""
    prefix, entity_type = match.groups(default="")
    return _SAME_PREFIX.get(prefix, prefix), entity_type


def marks_entities(tags: Iterable[str]) -> bool:
    """Whether the tags, or labels, are of a scheme, and not all "O"."""
    kinds = set(tags) - {OUTSIDE}
    return bool(kinds) and all(map(_ENTITY_TAG.fullmatch, kinds))


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence by the rules of conlleval, which reads all schemes and tags that break them.

    An entity begins at B and S, at I and E after "O", E or S, and wherever the type changes; it ends where another
    begins and before "O".
    """
    found, start = [], None
    before, type_before = OUTSIDE, ""
    for place, tag in enumerate(tags):
        prefix, entity_type = split_tag(tag)
        begins = prefix in "BS" or (prefix in "IE" and (before in "OES" or entity_type != type_before))
        if start is not None and (begins or prefix == OUTSIDE):
            found.append(Entity(type_before, start, place))
            start = None
        if begins:
            start = place
        before, type_before = prefix, entity_type
    if start is not None:
        found.append(Entity(type_before, start, len(tags)))
    return found


def strict_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence in IOB2, where only B begins one; an I that goes on with nothing is none.

    Raises:
      UserError: the tags have other prefixes.
    """
    found, start = [], None
    type_before = ""
    for place, tag in enumerate(tags):
        prefix, entity_type = split_tag(tag)
        if prefix in "ES":
            raise UserError(f"strict scoring is of tags in IOB2, with the prefixes B and I; there is a tag {tag!r}")
        if start is not None and not (prefix == "I" and entity_type == type_before):
            found.append(Entity(type_before, start, place))
            start = None
        if prefix == "B":
            start, type_before = place, entity_type
    if start is not None:
        found.append(Entity(type_before, start, len(tags)))
    return found


def scheme_of(sentences: Iterable[Sequence[str]]) -> str | None:
    """IOB1, IOB2 or IOBES, whichever the tags of a file are; None for tags of no scheme, or "O" alone.

    Both IOB1 and IOB2 are found with some tags that break their rules: what most entities begin with decides, apart
    from those that follow one of their type. Tags that fit both are IOB2.
    """
    sentences = list(sentences)
    kinds = {tag for tags in sentences for tag in tags}
    if not marks_entities(kinds):
        return None
    if any(split_tag(tag)[0] in "ES" for tag in kinds):
        return IOBES
    inside, outside = 0, 0
    for tags in sentences:
        found = entities(tags)
        for before, entity in zip([None, *found], found):
            if split_tag(tags[entity.start])[0] == "I":
                inside += 1
            elif before is None or before.end < entity.start or before.type != entity.type:
                outside += 1
    return IOB1 if inside > outside else IOB2


def scheme_of_labels(labels: Iterable[str]) -> str | None:
    """IOB2 or IOBES, whichever a model's labels are; None for labels of no scheme."""
    labels = tuple(labels)
    if not marks_entities(labels):
        return None
    return IOBES if any(split_tag(label)[0] in "ES" for label in labels) else IOB2


def in_scheme(tags: Sequence[str], scheme: str | None) -> tuple[str, ...]:
    """Tags of any scheme written in IOB2 or IOBES; as they are where one of them, or `scheme`, is none."""
    if scheme is None or not marks_entities(tags):
        return tuple(tags)
    written = [OUTSIDE] * len(tags)
    for entity_type, start, end in entities(tags):
        prefixes = ["B", *"I" * (end - start - 1)]
        if scheme == IOBES:
            prefixes[-1] = "E" if end - start > 1 else "S"
        written[start:end] = (_tag(prefix, entity_type) for prefix in prefixes)
    return tuple(written)


def label_names(examples: Iterable[TaggedExample]) -> tuple[str, ...]:
    """A model's labels for the tags of examples: "O" first, then by type.

    Of a scheme they are in IOB2, or in IOBES where the tags are, with all prefixes for each type: what does not stand
    in the training set may stand elsewhere.
    """
    sentences = [example.tags for example in examples if example.tags]
    kinds = {tag for tags in sentences for tag in tags}
    scheme = scheme_of(sentences)
    if scheme is None:
        return tuple(sorted(kinds, key=lambda tag: (tag != OUTSIDE, tag)))
    types = sorted({split_tag(tag)[1] for tag in kinds - {OUTSIDE}})
    prefixes = _PREFIXES[IOBES if scheme == IOBES else IOB2]
    return (OUTSIDE, *(_tag(prefix, entity_type) for entity_type in types for prefix in prefixes))


def _tag(prefix: str, entity_type: str) -> str:
    return f"{prefix}-{entity_type}" if entity_type else prefix
