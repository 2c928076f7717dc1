"""Several runs of one task side by side: seeds, or a grid of settings, as numbers, as text and as runs.tsv.

A run, as runs.json has it: {"name", "settings": {"learning_rate", "train_batch_size", "num_train_epochs", "seed", ...},
"metrics": {name: number or None}, "main_metric": name, "folder": path}, and "warning" where there is something to say
of it, such as that it predicts one class only. More of the main metric is better; a run without it has failed.
"""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.metric_names import as_shares, format_value, is_number, metric
from bert_jax.prediction_tables import write_table
from input_pipeline import files
from input_pipeline.errors import UserError

RUNS_FILE = "runs.json"
SEED = "seed"
TITLES = {"learning_rate": "learning rate", "train_batch_size": "batch size", "num_train_epochs": "epochs"}

Run = Mapping[str, Any]


def score(run: Run) -> float | None:
    """The run's main metric, a share in [0, 1] where it is one; None where the run failed."""
    value = as_shares(run.get("metrics") or {}).get(run["main_metric"])
    return value if is_number(value) and math.isfinite(value) else None


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """What the runs amount to, as JSON can hold it.

    Returns:
        main_metric
        settings: one entry for each of the settings but the seed, in the order of the runs: "settings", "runs" (count),
            "failed" (count), and over the others "mean", "standard_deviation" (of a sample, n - 1; None for one run),
            "best", "worst"; these are None if all failed.
        best_run, best_score: name and score of the run with the highest score, the first of equals; None if all failed.
        best_settings: the settings with the highest mean; None if all failed.
        failed, warnings: of runs, {"name": ...} with the "warning" of those that are not as they should be.
    """
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    entries = [_entry(group) for group in groups.values()]
    scored = [run for run in runs if score(run) is not None]
    ranked = [entry for entry in entries if entry["mean"] is not None]
    return {
        "main_metric": runs[0]["main_metric"] if runs else None,
        "settings": entries,
        "best_run": max(scored, key=score)["name"] if scored else None,
        "best_score": max(map(score, scored), default=None),
        "best_settings": max(ranked, key=lambda entry: entry["mean"])["settings"] if ranked else None,
        "failed": [{"name": run["name"], "warning": run.get("warning")} for run in runs if score(run) is None],
        "warnings": [
            {"name": run["name"], "warning": run["warning"]}
            for run in runs
            if run.get("warning") and score(run) is not None
        ],
    }


def best_run_in(folder: str | os.PathLike, flag: str) -> str | None:
    """The folder of the best of several runs below `folder`, by its name there; None where runs.json is not there.

    Raises:
        UserError: no run has come to an evaluation, or the file is damaged; `flag` named the folder.
    """
    file = files.as_path(folder) / RUNS_FILE
    if not file.exists():
        return None
    try:
        runs = json.loads(files.read_text(file, flag))
        best = summary(runs)["best_run"]
        found = next((run["folder"] for run in runs if run["name"] == best), None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{flag}: {file} is damaged; it describes several runs in JSON") from None
    if found is None:
        raise UserError(f"{flag}: {os.fspath(folder)} holds several runs, and none has come to an evaluation")
    return found


def without_seed(run: Run) -> dict[str, Any]:
    """The settings by which runs are told apart: those that differ in the seed only are repetitions."""
    return {name: value for name, value in run["settings"].items() if name != SEED}


def _key(run: Run) -> tuple:
    return tuple(sorted((name, repr(value)) for name, value in without_seed(run).items()))


def _entry(group: list[Run]) -> dict[str, Any]:
    values = [value for run in group if (value := score(run)) is not None]
    return {
        "settings": without_seed(group[0]),
        "runs": len(group),
        "failed": len(group) - len(values),
        "mean": statistics.fmean(values) if values else None,
        "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
        "best": max(values, default=None),
        "worst": min(values, default=None),
    }


def varied(runs: Sequence[Run]) -> list[str]:
    """The names of the settings, without the seed, in which the runs differ: the usual ones first."""
    names = dict.fromkeys([*TITLES, *(name for run in runs for name in run["settings"])])
    different = lambda name: len({repr(run["settings"].get(name)) for run in runs}) > 1
    return [name for name in names if name != SEED and different(name)]


def setting_text(value: Any) -> str:
    """A setting as people write it: 2e-05, 32, 3."""
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def settings_text(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Some settings in one line; "all runs" where there are none to tell apart."""
    parts = [f"{TITLES.get(name, name)} {setting_text(settings.get(name))}" for name in names]
    return ", ".join(parts) or "all runs"


def number_text(name: str, value: float | None) -> str:
    """A number of the metric `name`, "-" where there is none."""
    return "-" if value is None else format_value(name, value)


def mean_text(name: str, entry: Mapping[str, Any]) -> str:
    """Mean and standard deviation of settings: "84.1% ± 0.6" of a share, "0.5904 ± 0.0121" of another number."""
    deviation = entry["standard_deviation"]
    return number_text(name, entry["mean"]) + (f" ± {deviation_text(name, deviation)}" if deviation is not None else "")


def deviation_text(name: str, deviation: float | None) -> str:
    """A standard deviation in the unit of its metric, points for a share."""
    if deviation is None:
        return "-"
    return f"{100 * deviation:.1f}" if metric(name).kind == "share" else f"{deviation:.2g}"


def remarks(runs: Sequence[Run]) -> list[str]:
    """Lines about runs that failed or that are not as they should be."""
    found = summary(runs)
    lines = [
        f"{one['name']} failed and counts in no mean{': ' + one['warning'] if one['warning'] else ''}"
        for one in found["failed"]
    ]
    return lines + [f"{one['name']}: {one['warning']}" for one in found["warnings"]]


def text_table(runs: Sequence[Run]) -> str:
    """The summary for a terminal: a line for each of the settings, then the best ones and what is odd."""
    found, names = summary(runs), varied(runs)
    if not runs:
        return "no runs"
    main = found["main_metric"]
    heads = [*(TITLES.get(name, name) for name in names), "runs", f"mean {metric(main).title}", "std", "best", "worst"]
    rows = [heads]
    for entry in found["settings"]:
        mean, best, worst = (number_text(main, entry[key]) for key in ("mean", "best", "worst"))
        settings = [setting_text(entry["settings"].get(name)) for name in names]
        number = f"{entry['runs']}" + (f" ({entry['failed']} failed)" if entry["failed"] else "")
        rows.append([*settings, number, mean, deviation_text(main, entry["standard_deviation"]), best, worst])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    if found["best_run"] is not None:
        best = format_value(main, found["best_score"])
        lines.append(f"best run: {found['best_run']}, {metric(main).title} {best}")
        if len(found["settings"]) > 1:
            lines.append(f"best settings by mean: {settings_text(found['best_settings'], names)}")
    return "\n".join(lines + remarks(runs))


def write_tsv(path: str | os.PathLike, runs: Sequence[Run]) -> None:
    """Writes runs.tsv: a row for each run with its settings and all its metrics, unrounded.

    Raises:
        UserError: the place cannot be written.
    """
    settings = list(dict.fromkeys(name for run in runs for name in run["settings"]))
    metrics = list(dict.fromkeys(name for run in runs for name in run.get("metrics") or {}))
    rows = [
        [
            run["name"],
            *(run["settings"].get(name) for name in settings),
            *((run.get("metrics") or {}).get(name) for name in metrics),
            run.get("warning"),
            run.get("folder"),
        ]
        for run in runs
    ]
    write_table(path, ["name", *settings, *metrics, "warning", "folder"], rows)
