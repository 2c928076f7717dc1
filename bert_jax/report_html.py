"""report.html: one self-contained page with the curves of a run, its results and its facts."""

import json
import os
import statistics
import time
from collections.abc import Mapping
from html import escape
from string import Template
from typing import Any

from bert_jax import task_report
from bert_jax.json_lines import read_lines
from bert_jax.metric_names import as_shares, format_seconds, format_value, is_number, metric, numbers_in_order
from bert_jax.report_chart import draw, evaluation_series, training_series
from bert_jax.report_template import HEAD, SCRIPT, STYLE
from input_pipeline.files import as_path, user_errors, write_bytes_atomic

FLAG = "--output_dir"

# Not a curve of its own: the axes, a constant, or another curve in other units.
NOT_DRAWN = frozenset(
    {"step", "wall_time", "unigram_loss", "perplexity", "tokens_per_second", "seconds_per_step", "mfu"}
    | {"step_seconds_p50", "step_seconds_p90", "memory_peak_bytes"}
)
CHARTS = 12
TILES = 4

PAGE = Template(
    HEAD
    + """<body>
<header>
<p class="kicker">$kicker</p>
<h1>$title</h1>
$state
$tiles
$notes
</header>
<main>
$charts
$review$tables
</main>
<footer>Written by bert_jax at $written from the files of this folder.</footer>
<script>$script</script>
</body>
</html>
"""
)


def write_report(output_dir: str | os.PathLike) -> str:
    """Writes report.html into a run's folder, from whatever files of the run are there.

    Args:
        output_dir: folder of the run, local or remote; the files are described in reporting.py, and run.json holds the
            run's settings.

    Returns:
        The path of the page.

    Raises:
        UserError: the folder cannot be read or written.
    """
    folder = as_path(output_dir)
    run, facts, results = (_read_json(folder / f"{name}.json") for name in ("run", "facts", "eval_results"))
    lines = _by_step(read_lines(folder / "metrics.jsonl", FLAG))
    results = as_shares(results)
    evaluations = [as_shares(line) for line in _by_step(read_lines(folder / "eval_metrics.jsonl", FLAG))]
    if not evaluations and is_number(results.get("step")):
        evaluations = [results]
    review = task_report.sections(_read_json(folder / task_report.FILE))
    warnings = [str(line.get("message")) for line in read_lines(folder / "warnings.jsonl", FLAG)]
    page = PAGE.substitute(
        title=escape(folder.name or str(folder)),
        kicker=escape(" · ".join(str(run[key]) for key in ("mode", "task", "created") if run.get(key)) or "run"),
        # Without a run there are the results of a model that was trained elsewhere.
        state=_state(lines, run.get("num_train_steps")) if run or lines or not results else "",
        tiles=_tiles(lines, results),
        notes=f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in warnings)}</ul>' if warnings else "",
        charts=_charts(lines, evaluations, results, points=not review.html),
        review=review.html,
        tables=_tables(lines, evaluations, {} if review.html else results, run, facts),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        style=STYLE + review.style,
        script=SCRIPT + review.script,
    )
    path = folder / "report.html"
    write_bytes_atomic(path, page.encode())
    return os.fspath(path)


def _state(lines: list[dict], total: Any) -> str:
    """How far the run got, in a sentence."""
    if not lines:
        return '<p class="state warn">No training step was logged yet.</p>'
    step = lines[-1]["step"]
    if "loss" in lines[-1] and lines[-1]["loss"] is None:
        return f'<p class="state bad">The loss was not finite at step {step:,}.</p>'
    if not is_number(total):
        return f'<p class="state">Step {step:,}.</p>'
    if step >= total:
        return f'<p class="state good">Finished: all {total:,} steps are done.</p>'
    return f'<p class="state warn">Not finished: step {step:,} of {total:,}.</p>'


def _tiles(lines: list[dict], results: Mapping[str, Any]) -> str:
    """The few numbers that are looked for first."""
    tiles = []
    for name in numbers_in_order(results):
        if name in ("step", "loss", "unigram_loss", "examples", "total", "masked_positions", "next_sentence_loss"):
            continue
        note = "last evaluation"
        unigram = results.get("unigram_loss")
        if name == "masked_lm_loss" and is_number(unigram):
            below = unigram - results[name]
            note = f"{abs(below):.2f} nats {'below' if below >= 0 else 'above'} the unigram loss, {unigram:.4f}"
        tiles.append((metric(name).title, format_value(name, results[name]), note))
    del tiles[TILES:]
    if not tiles and lines and is_number(lines[-1].get("loss")):
        tiles.append(("loss", format_value("loss", lines[-1]["loss"]), "last logged batch"))
    if speeds := _column(lines, "examples_per_second")[1]:
        tiles.append(("examples/s", format_value("examples_per_second", statistics.median(speeds)), "median"))
    if shares := _column(lines, "mfu")[1]:
        tiles.append(("MFU", format_value("mfu", statistics.median(shares)), "of the devices' peak, median"))
    if seconds := _training_seconds(lines):
        tiles.append(("training time", format_seconds(seconds), "evaluation and saving not counted"))
    cells = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for title, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _charts(lines: list[dict], evaluations: list[dict], results: Mapping[str, Any], points: bool) -> str:
    """All curves, the most important one first and large; with `points` also what has but one value."""
    figures = []
    for name in numbers_in_order({**_either_end(evaluations), **_either_end(lines)}):
        if name in NOT_DRAWN or metric(name).kind == "count" or len(figures) == CHARTS:
            continue
        series = [*training_series(name, *_column(lines, name)), *evaluation_series(*_column(evaluations, name))]
        if not series or not (points or any(len(one.values) > 1 for one in series)):
            continue
        unigram = results.get("unigram_loss") if name == "masked_lm_loss" else None
        reference = ("unigram loss", unigram) if is_number(unigram) else None
        size = {"width": 1088, "height": 320} if not figures else {}
        figures.append(draw(name, series, reference, **size))
    if not figures:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{value}"{checked}>{label}</label>'
        for value, label, checked in (("linear", "linear", " checked"), ("log", "logarithmic", ""))
    )
    switch = f'<fieldset class="switch" hidden><legend>Step axis:</legend>{choices}</fieldset>'
    return f'<div class="bar"><h2>Curves</h2>{switch}</div><div class="charts">{"".join(figures)}</div>'


