"""The one training loop, and the jitted steps it runs.

A task is anything with `normalizers`, `loss`, `eval_sums` and `eval_results` (see pretraining.PretrainingTask).
State is a plain dict {"step": int32, "params": tree, "opt_state": tree}; step counts the updates done.
"""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bert_jax import compiler_options, devices, gradients, partitioning
from bert_jax.optimization import OptimizerState
from bert_jax.profiling import Profile
from bert_jax.step_times import StepTimes

# Steps handed to the device before the host waits for the oldest: enough to keep the device busy.
STEPS_IN_FLIGHT = 2


class TrainingError(Exception):
    """Training cannot go on; the message says at which step and what is safe on disk. Exit code 1."""


class Task(Protocol):
    """What the loop needs to know of a task; every metric that `loss` returns adds up over parts of a batch.

    Attributes:
        loss_is_by_row: the loss is a sum over the rows of a batch, so that any part of the rows has its own share.
    """

    loss_is_by_row: bool

    def normalizers(self, batch) -> Any: ...
    def loss(self, params, batch, normalizers, dropout_key) -> tuple[jax.Array, dict[str, jax.Array]]: ...
    def eval_sums(self, params, batch) -> dict[str, jax.Array]: ...
    def eval_results(self, sums) -> dict[str, float | int]: ...


def state_shapes(
    mesh: Mesh,
    initialize: Callable[[jax.Array], Any],
    optimizer: optax.GradientTransformation,
    shard_optimizer: bool = True,
) -> tuple[Any, Any]:
    """Shapes and shardings of the training state, without computing anything.

    Args:
        initialize: key -> parameters boxed with logical axis names.
        shard_optimizer: parameters and moments are cut over the data axis too, where that divides them: a step gathers
            the parameters as it needs them, and each device updates its part only (Rajbhandari et al., 2020).

    Returns:
        A tree of ShapeDtypeStructs that carry shardings, and the tree of NamedShardings.

    Raises:
        UserError: a mesh axis does not divide a parameter.
    """
    boxed = jax.eval_shape(initialize, jax.random.key(0))
    shardings = partitioning.parameter_shardings(mesh, boxed)
    params = nn.unbox(boxed)
    partitioning.check_divisible(mesh, params, shardings)
    opt_state = jax.eval_shape(optimizer.init, params)
    whole = partitioning.replicated(mesh)
    cut = partitioning.cut_by_data(params, shardings) if shard_optimizer else shardings
    shapes = {"step": jax.ShapeDtypeStruct((), jnp.int32), "params": params, "opt_state": opt_state}
    shardings = {"step": whole, "params": cut, "opt_state": OptimizerState(whole, cut, cut, whole)}
    shapes = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    return shapes, shardings


def create_state(
    initialize: Callable[[jax.Array], Any], optimizer: optax.GradientTransformation, shardings: Any, seed: int
) -> Any:
    """Makes the state of step 0, each leaf born where it belongs."""

    def create(key):
        params = nn.unbox(initialize(key))
        return {"step": jnp.zeros((), jnp.int32), "params": params, "opt_state": optimizer.init(params)}

    return jax.jit(create, out_shardings=shardings)(jax.random.key(seed))


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    seed: int,
    shardings: Any,
    accumulation_steps: int = 1,
    reduction_dtype: jnp.dtype = jnp.float32,
) -> Callable[[Any, dict[str, jax.Array]], tuple[Any, dict[str, jax.Array]]]:
    """Makes (state, global batch) -> (state after one update, metrics before it).

    Args:
        shardings: of the state.
        reduction_dtype: in which the gradients of the devices are added up.
    """

    places, mesh = shardings["params"], shardings["step"].mesh

    def gradients_of(params, batch, others):
        normalizers, key = others

        def loss(params, rows):
            return task.loss(params, rows, normalizers, key)

        return gradients.accumulated(jax.grad(loss, has_aux=True), params, batch, accumulation_steps)

    def train_step(state, batch):
        others = (task.normalizers(batch), jax.random.fold_in(jax.random.key(seed), state["step"]))
        if task.loss_is_by_row and partitioning.cuts_rows_only(mesh):
            found, metrics = gradients.by_rows(gradients_of, state["params"], batch, others, places, reduction_dtype)
        else:
            found, metrics = gradients_of(state["params"], batch, others)
        with jax.named_scope("optimizer"):  # by which a plan knows its work
            found = jax.lax.with_sharding_constraint(found, places)
            updates, opt_state = optimizer.update(found, state["opt_state"], state["params"])
            params = optax.apply_updates(state["params"], updates)
        metrics |= {"gradient_norm": opt_state.gradient_norm, "learning_rate": schedule(state["step"])}
        return {"step": state["step"] + 1, "params": params, "opt_state": opt_state}, metrics

    return train_step


