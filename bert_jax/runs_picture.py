"""Scores of several runs as inline SVG: every run as a dot by its settings, and a grid of settings as heat maps."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.metric_names import metric
from bert_jax.report_chart import nice_ticks
from bert_jax.report_parts import text
from bert_jax.runs_table import (
    Run,
    deviation_text,
    mean_text,
    number_text,
    score,
    setting_text,
    settings_text,
    without_seed,
)

# More rows than these are not looked through; the table has them all.
MOST_ROWS = 40
ROWS, COLUMNS, PANELS = "learning_rate", "train_batch_size", "num_train_epochs"  # of a heat map

WIDTH, LABELS, RIGHT, TOP, ROW, BOTTOM = 1088, 330, 24, 8, 30, 28
CELL_WIDTH, CELL_HEIGHT, HEAT_LEFT, HEAT_TOP = 96, 44, 74, 26

STYLE = """
.chart.runs { overflow-x: auto; } .chart.runs svg { cursor: default; min-width: 720px; }
.runs + .heats { margin-top: 14px; }
.runs circle { fill-opacity: 0.55; } .runs circle.warned { fill: none; stroke: var(--evaluation); stroke-width: 2; }
.runs .deviation { stroke: var(--text); stroke-width: 1.5; opacity: 0.55; }
.runs .mean { stroke: var(--text); stroke-width: 3; }
.runs .name, .heats .value { fill: var(--text); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.runs figcaption, .heats figcaption { color: var(--muted); font-size: 12.5px; margin-top: 6px; }
.heats { display: flex; flex-wrap: wrap; gap: 6px 28px; }
.heats svg { width: auto; max-width: 100%; height: auto; cursor: default; }
.heats rect { fill: var(--train); stroke: var(--line); } .heats rect.best { stroke: var(--text); stroke-width: 2; }
.heats figcaption { flex-basis: 100%; }
"""


def strips(runs: Sequence[Run], found: Mapping[str, Any], names: Sequence[str]) -> str:
    """A figure with a row for each of the settings, the best mean first: its runs as dots, their mean and deviation.

    Args:
        found: the summary of the runs.
        names: the settings in which they differ.
    """
    entries = [entry for entry in found["settings"] if entry["mean"] is not None]
    if not entries:
        return ""
    entries.sort(key=lambda entry: -entry["mean"])
    shown, main = entries[:MOST_ROWS], found["main_metric"]
    low, high = min(entry["worst"] for entry in shown), max(entry["best"] for entry in shown)
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    low, high = low - margin, high + margin
    x = lambda value: LABELS + (WIDTH - RIGHT - LABELS) * (value - low) / (high - low)
    bottom = TOP + ROW * len(shown)
    parts = [_axis(main, low, high, x, bottom)]
    for place, entry in enumerate(shown):
        members = [run for run in runs if without_seed(run) == entry["settings"] and score(run) is not None]
        parts.append(
            _strip(main, entry, members, settings_text(entry["settings"], names), x, TOP + ROW * (place + 0.5))
        )
    rest = f" The best {MOST_ROWS} of {len(entries)} settings are shown." if len(entries) > MOST_ROWS else ""
    warned = " A ring is a run with a warning." if any(run.get("warning") for run in runs) else ""
    title = text(metric(main).title)
    return (
        f'<figure class="chart runs"><svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" '
        f'aria-label="{title} of {len(runs)} runs by their settings; the table has the numbers">{"".join(parts)}</svg>'
        f"<figcaption>{title}: a dot is a run, the bar the mean of its settings, the line one standard deviation to "
        f"either side.{warned}{rest}</figcaption></figure>"
    )


def _axis(main: str, low: float, high: float, x, bottom: float) -> str:
    share = metric(main).kind == "share"
    return "".join(
        f'<path class="grid" d="M{x(tick):.1f} {TOP}V{bottom}"/><text class="tick" x="{x(tick):.1f}" '
        f'y="{bottom + 18}" text-anchor="middle">{f"{100 * tick:g}%" if share else f"{tick:g}"}</text>'
        for tick in nice_ticks(low, high, 8)
    )


def _strip(main: str, entry: Mapping[str, Any], members: Sequence[Run], name: str, x, y: float) -> str:
    mean, deviation = entry["mean"], entry["standard_deviation"]
    name = name if len(name) <= 48 else f"{name[:47]}…"
    parts = [f'<text class="name" x="{LABELS - 16}" y="{y + 4}" text-anchor="end">{text(name)}</text>']
    if deviation is not None:
        start, end = max(x(mean - deviation), LABELS - 8), min(x(mean + deviation), WIDTH - 8)
        parts.append(f'<path class="deviation" d="M{start:.1f} {y}H{end:.1f}"/>')
    parts.append(f'<path class="mean" d="M{x(mean):.1f} {y - 9}V{y + 9}"/>')
    for run in members:
        warning = f": {run['warning']}" if run.get("warning") else ""
        parts.append(
            f'<circle class="{"warned" if warning else "fine"}" cx="{x(score(run)):.1f}" cy="{y}" r="5">'
            f"<title>{text(run['name'])} {number_text(main, score(run))}{text(warning)}</title></circle>"
        )
    return "".join(parts)


def heat_maps(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """Means of a grid over learning rate and batch size, a map for each number of epochs; "" where it is none."""
    entries = found["settings"]
    if not {ROWS, COLUMNS} <= set(names) <= {ROWS, COLUMNS, PANELS} or found["best_run"] is None:
        return ""
    panels = _values(entries, PANELS)
    maps = "".join(
        _heat_map(
            [entry for entry in entries if entry["settings"].get(PANELS) == epochs],
            found,
            f"epochs {setting_text(epochs)}" if PANELS in names else "",
        )
        for epochs in panels
    )
    title = text(metric(found["main_metric"]).title)
    return (
        f'<figure class="chart heats">{maps}<figcaption>Mean {title} by learning rate (down) and batch size (across), '
        "with the standard deviation below it; the stronger the colour, the better, and the best mean has a frame."
        "</figcaption></figure>"
    )


def _values(entries: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    values = {entry["settings"].get(name) for entry in entries}
    return sorted(values, key=lambda value: (value is None, value))


def _heat_map(entries: Sequence[Mapping[str, Any]], found: Mapping[str, Any], title: str) -> str:
    rows, columns = _values(found["settings"], ROWS), _values(found["settings"], COLUMNS)
    means = [entry["mean"] for entry in found["settings"] if entry["mean"] is not None]
    low, spread, main = min(means), max(means) - min(means), found["main_metric"]
    width, height = HEAT_LEFT + CELL_WIDTH * len(columns), HEAT_TOP + CELL_HEIGHT * len(rows) + 24
    parts = [f'<text class="tick" x="0" y="14">{text(title)}</text>'] if title else []
    for place, value in enumerate(columns):
        x = HEAT_LEFT + CELL_WIDTH * (place + 0.5)
        parts.append(f'<text class="tick" x="{x}" y="{height - 8}" text-anchor="middle">{setting_text(value)}</text>')
    for place, value in enumerate(rows):
        y = HEAT_TOP + CELL_HEIGHT * (place + 0.5) + 4
        parts.append(f'<text class="tick" x="{HEAT_LEFT - 8}" y="{y}" text-anchor="end">{setting_text(value)}</text>')
    for entry in entries:
        x = HEAT_LEFT + CELL_WIDTH * columns.index(entry["settings"].get(COLUMNS))
        y = HEAT_TOP + CELL_HEIGHT * rows.index(entry["settings"].get(ROWS))
        shade = 0.55 * (entry["mean"] - low) / (spread or 1) if entry["mean"] is not None else 0.0
        best = ' class="best"' if entry["settings"] == found["best_settings"] else ""
        shown = "failed" if entry["mean"] is None else number_text(main, entry["mean"])
        deviation = deviation_text(main, entry["standard_deviation"])
        middle = x + CELL_WIDTH / 2
        parts.append(
            f'<rect{best} x="{x + 2}" y="{y + 2}" width="{CELL_WIDTH - 4}" height="{CELL_HEIGHT - 4}" rx="5" '
            f'fill-opacity="{shade:.2f}"><title>{text(mean_text(main, entry))}, {entry["runs"]} runs</title></rect>'
            f'<text class="value" x="{middle}" y="{y + 20}" text-anchor="middle">{shown}</text>'
            f'<text class="tick" x="{middle}" y="{y + 35}" text-anchor="middle">± {deviation}</text>'
        )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="means {text(title)}; the table has the numbers">{"".join(parts)}</svg>'
