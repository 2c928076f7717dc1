"""What the flags of pretraining mean together: defaults, and the mistakes that can be seen in the flags alone."""

import math
import re
from collections.abc import Callable
from typing import Any

from bert_jax import beside_checkpoint
from bert_jax.flags import ALTERNATIVES
from bert_jax.schedule import check_trust_ratio
from input_pipeline.errors import UserError
from input_pipeline.pretraining_data import PretrainingDataConfig

# Without --input_file: a model that leaves the unigram plateau in a few minutes on two cores.
QUICK_START = {
    "input_file": ["builtin"],
    "model": "tiny",
    "vocab_size": 4096,
    "max_seq_length": 64,
    "train_batch_size": 64,
    "learning_rate": 1e-3,
    "num_train_steps": 1500,
    # Text of this size is not overfitted in so few steps; dropout would only hold the model on the plateau longer.
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

# The paper's (section A.2): batch 256, a million steps, learning rate 1e-4.
PAPER = {
    "model": "base",
    "max_seq_length": 128,
    "train_batch_size": 256,
    "learning_rate": 1e-4,
    "num_train_steps": 1_000_000,
}


def apply_defaults(flags: Any, say: Callable[[str], None]) -> None:
    """Fills flags that were not given, and says so where it matters.

    Raises:
        UserError: flags that exclude each other.
    """
    for one, other in ALTERNATIVES:
        if getattr(flags, one) is not None and getattr(flags, other) is not None:
            raise UserError(f"--{one} and --{other} exclude each other: give one of them")
    for name in ("restore_from", "init_checkpoint"):
        if getattr(flags, name):
            beside_checkpoint.take_all(flags, name)
    if flags.input_file is not None and not all(flags.input_file or [""]):
        raise UserError("--input_file has an empty entry: give files, stores, tfds:NAME or builtin")
    quick = flags.input_file is None
    defaults = dict(QUICK_START if quick else PAPER)
    for given, name in (
        (flags.bert_config_file, "model"),
        (flags.vocab_file, "vocab_size"),
        (flags.num_train_epochs, "num_train_steps"),
    ):
        if given is not None:
            defaults.pop(name, None)
    chosen = {name: value for name, value in defaults.items() if getattr(flags, name) is None}
    for name, value in chosen.items():
        setattr(flags, name, value)
    if chosen:
        kind = "quick start" if quick else "the paper's"
        shown = {name: ",".join(value) if isinstance(value, list) else value for name, value in chosen.items()}
        say(f"defaults ({kind}): " + " ".join(f"--{name}={value}" for name, value in shown.items()))
    if flags.num_train_epochs is not None and flags.num_train_epochs <= 0:
        raise UserError(f"--num_train_epochs={flags.num_train_epochs} must be above 0")
    if flags.output_dir is None:
        flags.output_dir = "runs/pretrain"
        say(f"--output_dir={flags.output_dir}")
    masked_positions(flags)
    if flags.eval_batch_size is None:
        flags.eval_batch_size = flags.train_batch_size
    for name, value in (("save_checkpoints_steps", 1000), ("optimizer", "bert_adam"), ("eval_fraction", 0.02)):
        if getattr(flags, name) is None:
            setattr(flags, name, value)
    check_trust_ratio(flags)


def apply_plan_defaults(flags: Any, say: Callable[[str], None]) -> None:
    """Fills what plan needs: the paper's values, and those of apply_defaults for a run on text.

    Raises:
        UserError: flags that exclude each other, or a number of steps that only data could tell.
    """
    if flags.num_train_epochs is not None:
        raise UserError("--num_train_epochs: a plan has no data; give --num_train_steps")
    if flags.output_dir is None:
        flags.output_dir = f"runs/plan_{re.sub(r'[^a-z0-9]+', '_', flags.topology)}"
    flags.input_file = ["builtin"]  # as for any text: not the quick start
    flags.eval_input_file = None
    apply_defaults(flags, say)


def masked_positions(flags: Any) -> None:
    """Fills --max_predictions_per_seq with room for the share that is masked."""
    if flags.max_predictions_per_seq is None:
        flags.max_predictions_per_seq = max(1, math.ceil(flags.max_seq_length * flags.masked_lm_prob))


def data_config(flags: Any) -> PretrainingDataConfig:
    """The settings of pairs and masks. Raises: UserError, for a value that makes no sense."""
    try:
        split = tuple(float(share) for share in flags.masking_split)
    except ValueError:
        raise UserError(f"--masking_split={','.join(flags.masking_split)}: three numbers are needed") from None
    return PretrainingDataConfig(
        max_seq_length=flags.max_seq_length,
        max_predictions_per_seq=flags.max_predictions_per_seq,
        masked_lm_prob=flags.masked_lm_prob,
        masking_split=split,
        whole_word_masking=flags.whole_word_masking,
        short_seq_prob=flags.short_seq_prob,
        next_sentence_prediction=flags.next_sentence_prediction,
        seed=flags.seed,
        shuffle=flags.shuffle,
        sampling_exponent=flags.sampling_exponent,
        eval_fraction=0.0 if flags.eval_input_file else flags.eval_fraction,
    )
