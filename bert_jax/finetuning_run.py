"""One fine-tuning run in its folder: from the parameters it begins with to predictions, metrics and report."""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import devices, inference, initial_parameters, partitioning, processes, profiling, training
from bert_jax.interruption import Interrupted
from bert_jax.model_costs import inference_flops, training_flops
from bert_jax.optimization import (
    decay_summary,
    layer_rate_scale,
    learning_rate_schedule,
    make_optimizer,
    polynomial_rate,
)
from bert_jax.reporting import read_results
from bert_jax.run_folder import RunFolder, later_settings, read_run
from bert_jax.schedule import schedule_from
from bert_jax.task_data import TaskData
from bert_jax.task_evaluation import Answers, Predictor, Split, joined_metrics, warnings_of, write_answers
from bert_jax.task_modeling import initialize
from bert_jax.task_setup import TaskModel
from bert_jax.training_run import TrainingRun, training_run
from input_pipeline import files
from input_pipeline.packed_batches import PackedBatches
from input_pipeline.task_features import Features

# What it costs to compile a step, as in inference.
_CPU_COSTS = (0.045, 1.5e11)
_ACCELERATOR_COSTS = (0.2, 5e13)

# Sequences between two questions whether to stop.
_ASK_EVERY = 64

# Flags that change what a step computes, besides those of the model and the data.
_SETTINGS = ("train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_warmup_steps")
_SETTINGS += ("warmup_proportion", "optimizer", "weight_decay", "clip_norm", "precision", "scan_layers", "seed")
_SETTINGS += ("shuffle", "init_checkpoint", "layer_lr_decay", "reinit_layers", "freeze_encoder", "max_seq_length")


class Work(NamedTuple):
    """What runs of a task have in common, in whatever of `Knobs` and of the batch size they differ.

    Attributes:
        compiled: the train step by the shapes of a batch.
    """

    data: TaskData
    model: TaskModel
    train: Features
    splits: list[Split]
    predictor: Predictor
    mesh: Mesh
    compiled: dict[Any, Callable]


class Knobs(NamedTuple):
    """What a compiled step takes as arguments, so that it serves runs with other values too."""

    learning_rate: jax.typing.ArrayLike
    num_train_steps: jax.typing.ArrayLike
    num_warmup_steps: jax.typing.ArrayLike
    decay_start: jax.typing.ArrayLike
    seed: jax.typing.ArrayLike

    def rate(self, power: float) -> Callable[[jax.typing.ArrayLike], jax.Array]:
        """From updates done to the learning rate of the next; `power` as in optimization.polynomial_rate."""
        return lambda step: polynomial_rate(
            step, self.learning_rate, self.num_train_steps, self.num_warmup_steps, self.decay_start, power
        )


