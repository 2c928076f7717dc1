"""The train step of pretraining, made of flags: what `pretrain` runs and `plan` compiles."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import attention_kernel, partitioning, pretraining, training
from bert_jax.config import BertConfig
from bert_jax.modeling import BertForPreTraining, initialize
from bert_jax.optimization import learning_rate_schedule, make_optimizer
from bert_jax.schedule import Schedule
from input_pipeline.errors import UserError


class PretrainingStep(NamedTuple):
    """A model, its losses and its optimizer on a mesh.

    Attributes:
        initialize: key -> parameters boxed with logical axis names.
        shapes, shardings: of the training state (see training.state_shapes).
    """

    flags: Any
    mesh: Mesh
    task: pretraining.PretrainingTask
    initialize: Callable[[jax.Array], Any]
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    shapes: Any
    shardings: Any

    def compile_train(self) -> Callable:
        """(state, batch of --train_batch_size) -> (state, metrics), compiled."""
        step = training.make_train_step(
            self.task,
            self.optimizer,
            self.learning_rate,
            self.flags.seed,
            self.shardings,
            self.flags.gradient_accumulation_steps,
            jnp.bfloat16 if self.flags.gradient_reduction == "bf16" else jnp.float32,
        )
        shapes = (self.shapes, self.batch_shapes(self.flags.train_batch_size))
        return training.compile_step(step, self.mesh, self.shardings, shapes, donate_state=True)

    def compile_eval(self) -> Callable:
        """(parameters, batch of --eval_batch_size) -> sums, compiled."""
        shapes = (self.shapes["params"], self.batch_shapes(self.flags.eval_batch_size))
        return training.compile_step(
            self.task.eval_sums, self.mesh, self.shardings["params"], shapes, donate_state=False
        )

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        return pretraining.batch_shapes(batch_size, self.flags.max_seq_length, self.flags.max_predictions_per_seq)


def make(
    flags: Any, config: BertConfig, mesh: Mesh, schedule: Schedule, unigram: np.ndarray | None = None
) -> PretrainingStep:
    """Puts the step together; computes nothing.

    Args:
        unigram: see PretrainingTask.

    Raises:
        UserError: a mesh axis does not divide a parameter.
    """
    dtype = jnp.bfloat16 if flags.precision == "bf16" else jnp.float32
    module = BertForPreTraining(config, dtype, flags.scan_layers, flags.remat, _attention_kernel(flags, config, mesh))
    task = pretraining.PretrainingTask(module, flags.next_sentence_prediction, unigram)
    rate = learning_rate_schedule(flags.learning_rate, *schedule)
    optimizer = make_optimizer(
        flags.optimizer,
        rate,
        weight_decay=flags.weight_decay,
        clip_norm=flags.clip_norm,
        trust_ratio=flags.trust_ratio,
    )

    def initialize_module(key):
        return initialize(module, key)

    partitioning.check_heads(mesh, config.num_attention_heads)
    shapes, shardings = training.state_shapes(mesh, initialize_module, optimizer, flags.shard_optimizer)
    return PretrainingStep(flags, mesh, task, initialize_module, optimizer, rate, shapes, shardings)


def unused_reduction(flags: Any, mesh: Mesh) -> str | None:
    """A warning, where --gradient_reduction is given for nothing."""
    if flags.gradient_reduction == "f32" or partitioning.cuts_rows_only(mesh):
        return None
    return (
        f"--gradient_reduction={flags.gradient_reduction} has no effect: several devices, all on the data axis of "
        "--mesh, are what it is for"
    )


def _attention_kernel(flags: Any, config: BertConfig, mesh: Mesh) -> str:
    """What --attention_kernel=auto stands for: on TPU our kernel where it can be used, but for short lengths, at which
    XLA's own fusions are as quick.

    Raises:
        UserError: the kernel is asked for where it cannot be used.
    """
    platform = mesh.devices.flat[0].platform
    data_only = mesh.size == mesh.shape["data"]
    takes_kernel = (
        platform == "tpu"
        and data_only
        and attention_kernel.fits(flags.max_seq_length, config.head_dim)
        and config.attention == "bidirectional"
    )
    if flags.attention_kernel == "auto":
        return "pallas" if takes_kernel and flags.max_seq_length >= 256 else "xla"
    if flags.attention_kernel == "cudnn":
        usable = config.attention_probs_dropout_prob == 0 and config.head_dim % 8 == 0 and config.head_dim <= 128
        if not (platform == "gpu" and usable and data_only and flags.precision == "bf16"):
            raise UserError(
                "--attention_kernel=cudnn is for GPUs, on a --mesh of data only, with --precision=bf16, heads of a "
                "multiple of 8 up to 128 and --attention_probs_dropout_prob=0: give auto"
            )
    if flags.attention_kernel == "pallas" and not takes_kernel:
        raise UserError(
            f"--attention_kernel=pallas is for TPUs, on a --mesh of data only, with --max_seq_length a multiple of "
            f"128 up to {attention_kernel.LONGEST:,} and bidirectional attention: give auto"
        )
    return flags.attention_kernel
