"""Parameters to start from: fresh, those of a Hugging Face checkpoint, or those of a run of ours."""

import os
from collections.abc import Callable
from typing import Any

import jax

from bert_jax import checkpointing
from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import is_huggingface, load_huggingface, merge_into
from bert_jax.run_folder import CHECKPOINTS, RUN_FILE, find_checkpoint, read_run
from input_pipeline import files
from input_pipeline.errors import UserError

FLAG = "--init_checkpoint"


def files_beside(path: str, flag: str) -> dict[str, str]:
    """The configuration and the vocabulary that lie with a checkpoint, by the flags that would name them.

    Raises:
        UserError: there is nothing at `path`.
    """
    [path] = files.expand([path], flag)
    folder = files.reach(path, flag)
    if folder.parent.name == CHECKPOINTS:
        folder = folder.parent.parent
    elif not folder.is_dir():
        folder = folder.parent
    candidates = {
        "bert_config_file": ("bert_config.json", "config.json"),
        "vocab_file": ("vocab.txt", "sentencepiece.model"),
    }
    found = {}
    for flag, names in candidates.items():
        for name in names:
            if flag not in found and (folder / name).exists():
                found[flag] = os.fspath(folder / name)
    if "vocab_file" in found and (folder / "tokenizer_config.json").exists():
        found["vocab_file"] = os.fspath(folder)
    return found


def check(path: str, flag: str, config: BertConfig | None) -> None:
    """Finds out, before other work is done, whether parameters can be read from `path`.

    Args:
        config: what they have to fit, where it is known already.

    Raises:
        UserError: nothing readable.
    """
    if not is_huggingface(path, flag):
        find_checkpoint(path, flag)
    elif config is not None:
        load_huggingface(path, config, flag)


def check_vocabulary(path: str, flag: str, tokenizer: Any) -> None:
    """Compares the vocabulary in use with that of the run whose parameters are taken, where both are known.

    Raises:
        UserError: they differ, so that the rows of the embedding would stand for other words.
    """
    folder = files.reach(path, flag)
    folder = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
    if tokenizer is None or not (folder / RUN_FILE).exists():
        return
    theirs = read_run(folder, flag)["settings"].get("vocabulary")
    if theirs and theirs != tokenizer.fingerprint:
        raise UserError(f"{flag}={path} was trained with another vocabulary or casing than is used here")


def load(path: str, config: BertConfig, state: Any, message: Callable[[str], None]) -> Any:
    """Puts the parameters of a checkpoint in place of the fresh ones of `state`; its step and optimizer stay fresh.

    Args:
        path: a Hugging Face folder or safetensors file, or the output folder of a run (its newest checkpoint).
        state: the training state of step 0.

    Raises:
        UserError: nothing readable, or parameters that do not fit the configuration.
    """
    if is_huggingface(path, FLAG):
        _, loaded, report = load_huggingface(path, config, FLAG)
        for line in report.lines():
            message(f"{FLAG}: {line}")
        fresh = state["params"]
        merged = merge_into(fresh, loaded)
        params = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), merged, fresh)
    else:
        folder, step = find_checkpoint(path, FLAG)
        target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state["params"])
        params = checkpointing.restore(folder, step, {"params": target})["params"]
        message(f"{FLAG}: parameters of step {step} of {path}")
    return state | {"params": params}
