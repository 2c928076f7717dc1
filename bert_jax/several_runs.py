"""Several runs of one task: seeds, or the paper's grid; each in a folder of its own, and all of them in one table.

The folder above them holds runs.json, runs.tsv and report.html. The same command goes on where it was stopped. Only the
best run keeps its checkpoint.
"""

import functools
import itertools
import math
import os
import shutil
from typing import Any

from bert_jax import json_lines, metric_names, processes, runs_report, runs_table
from bert_jax.finetuning_run import FinetuningRun, Work, say_how_to_use
from bert_jax.reporting import RESULTS_FILE, read_results
from bert_jax.run_folder import CHECKPOINTS, RunFolder
from bert_jax.training import TrainingError
from input_pipeline import files
from input_pipeline.errors import UserError

# Section A.3 of the paper.
GRID = {
    "train_batch_size": (16, 32),
    "learning_rate": (5e-5, 3e-5, 2e-5),
    "num_train_epochs": (2.0, 3.0, 4.0),
}


class Settings:
    """The flags, some of them with other values."""

    def __init__(self, flags: Any, **changes: Any):
        self._flags, self._changes = flags, changes
        for name, value in changes.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flags, name)

    def flag_values_dict(self) -> dict[str, Any]:
        """See absl.flags.FlagValues."""
        return self._flags.flag_values_dict() | self._changes


def searched(flags: Any) -> list[str]:
    """What --grid_search searches over: the settings of the grid that no flag gives."""
    if not flags.grid_search:
        return []
    names = [name for name in GRID if getattr(flags, name) is None]
    if not names:
        raise UserError(f"--grid_search: all of {', '.join(f'--{name}' for name in GRID)} are given: nothing to search")
    return names


def plan(flags: Any, names: list[str], is_evaluated: bool) -> list[dict[str, Any]]:
    """The settings of each run: the grid over `names`, and the seeds within it.

    Args:
        is_evaluated: whether there is something to evaluate on.

    Raises:
        UserError: there are several, and nothing to compare them by.
    """
    grid = {name: values if name in names else (getattr(flags, name),) for name, values in GRID.items()}
    grid["seed"] = tuple(flags.seed + number for number in range(flags.num_runs))
    planned = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    if len(planned) > 1 and not is_evaluated:
        raise UserError("several runs are compared by what they are evaluated on: give --eval_file or --eval_fraction")
    return planned


def name_of(settings: dict[str, Any]) -> str:
    """The name of a run, and of its folder."""
    batch, rate, epochs, seed = (settings[name] for name in (*GRID, "seed"))
    length = f"_epochs{epochs:g}" if epochs is not None else ""
    return f"batch{batch}_lr{rate:g}{length}_seed{seed}"


def run_all(flags: Any, planned: list[dict[str, Any]], work: Work, folder: RunFolder) -> dict[str, Any]:
    """Runs what is planned and not finished yet, and says what came out.

    Returns:
        The metrics of the best run.

    Raises:
        UserError: a folder holds a run with other settings.
        Interrupted: as FinetuningRun.run; what is finished stays.
    """
    main_metric = work.model.task.family.main_metric
    runs: list[dict[str, Any]] = []
    for number, settings in enumerate(planned, start=1):
        name = name_of(settings)
        path = folder.path / name
        failed = False
        try:
            with RunFolder(path) as own:
                run = FinetuningRun(Settings(flags, **settings, keep_checkpoints=1), work, own)
                if not _is_finished(run):
                    processes.say(f"run {number} of {len(planned)}: {name}")
                    run.run()
        except TrainingError as error:
            processes.say(f"{name} failed: {error}")
            failed = True
        entry = {"name": name, "settings": settings, "main_metric": main_metric, "folder": name}
        outcome = functools.partial(_outcome, path, None if failed else main_metric)
        runs.append(entry | processes.from_first(outcome))
        processes.from_first(lambda: _report(folder.path, runs))
    processes.say(runs_table.text_table(runs))
    best = runs_table.summary(runs)["best_run"]
    processes.say(f"the best run is {folder.path / best}: the others keep no weights" if best else "all runs failed")
    if best:
        say_how_to_use(folder.path / best, flags, folder.path)
    processes.say(f"all runs side by side are in {folder.path / 'report.html'}")
    return next((run["metrics"] for run in runs if run["name"] == best), {})


def _is_finished(run: FinetuningRun) -> bool:
    """Whether a run has nothing left to do; it may have lost its weights since."""
    step = run.folder.finished_at(mode=run.flags.mode, task=run.work.data.name, settings=run.settings())
    return step is not None and step >= run.schedule.num_train_steps


def _outcome(path: Any, needed: str | None) -> dict[str, Any]:
    """What runs.json says of a run.

    Without the metric `needed` the file of a finished run is damaged: taken for a failure, the run would lose its
    weights.
    """
    results = read_results(path)
    value = results.get(needed, math.nan)
    if needed and not (value is None or (metric_names.is_number(value) and math.isfinite(value))):
        raise UserError(
            f"--output_dir: {path / RESULTS_FILE} is damaged or gone: it holds the metrics of a finished run, among "
            f"them {needed}. Without the folder {path} the same command does that run anew"
        )
    if not results:
        return {"metrics": {}, "warning": "it has not come to an evaluation"}
    lines = json_lines.read_lines(path / "warnings.jsonl", "--output_dir")
    found = [line["message"] for line in lines if isinstance(line.get("message"), str)]
    return {"metrics": results} | ({"warning": "; ".join(found)} if found else {})


def _report(folder: Any, runs: list[dict[str, Any]]) -> None:
    """Writes the tables so far, and takes the weights of all but the best run away."""
    files.write_json_atomic(folder / runs_table.RUNS_FILE, runs)
    runs_table.write_tsv(folder / "runs.tsv", runs)
    runs_report.write_page(folder, runs)
    best = runs_table.summary(runs)["best_run"]
    for run in runs:
        if best and run["name"] != best and not files.is_remote(folder):
            shutil.rmtree(os.path.join(folder, run["name"], CHECKPOINTS), ignore_errors=True)
