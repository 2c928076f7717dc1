"""All tasks of GLUE that a folder has, one after the other, beside the paper's table."""

from collections.abc import Callable
from typing import Any

from bert_jax import glue_submission, processes, suite_report
from bert_jax.several_runs import Settings
from bert_jax.task_data import glue_tasks_in
from input_pipeline import files, glue_data
from input_pipeline.errors import UserError

NAME = "glue"


def run(flags: Any, run_task: Callable[[Any, str], dict[str, Any]]) -> int:
    """Fine-tunes and evaluates each task in a folder of its own below --output_dir; finished ones are not run again.

    Raises:
        UserError: --data_dir has no task of GLUE; and as run_task.
    """
    if not flags.data_dir:
        raise UserError("--data_dir is missing: the folder with those of the tasks (CoLA, SST-2, ...), or tfds")
    if flags.train_file or flags.eval_file or flags.predict_file:
        raise UserError(f"--task_name={NAME} takes the files of --data_dir, not --train_file and its like")
    tasks = glue_tasks_in(flags.data_dir)
    processes.say(f"tasks in --data_dir={flags.data_dir}: {', '.join(tasks)}")
    folder = files.as_path(flags.output_dir)
    results: dict[str, dict[str, Any]] = {}
    for task in tasks:
        processes.say(f"task {len(results) + 1} of {len(tasks)}: {task}")
        own = Settings(flags, task_name=task, output_dir=str(folder / task))
        results[task] = {"metrics": run_task(own, task), "folder": task}
        if processes.is_first():
            suite_report.write_suite(folder, results, flags.init_checkpoint or flags.model or "")
    if processes.is_first():
        processes.say(f"the results beside the paper's are in {folder / f'{suite_report.STEM}.html'} (and .md, .json)")
        _submission(folder, list(results))
    return 0


def _submission(folder: Any, tasks: list[str]) -> None:
    """Collects the tables for the leaderboard in one zip."""
    names = [name for task in tasks for name in glue_data.TASKS[task].submission.values()]
    found = 0
    for task in tasks:
        for name in names:
            if (folder / task / name).exists():
                files.write_bytes_atomic(folder / name, files.read_bytes(folder / task / name, "--output_dir"))
                found += 1
    if found:
        path, notes = glue_submission.zip_folder(folder)
        for line in [f"the tables for the leaderboard are in {path}", *notes]:
            processes.say(line)
