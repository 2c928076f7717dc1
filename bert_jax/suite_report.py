"""The results of all GLUE tasks beside the paper's: glue_results.json, and as tables glue_results.md and .html.

Ours are of the dev sets, since the labels of the test sets are not public; those of the paper (table 1) are of the test
sets, as the leaderboard computed them. Dev results of BERT base cased, by Hugging Face's Flax example (batch size 32,
learning rate 2e-5, 3 epochs, 5 for MRPC and WNLI, mean of 5 runs), compare like with like.
"""

import os
import time
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, NamedTuple

from bert_jax.metric_names import is_number
from bert_jax.report_parts import notes, run_link, table, text, tiles
from bert_jax.report_template import HEAD, STYLE
from input_pipeline.files import as_path, write_bytes_atomic, write_json_atomic

FLAG = "--output_dir"
STEM = "glue_results"


class Score(NamedTuple):
    """One number of a task.

    Attributes:
        names: of the metric in the results of a run; the first that is there counts.
        dev: of BERT base cased, in percent; None where not known.
        base, large: the paper's for the test set, in percent; None for what its table does not have.
    """

    task: str
    title: str
    metric: str
    names: tuple[str, ...]
    dev: float | None
    base: float | None
    large: float | None


_F1, _ACCURACY = ("f1",), ("accuracy",)
SCORES = (
    Score("mnli", "MNLI matched", "accuracy", ("accuracy_matched", "accuracy"), 83.80, 84.6, 86.7),
    Score("mnli", "MNLI mismatched", "accuracy", ("accuracy_mismatched",), None, 83.4, 85.9),
    Score("qqp", "QQP", "F1", _F1, 87.51, 71.2, 72.1),
    Score("qqp", "QQP", "accuracy", _ACCURACY, 90.76, None, None),
    Score("qnli", "QNLI", "accuracy", _ACCURACY, 90.82, 90.5, 92.7),
    Score("sst2", "SST-2", "accuracy", _ACCURACY, 92.23, 93.5, 94.9),
    Score("cola", "CoLA", "Matthews correlation", ("matthews_correlation",), 59.04, 52.1, 60.5),
    Score("stsb", "STS-B", "Spearman", ("spearman",), 88.63, 85.8, 86.5),
    Score("stsb", "STS-B", "Pearson", ("pearson",), 88.94, None, None),
    Score("mrpc", "MRPC", "F1", _F1, 88.97, 88.9, 89.3),
    Score("mrpc", "MRPC", "accuracy", _ACCURACY, 84.36, None, None),
    Score("rte", "RTE", "accuracy", _ACCURACY, 64.76, 66.4, 70.1),
    Score("wnli", "WNLI", "accuracy", _ACCURACY, 37.01, None, None),
)
# No average counts WNLI: its dev set is built against its training set, and the paper leaves it out.
AVERAGED = tuple(dict.fromkeys(score.task for score in SCORES if score.task != "wnli"))
_PAPER = tuple(score for score in SCORES if score.base is not None)
_PAPER_AVERAGES = (79.6, 82.1)

COLUMNS = ("{name}, dev", "BERT base cased, dev (Hugging Face)", "BERT base, test (paper)", "BERT large, test (paper)")

PAGE = Template(
    HEAD
    + """<body>
<header>
<p class="kicker">GLUE</p>
<h1>$title</h1>
$tiles
$notes
</header>
<main>
<h2>Results</h2>
<section class="table wide suite">$table</section>
<p class="under">$about</p>
</main>
<footer>Written by bert_jax at $written.</footer>
</body>
</html>
"""
)

_STYLE = """
.suite td, .suite thead th { text-align: right; } .suite thead th + th { padding-right: 0; }
.suite th + td { padding-left: 14px; } .suite tbody th, .suite td { white-space: nowrap; }
.suite td:nth-child(2), .suite thead th:nth-child(-n+2) { text-align: left; }
.suite tbody td:nth-child(3) { font-weight: 600; } .suite th::first-letter { text-transform: none; }
.under { color: var(--muted); font-size: 13px; max-width: 780px; }
a { color: var(--train); }
"""

