"""Optimizers: BERT's Adam, AdamW and LAMB, with BERT's schedule, clipping and weight decay by parameter role."""

import collections
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from input_pipeline.errors import UserError

# bert_adam is the optimizer of google-research/bert: no bias correction, and epsilon is added to the root of the second
# moment. Epsilon is 1e-6 there and in the LAMB paper, and 1e-8 in the usual AdamW.
EPSILONS = {"bert_adam": 1e-6, "adamw": 1e-8, "lamb": 1e-6}

_DECAYS_BY_ROLE = {"kernel": True, "embedding": True, "bias": False, "scale": False}


class OptimizerState(NamedTuple):
    """State of every optimizer here; the moments have the shapes of the parameters and can be sharded like them."""

    step: jax.Array  # int32 [], updates done
    first_moment: Any  # tree of parameters, float32
    second_moment: Any  # tree of parameters, float32
    gradient_norm: jax.Array  # float32 [], global norm of the latest gradients before clipping


def learning_rate_schedule(
    init_lr: float, num_train_steps: int, num_warmup_steps: int, power: float = 1.0, first_step: int = 0
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """Linear warm-up and a decay to zero, by default by the rule of google-research/bert: linear.

    The decay is counted from the first step, not from the end of the warm-up: the rate drops a little where the warm-up
    ends, and warm-up wins as long as it lasts. From num_train_steps on the rate is 0.

    Args:
        power: of the share of the steps that is left; 1 is linear, 0 constant until the end.
        first_step: updates made before the schedule begins; num_train_steps counts them too, num_warmup_steps does not.

    Returns:
        a function of the number of updates already made (int32 [], 0 for the first update) to the learning rate
        (float32 []) of the next one.

    Raises:
        UserError: a rate or power that is negative or not finite, no training steps, or a negative warm-up.
    """
    if not (math.isfinite(init_lr) and init_lr >= 0):
        raise UserError(f"--learning_rate must be a number that is not negative, not {init_lr}")
    if num_train_steps < 1:
        raise UserError(f"--num_train_steps must be at least 1, not {num_train_steps}")
    if num_warmup_steps < 0:
        raise UserError(f"--num_warmup_steps must be at least 0, not {num_warmup_steps}")
    if not (math.isfinite(power) and power >= 0):
        raise UserError(f"--lr_decay_power must be a number that is not negative, not {power}")

    def rate(step):
        return polynomial_rate(
            jnp.asarray(step) - first_step, init_lr, num_train_steps - first_step, num_warmup_steps, power=power
        )

    return rate


def polynomial_rate(
    step: jax.typing.ArrayLike,
    init_lr: jax.typing.ArrayLike,
    num_train_steps: jax.typing.ArrayLike,
    num_warmup_steps: jax.typing.ArrayLike,
    decay_start: jax.typing.ArrayLike = 0,
    power: float = 1.0,
) -> jax.Array:
    """The rule of learning_rate_schedule from its first step on, of numbers that may be traced.

    Args:
        decay_start: the step from which the decay is counted; with num_warmup_steps the rate does not drop there.
        power: not traced.
    """
    step = jnp.asarray(step)
    # Subtracting whole numbers first keeps all digits of small rates near the end.
    left = num_train_steps - jnp.minimum(step, num_train_steps)
    warming = init_lr * step / jnp.maximum(num_warmup_steps, 1)
    whole = jnp.maximum(num_train_steps - decay_start, 1)
    decaying = init_lr * left / whole if power == 1 else init_lr * jnp.where(left > 0, (left / whole) ** power, 0.0)
    return jnp.where(step < num_warmup_steps, warming, decaying)


def decay_mask(params: Any) -> Any:
    """The tree of parameters with True where weight decay applies: kernels and embeddings, by the name of the leaf.

    Names, unlike ranks, mean the same for single layers and for layers stacked by a scan.

    Raises:
        ValueError: a leaf whose name is none of kernel, embedding, bias, scale.
    """

    def decays(path, _):
        names = _names(path)
        if names[-1] not in _DECAYS_BY_ROLE:
            raise ValueError(f"parameter {'/'.join(names)}: the last name must be one of {', '.join(_DECAYS_BY_ROLE)}")
        return _DECAYS_BY_ROLE[names[-1]]

    return jax.tree_util.tree_map_with_path(decays, params)


def decay_summary(params: Any) -> str:
    """One line for the log: how many parameter arrays decay, and how many do not."""
    mask = jax.tree.leaves(decay_mask(params))
    decayed = sum(mask)
    return f"weight decay on {decayed} kernels and embeddings, none on {len(mask) - decayed} biases and scales"


def global_norm(tree: Any) -> jax.Array:
    """L2 norm (float32 []) over all elements of all arrays."""
    squares = collections.defaultdict(list)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        role = re.sub(r"\d+", "", jax.tree_util.keystr(path))
        squares[leaf.shape, role].append(jnp.square(leaf.astype(_state_dtype(leaf))))
    # A sum over an array costs more to start than to make: those of the same role in every layer, which are cut between
    # devices in the same way, are made together.
    return jnp.sqrt(sum(jnp.sum(sum(equals)) for equals in squares.values()))


def make_optimizer(
    name: str,
    learning_rate: Callable[[jax.Array], jax.Array],
    *,
    weight_decay: float = 0.01,
    clip_norm: float = 1.0,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float | None = None,
    trust_ratio: str = "all",
    rate_scale: Callable[[list[str], jax.Array], jax.typing.ArrayLike] = lambda names, parameter: 1.0,
) -> optax.GradientTransformation:
    """Builds an optimizer; `update(gradients, state, params)` gives what optax.apply_updates adds to the parameters.

    For parameters x, with the moments m and v of gradients clipped to a global norm of clip_norm, and weight decay w on
    kernels and embeddings:
        bert_adam  x -= lr (m / (sqrt(v) + epsilon) + w x)           Devlin et al.; google-research/bert
        adamw      the same with m and v corrected for their bias    Loshchilov and Hutter, 2019
        lamb       the step of adamw scaled, array by array, to the norm of x where both norms are positive
                   You et al., 2020; there without clipping (clip_norm=0), NVLAMB clips to 1. With
                   trust_ratio="decayed" the scale is 1 for biases and scales: FusedLAMB of NVIDIA's apex as its
                   pretraining recipe has it (use_nvlamb=False)
    For LAMB an array of stacked layers counts as one array per layer. Rows that are zero and get no gradient, such as
    the padding of the vocabulary, stay zero.

    Args:
        name: "bert_adam", "adamw" or "lamb".
        learning_rate: from the number of updates already made (int32 []) to a rate; see learning_rate_schedule.
        clip_norm: 0 turns clipping off.
        epsilon: EPSILONS[name] unless given.
        trust_ratio: "all" or "decayed"; only LAMB has one.
        rate_scale: what the rate of a parameter is multiplied by, from the names of its path and the parameter; see
            layer_rate_scale. 0 leaves the parameter as it is.

    Raises:
        UserError: an unknown name, or a negative weight decay or clipping norm.
    """
    if name not in EPSILONS:
        raise UserError(f"--optimizer must be one of {', '.join(EPSILONS)}, not {name!r}")
    for flag, value in (("--weight_decay", weight_decay), ("--clip_norm", clip_norm)):
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{flag} must be a number that is not negative, not {value}")
    epsilon = EPSILONS[name] if epsilon is None else epsilon

    def init(params):
        zeros = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, _state_dtype(x)), params)
        return OptimizerState(jnp.zeros([], jnp.int32), zeros(), zeros(), jnp.zeros([], jnp.float32))

    def update(gradients, state, params):
        norm = global_norm(gradients)
        scale = clip_norm / jnp.maximum(norm, clip_norm) if clip_norm else 1.0
        gradients = jax.tree.map(lambda g: g.astype(_state_dtype(g)) * scale, gradients)
        first = jax.tree.map(lambda m, g: beta_1 * m + (1 - beta_1) * g, state.first_moment, gradients)
        second = jax.tree.map(lambda v, g: beta_2 * v + (1 - beta_2) * g * g, state.second_moment, gradients)

        step = state.step + 1
        correction_1 = correction_2 = 1.0
        if name != "bert_adam":  # 1 - beta^step, in a form that keeps its digits in float32
            correction_1 = -jnp.expm1(step * math.log(beta_1))
            correction_2 = -jnp.expm1(step * math.log(beta_2))

        rate = learning_rate(state.step)

        def leaf_update(path, decays, x, m, v):
            direction = (m / correction_1) / (jnp.sqrt(v / correction_2) + epsilon)
            if decays:
                direction += weight_decay * x
            if name == "lamb" and (decays or trust_ratio == "all"):
                direction *= _trust_ratio(x, direction, stacked="layers" in _names(path))
            return (-rate * rate_scale(_names(path), x) * direction).astype(x.dtype)

        updates = jax.tree_util.tree_map_with_path(leaf_update, decay_mask(params), params, first, second)
        return updates, OptimizerState(step, first, second, norm.astype(jnp.float32))

    return optax.GradientTransformation(init, update)