class FinetuningRun:
    """A run with the settings of `flags`."""

    def __init__(self, flags: Any, work: Work, folder: RunFolder):
        self.flags, self.work, self.folder = flags, work, folder
        self.task, self.mesh = work.model.task, work.mesh
        family = self.task.family
        self.schedule = schedule_from(flags, len(work.train.lengths) // family.num_choices)
        self.knobs = Knobs(
            np.float32(flags.learning_rate),
            np.int32(self.schedule.num_train_steps),
            np.int32(self.schedule.num_warmup_steps),
            # Google's Adam comes with Google's rule; other code that fine-tunes by AdamW decays from the peak.
            np.int32(0 if flags.optimizer == "bert_adam" else self.schedule.num_warmup_steps),
            np.uint32(flags.seed),
        )
        learning_rate_schedule(flags.learning_rate, *self.schedule)  # refuses what makes no sense
        self.optimizer = self._optimizer(self.knobs)
        partitioning.check_heads(self.mesh, work.model.config.num_attention_heads)
        self.shapes, self.shardings = training.state_shapes(
            self.mesh, self._initialize, self.optimizer, flags.shard_optimizer
        )
        shards = partitioning.batch_shards(self.mesh)
        self.batches = PackedBatches(
            work.train,
            num_choices=family.num_choices,
            batch_size=flags.train_batch_size,
            num_train_steps=self.schedule.num_train_steps,
            seed=flags.seed,
            shuffle=flags.shuffle,
            accumulation_steps=flags.gradient_accumulation_steps,
            row_multiple=shards,
            compile_tokens=self._compile_tokens(),
        )

    def _initialize(self, key):
        return initialize(self.task.module, key)

    def _optimizer(self, knobs: Knobs) -> optax.GradientTransformation:
        flags, layers = self.flags, self.work.model.config.num_hidden_layers
        return make_optimizer(
            flags.optimizer,
            knobs.rate(flags.lr_decay_power),
            weight_decay=flags.weight_decay,
            clip_norm=flags.clip_norm,
            trust_ratio=flags.trust_ratio,
            rate_scale=layer_rate_scale(layers, flags.layer_lr_decay, flags.freeze_encoder),
        )

    def _train_step(self, state, batch, knobs: Knobs):
        rate = knobs.rate(self.flags.lr_decay_power)
        step = training.make_train_step(
            self.task,
            self._optimizer(knobs),
            rate,
            knobs.seed,
            self.shardings,
            self.flags.gradient_accumulation_steps,
        )
        return step(state, batch)

    def _compile_tokens(self) -> float:
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        # A step of training takes three times that of a prediction.
        return inference.compile_tokens(self.shapes["params"], *(_CPU_COSTS if on_cpu else _ACCELERATOR_COSTS)) / 3

    def settings(self) -> dict[str, Any]:
        """All that changes what a step computes."""
        model, head = self.work.model, self.task.family.head
        return {
            **json.loads(model.config.to_json()),
            "vocabulary": model.tokenizer.fingerprint,
            "labels": list(head.labels),
            "head_features": head.features,
            "head_lstm": list(head.lstm),
            **({"label_mean": head.mean, "label_deviation": head.deviation} if head.is_scaled else {}),
            "data": _fingerprint(self.work.train),
            **{name: getattr(self.flags, name) for name in _SETTINGS},
            **later_settings(self.flags),
        }

    def run(self) -> dict[str, Any]:
        """Trains, evaluates and predicts, as far as the folder does not hold it already.

        Returns:
            The metrics; none without labelled examples to evaluate on.

        Raises:
            UserError: the folder holds another run.
            Interrupted: after a signal; what was done is saved.
            TrainingError: the loss is not finite.
        """
        model, total = self.work.model, self.schedule.num_train_steps
        save = [
            lambda path: files.write_bytes_atomic(f"{path}/bert_config.json", model.config.to_json().encode()),
            model.tokenizer.save,
            self.task.family.head.save,
        ]
        with training_run(
            self.folder,
            self.flags,
            task=self.work.data.name,
            settings=self.settings(),
            num_train_steps=total,
            save=save,
        ) as run:
            if run is None:
                say_how_to_use(self.folder.path, self.flags, self.folder.path)
                return self._earlier_results()
            self._describe(run)
            state = self._train(run)
            answers = self._answers(run, total, state, final=True)
            results = joined_metrics(answers)
            if results:
                run.reporter.evaluation(total, results)
            for answer in answers:
                for warning in warnings_of(answer):
                    run.reporter.warning(warning)
            if processes.is_first():
                names = write_answers(self.folder.path, self.task.family, answers, self.work.data.submission)
                if names:
                    run.reporter.message(f"written to {os.fspath(self.folder.path)}: {', '.join(names)}")
        return results

    def _earlier_results(self) -> dict[str, Any]:
        return processes.from_first(lambda: read_results(self.folder.path))

    def _describe(self, run: TrainingRun) -> None:
        work, reporter = self.work, run.reporter
        head = self.task.family.head
        parameters = sum(x.size for x in jax.tree.leaves(self.shapes["params"]))
        padding = (work.model.config.padded_vocab_size - work.model.config.vocab_size) * work.model.config.hidden_size
        tokens = int(work.train.lengths.sum())
        rows = self.batches.row_counts
        reporter.facts(
            model={"parameters": parameters - padding, **json.loads(work.model.config.to_json())},
            task={"name": work.data.name, "kind": head.kind, "labels": ", ".join(head.labels)},
            data={
                "training examples": self.batches.num_examples,
                "training tokens": tokens,
                **{f"{split.name} examples": len(split.examples) for split in work.splits},
                "sequences that were cut": work.train.num_cut,
            },
            device={
                "devices": jax.device_count(),
                "kind": jax.devices()[0].device_kind,
                "mesh": ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items()),
            },
        )
        reporter.message(
            f"model: {parameters - padding:,} parameters; {self.batches.num_examples:,} training examples of "
            f"{tokens / max(len(work.train.lengths), 1):.0f} tokens on average; {self.schedule.num_train_steps:,} "
            f"updates, warm-up {self.schedule.num_warmup_steps:,}"
        )
        reporter.message(
            f"a batch of {self.flags.train_batch_size} examples is packed into "
            f"{' or '.join(map(str, rows))} rows of {self.batches.width} tokens"
        )
        reporter.message(decay_summary(self.shapes["params"]))
        for warning in run.checkpointer.warnings:
            reporter.warning(warning)

    def _train(self, run: TrainingRun) -> Any:
        flags, total = self.flags, self.schedule.num_train_steps
        state = self._state(run)
        if run.start_step == total:
            return state
        if self._lacks_evaluation(run):
            self._evaluate(run, run.start_step, state)

        def compile_first(compile_it):
            run.reporter.status("compiling")
            return run.interruption.run_interruptibly(compile_it)

        traced = profiling.parse_steps(flags.profile_steps)
        with profiling.Profile(traced, self.folder.path, run.reporter.message, run.reporter.warning) as profile:
            state, done = training.train(
                state,
                self.stepper(compile_first),
                self.global_batches(run.start_step, total),
                start_step=run.start_step,
                num_train_steps=total,
                batch_size=flags.train_batch_size,
                tokens_per_example=int(self.work.train.lengths.sum()) / self.batches.num_examples,
                log=run.reporter.log,
                save=run.checkpointer.save,
                evaluate=functools.partial(self._evaluate, run),
                stop_requested=run.interruption.requested,
                log_every_steps=flags.log_every_steps or min(max(total // 100, 1), 100),
                save_checkpoints_steps=flags.save_checkpoints_steps,
                eval_every_steps=flags.eval_every_steps or 0,
                last_saved_step=run.checkpointer.last_saved_step,
                seconds_at_peak=devices.seconds_at_peak(self._flops(), flags),
                profile=profile,
            )
        run.reporter.status("saving")
        run.checkpointer.wait()
        if done < total:
            raise run.interruption.exception(done)
        return state

    def _flops(self) -> float:
        """Operations of an update on average, by the tokens that the sequences have; the output layer is left out."""
        config, lengths = self.work.model.config, self.work.train.lengths.astype(np.float64)
        if self.flags.freeze_encoder:  # which has no backward pass then
            flops = sum(inference_flops(config, lengths, 0).values())
        else:
            flops = training_flops(config, lengths, 0)
        return float(np.sum(flops)) / self.batches.num_examples * self.flags.train_batch_size

    def _state(self, run: TrainingRun) -> Any:
        if run.resumed:
            return run.checkpointer.restore(run.start_step, self.shapes)
        return run.interruption.run_interruptibly(self.initial_state)  # most of it is a compilation

    def initial_state(self) -> Any:
        """The state of step 0: the parameters of the checkpoint, and random ones where it has none."""
        state = training.create_state(self._initialize, self.optimizer, self.shardings, self.flags.seed)
        loaded = self.work.model.loaded
        return state if loaded is None else initial_parameters.merge(state, loaded)

    def stepper(
        self, compile_first: Callable[[Callable[[], Callable]], Callable]
    ) -> Callable[[Any, dict[str, jax.Array]], tuple[Any, dict[str, jax.Array]]]:
        """A step that is compiled when a batch of new shapes first comes.

        Args:
            compile_first: makes the first compilation, which may be left at once without losing steps.
        """
        compiled, first = self.work.compiled, True

        def step(state, batch):
            nonlocal first
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (batch, self.knobs))
            key = tuple((name, x.shape) for name, x in shapes[0].items())
            if key not in compiled:

                def compile_it():
                    return training.compile_step(
                        self._train_step, self.mesh, self.shardings, (self.shapes, *shapes), donate_state=True
                    )

                compiled[key] = compile_first(compile_it) if first else compile_it()
            first = False
            return compiled[key](state, batch, self.knobs)

        return step

    def global_batches(self, first_step: int, end_step: int) -> Iterator[dict[str, jax.Array]]:
        """The batches of these steps on the devices."""
        for step in range(first_step, end_step):
            batch: dict[str, np.ndarray] = self.batches.batch(step)
            rows = len(batch["input_ids"])
            by_example = {name: batch.pop(name) for name in ("places", "labels")}
            yield self._global(batch, rows) | self._global(by_example, self.flags.train_batch_size)

    def _global(self, arrays: dict[str, np.ndarray], count: int) -> dict[str, jax.Array]:
        rows = partitioning.local_rows(self.mesh, count)
        return partitioning.to_global_batch(self.mesh, {name: x[rows] for name, x in arrays.items()}, count)

    def _evaluate(self, run: TrainingRun, step: int, state: Any) -> None:
        with contextlib.suppress(Interrupted):  # training is asked next, and saves before it stops
            results = joined_metrics(self._answers(run, step, state, final=False))
            if results:
                run.reporter.evaluation(step, results)

    def _lacks_evaluation(self, run: TrainingRun) -> bool:
        """Whether the run was stopped when it had saved this step and not yet evaluated it."""
        step, every = run.start_step, self.flags.eval_every_steps
        due = every and step % every == 0 and 0 < step < self.schedule.num_train_steps
        return bool(due) and not processes.from_first(lambda: run.reporter.has_evaluation(step))

    def _answers(self, run: TrainingRun, step: int, state: Any, final: bool) -> list[Answers]:
        answers = []
        for split in self.work.splits:
            if split.labelled or final:
                count = len(split.features.lengths)

                def show(done, split=split, count=count):
                    if done % _ASK_EVERY == 0 and run.interruption.requested(step):
                        raise run.interruption.exception(step)
                    run.reporter.status(
                        f"{'evaluating' if split.labelled else 'predicting'} {split.name} {done}/{count}"
                    )

                answers.append(self.work.predictor(state["params"], split, shown=False, on_sequence=show))
        return answers


def say_how_to_use(path: os.PathLike, flags: Any, model: os.PathLike) -> None:
    """Says how files are evaluated or predicted that the finished run in the folder `path` was not given.

    Args:
        model: what names its weights.
    """
    before = processes.from_first(lambda: read_run(path, "--output_dir")["flags"])
    for mode, flag in (("evaluate", "eval_file"), ("predict", "predict_file")):
        names = getattr(flags, flag)
        if names and names != before.get(flag):
            processes.say(
                f"the finished run had another --{flag} or none; for this one: --mode={mode} "
                f"--init_checkpoint={os.fspath(model)} --{flag}={','.join(names)}"
            )


def _fingerprint(features: Features) -> str:
    digest = hashlib.sha256()
    for array in (features.input_ids, features.segment_ids, features.lengths, features.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
