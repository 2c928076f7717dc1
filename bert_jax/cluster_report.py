"""clusters.html: one self-contained page with a picture of the documents and what each cluster is about."""

import time
from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

import numpy as np

from bert_jax.clustering import excerpt
from bert_jax.report_template import HEAD, STYLE
from input_pipeline.documents import Document

# More points than this make the page heavy, and hide each other.
MOST_POINTS = 5000
WIDTH, HEIGHT, MARGIN = 1088, 620, 16

PAGE = Template(
    HEAD
    + """<body>
<header>
<p class="kicker">clusters of documents</p>
<h1>$title</h1>
$tiles
$notes
</header>
<main>
<h2>Picture</h2>
<figure class="chart plane">$picture<p class="legend">$legend</p><p class="hovered">$hint</p></figure>
<h2>Clusters</h2>
<section class="table wide"><table><thead><tr>$heads</tr></thead><tbody>$rows</tbody></table></section>
$more
</main>
<footer>Written by bert_jax at $written.</footer>
<script>$script</script>
</body>
</html>
"""
)

OWN_STYLE = """
.chart.plane svg { cursor: default; }
.plane circle { fill-opacity: 0.75; stroke: none; }
.plane.chosen circle { fill-opacity: 0.08; }
.plane.chosen circle.on { fill-opacity: 0.9; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; margin: 10px 0 0; font-size: 12.5px; color: var(--muted); }
.legend span, tr[data-cluster] td:first-child { white-space: nowrap; cursor: default; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 5px; }
.hovered { min-height: 4.5em; margin: 8px 0 4px; font-size: 13.5px; color: var(--muted); overflow-wrap: anywhere; }
.hovered b { color: var(--text); }
.representatives { margin: 0; padding: 0; list-style: none; }
.representatives li + li { margin-top: 6px; }
.representatives b { font-weight: 600; }
"""

SCRIPT = """
"use strict";
const plane = document.querySelector(".plane"), hovered = plane.querySelector(".hovered");
const hint = hovered.textContent;
plane.addEventListener("pointerover", (event) => {
  const title = event.target.querySelector && event.target.tagName === "circle" && event.target.querySelector("title");
  if (!title) return;
  const [head, ...rest] = title.textContent.split("\\n"), bold = document.createElement("b");
  bold.textContent = head + " ";
  hovered.replaceChildren(bold, rest.join(" "));
});
const choose = (cluster) => {
  plane.classList.toggle("chosen", cluster !== null);
  for (const circle of plane.querySelectorAll("circle")) {
    circle.classList.toggle("on", circle.getAttribute("class").split(" ")[0] === "c" + cluster);
  }
};
for (const place of document.querySelectorAll("[data-cluster]")) {
  place.addEventListener("pointerenter", () => choose(place.dataset.cluster));
  place.addEventListener("pointerleave", () => choose(null));
}
"""


def page(
    title: str,
    summary: Mapping[str, Any],
    documents: Sequence[Document],
    assignment: np.ndarray,
    plane: np.ndarray,
    notes: Sequence[str] = (),
) -> str:
    """The page.

    Args:
        summary: the content of clusters.json.
        documents: those with a text, [n].
        assignment: int [n]; plane: f32 [n, 2].
        notes: lines about what is odd.
    """
    entries = summary["clusters"]
    heads = ["cluster", "documents", "words", *(["labels"] if "agreement" in summary else []), "nearest the centre"]
    points = _points(documents, assignment, plane, summary["seed"])
    if len(documents) > MOST_POINTS:
        notes = [*notes, f"The picture shows {MOST_POINTS:,} of {len(documents):,} documents, chosen at random."]
    return PAGE.substitute(
        title=escape(title),
        style=STYLE + OWN_STYLE + "".join(f".c{i} {{ fill: {_colour(i)}; }}" for i in range(len(entries))),
        tiles=_tiles(summary),
        notes=f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else "",
        picture=f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{len(documents):,} documents by '
        f'{escape(summary["positions"])}, coloured by cluster">{points}</svg>',
        legend="".join(
            f'<span data-cluster="{entry["cluster"]}">{_dot(entry["cluster"])}{entry["cluster"]} '
            f"{escape(', '.join(entry['words'][:3]))}</span>"
            for entry in entries
        ),
        hint=f"Documents in two dimensions by {summary['positions']}. Point at one to read how it begins, and at a "
        "cluster to see where it is.",
        heads="".join(f'<th scope="col">{head}</th>' for head in heads),
        rows="".join(_row(entry, "agreement" in summary) for entry in entries),
        more=_tried(summary.get("silhouettes", {}), summary["num_clusters"]),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        script=SCRIPT,
    )


