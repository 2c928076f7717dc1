"""What the flags of fine-tuning mean together: defaults by kind of task, and mistakes that flags alone show."""

from collections.abc import Callable, Collection
from typing import Any

from bert_jax.flags import ALTERNATIVES
from bert_jax.schedule import check_trust_ratio
from input_pipeline.errors import UserError

# The paper's, section A.3 and, for the kinds of tasks, sections 4.1 to 4.4 and 5.3.
_DEFAULTS = {
    "classification": {"max_seq_length": 128, "train_batch_size": 32, "learning_rate": 2e-5, "num_train_epochs": 3.0},
    "span": {"max_seq_length": 384, "train_batch_size": 32, "learning_rate": 5e-5, "num_train_epochs": 3.0},
    "span of version 2": {"train_batch_size": 48, "num_train_epochs": 2.0},
    "multiple_choice": {"train_batch_size": 16},
    "tagging": {"learning_rate": 5e-5},
}


def apply_defaults(
    flags: Any,
    kind: str,
    version_2: bool,
    say: Callable[[str], None],
    searched: Collection[str] = (),
    trained_length: int | None = None,
) -> None:
    """Fills flags that were not given, and says so.

    Args:
        kind: of heads.KINDS.
        version_2: questions may have no answer.
        searched: flags that get values later.
        trained_length: tokens of the sequences that the weights were trained on, where that is known.

    Raises:
        UserError: --trust_ratio for an optimizer that has none.
    """
    defaults = _DEFAULTS["classification"] | _DEFAULTS.get(kind, {})
    if version_2:
        defaults |= _DEFAULTS["span of version 2"]
    if trained_length and flags.max_seq_length is None and trained_length < defaults["max_seq_length"]:
        flags.max_seq_length = trained_length
        say(f"--max_seq_length={trained_length}, as in the training of --init_checkpoint")
    elif trained_length and (flags.max_seq_length or 0) > trained_length:
        say(
            f"--init_checkpoint was trained on {trained_length} tokens: what it has for later positions, up to "
            f"--max_seq_length={flags.max_seq_length}, is random"
        )
    if flags.num_train_steps is not None:
        del defaults["num_train_epochs"]
    chosen = {name: value for name, value in defaults.items() if name not in searched and getattr(flags, name) is None}
    for name, value in chosen.items():
        setattr(flags, name, value)
    if chosen:
        say("defaults (the paper's): " + " ".join(f"--{name}={value}" for name, value in chosen.items()))
    for name, value in (("save_checkpoints_steps", 500), ("optimizer", "adamw")):
        if getattr(flags, name) is None:
            setattr(flags, name, value)
    check_trust_ratio(flags)
    if flags.optimizer == "bert_adam":
        say(
            "--optimizer=bert_adam has no bias correction: the first updates are far too large, which makes "
            "fine-tuning on small data unstable (Zhang et al., 2021); adamw has it"
        )


def check(flags: Any) -> None:
    """Raises UserError for flags that exclude each other, or that make no sense."""
    if flags.restore_from:
        raise UserError("--restore_from continues pretraining; a task begins from --init_checkpoint")
    for one, other in ALTERNATIVES:
        if getattr(flags, one) is not None and getattr(flags, other) is not None:
            raise UserError(f"--{one} and --{other} exclude each other: give one of them")
    if flags.num_train_epochs is not None and flags.num_train_epochs <= 0:
        raise UserError(f"--num_train_epochs={flags.num_train_epochs} must be above 0")
    if flags.grid_search and flags.num_train_steps is not None:
        raise UserError("--grid_search searches over epochs: --num_train_steps leaves nothing of that")
    if flags.freeze_encoder and (flags.layer_lr_decay != 1.0 or flags.reinit_layers):
        other = "reinit_layers" if flags.reinit_layers else "layer_lr_decay"
        raise UserError(f"--freeze_encoder and --{other} exclude each other: frozen layers do not learn")
    if flags.input_file or flags.eval_input_file:
        raise UserError("--input_file is text to pretrain on; the examples of a task are --train_file or --data_dir")
    if not flags.evaluate_at_end or flags.max_eval_steps is not None:
        other = "noevaluate_at_end" if not flags.evaluate_at_end else "max_eval_steps"
        raise UserError(f"--{other} is for pretrain; a task is evaluated on all of --eval_file, where that is given")
    if flags.eval_fraction is not None and flags.eval_file:
        raise UserError("--eval_fraction and --eval_file exclude each other: give one of them")
