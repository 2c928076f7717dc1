"""The page about several runs of one task: their scores as a picture, and tables that can be sorted."""

import os
import time
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from bert_jax.metric_names import as_shares, format_value, metric, numbers_in_order
from bert_jax.report_parts import notes, run_link, text, tiles
from bert_jax.report_template import HEAD, STYLE
from bert_jax.runs_picture import STYLE as PICTURE_STYLE
from bert_jax.runs_picture import heat_maps, strips
from bert_jax.runs_table import (
    SEED,
    TITLES,
    Run,
    deviation_text,
    mean_text,
    number_text,
    remarks,
    setting_text,
    settings_text,
    summary,
    varied,
    write_tsv,
)
from input_pipeline.files import as_path, write_bytes_atomic

FLAG = "--output_dir"

PAGE = Template(
    HEAD
    + """<body>
<header>
<p class="kicker">$kicker</p>
<h1>$title</h1>
$tiles
$notes
</header>
<main>
<h2>Scores</h2>
$pictures
$tables
</main>
<footer>Written by bert_jax at $written; runs.tsv has all numbers.</footer>
<script>$script</script>
</body>
</html>
"""
)

_STYLE = """
.sortable th button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit;
}
.sortable th[aria-sort] button::after { content: " ▲"; font-size: 9px; }
.sortable th[aria-sort="descending"] button::after { content: " ▼"; }
.sortable td, .sortable thead th + th { text-align: right; white-space: nowrap; }
.sortable thead th + th { padding-right: 0; } .sortable thead button::first-letter { text-transform: uppercase; }
.sortable td:first-child, .sortable thead th.words { text-align: left; }
.sortable td.words { text-align: left; white-space: normal; }
.sortable .name::first-letter { text-transform: none; } .sortable .name { overflow-wrap: anywhere; }
tr.best > * { font-weight: 600; color: var(--text); }
a { color: var(--train); }
"""

SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && column > 0);
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === "");  // what is not there stays last
        const numbers = a - b;
        const sign = down ? -1 : 1;
        return sign * (Number.isNaN(numbers) ? a.localeCompare(b, "en", {numeric: true}) : numbers);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
"""


def write_page(folder: str | os.PathLike, runs: Sequence[Run]) -> str:
    """Writes report.html and runs.tsv about the runs into the folder above them.

    Returns:
        The path of the page.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = as_path(folder, FLAG)
    write_tsv(folder / "runs.tsv", runs)
    found, names = summary(runs), varied(runs)
    page = PAGE.substitute(
        kicker=f"{len(runs):,} run{'s' * (len(runs) != 1)}",
        title=text(folder.name or str(folder)),
        tiles=tiles(_tiles(found, names, runs)),
        notes=notes(remarks(runs)),
        pictures=strips(runs, found, names) + heat_maps(found, names),
        tables=_settings_table(found, names) + _runs_table(folder, runs, found),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        style=STYLE + PICTURE_STYLE + _STYLE,
        script=SCRIPT,
    )
    path = folder / "report.html"
    write_bytes_atomic(path, page.encode())
    return os.fspath(path)


def _tiles(found: Mapping[str, Any], names: Sequence[str], runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    if found["best_run"] is None:
        return []
    main = found["main_metric"]
    entry = next(entry for entry in found["settings"] if entry["settings"] == found["best_settings"])
    return [
        (f"best {metric(main).title}", format_value(main, found["best_score"]), found["best_run"]),
        ("best mean", mean_text(main, entry), settings_text(entry["settings"], names)),
        ("runs", f"{len(runs):,}", f"{len(found['failed']):,} failed"),
    ]


def _settings_table(found: Mapping[str, Any], names: Sequence[str]) -> str:
    main = found["main_metric"]
    heads = [*(TITLES.get(name, name) for name in names), "runs", "failed", "mean", "std", "best", "worst"]
    rows = []
    for entry in found["settings"]:
        cells = [_cell(entry["settings"].get(name), setting_text(entry["settings"].get(name))) for name in names]
        cells += [_cell(entry[key], str(entry[key])) for key in ("runs", "failed")]
        cells.append(_cell(entry["mean"], number_text(main, entry["mean"])))
        cells.append(_cell(entry["standard_deviation"], deviation_text(main, entry["standard_deviation"])))
        cells += [_cell(entry[key], number_text(main, entry[key])) for key in ("best", "worst")]
        rows.append((entry["settings"] == found["best_settings"], cells))
    return f"<h2>Settings</h2>{_sortable(heads, rows)}" if names else ""


def _runs_table(folder, runs: Sequence[Run], found: Mapping[str, Any]) -> str:
    settings = list(dict.fromkeys([*varied(runs), *([SEED] if any(SEED in run["settings"] for run in runs) else [])]))
    together = {name: 0.0 for run in runs for name in numbers_in_order(run.get("metrics") or {})}
    metrics = sorted(numbers_in_order(together), key=lambda name: name != found["main_metric"])
    with_warnings = any(run.get("warning") for run in runs)
    heads = ["run", *(TITLES.get(name, name) for name in settings), *(metric(name).title for name in metrics)]
    rows = []
    for run in runs:
        values = as_shares(run.get("metrics") or {})
        cells = [f'<th scope="row" class="name">{run_link(run["name"], run.get("folder"), folder)}</th>']
        cells += [_cell(run["settings"].get(name), setting_text(run["settings"].get(name))) for name in settings]
        cells += [_cell(values.get(name), number_text(name, values.get(name))) for name in metrics]
        if with_warnings:
            cells.append(f'<td class="words">{text(run.get("warning") or "")}</td>')
        rows.append((run["name"] == found["best_run"], cells))
    return f"<h2>Runs</h2>{_sortable([*heads, 'warning'] if with_warnings else heads, rows)}"


def _cell(value: Any, shown: str) -> str:
    return f'<td data-value="{"" if value is None else text(value)}">{text(shown)}</td>'


def _sortable(heads: Sequence[str], rows: Sequence[tuple[bool, Sequence[str]]]) -> str:
    """A table whose heads sort it when they are clicked; each row with whether it is the best one."""
    kinds = {"warning": ' class="words"'}
    head = "".join(f'<th scope="col"{kinds.get(one, "")}>{text(one)}</th>' for one in heads)
    marks = {True: '<tr class="best">', False: "<tr>"}
    body = "".join(f"{marks[best]}{''.join(cells)}</tr>" for best, cells in rows)
    return (
        f'<section class="table wide"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></section>"
    )
