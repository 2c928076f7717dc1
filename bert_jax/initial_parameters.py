"""Parameters for a training run to start from: fresh ones, with those of a checkpoint in place of theirs."""

from collections.abc import Callable
from typing import Any

import jax

from bert_jax.config import BertConfig
from bert_jax.convert import checkpoints
from bert_jax.convert.weights import ImportReport, merge_into, unstack_layers
from bert_jax.heads import TaskHead


def load(
    flags: Any, config: BertConfig, state: Any, message: Callable[[str], None], head: TaskHead | None = None
) -> Any:
    """Puts the parameters of --init_checkpoint in place of the fresh ones of `state`; step and optimizer stay fresh.

    Args:
        flags, config, head: see read.
        state: the training state of step 0.

    Raises:
        UserError: nothing readable, or parameters that do not fit.
    """
    loaded, report = read(flags, config, head)
    for line in report.lines(fresh=True):
        message(f"--init_checkpoint: {line}")
    if "pooler" in report.missing_parts:
        message("warning: --init_checkpoint has no pooler: whatever reads the pooled vector begins with a new one")
    return merge(state, loaded)


def merge(state: Any, loaded: dict[str, Any]) -> Any:
    """The training state with loaded parameters in place of its own, where there are any.

    Args:
        loaded: as read gives them; parts and layers may be missing.
    """
    fresh = state["params"]
    if "layers" in fresh["bert"]["encoder"]:  # stacking needs all of them
        own = unstack_layers(fresh)["bert"]["encoder"]
        missing = {name: layer for name, layer in own.items() if name not in loaded["bert"]["encoder"]}
        encoder = loaded["bert"]["encoder"] | missing
        loaded = loaded | {"bert": loaded["bert"] | {"encoder": encoder}}
    merged = merge_into(fresh, loaded)
    return state | {"params": jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), merged, fresh)}


def read(flags: Any, config: BertConfig, head: TaskHead | None = None) -> tuple[dict[str, Any], ImportReport]:
    """Reads --init_checkpoint, as checkpoints.read does.

    Args:
        flags: init_checkpoint, extend_positions and allow_pickled_weights.
        config, head: of the model that is trained.
    """
    return checkpoints.read(
        checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights),
        config,
        head,
        extend_positions=flags.extend_positions,
        allow_pickled=flags.allow_pickled_weights,
    )
