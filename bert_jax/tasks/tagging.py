"""Words -> tags, such as those of named entities (section 5.3): the hidden state of each word's first token, one dense
layer, softmax; no CRF.

Tags that mark entities are scored by entity as CoNLL-2003 does, all others, such as parts of speech, by word.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import metrics
from bert_jax.entity_metrics import CONLLEVAL, STRICT, entity_scores, token_accuracy
from bert_jax.heads import TaskHead
from bert_jax.tasks.family import MOST_MISTAKES, Losses, cross_entropy
from input_pipeline import conll_data, files, tag_schemes
from input_pipeline.errors import UserError
from input_pipeline.tag_schemes import IOB2, OUTSIDE, Entity
from input_pipeline.tagging_features import documents
from input_pipeline.task_examples import TaggedExample
from input_pipeline.task_features import Features

Tags = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tagging:
    """See family.Family. A prediction is the tags of an example, one a word.

    Attributes:
        features_of: a partial of tagging_features with its settings.
        strict: entities are read by the rules of IOB2 alone, instead of those of conlleval.

    Raises:
        UserError: `strict`, and the labels are of another scheme.
    """

    head: TaskHead
    features_of: functools.partial
    strict: bool = False
    num_choices: int = 1

    def __post_init__(self):
        if self.strict and self._scheme != IOB2:
            raise UserError(
                f"strict scoring of entities is for labels in {IOB2}; those of the model are "
                f"{self._scheme or 'of no scheme'}: {', '.join(self.head.labels[:9])}"
            )

    @property
    def main_metric(self) -> str:
        return "f1" if self._scheme else "accuracy"

    @property
    def groups(self) -> Callable[[list[TaggedExample]], list[list[TaggedExample]]] | None:
        """How examples are cut into groups that features_of needs as a whole; None where each is on its own."""
        return documents if self.features_of.keywords.get("document_context") else None

    @property
    def _scheme(self) -> str | None:
        return tag_schemes.scheme_of_labels(self.head.labels)

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Cross-entropy of each token that carries a label, f32 [batch, width]."""
        return cross_entropy(logits, labels)

    def predictions(
        self, examples: list[TaggedExample], features: Features, logits: Sequence[np.ndarray]
    ) -> list[Tags]:
        """The tags of each example; "O" for words that are in no sequence, as they have no tokens."""
        tags = [[OUTSIDE] * len(example.words) for example in examples]
        best = np.concatenate([np.argmax(one, axis=-1) for one in logits]) if len(logits) else np.zeros(0, np.int64)
        words = features.token_info["word"]
        sentences = np.repeat(features.examples, features.lengths) + features.token_info["sentence"]
        scored = words >= 0
        for sentence, word, label in zip(*(array[scored].tolist() for array in (sentences, words, best))):
            tags[sentence][word] = self.head.labels[label]
        return list(map(tuple, tags))

    def metrics(self, examples: list[TaggedExample], predictions: list[Tags]) -> dict[str, Any]:
        """Of entities "precision", "recall", "f1", "f1_<type>" of each type, and "scheme", how they are read; of words
        "accuracy"."""
        right = self._right_tags(examples)
        accuracy = token_accuracy(right, predictions)
        if not self._scheme:
            return {"accuracy": accuracy}
        scores = entity_scores(right, predictions, self.strict)
        return {
            "precision": scores.all.precision,
            "recall": scores.all.recall,
            "f1": scores.all.f1,
            "accuracy": accuracy,
            **{f"f1_{name}": one.f1 for name, one in scores.by_type.items() if name},
            "scheme": STRICT if self.strict else CONLLEVAL,
        }

    def write(
        self, folder: str | os.PathLike, stem: str, examples: list[TaggedExample], predictions: list[Tags]
    ) -> list[str]:
        """<stem>.conll: the lines of the input with the predicted tag as a last column."""
        content = "".join(f"{line}\n" for line in conll_data.tagged_lines(examples, predictions))
        files.write_bytes_atomic(files.as_path(folder) / f"{stem}.conll", content.encode("utf-8", "surrogatepass"))
        return [f"{stem}.conll"]

    def review(self, examples: list[TaggedExample], predictions: list[Tags]) -> dict[str, Any]:
        """Examples of sentences with a mistake, from all over the file, and which type words were taken for."""
        right = self._right_tags(examples)
        spans = [(self._spans(one), self._spans(predicted)) for one, predicted in zip(right, predictions, strict=True)]
        wrong = [place for place, (there, found) in enumerate(spans) if there != found]
        shown = min(len(wrong), MOST_MISTAKES)
        chosen = [wrong[i * len(wrong) // shown] for i in range(shown)]
        return {
            "examples": len(examples),
            "wrong": len(wrong),
            "confusion": self._confusion(right, predictions),
            "mistakes": [_mistake(examples[place], *spans[place], mark_shared=bool(self._scheme)) for place in chosen],
        }

    def _right_tags(self, examples: list[TaggedExample]) -> list[Tags]:
        """The tags in the labels' scheme; the strict rules judge also those of IOB2 as they stand."""
        tags = [example.tags for example in examples]
        if self.strict and tag_schemes.scheme_of(tags) == IOB2:
            return tags
        return [tag_schemes.in_scheme(one, self._scheme) for one in tags]

    def _spans(self, tags: Tags) -> list[Entity]:
        """What has to be right: the entities, or else each word's tag."""
        if self._scheme:
            return tag_schemes.strict_entities(tags) if self.strict else tag_schemes.entities(tags)
        return [Entity(tag, word, word + 1) for word, tag in enumerate(tags)]

    def _confusion(self, right: list[Tags], predictions: list[Tags]) -> dict[str, Any]:
        """Counts of words by the type of their entity, or else by their tag."""
        kind = (lambda tag: tag_schemes.split_tag(tag)[1] or tag) if self._scheme else (lambda tag: tag)
        pairs = [(kind(a), kind(b)) for one, predicted in zip(right, predictions) for a, b in zip(one, predicted)]
        labels = list(dict.fromkeys([*map(kind, self.head.labels), *(name for pair in pairs for name in pair)]))
        places = {label: place for place, label in enumerate(labels)}
        counts = metrics.confusion([places[a] for a, _ in pairs], [places[b] for _, b in pairs], len(labels))
        return {"labels": labels, "counts": counts.tolist()}


def _mistake(example: TaggedExample, there: list[Entity], found: list[Entity], mark_shared: bool) -> dict[str, Any]:
    ends = np.cumsum([len(word) + 1 for word in example.words]).tolist()
    starts = [0, *ends]

    def marks(spans: set[Entity], kind: str) -> list[list]:
        return [[starts[start], ends[end - 1] - 1, kind, label] for label, start, end in spans]

    def in_words(spans: list[Entity], others: list[Entity]) -> str:
        """What only one side has."""
        missed = [span for span in spans if span not in others]
        return "; ".join(f"{' '.join(example.words[start:end])}: {label}" for label, start, end in missed) or "nothing"

    shared = set(there) & set(found)
    all_marks = [
        *marks(shared if mark_shared else set(), "both"),
        *marks(set(there) - shared, "right"),
        *marks(set(found) - shared, "predicted"),
    ]
    return {
        "id": example.id,
        "where": example.where,
        "right": in_words(there, found),
        "predicted": in_words(found, there),
        "confidence": None,
        "texts": [{"title": "text", "text": " ".join(example.words), "marks": sorted(all_marks)}],
    }
