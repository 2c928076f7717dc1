"""How long a run is, and how long its warm-up."""

import math
from typing import Any, NamedTuple

from input_pipeline.errors import UserError

PAPER_WARMUP_STEPS = 10_000
MOST_STEPS = 10**9


class Schedule(NamedTuple):
    """Updates of the whole run, and those of the warm-up among them."""

    num_train_steps: int
    num_warmup_steps: int


def schedule_from(flags: Any, examples_per_epoch: int) -> Schedule:
    """Steps and warm-up. Epochs are turned into steps, rounded up."""
    steps = flags.num_train_steps
    if steps is None:
        steps = max(1, math.ceil(flags.num_train_epochs * examples_per_epoch / flags.train_batch_size))
        if steps > MOST_STEPS:
            raise UserError(f"--num_train_epochs={flags.num_train_epochs} are {steps} updates, more than {MOST_STEPS}")
    if flags.num_warmup_steps is not None:
        return Schedule(steps, flags.num_warmup_steps)
    if flags.warmup_proportion is not None:
        return Schedule(steps, int(steps * flags.warmup_proportion))
    return Schedule(steps, min(PAPER_WARMUP_STEPS, steps // 10))
