"""How long a run is, and how long its warm-up."""

import math
from typing import Any, NamedTuple

from input_pipeline.errors import UserError

PAPER_WARMUP_STEPS = 10_000
MOST_STEPS = 10**9


class Schedule(NamedTuple):
    """How the learning rate goes, see optimization.learning_rate_schedule.

    Attributes:
        num_train_steps: updates of the whole run, with those before first_step.
        first_step: updates done when the schedule begins.
    """

    num_train_steps: int
    num_warmup_steps: int
    power: float = 1.0
    first_step: int = 0


def schedule_from(flags: Any, examples_per_epoch: int, first_step: int = 0) -> Schedule:
    """Steps and warm-up. Epochs are turned into steps, rounded up; shares are of the steps from first_step on."""
    steps = flags.num_train_steps
    if steps is None:
        steps = max(1, math.ceil(flags.num_train_epochs * examples_per_epoch / flags.train_batch_size))
        if steps > MOST_STEPS:
            raise UserError(f"--num_train_epochs={flags.num_train_epochs} are {steps} updates, more than {MOST_STEPS}")
    own = steps - first_step
    warmup = flags.num_warmup_steps
    if warmup is None and flags.warmup_proportion is not None:
        warmup = int(own * flags.warmup_proportion)
    elif warmup is None:
        warmup = min(PAPER_WARMUP_STEPS, own // 10)
    return Schedule(steps, warmup, flags.lr_decay_power, first_step)


def check_trust_ratio(flags: Any) -> None:
    """Raises UserError where --trust_ratio is given for an optimizer that has none."""
    if flags.trust_ratio != "all" and flags.optimizer != "lamb":
        raise UserError(f"--trust_ratio={flags.trust_ratio} is for --optimizer=lamb, not {flags.optimizer}")
