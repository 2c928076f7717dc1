"""The mistakes of an evaluation as a list to read: what was right, what was predicted, and where in the text."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.report_parts import text

# Longer texts are cut: the page has to stay light.
MOST_CHARACTERS = 2000
MOST_CHOICES = 50  # of a menu

STYLE = """
.mistakes { list-style: none; margin: 0; padding: 0; }
.mistakes li {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; margin-bottom: 10px;
}
.mistakes li p { margin: 6px 0 0; overflow-wrap: anywhere; white-space: pre-wrap; line-height: 1.7; }
.mistakes .verdict { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 13.5px; color: var(--muted); }
.mistakes .verdict b { color: var(--text); font-weight: 600; overflow-wrap: anywhere; }
.mistakes .title { color: var(--muted); font-size: 12.5px; margin-right: 8px; }
.mistakes .title::first-letter { text-transform: uppercase; }
.cut { color: var(--muted); }
.filters { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin: 0 0 12px; font-size: 13.5px; }
.filters[hidden], .mistakes li[hidden] { display: none; }
.filters input, .filters select {
  font: inherit; color: var(--text); background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 4px 8px; margin-left: 4px; max-width: 260px;
}
.filters output { color: var(--muted); }
mark {
  color: inherit; padding: 1px 0; border-radius: 2px;
  text-decoration-line: underline; text-decoration-thickness: 2px; text-underline-offset: 4px;
}
mark.right {
  text-decoration-color: var(--good); background: color-mix(in srgb, var(--good) 18%, transparent);
}
mark.predicted {
  text-decoration-style: dashed; text-decoration-color: var(--evaluation);
  background: color-mix(in srgb, var(--evaluation) 18%, transparent);
}
mark.both {
  text-decoration-style: double; text-decoration-color: var(--train);
  background: color-mix(in srgb, var(--train) 18%, transparent);
}
.tag { font-size: 11px; color: var(--muted); margin: 0 2px 0 3px; white-space: nowrap; }
.key { color: var(--muted); font-size: 13px; margin: 0 0 12px; } .key mark { color: var(--text); margin-right: 10px; }
@media print { .filters { display: none; } }
"""

SCRIPT = """
for (const filters of document.querySelectorAll(".filters")) {
  const items = [...filters.parentElement.querySelectorAll(".mistakes > li")];
  const search = filters.querySelector("input"), menus = [...filters.querySelectorAll("select")];
  const output = filters.querySelector("output");
  const contents = items.map((item) => item.textContent.toLowerCase());
  const update = () => {
    const words = search.value.toLowerCase().trim();
    let shown = 0;
    items.forEach((item, place) => {
      const chosen = menus.every((menu) => menu.selectedIndex === 0 || item.dataset[menu.name] === menu.value);
      item.hidden = !(chosen && contents[place].includes(words));
      shown += !item.hidden;
    });
    output.textContent = shown + " of " + items.length + " shown";
  };
  for (const control of [search, ...menus]) control.addEventListener("input", update);
  filters.hidden = false;
  update();
}
"""

_KINDS = ("right", "predicted", "both")


def mistakes_list(mistakes: Sequence[Mapping[str, Any]]) -> str:
    """The mistakes in their order, with a search and, where labels are few, menus of them.

    Args:
        mistakes: as the family's review has them.
    """
    if not mistakes:
        return ""
    marked = any(one["marks"] for mistake in mistakes for one in mistake["texts"])
    key = (
        '<p class="key"><mark class="right">right</mark> <mark class="predicted">predicted</mark> '
        '<mark class="both">both</mark></p>'
    )
    menus = "".join(_menu(name, [str(mistake[name]) for mistake in mistakes]) for name in ("right", "predicted"))
    filters = (
        f'<div class="filters" hidden><label>Search <input type="search"></label>{menus}'
        '<output aria-live="polite"></output></div>'
    )
    return f'{filters}{key if marked else ""}<ol class="mistakes">{"".join(map(_item, mistakes))}</ol>'


def _menu(name: str, values: list[str]) -> str:
    """A choice among the values, where they are labels and not answers of their own."""
    choices = sorted(set(values))
    if not 2 <= len(choices) <= min(MOST_CHOICES, len(values) // 2):
        return ""
    options = "".join(f'<option value="{text(value)}">{text(value)}</option>' for value in choices)
    return f'<label>{name.title()} <select name="{name}"><option>any</option>{options}</select></label>'


def _item(mistake: Mapping[str, Any]) -> str:
    verdict = [f"<span>{name} <b>{text(mistake[name])}</b></span>" for name in ("right", "predicted")]
    if mistake["confidence"] is not None:
        verdict.append(f"<span>confidence <b>{100 * mistake['confidence']:.1f}%</b></span>")
    verdict.append(f"<span>{text(mistake['where'])}</span><span>id {text(mistake['id'])}</span>")
    texts = "".join(
        f'<p><span class="title">{text(one["title"])}</span><bdi>{marked_text(one["text"], one["marks"])}</bdi></p>'
        for one in mistake["texts"]
    )
    return (
        f'<li data-right="{text(mistake["right"])}" data-predicted="{text(mistake["predicted"])}">'
        f'<div class="verdict">{"".join(verdict)}</div>{texts}</li>'
    )


def marked_text(content: str, marks: Sequence[Sequence[Any]]) -> str:
    """HTML of a text with its marked parts, cut after MOST_CHARACTERS.

    Marks may overlap: what lies in a right and in a predicted one is marked as both.

    Args:
        marks: start, end (characters), "right", "predicted" or "both", and a label or "".
    """
    length = min(len(content), MOST_CHARACTERS)
    spans = [(max(start, 0), min(end, length), kind, label) for start, end, kind, label in marks]
    spans = [span for span in spans if span[0] < span[1]]
    edges = sorted({0, length, *(edge for start, end, *_ in spans for edge in (start, end))})
    parts = []
    for start, end in itertools.pairwise(edges):
        kinds = {kind for low, high, kind, _ in spans if low <= start < high}
        piece = text(content[start:end])
        if kinds:
            kind = kinds.pop() if len(kinds) == 1 else "both"
            piece = f'<mark class="{kind if kind in _KINDS else "both"}">{piece}</mark>'
        ended = [f"{text(kind)} {text(label)}" for _, high, kind, label in spans if high == end and label]
        parts.append(piece + (f'<span class="tag">{", ".join(ended)}</span>' if ended else ""))
    if length < len(content):
        parts.append(f' <span class="cut">… and {len(content) - length:,} characters more</span>')
    return "".join(parts)
