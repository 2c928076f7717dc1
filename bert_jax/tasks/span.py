"""Questions -> the part of a context that answers them (sections 4.2 and 4.3): SQuAD 1.1 and 2.0.

Question and context are one sequence, or several where the context is long (input_pipeline.question_features). A start
and an end vector score each token; training takes both ends as a choice among all tokens of the sequence, of which
[CLS] stands for no answer. The best pair of tokens becomes text in span_selection, and squad_metrics scores that.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import answer_marks, squad_metrics
from bert_jax.heads import FIXED_OUTPUTS, TaskHead
from bert_jax.span_selection import SpanPrediction, Window, select_answer
from bert_jax.tasks.family import MOST_MISTAKES, Losses
from input_pipeline import files
from input_pipeline.question_features import question_features, split_words
from input_pipeline.task_examples import QuestionExample
from input_pipeline.task_features import Features
from input_pipeline.tokenization import Tokenizer

_HEAD = TaskHead("span", FIXED_OUTPUTS["span"])
_NO_ANSWER = "(no answer)"


@dataclasses.dataclass(frozen=True)
class SpanTask:
    """See family.Family. Lengths are in tokens; the defaults are those of google-research/bert (run_squad.py).

    Attributes:
        version_2: whether a context may hold no answer.
        null_score_diff_threshold: null odds above it mean that there is none.
    """

    tokenizer: Tokenizer
    max_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2: bool = False
    null_score_diff_threshold: float = 0.0
    head: TaskHead = _HEAD
    main_metric: str = "f1"
    num_choices: int = 1

    @property
    def features_of(self) -> Callable[[list], Features]:
        """Examples -> features, with labels; of what has no known answer they are NO_LABEL."""
        return functools.partial(
            question_features,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            doc_stride=self.doc_stride,
            max_query_length=self.max_query_length,
            training=True,
        )

    def losses(self, logits: jax.Array, labels: jax.Array) -> Losses:
        """Cross-entropy of each end of each answer over the tokens of its sequence, f32 [batch, 2].

        Args:
            logits: f32 [batch, width, 2], very low where the sequence has no token.
            labels: int32 [batch, 2], first and last token.
        """
        chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[:, None, :], axis=1)[:, 0]
        losses = jax.nn.logsumexp(logits, axis=1) - chosen
        return Losses(losses, jnp.argmax(logits, axis=1) == labels, (labels >= 0).astype(jnp.float32))

    def predictions(
        self, examples: list[QuestionExample], features: Features, logits: Sequence[np.ndarray]
    ) -> list[SpanPrediction]:
        windows = _windows(features, logits)
        first = np.searchsorted(features.examples, np.arange(len(examples) + 1))
        words_of = functools.lru_cache(maxsize=16)(split_words)  # neighbours are often about the same context
        return [
            select_answer(
                words_of(example.context),
                windows[first[number] : first[number + 1]],
                self.tokenizer,
                n_best_size=self.n_best_size,
                max_answer_length=self.max_answer_length,
                version_2=self.version_2,
                null_score_diff_threshold=self.null_score_diff_threshold,
            )
            for number, example in enumerate(examples)
        ]

    def metrics(
        self, examples: list[QuestionExample], predictions: list[SpanPrediction]
    ) -> dict[str, float | int | None]:
        """What the official scripts say of the written files, as percentages.

        SQuAD 1.1: exact_match, f1. SQuAD 2.0: exact, f1, both with HasAns_ and NoAns_ in front, and what the best
        threshold of the null odds would reach (best_exact, best_f1) with that threshold (..._thresh).
        """
        texts = [prediction.text for prediction in predictions]
        answers = [[answer.text for answer in example.answers] for example in examples]
        if not self.version_2:
            return squad_metrics.version_1_metrics(texts, answers)
        odds = [prediction.null_odds for prediction in predictions]
        return squad_metrics.version_2_metrics(texts, answers) | squad_metrics.best_thresholds(texts, answers, odds)

    def write(
        self,
        folder: str | os.PathLike,
        stem: str,
        examples: list[QuestionExample],
        predictions: list[SpanPrediction],
    ) -> list[str]:
        """Google's files: <stem>.json, id -> text; and for "eval_predictions" eval_nbest_predictions.json, id -> best
        candidates, and in SQuAD 2.0 eval_null_odds.json.
        """
        prefix = stem.removesuffix("predictions") if stem.endswith("predictions") else f"{stem}_"
        by_id = {example.id: prediction for example, prediction in zip(examples, predictions, strict=True)}
        content: dict[str, dict[str, Any]] = {
            f"{stem}.json": {number: prediction.text for number, prediction in by_id.items()},
            f"{prefix}nbest_predictions.json": {
                number: [
                    {name: getattr(candidate, name) for name in ("text", "probability", "start_logit", "end_logit")}
                    for candidate in prediction.nbest
                ]
                for number, prediction in by_id.items()
            },
        }
        if self.version_2:
            odds = {number: prediction.null_odds for number, prediction in by_id.items()}
            content[f"{prefix}null_odds.json"] = odds
        for name, value in content.items():
            files.write_json_atomic(files.as_path(folder) / name, value)
        return list(content)

    def review(self, examples: list[QuestionExample], predictions: list[SpanPrediction]) -> dict[str, Any]:
        """Mistakes spread evenly over the file, with both answers marked in the context."""
        answers = [[answer.text for answer in example.answers] for example in examples]
        exact, _ = squad_metrics.scores(
            [prediction.text for prediction in predictions], [right or [""] for right in answers], self.version_2
        )
        wrong = np.flatnonzero(exact == 0)
        shown = wrong[:: max(-(-len(wrong) // MOST_MISTAKES), 1)]
        mistakes = [self._mistake(examples[number], predictions[number]) for number in shown]
        return {"examples": len(examples), "wrong": len(wrong), "mistakes": mistakes}

    def _mistake(self, example: QuestionExample, prediction: SpanPrediction) -> dict[str, Any]:
        """The mistake beside the right answer that is most like it."""
        chosen = next(candidate for candidate in prediction.nbest if candidate.text == prediction.text)
        right = max(
            example.answers,
            key=lambda answer: squad_metrics.score(prediction.text, [answer.text], self.version_2)[1],
            default=None,
        )
        context = answer_marks.marked_excerpt(
            example.context,
            answer_marks.place_of_answer(right, example.context) if right else None,
            answer_marks.place_of(chosen.text, example.context, chosen.word),
        )
        return {
            "id": example.id,
            "where": example.where,
            "right": " | ".join(dict.fromkeys(answer.text for answer in example.answers)) or _NO_ANSWER,
            "predicted": prediction.text or _NO_ANSWER,
            "confidence": chosen.probability,
            "texts": [{"title": "question", "text": example.question, "marks": []}, context],
        }


def _windows(features: Features, logits: Sequence[np.ndarray]) -> list[Window]:
    ends = np.cumsum(features.lengths)
    info = features.token_info
    return [
        Window(
            features.input_ids[start:end],
            info["word"][start:end],
            info["max_context"][start:end],
            scores[:, 0],
            scores[:, 1],
        )
        for start, end, scores in zip((ends - features.lengths).tolist(), ends.tolist(), logits, strict=True)
    ]