ABOUT = (
    "Percent. Ours and those of BERT base cased (Hugging Face's Flax example, mean of 5 runs) are of the dev sets, "
    "those of the paper (table 1) of the test sets, as the leaderboard computed them: a column of dev sets and one of "
    "test sets are not comparable to the point. The GLUE average is over tasks, with the mean of the two numbers where "
    "a task has two; the paper's is over the nine numbers that it has here. Neither counts WNLI."
)


def average(results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The mean over all tasks but WNLI, each with the mean of its numbers, as GLUE has it; None if one is missing."""
    tasks = [_mean([_value(score, results) for score in SCORES if score.task == task]) for task in AVERAGED]
    return _mean(tasks)


def paper_average(results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The mean of the nine columns of the paper's table 1; None if one is missing."""
    return _mean([_value(score, results) for score in _PAPER])


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(values) / len(values)


def _value(score: Score, results: Mapping[str, Mapping[str, Any]]) -> float | None:
    metrics = results.get(score.task, {}).get("metrics") or {}
    return next((metrics[name] for name in score.names if is_number(metrics.get(name))), None)


def _missing(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What an average lacks: titles of tasks."""
    lacking = (score.title for score in SCORES if score.task in AVERAGED and _value(score, results) is None)
    return list(dict.fromkeys(lacking))


def write_suite(
    folder: str | os.PathLike, results: Mapping[str, Mapping[str, Any]], name: str = "this run"
) -> list[str]:
    """Writes the three files.

    Args:
        results: task -> {"metrics": those of its dev set, {name: number in [0, 1]}, "folder": of its run}; those of
            MNLI end in _matched and _mismatched. Tasks may be missing.
        name: what the results are of.

    Returns:
        The names of the files.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = as_path(folder, FLAG)
    rows = _rows(results)
    missing = _missing(results)
    remarks = [f"There is no average without {', '.join(missing)}."] if missing else []
    values = {"average": average(results), "paper_average": paper_average(results), "missing": missing}
    write_json_atomic(folder / f"{STEM}.json", {"split": "dev", **values, "tasks": dict(results)})
    write_bytes_atomic(folder / f"{STEM}.md", _markdown(rows, name, remarks).encode())
    write_bytes_atomic(folder / f"{STEM}.html", _page(folder, rows, results, name, remarks).encode())
    return [f"{STEM}.{ending}" for ending in ("json", "md", "html")]


def _rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str | None, list[str]]]:
    """Rows of task, metric and the numbers of COLUMNS, each with the name of the task, None for an average."""
    rows: list[tuple[str | None, list[str]]] = []
    for score in SCORES:
        value = _value(score, results)
        numbers = [None if value is None else 100 * value, score.dev, score.base, score.large]
        rows.append((score.task, [score.title, score.metric, *map(_percent, numbers)]))
    ours = [None if value is None else 100 * value for value in (average(results), paper_average(results))]
    rows.append((None, ["Average", "as GLUE", *map(_percent, (ours[0], None, None, None))]))
    rows.append((None, ["Average", "as the paper", *map(_percent, (ours[1], None, *_PAPER_AVERAGES))]))
    return rows


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _heads(name: str) -> list[str]:
    return ["task", "metric", *(column.format(name=name) for column in COLUMNS)]


def _markdown(rows: Sequence[tuple[str | None, list[str]]], name: str, remarks: Sequence[str]) -> str:
    name = " ".join(name.replace("|", "\\|").split())
    lines = [_heads(name), ["---", "---", *(["---:"] * len(COLUMNS))], *(cells for _, cells in rows)]
    content = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join(["# GLUE", content, *remarks, ABOUT]) + "\n"


def _page(folder, rows, results: Mapping[str, Mapping[str, Any]], name: str, remarks: Sequence[str]) -> str:
    def title(task: str | None, shown: str) -> str:
        return run_link(shown, results.get(task, {}).get("folder"), folder)

    cells = [[title(task, first), *map(text, rest)] for task, (first, *rest) in rows]
    average, paper = rows[-2][1][2], rows[-1][1][2]
    shown = [("GLUE average", average, "dev, without WNLI"), ("as the paper averages", paper, "79.6 and 82.1 on test")]
    return PAGE.substitute(
        title=text(name),
        tiles=tiles(tile for tile in shown if tile[1] != "-"),
        notes=notes(remarks),
        table=table(_heads(name), cells),
        about=text(ABOUT),
        written=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        style=STYLE + _STYLE,
    )
