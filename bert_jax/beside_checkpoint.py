"""What lies beside weights and stands for flags that were not given: vocabulary and casing, and the configuration."""

from collections.abc import Callable
from typing import Any

from bert_jax.config import BertConfig, config_from_flags
from input_pipeline.errors import UserError


def take_vocabulary(flags: Any) -> None:
    """Fills --vocab_file and --do_lower_case with what lies beside --init_checkpoint, where it is given.

    --vocab_file, or a --vocab_size to train, counts more.

    Raises:
        UserError: there is no checkpoint, or it has no vocabulary.
    """
    if not flags.init_checkpoint:
        return
    source, beside = _find(flags)
    if flags.vocab_file or flags.vocab_size:
        return
    if "vocab_file" not in beside:
        raise UserError(f"{source}: no vocabulary lies beside the weights: give --vocab_file")
    flags.vocab_file = beside["vocab_file"]
    if flags.do_lower_case is None:
        flags.do_lower_case = beside.get("do_lower_case")


def configuration(
    flags: Any, default_size: str, vocab_size: int | None, vocab_source: str, message: Callable[[str], None]
) -> tuple[str, BertConfig]:
    """The configuration as config.config_from_flags says, and its name.

    Without --model and --bert_config_file it is that of --init_checkpoint, where it is given.

    Raises:
        UserError: as config_from_flags; there is no checkpoint, or it has no configuration.
    """
    own = flags.bert_config_file or flags.model
    source, beside = _find(flags) if flags.init_checkpoint else (None, {})
    if source and not own:
        if "bert_config_file" not in beside:
            raise UserError(f"{source}: no configuration lies beside the weights: give --bert_config_file")
        flags.bert_config_file = beside["bert_config_file"]
    config = config_from_flags(flags, default_size, vocab_size, vocab_source, message)
    if source and not own:
        from bert_jax.convert import checkpoints

        config, notes = checkpoints.config_of(source, config, flags.hidden_act)
        for note in notes:
            message(f"{source}: {note}")
    return own or flags.init_checkpoint or default_size, config


def take_all(flags: Any, name: str = "init_checkpoint") -> None:
    """Fills the flags of configuration, vocabulary and casing with what lies beside the weights of --`name`.

    Raises:
        UserError: there are no weights.
    """
    from bert_jax.convert import checkpoints

    source = checkpoints.find(getattr(flags, name), f"--{name}", flags.allow_pickled_weights)
    beside = checkpoints.flags_beside(source)
    if flags.bert_config_file is None and flags.model is None:
        flags.bert_config_file = beside.get("bert_config_file")
    if flags.vocab_file is None and flags.vocab_size is None:
        flags.vocab_file = beside.get("vocab_file")
        if flags.do_lower_case is None:
            flags.do_lower_case = beside.get("do_lower_case")


def _find(flags: Any) -> tuple[Any, dict[str, Any]]:
    from bert_jax.convert import checkpoints  # here, since JAX comes with it

    source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
    return source, checkpoints.flags_beside(source)