def compile_step(
    step: Callable, mesh: Mesh, shardings: Any, shapes: tuple[Any, ...], *, donate_state: bool
) -> Callable:
    """Compiles a step ahead of its first call.

    Args:
        shapes: of the state or the parameters, of the batch, and of more arguments, which all devices get.
    """
    batch_shardings = jax.tree.map(lambda _: partitioning.batch_sharding(mesh), shapes[1])
    replicated = partitioning.replicated(mesh)
    jitted = jax.jit(
        step,
        in_shardings=(shardings, batch_shardings, *(replicated,) * len(shapes[2:])),
        out_shardings=(shardings, replicated) if donate_state else replicated,
        donate_argnums=0 if donate_state else (),
    )
    with jax.set_mesh(mesh):
        return compiler_options.compile_lowered(jitted.lower(*shapes), mesh)


def evaluate(
    task: Task,
    compiled_eval: Callable,
    params: Any,
    batches: Iterator[dict[str, jax.Array]],
    on_batch: Callable[[int], None] = lambda count: None,
) -> dict[str, float | int]:
    """Runs over all evaluation batches and returns the task's metrics; sums are kept in float64 on the host."""
    totals: dict[str, float] = collections.defaultdict(float)
    for count, batch in enumerate(batches):
        for name, value in jax.device_get(compiled_eval(params, batch)).items():
            totals[name] += float(value)
        on_batch(count + 1)
    return task.eval_results(totals)


def train(
    state: Any,
    compiled_step: Callable,
    batches: Iterator[dict[str, jax.Array]],
    *,
    start_step: int,
    num_train_steps: int,
    batch_size: int,
    tokens_per_example: float,
    log: Callable[[int, dict[str, float]], None],
    save: Callable[[int, Any], None],
    evaluate: Callable[[int, Any], None],
    stop_requested: Callable[[int], bool],
    log_every_steps: int,
    save_checkpoints_steps: int,
    eval_every_steps: int,
    last_saved_step: Callable[[], int | None] = lambda: None,
    seconds_at_peak: float | None = None,
    profile: Profile | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Any, int]:
    """Trains from `start_step` to `num_train_steps`, or to where a stop is requested.

    Metrics of a step are those before its update; they are read a few steps later so that the device never waits for
    the host. A state is saved only after the losses that led to it were seen to be finite.

    Args:
        seconds_at_peak: what a step would take at the peak of the devices, for the metric mfu.
        profile: a trace of some of the updates.

    Returns:
        The state and its step; the state is saved.

    Raises:
        TrainingError: the loss or the gradient is not finite.
    """
    in_flight: collections.deque[tuple[int, Any]] = collections.deque()
    times = StepTimes(clock, start_step, batch_size, tokens_per_example, seconds_at_peak)
    profile = profile or Profile()
    saved = last_saved_step()

    def finish_oldest():
        step, metrics = in_flight.popleft()
        metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
        times.step_ended()
        if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["gradient_norm"])):
            safe = last_saved_step()
            where = f"the last good checkpoint is step {safe}" if safe is not None else "no checkpoint was saved yet"
            raise TrainingError(
                f"loss {metrics['loss']}, gradient norm {metrics['gradient_norm']} at step {step}: not finite; {where}"
            )
        if step % log_every_steps == 0 or step in (start_step + 1, num_train_steps):
            log(step, metrics | times.metrics(step) | devices.memory_metrics())

    def drain():
        while in_flight:
            finish_oldest()

    def save_now(step):
        nonlocal saved
        drain()
        if saved != step:
            with times.paused():
                save(step, state)
            saved = step

    step = start_step
    while step < num_train_steps and not stop_requested(step):
        if profile.begins_with(step + 1):
            drain()
            with times.paused():
                profile.start()
        fetch_started = clock()
        with times.paused() if step == start_step else contextlib.nullcontext():  # the input starts up
            batch = next(batches)
        if step > start_step and (not in_flight or in_flight[-1][1]["loss"].is_ready()):
            # Only then did the device have nothing to do while the input was being made.
            times.input_wait += clock() - fetch_started
        with profile.step(step + 1):
            state, metrics = compiled_step(state, batch)
        step += 1
        in_flight.append((step, metrics))
        if len(in_flight) > STEPS_IN_FLIGHT:
            finish_oldest()
        if profile.ends_with(step):
            drain()
            with times.paused():
                profile.stop()
        if save_checkpoints_steps and step % save_checkpoints_steps == 0:
            save_now(step)
        if eval_every_steps and step % eval_every_steps == 0 and step < num_train_steps:
            drain()
            with times.paused():
                evaluate(step, state)
    if step > start_step or saved is None:
        save_now(step)
    return state, step
