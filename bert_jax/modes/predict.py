"""--mode=predict: answers of a fine-tuned model to data without labels."""

from typing import Any

from bert_jax import task_use


def run(flags: Any) -> None:
    """See task_use.answer."""
    task_use.answer(flags, "test")
