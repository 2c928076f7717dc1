"""What an evaluation got right and wrong, as a picture: which labels are confused, how far numbers are off."""

import math
from collections.abc import Sequence

import numpy as np

from bert_jax.report_chart import nice_ticks
from bert_jax.report_parts import text

# A larger table is not read any more.
MOST_LABELS = 30
OTHERS = "all others"

SIDE, LEFT, RIGHT, TOP, BOTTOM = 420, 50, 14, 12, 44

STYLE = """
.confusion { border-collapse: separate; border-spacing: 2px; width: auto; font-size: 13px; }
.confusion td, .confusion th { border: 0; padding: 5px 9px; }
.confusion thead th { vertical-align: bottom; }
.confusion td { text-align: right; border-radius: 4px; min-width: 46px; overflow-wrap: normal; }
.confusion td.right { outline: 1.5px solid var(--train); outline-offset: -1.5px; }
.confusion td.none { color: var(--muted); }
.confusion .label::first-letter { text-transform: none; }
.confusion .label { overflow-wrap: anywhere; min-width: 46px; max-width: 170px; }
.confusion td.sum { color: var(--muted); }
.confusion.many { font-size: 11px; } .confusion.many td, .confusion.many th { padding: 3px 4px; }
.confusion.many td { min-width: 0; }
.confusion.many thead .label { writing-mode: vertical-rl; min-width: 0; max-width: none; max-height: 130px; }
.confusion caption, .under { color: var(--muted); font-size: 12.5px; text-align: left; }
.confusion caption { caption-side: bottom; padding-top: 6px; min-width: 300px; }
.scatter { max-width: 560px; } .scatter svg { width: 100%; height: auto; display: block; }
.scatter circle { fill-opacity: 0.5; }
"""


def confusion_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A table of counts, shaded by their share of the row; of very many labels, those that are confused most.

    Args:
        labels: [n] names.
        counts: [n, n], rows by the right label and columns by the predicted one.
    """
    numbers = np.asarray(counts, np.int64).reshape(len(labels), len(labels))
    caption = "Examples of each right label (rows) by what was predicted (columns), shaded by the share of the row."
    names = list(labels)
    if len(names) > MOST_LABELS:
        names, numbers = _most_confused(names, numbers)
        caption += f" Of {len(labels):,} labels, the {MOST_LABELS} that are confused most are shown."
    heads = "".join(f'<th scope="col" class="label">{text(name)}</th>' for name in names)
    many = " many" if len(names) > 10 else ""
    rows = "".join(_confusion_row(names, place, row) for place, row in enumerate(numbers))
    return (
        f'<table class="confusion{many}"><caption>{caption}</caption><thead><tr><th scope="col">right \\ predicted</th>'
        f'{heads}<th scope="col">sum</th><th scope="col">found</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _most_confused(labels: list[str], counts: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The labels with most mistakes, in their order, and the rest as one."""
    mistakes = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_LABELS])
    group = np.full(len(labels), len(shown))
    group[shown] = np.arange(len(shown))
    grouped = np.zeros((len(shown) + 1, len(shown) + 1), np.int64)
    np.add.at(grouped, (group[:, None], group[None, :]), counts)
    return [*(labels[place] for place in shown), OTHERS], grouped


def _confusion_row(names: list[str], place: int, row: np.ndarray) -> str:
    total = int(row.sum())
    cells = []
    for column, (name, count) in enumerate(zip(names, row.tolist())):
        share = count / total if total else 0.0
        kind = " ".join(["right"] * (column == place) + ["none"] * (count == 0))
        # Never so dark that the number could not be read in either scheme of colours.
        colour = "train" if column == place else "evaluation"
        depth = 55 * math.sqrt(share)  # the root, because mistakes are few and are to be seen
        shade = f' style="background:color-mix(in srgb,var(--{colour}) {depth:.0f}%,transparent)"' if count else ""
        title = f"{names[place]} predicted as {name}: {count:,} of {total:,} ({100 * share:.1f}%)"
        cells.append(f'<td class="{kind}"{shade} title="{text(title)}">{count:,}</td>')
    # Among "all others", one label taken for another is a mistake that this table cannot show.
    found = f"{100 * row[place] / total:.1f}%" if total and names[place] is not OTHERS else "-"
    cells += [f'<td class="sum">{total:,}</td>', f'<td class="sum">{found}</td>']
    return f'<tr><th scope="row" class="label">{text(names[place])}</th>{"".join(cells)}</tr>'


def scatter(points: Sequence[Sequence[float]]) -> str:
    """A figure of right numbers (across) and predicted ones (up), with the line on which they agree."""
    pairs = [(right, predicted) for right, predicted in points if math.isfinite(right) and math.isfinite(predicted)]
    if not pairs:
        return ""
    low, high = min(map(min, pairs)), max(map(max, pairs))
    margin = 0.04 * (high - low) or 0.5
    low, high = low - margin, high + margin
    scale = (SIDE - LEFT - RIGHT) / (high - low)
    x = lambda value: f"{LEFT + (value - low) * scale:.1f}"
    y = lambda value: f"{TOP + (high - value) * scale:.1f}"
    right, bottom = SIDE - RIGHT, TOP + SIDE - LEFT - RIGHT
    parts = []
    for tick in nice_ticks(low, high):
        parts.append(
            f'<path class="grid" d="M{LEFT} {y(tick)}H{right}M{x(tick)} {TOP}V{bottom}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{float(y(tick)) + 4:.1f}" text-anchor="end">{tick:g}</text>'
            f'<text class="tick" x="{x(tick)}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>'
        )
    parts.append(f'<path class="reference" d="M{LEFT} {bottom}L{right} {TOP}"/>')
    parts += [
        f'<circle cx="{x(one)}" cy="{y(other)}" r="3"><title>right {one:g}, predicted {other:.4g}</title></circle>'
        for one, other in pairs
    ]
    parts.append(f'<text class="tick" x="{right}" y="{bottom + 36}" text-anchor="end">right number</text>')
    error = sum(abs(one - other) for one, other in pairs) / len(pairs)
    summary = f"{len(pairs):,} right numbers with the predicted ones; they differ by {error:.3g} on average"
    return (
        f'<figure class="chart scatter"><svg viewBox="0 0 {SIDE} {bottom + BOTTOM}" role="img" '
        f'aria-label="{summary}">{"".join(parts)}</svg><figcaption class="under">Predicted (up) against right numbers '
        f"(across), {len(pairs):,} examples; on the dashed line they agree. They differ by {error:.3g} on average."
        "</figcaption></figure>"
    )
