"""--mode=evaluate: metrics of a fine-tuned model on labelled data, or of a pretrained one on text."""

from typing import Any

from bert_jax import task_use
from bert_jax.modes import evaluate_pretrained


def run(flags: Any) -> None:
    """See task_use.answer, and evaluate_pretrained.evaluate for models without the output layer of a task."""
    task_use.take_folder(flags)
    if task_use.is_pretrained(flags):
        evaluate_pretrained.evaluate(flags)
    else:
        task_use.answer(flags, "dev")
