"""Precision, recall and F1 of entities: an entity is right if its first word, its last word and its type are."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from input_pipeline.tag_schemes import entities, strict_entities

# How tags are read as entities, as results name it.
CONLLEVAL, STRICT = "conlleval", "strict IOB2"


class Scores(NamedTuple):
    """Of the entities of one type, or of all. What has nothing to divide by is 0.

    Attributes:
        true, found, right: numbers of entities that there are, that were predicted, and that are both.
    """

    true: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """The share of right ones among those that were predicted."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of those that there are that were predicted."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.right / (self.true + self.found) if self.true + self.found else 0.0


class EntityScores(NamedTuple):
    """Of all entities, and of those of each type that there is or that was predicted, in alphabetical order."""

    all: Scores
    by_type: dict[str, Scores]


def entity_scores(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], strict: bool = False
) -> EntityScores:
    """Compares predicted with right tags, sentence by sentence.

    Args:
        tags, predictions: the tags of each sentence, one a word.
        strict: False for the rules of conlleval, the script of CoNLL-2003, where also I begins an entity if it cannot
            go on with one; True for IOB2 where only B does.

    Raises:
        ValueError: the two differ in their numbers of sentences or words.
        UserError: `strict`, and the tags have other prefixes than B and I.
    """
    read = strict_entities if strict else entities
    true, found, right = Counter(), Counter(), Counter()
    for sentence, predicted in zip(tags, predictions, strict=True):
        if len(sentence) != len(predicted):
            raise ValueError(f"a sentence of {len(sentence)} words has {len(predicted)} predicted tags")
        entities_there, entities_found = read(sentence), read(predicted)
        true.update(entity.type for entity in entities_there)
        found.update(entity.type for entity in entities_found)
        right.update(entity.type for entity in set(entities_there).intersection(entities_found))
    return EntityScores(
        Scores(true.total(), found.total(), right.total()),
        {name: Scores(true[name], found[name], right[name]) for name in sorted(true | found)},
    )


def token_accuracy(tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> float | None:
    """The share of words with the right tag; None without words."""
    right = [a == b for sentence, predicted in zip(tags, predictions, strict=True) for a, b in zip(sentence, predicted)]
    return sum(right) / len(right) if right else None
