"""--mode=evaluate: metrics of a fine-tuned model on labelled data."""

from typing import Any

from bert_jax import task_use


def run(flags: Any) -> None:
    """See task_use.answer."""
    task_use.answer(flags, "dev")