def layer_rate_scale(
    num_layers: int, decay: float = 1.0, freeze_encoder: bool = False
) -> Callable[[list[str], jax.Array], jax.typing.ArrayLike]:
    """The scale of each parameter's rate in fine-tuning, for make_optimizer.

    Layer-wise decay (Howard and Ruder, 2018; for BERT Sun et al., 2019): the output layer and the pooler learn at the
    full rate, the top layer at `decay` times it, and each layer below at `decay` times that of the layer above; the
    embeddings lie below the lowest layer.

    Args:
        num_layers: of the encoder.
        decay: in (0, 1].
        freeze_encoder: embeddings, encoder and pooler stay as they are.
    """

    def scale(names, parameter):
        if names[0] != "bert":
            return 1.0
        if freeze_encoder:
            return 0.0
        if names[1] == "pooler":
            return 1.0
        if names[1] == "embeddings":
            return decay ** (num_layers + 1)
        if names[2] == "layers":  # stacked along the first axis
            below_top = num_layers - jnp.arange(num_layers)
            return (decay**below_top).reshape(-1, *(1,) * (parameter.ndim - 1))
        return decay ** (num_layers - int(names[2].rpartition("_")[2]))

    return scale


def _trust_ratio(x: jax.Array, direction: jax.Array, stacked: bool) -> jax.Array:
    """|x| / |direction|, or 1 where one of them is zero; per entry of the first axis if that is an axis of layers."""
    axes = tuple(range(1, x.ndim)) if stacked else None
    x_norm = jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))
    direction_norm = jnp.sqrt(jnp.sum(jnp.square(direction), axes, keepdims=True))
    usable = (x_norm > 0) & (direction_norm > 0)
    return jnp.where(usable, x_norm / jnp.where(usable, direction_norm, 1.0), 1.0)


def _state_dtype(x: jax.Array) -> jnp.dtype:
    """float32 at least, whatever the parameters are kept in."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _names(path: tuple) -> list[str]:
    return [key.key for key in path]
