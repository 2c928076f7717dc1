"""What report.html says of a fine-tuned task: the metrics of each split, and what the model got wrong.

It is read from review.json in the run's folder: {split: {"metrics": {name: number}, "review": {...}}}. The review is
that of the task's family: "examples" and "wrong" (counts), "mistakes" (list), and where they apply "confusion" and
"points".
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax import review_mistakes, review_pictures
from bert_jax.metric_names import as_shares, metric, numbers_in_order
from bert_jax.report_parts import notes, table, text, value_text

FILE = "review.json"

_STYLE = """
.split { margin-bottom: 18px; } .split .table { margin-bottom: 14px; }
.split > p { margin: 0 0 12px; } .split > h3 { margin: 22px 0 10px; font-size: 15px; }
.numbers td { text-align: right; } .numbers thead th + th { text-align: right; padding-right: 0; }
.numbers thead th + th::first-letter { text-transform: none; }
"""


class Sections(NamedTuple):
    """HTML of a part of a page, and the style and script that it needs."""

    html: str
    style: str
    script: str


def sections(reviews: Mapping[str, Any]) -> Sections:
    """The part of the page about a task; empty without reviews.

    Args:
        reviews: the content of review.json.
    """
    if not reviews:
        return Sections("", "", "")
    try:
        parts = [_metrics(reviews), *(_split(name, one.get("review") or {}) for name, one in reviews.items())]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # it was changed by hand
        return Sections(notes([f"{FILE} is damaged; evaluate again to see what was right and wrong."]), "", "")
    style = _STYLE + review_pictures.STYLE + review_mistakes.STYLE
    return Sections("".join(parts), style, review_mistakes.SCRIPT)


def _metrics(reviews: Mapping[str, Any]) -> str:
    """A table of all metrics, a column for each split."""
    tables = {split: as_shares(one["metrics"]) for split, one in reviews.items() if one.get("metrics")}
    if not tables:
        return ""
    together: dict[str, Any] = {}
    for metrics in tables.values():
        together |= {name: value for name, value in metrics.items() if together.get(name) is None}
    known = numbers_in_order(together)
    rows = [
        [text(metric(name).title), *(value_text(name, metrics.get(name)) for metrics in tables.values())]
        for name in [*known, *(name for name in together if name not in known)]
    ]
    content = table(["metric", *tables], rows)
    return f'<h2>Metrics</h2><section class="table wide numbers">{content}</section>'


def _split(name: str, review: Mapping[str, Any]) -> str:
    """What was right and wrong in one split."""
    parts = []
    if "examples" in review and "points" not in review:  # a number is hardly ever right
        wrong, examples = review["wrong"], review["examples"]
        share = f" ({100 * wrong / examples:.1f}%)" if examples else ""
        parts.append(f"<p>Wrong: {wrong:,} of {examples:,} examples{share}.</p>")
    if confusion := review.get("confusion"):
        content = review_pictures.confusion_table(confusion["labels"], confusion["counts"])
        parts.append(f'<section class="table">{content}</section>')
    if points := review.get("points"):
        parts.append(review_pictures.scatter(points))
    if mistakes := review.get("mistakes"):
        parts.append(f"<h3>{_mistakes_title(mistakes, review.get('wrong'))}</h3>")
        parts.append(f'<div class="reading">{review_mistakes.mistakes_list(mistakes)}</div>')
    return f'<h2>Right and wrong in {text(name)}</h2><section class="split">{"".join(parts)}</section>' if parts else ""


def _mistakes_title(mistakes: list[Mapping[str, Any]], wrong: int | None) -> str:
    number = f"{len(mistakes):,} of {wrong:,} mistakes" if wrong is not None and wrong > len(mistakes) else "mistakes"
    confidences = [mistake["confidence"] for mistake in mistakes]
    if None in confidences or confidences != sorted(confidences, reverse=True):
        return number
    return f"{number}, the most confident first"