def _tables(lines, evaluations, results, run: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Results, facts and settings."""
    tables = []
    if results:
        rows = {
            metric(name).title: format_value(name, value) if is_number(value) else value
            for name, value in results.items()
        }
        tables.append(_table("last evaluation", rows))
    tables += [_table(title, rows) for title, rows in facts.items() if isinstance(rows, Mapping)]
    if lines:
        tables.append(_table("time", _times(lines)))
    titles = {"settings": "settings that define the run", "versions": "versions"}
    tables += [
        _table(title, run[key], names_as_they_are=True)
        for key, title in titles.items()
        if isinstance(run.get(key), Mapping)
    ]
    parts = [f'<h2>Results and facts</h2><div class="tables">{"".join(tables)}</div>' if tables else ""]
    if curves := _curves_in_numbers(lines, evaluations):
        parts.append(f"<details><summary>Curves in numbers</summary>{curves}</details>")
    if isinstance(run.get("flags"), Mapping):
        parts.append(
            f"<details><summary>All flags</summary>{_table('', run['flags'], names_as_they_are=True)}</details>"
        )
    return "".join(parts)


def _table(title: str, rows: Mapping[str, Any], names_as_they_are: bool = False) -> str:
    cells = []
    for name, value in rows.items():
        name = f"<code>{escape(str(name))}</code>" if names_as_they_are else escape(str(name).replace("_", " "))
        cells.append(f'<tr><th scope="row">{name}</th><td>{escape(_text(value))}</td></tr>')
    heading = f"<h3>{escape(title.replace('_', ' '))}</h3>" if title else ""
    cells = "".join(cells)
    return f'<section class="table">{heading}<table><tbody>{cells}</tbody></table></section>'


def _text(value: Any) -> str:
    """A fact as people read it: 4,386,178 or 'data=4, tensor=2'."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return "-" if value is None else str(value)


def _times(lines: list[dict]) -> dict[str, str]:
    walls = _column(lines, "wall_time")[1]
    rows = {}
    if walls:
        rows["first logged step"] = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(walls[0]))
        rows["last logged step"] = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(walls[-1]))
        rows["between them, pauses included"] = format_seconds(walls[-1] - walls[0])
    if seconds := _training_seconds(lines):
        rows["training"] = format_seconds(seconds)
        rows["seconds a step"] = f"{seconds / lines[-1]['step']:.4g}"
    if longest := _column(lines, "step_seconds_max")[1]:
        rows["longest step, seconds"] = f"{max(longest):.4g}"
    if sizes := _column(lines, "memory_peak_bytes")[1]:
        rows["peak memory of a device"] = format_value("memory_peak_bytes", max(sizes))
    return rows


def _training_seconds(lines: list[dict]) -> float:
    """Time spent in training steps: each logged pace holds for the steps since the line before."""
    total, before = 0.0, 0
    for line in lines:
        if is_number(line.get("seconds_per_step")):
            total += line["seconds_per_step"] * (line["step"] - before)
        before = line["step"]
    return total


def _curves_in_numbers(lines: list[dict], evaluations: list[dict]) -> str:
    rows = []
    for source, table in (("training", lines), ("evaluation", evaluations)):
        for name in numbers_in_order(_either_end(table)):
            steps, values = _column(table, name)
            if name in ("step", "wall_time") or not values:
                continue
            low, high = min(values), max(values)
            cells = [
                metric(name).title,
                source,
                format_value(name, values[0]),
                format_value(name, values[-1]),
                f"{format_value(name, low)} at step {steps[values.index(low)]:,}",
                f"{format_value(name, high)} at step {steps[values.index(high)]:,}",
            ]
            rows.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("metric", "of", "first", "last", "lowest", "highest"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<section class="table wide">{table}</section>' if rows else ""


def _either_end(lines: list[dict]) -> dict[str, Any]:
    """The metrics that a run reports, from its ends: its last loss may not be finite, which is no number."""
    return {**lines[-1], **lines[0]} if lines else {}


def _column(lines: list[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, without the lines that lack it."""
    points = [(line["step"], line[name]) for line in lines if is_number(line.get(name))]
    return [step for step, _ in points], [value for _, value in points]


def _read_json(path) -> dict[str, Any]:
    """The object in a file, empty if there is none."""
    with user_errors(path, FLAG):
        text = path.read_bytes() if path.exists() else b""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _by_step(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a step, the last that was written, in the order of the steps."""
    lines = {line["step"]: line for line in lines}
    return [lines[step] for step in sorted(lines)]