def _colour(index: int) -> str:
    """Hues that lie apart for neighbours, readable on a light and on a dark page."""
    return f"hsl({(index * 137.508 + 215) % 360:.0f} {(68, 55, 80)[index // 7 % 3]}% {(52, 62, 44)[index // 7 % 3]}%)"


def _dot(index: int) -> str:
    return f'<i class="dot" style="background:{_colour(index)}"></i>'


def _points(documents: Sequence[Document], assignment: np.ndarray, plane: np.ndarray, seed: int) -> str:
    low, high = plane.min(0), plane.max(0)
    scale = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN]) / np.where(high > low, high - low, 1.0)
    places = (plane - low) * scale + MARGIN
    shown = np.arange(len(documents))
    if len(shown) > MOST_POINTS:
        shown = np.sort(np.random.default_rng(seed).choice(len(shown), MOST_POINTS, replace=False))
    radius = 5 if len(shown) <= 500 else 3.5
    parts = []
    for row in shown:
        document, index = documents[row], assignment[row]
        head = f"{document.id} · cluster {index}" + (f" · {document.label}" if document.label is not None else "")
        parts.append(
            f'<circle class="c{index}" cx="{places[row, 0]:.1f}" cy="{HEIGHT - places[row, 1]:.1f}" r="{radius}">'
            f"<title>{escape(head)}\n{escape(excerpt(document.text))}</title></circle>"
        )
    return "".join(parts)


def _tiles(summary: Mapping[str, Any]) -> str:
    tiles = [
        ("documents", f"{summary['documents']:,}", "with a text"),
        ("clusters", str(summary["num_clusters"]), "best silhouette" if summary.get("silhouettes") else "as asked for"),
        ("silhouette", f"{summary['silhouette']:.3f}", "1 is well apart, 0 is not"),
    ]
    if agreement := summary.get("agreement"):
        tiles.append(
            ("adjusted Rand index", f"{agreement['adjusted_rand_index']:.3f}", "with the labels; 1 is the same")
        )
        tiles.append(("mutual information", f"{agreement['normalized_mutual_information']:.3f}", "normalised"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _row(entry: Mapping[str, Any], with_labels: bool) -> str:
    nearest = "".join(f"<li><b>{escape(one['id'])}</b> {escape(one['text'])}</li>" for one in entry["representatives"])
    labels = ", ".join(f"{label} {count:,}" for label, count in list(entry.get("labels", {}).items())[:6])
    cells = [f"{_dot(entry['cluster'])}{entry['cluster']}", f"{entry['size']:,}", escape(", ".join(entry["words"]))]
    cells += [escape(labels)] if with_labels else []
    cells.append(f'<ul class="representatives">{nearest}</ul>')
    return f'<tr data-cluster="{entry["cluster"]}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _tried(silhouettes: Mapping[str, float], chosen: int) -> str:
    if not silhouettes:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{number} clusters{" (chosen)" if int(number) == chosen else ""}</th>'
        f"<td>{value:.4f}</td></tr>"
        for number, value in silhouettes.items()
    )
    return (
        "<details><summary>Silhouettes by number of clusters</summary>"
        f'<section class="table"><table><tbody>{rows}</tbody></table></section></details>'
    )
