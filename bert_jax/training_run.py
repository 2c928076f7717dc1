"""What every training run is made of: its folder, checkpoints, reports, and the signals that end it early."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_jax import processes
from bert_jax.checkpointing import Checkpointer
from bert_jax.interruption import Interruption
from bert_jax.report_html import write_report
from bert_jax.reporting import RunReporter
from bert_jax.run_folder import RunFolder


class TrainingRun(NamedTuple):
    """A run that has something left to do.

    Attributes:
        start_step: updates done before.
        resumed: whether there is a checkpoint of that step in the folder.
    """

    start_step: int
    resumed: bool
    interruption: Interruption
    checkpointer: Checkpointer
    reporter: RunReporter


@contextlib.contextmanager
def training_run(
    folder: RunFolder,
    flags: Any,
    *,
    task: str | None = None,
    settings: Mapping[str, Any],
    num_train_steps: int,
    save: Iterable[Callable[[str], Any]],
    first_step: int = 0,
) -> Iterator[TrainingRun | None]:
    """Begins a run or goes on with it; None when the folder holds all of it already.

    The report is written whatever happens; when nothing did, the folder notes that the run is finished.

    Args:
        folder: entered.
        flags: mode, keep_checkpoints, and all for the record.
        task, settings, num_train_steps, save: see RunFolder.start.
        first_step: updates done before this run, in that which it continues.
    """
    start = folder.start(
        mode=flags.mode,
        task=task,
        settings=settings,
        num_train_steps=num_train_steps,
        flags=flags.flag_values_dict(),
        save=save,
    )
    if start.message:
        processes.say(start.message)
    if start.finished:
        yield None
        return
    start_step = start.step or first_step
    with (
        Interruption(start_step) as interruption,
        Checkpointer(folder.checkpoints, flags.keep_checkpoints) as checkpointer,
        RunReporter(folder.path, num_train_steps, start_step, processes.is_first()) as reporter,
    ):
        resumed = checkpointer.latest_step() is not None
        try:
            yield TrainingRun(start_step, resumed, interruption, checkpointer, reporter)
        finally:
            reporter.close()
            if processes.is_first():
                write_report(folder.path)
    folder.finish(num_train_steps)
