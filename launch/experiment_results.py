"""The results of experiments beside the paper's: a table as Markdown, JSON and a page."""

import json
import statistics
import time
from collections.abc import Callable, Collection
from string import Template
from typing import Any, NamedTuple

from bert_jax.metric_names import is_number
from bert_jax.report_parts import run_link, table, text
from bert_jax.report_template import HEAD, STYLE
from bert_jax.runs_table import RUNS_FILE
from input_pipeline import files
from launch.experiment_tables import SETUPS, Cell, Table

PERPLEXITY = "perplexity"
MADE_UP = "Of made-up data (launch/made_up_tasks.py): "

PAGE = Template(
    HEAD
    + """<body>
<header><p class="kicker">Experiments of the paper</p><h1>$title</h1></header>
<main>
<section class="table wide experiments">$table</section>
$about
</main>
<footer>Written by bert_jax at $written.</footer>
</body>
</html>
"""
)
_STYLE = """
.table { margin-top: 26px; } .experiments td, .experiments thead th + th { text-align: right; padding-right: 14px; }
.experiments td:nth-child(2n) { font-weight: 600; } .experiments tbody th { white-space: nowrap; }
.under { color: var(--muted); font-size: 13px; max-width: 780px; } a { color: var(--train); }
"""


class Result(NamedTuple):
    """Mean and standard deviation (None of a single run) over runs; None where there is no number."""

    mean: float | None = None
    deviation: float | None = None
    runs: int = 0


def read_result(folder: Any, cell: Cell) -> Result:
    """What a run, or several of one task, came to, in the paper's unit."""
    setup = SETUPS[cell.setup] if cell.setup else None
    name, factor = (setup.metric, setup.factor) if setup else (PERPLEXITY, 1.0)
    values = [factor * found[name] for found in _metrics(folder) if is_number(found.get(name))]
    if not values:
        return Result()
    return Result(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _metrics(folder: Any) -> list[dict[str, Any]]:
    if (folder / RUNS_FILE).exists():
        return [run["metrics"] for run in json.loads(files.read_text(folder / RUNS_FILE, "--output_dir"))]
    file = folder / "eval_results.json"
    return [json.loads(files.read_text(file, "--output_dir"))] if file.exists() else []


def write_table(
    output_dir: str, known: Table, place_of: Callable[[Cell], str | None], made_up: Collection[str], num_runs: int
) -> str:
    """Writes NAME.md, NAME.json and NAME.html with what is there.

    Args:
        place_of: the folder of a cell's run below output_dir.
        made_up: setups whose data are made up.
        num_runs: of each fine-tuning.

    Returns:
        The table as Markdown.
    """
    folder = files.as_path(output_dir, "--output_dir")
    rows = []
    for title, cells in known.rows:
        found = []
        for column, cell in zip(known.columns, cells, strict=True):
            place = place_of(cell)
            result = read_result(folder / place, cell) if place else Result()
            found.append({"column": column, "ours": result.mean, "deviation": result.deviation, "runs": result.runs})
            found[-1] |= {"paper": cell.paper, "made_up": cell.setup in made_up, "folder": place}
        rows.append({"name": title, "cells": found})
    notes = [known.about, *_notes(known, rows, num_runs)]
    content = {"title": known.title, "columns": known.columns, "rows": rows, "notes": notes}
    files.write_json_atomic(folder / f"{known.name}.json", content)
    markdown = _markdown(known, rows, notes)
    files.write_bytes_atomic(folder / f"{known.name}.md", markdown.encode())
    files.write_bytes_atomic(folder / f"{known.name}.html", _page(folder, known, rows, notes).encode())
    return markdown


def _notes(known: Table, rows: list[dict[str, Any]], num_runs: int) -> list[str]:
    columns = dict.fromkeys(cell["column"] for row in rows for cell in row["cells"] if cell["made_up"])
    notes = [f"{MADE_UP}{', '.join(columns)}. Not comparable to the paper's numbers."] if columns else []
    return notes + ([f"Ours are means of {num_runs} runs (± standard deviation)."] if num_runs > 1 else [])


def _heads(known: Table) -> list[str]:
    return ["", *(head for column in known.columns for head in (column, "paper"))]


def _number(value: float | None, cell: dict[str, Any], name: str) -> str:
    if value is None:
        return "-"
    shown = f"{value:.2f}" if name == PERPLEXITY else f"{value:.1f}"
    with_deviation = name == "ours" and cell["deviation"] is not None
    return shown + (f" ± {cell['deviation']:.1f}" if with_deviation else "")


def _cells(row: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The texts of a row, ours and the paper's in turn, with the cell of ours."""
    texts = []
    for cell in row["cells"]:
        for key in ("ours", "paper"):
            name = PERPLEXITY if cell["column"] == PERPLEXITY else key
            texts.append((_number(cell[key], cell, name), cell if key == "ours" else {}))
    return texts


def _markdown(known: Table, rows: list[dict[str, Any]], notes: list[str]) -> str:
    heads = _heads(known)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    lines += [[row["name"], *(shown for shown, _ in _cells(row))] for row in rows]
    content = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([f"# {known.title}", content, *notes]) + "\n"


def _page(folder: Any, known: Table, rows: list[dict[str, Any]], notes: list[str]) -> str:
    def linked(shown: str, cell: dict[str, Any]) -> str:
        return run_link(shown, folder / cell["folder"] if cell.get("folder") else None, folder)

    cells = [[text(row["name"]), *(linked(*one) for one in _cells(row))] for row in rows]
    return PAGE.substitute(
        title=text(known.title),
        table=table(_heads(known), cells),
        about="".join(f'<p class="under">{text(note)}</p>' for note in notes),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        style=STYLE + _STYLE,
    )
