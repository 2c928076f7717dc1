"""--mode=pretrain: text -> tokens -> pairs -> masks -> batches -> losses -> checkpoints."""

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax import (
    devices,
    initial_parameters,
    partitioning,
    pretraining,
    pretraining_step,
    processes,
    profiling,
    training,
)
from bert_jax.checkpointing import restore as restore_checkpoint
from bert_jax.config import BertConfig, config_from_flags
from bert_jax.convert import checkpoints
from bert_jax.interruption import Interrupted
from bert_jax.model_costs import training_flops
from bert_jax.modes.pretrain_inputs import Inputs, open_inputs
from bert_jax.modes.pretrain_options import apply_defaults, data_config
from bert_jax.optimization import decay_summary
from bert_jax.report_html import write_report
from bert_jax.run_folder import RunFolder, find_checkpoint, later_settings, read_run
from bert_jax.schedule import Schedule, schedule_from
from bert_jax.training_run import training_run
from input_pipeline import corpus, files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer


def run(flags: Any) -> int:
    """Runs the mode; returns the exit code."""
    apply_defaults(flags, processes.say)
    settings = data_config(flags)
    check_early(flags)
    if flags.restart_schedule and not flags.restore_from:
        raise UserError("--restart_schedule is about the run of --restore_from: give that too")
    devices.start(flags)
    devices.check_same_flags(flags.flag_values_dict())
    check_weights(flags)
    mesh = partitioning.make_mesh(flags.mesh, dcn_text=flags.dcn_mesh)
    partitioning.check_batch_size(mesh, "--train_batch_size", flags.train_batch_size, flags.gradient_accumulation_steps)
    partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    partitioning.check_length(mesh, flags.max_seq_length)
    with RunFolder(flags.output_dir) as folder:
        inputs = open_inputs(flags, settings, folder.path, processes.say)
        config = model_config(flags, inputs.tokenizer, inputs.vocab_source, processes.say)
        for name in ("init_checkpoint", "restore_from"):
            if path := getattr(flags, name):
                checkpoints.check_vocabulary(checkpoints.find(path, f"--{name}"), inputs.tokenizer)
        try:
            return _Run(flags, folder, mesh, inputs, config).run()
        except Interrupted as stopped:
            processes.say(str(stopped))
            return stopped.leave()
        except training.TrainingError as error:
            processes.say(f"error: {error}")
            return 1


def check_early(flags: Any) -> None:
    """Finds what can be wrong with flags and the named files before other processes are waited for.

    Raises:
        UserError: as model_config and open_inputs would later.
    """
    profiling.parse_steps(flags.profile_steps, flags.num_train_steps)
    for spec in flags.eval_input_file or []:
        corpus.kind_of(spec, "--eval_input_file")
    _early_config(flags)
    if flags.restore_from:
        find_checkpoint(flags.restore_from, "--restore_from")


def _early_config(flags: Any) -> tuple[BertConfig, Any]:
    """The configuration and the tokenizer by the flags alone, without a vocabulary that is still to be made."""
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case) if flags.vocab_file else None
    return model_config(flags, tokenizer, f"--vocab_file={flags.vocab_file}", lambda text: None), tokenizer


def check_weights(flags: Any) -> None:
    """Finds what can be wrong with --init_checkpoint before any text is prepared, which may take hours.

    Reading a checkpoint of ours touches the devices, so that other processes must have been joined.

    Raises:
        UserError: as initial_parameters.load would later.
    """
    if not flags.init_checkpoint:
        return
    config, tokenizer = _early_config(flags)
    if flags.bert_config_file or tokenizer:
        try:
            source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
            checkpoints.check_vocabulary(source, tokenizer)
            initial_parameters.read(flags, config)
        except UserError as error:
            advice = f" (without --model={flags.model} the checkpoint's own configuration is taken)"
            raise UserError(f"{error}{advice if flags.model else ''}") from None


def check_steps_left(flags: Any, schedule: Schedule, first_step: int) -> None:
    """Raises UserError where all updates were done before `first_step`, that of --restore_from."""
    if schedule.num_train_steps <= first_step:
        raise UserError(
            f"--num_train_steps={schedule.num_train_steps} counts all updates: it must be more than the "
            f"{first_step} of --restore_from={flags.restore_from}"
        )


def model_config(flags: Any, tokenizer: Any, vocab_source: str, message: Callable[[str], None]) -> BertConfig:
    """The model that the flags and the vocabulary ask for.

    Args:
        tokenizer: None where it is not known (yet).
        vocab_source: how the user named the vocabulary.

    Raises:
        UserError: a bad configuration, or one that does not fit the vocabulary or the examples.
    """
    if tokenizer is None:
        config = config_from_flags(flags, "base", message=message)
    else:
        config = config_from_flags(flags, "base", tokenizer.vocab_size, vocab_source, message)
        if tokenizer.mask_id is None:
            raise UserError(f"{vocab_source} has no [MASK], which masked-LM pretraining needs")
    if flags.init_checkpoint:
        source = checkpoints.find(flags.init_checkpoint, allow_pickled=flags.allow_pickled_weights)
        config, notes = checkpoints.config_of(source, config, flags.hidden_act)
        for note in notes:
            message(f"{source}: {note}")
    if flags.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={flags.max_seq_length} is longer than the position table of the model "
            f"(max_position_embeddings {config.max_position_embeddings})"
        )
    if flags.next_sentence_prediction and config.type_vocab_size < 2:
        raise UserError(
            f"--bert_config_file={flags.bert_config_file}: type_vocab_size is {config.type_vocab_size}, but sentence "
            "pairs need 2; or give --next_sentence_prediction=false"
        )
    return config


class _Run:
    """One run in its folder, from the decision how to begin to the report."""

    def __init__(self, flags: Any, folder: RunFolder, mesh, inputs: Inputs, config: BertConfig):
        self.flags, self.folder, self.mesh, self.inputs, self.config = flags, folder, mesh, inputs, config
        self.first_step = self._first_step()
        self.schedule = schedule_from(
            flags, inputs.train.num_examples(), self.first_step if flags.restart_schedule else 0
        )
        check_steps_left(flags, self.schedule, self.first_step)
        unigram = pretraining.unigram_losses(inputs.train.unigram_counts()) if inputs.eval else None
        self.step = pretraining_step.make(flags, config, mesh, self.schedule, unigram)

    def _first_step(self) -> int:
        """Updates done before this run: those of the run that it continues, else 0."""
        if not self.flags.restore_from:
            return 0
        if (self.folder.path / "run.json").exists():
            recorded = read_run(self.folder.path, "--output_dir")["settings"].get("first_step")
            if recorded:
                return recorded
        return find_checkpoint(self.flags.restore_from, "--restore_from")[1]

    def settings(self) -> dict[str, Any]:
        """All that changes what a step computes."""
        flags, inputs = self.flags, self.inputs
        names = ("train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_warmup_steps")
        names += ("warmup_proportion", "optimizer", "weight_decay", "clip_norm", "precision", "scan_layers")
        names += ("eval_input_file", "init_checkpoint", "restore_from")
        return {
            **json.loads(self.config.to_json()),
            "vocabulary": inputs.tokenizer.fingerprint if inputs.tokenizer else None,
            "data": inputs.train.fingerprint,
            **dataclasses.asdict(inputs.train.config),
            **{name: getattr(flags, name) for name in names},
            **later_settings(flags),
            "first_step": self.first_step,
        }

    def run(self) -> int:
        flags, total = self.flags, self.schedule.num_train_steps
        save = [lambda path: files.write_bytes_atomic(f"{path}/bert_config.json", self.config.to_json().encode())]
        if self.inputs.tokenizer:
            save.append(self.inputs.tokenizer.save)
        with training_run(
            self.folder,
            flags,
            settings=self.settings(),
            num_train_steps=total,
            save=save,
            first_step=self.first_step,
        ) as run:
            if run is None:
                return 0
            self.interruption, self.checkpointer, self.reporter = run.interruption, run.checkpointer, run.reporter
            self._describe()
            self._train_and_evaluate(run.start_step, run.resumed)
        processes.say(
            f"done: {os.fspath(self.folder.path)} holds the model; look at {os.fspath(self.folder.path)}/report.html"
        )
        return 0

    def _describe(self) -> None:
        inputs, reporter = self.inputs, self.reporter
        parameters = sum(x.size for x in jax.tree.leaves(self.step.shapes["params"]))
        padding = (self.config.padded_vocab_size - self.config.vocab_size) * (self.config.hidden_size + 1)
        labels = inputs.train.label_shares() if self.flags.next_sentence_prediction else {}
        reporter.facts(
            model={"parameters": parameters - padding, **json.loads(self.config.to_json())},
            data={
                **inputs.counts,
                "training examples an epoch": inputs.train.num_examples(),
                "held-out examples": inputs.eval.num_eval_examples() if inputs.eval else 0,
                **{f"share of {name}": share for name, share in labels.items()},
            },
            device={
                "devices": jax.device_count(),
                "kind": jax.devices()[0].device_kind,
                "mesh": ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items()),
            },
        )
        reporter.message(
            f"model: {parameters - padding:,} parameters; {inputs.train.num_examples():,} training examples an epoch"
            + (f" ({labels['is_next']:.1%} is next, {labels['random_next']:.1%} random)" if labels else "")
            + f", {inputs.eval.num_eval_examples() if inputs.eval else 0:,} held out"
        )
        if len(shares := inputs.train.sampling_shares()) > 1:
            shown = ", ".join(f"{share:.1%} {spec}" for spec, share in zip(self.flags.input_file, shares.values()))
            reporter.message(f"an epoch takes its text from: {shown}")
        reporter.message(decay_summary(self.step.shapes["params"]))
        warnings = self.checkpointer.warnings + inputs.warnings
        if self.config.attention == "left_to_right" and self.flags.next_sentence_prediction:
            warnings.append(
                "--attention=left_to_right: [CLS] sees nothing but itself, so next-sentence prediction cannot be "
                "learned; the paper's ablation has --next_sentence_prediction=false"
            )
        if warning := pretraining_step.unused_reduction(self.flags, self.mesh):
            warnings.append(warning)
        for warning in warnings:
            reporter.warning(warning)

    def _state(self, start_step: int, resumed: bool) -> Any:
        flags = self.flags
        if resumed:
            return self.checkpointer.restore(start_step, self.step.shapes)
        if flags.restore_from:
            folder, _ = find_checkpoint(flags.restore_from, "--restore_from")
            anew = "; the schedule of the learning rate begins anew there" if flags.restart_schedule else ""
            self.reporter.message(f"continuing step {start_step} of {flags.restore_from}{anew}")
            return restore_checkpoint(folder, start_step, self.step.shapes)
        state = self.interruption.run_interruptibly(
            lambda: training.create_state(self.step.initialize, self.step.optimizer, self.step.shardings, flags.seed)
        )
        if flags.init_checkpoint:
            state = initial_parameters.load(flags, self.config, state, self.reporter.message)
        return state

    def _train_and_evaluate(self, start_step: int, resumed: bool) -> None:
        flags, total = self.flags, self.schedule.num_train_steps
        state = self._state(start_step, resumed)
        self.reporter.status("compiling")
        compiled = self.interruption.run_interruptibly(self.step.compile_train)
        self.compiled_eval = None
        if self.inputs.eval:
            self.compiled_eval = self.interruption.run_interruptibly(self.step.compile_eval)
        if self._lacks_evaluation(start_step):
            self._evaluate(start_step, state)
        rows = partitioning.local_rows(self.mesh, flags.train_batch_size)
        flops = training_flops(self.config, flags.max_seq_length, flags.max_predictions_per_seq)
        traced = profiling.parse_steps(flags.profile_steps)
        with (
            self.inputs.train.batches(
                flags.train_batch_size, start_step - self.first_step, total - start_step, rows
            ) as batches,
            profiling.Profile(traced, self.folder.path, self.reporter.message, self.reporter.warning) as profile,
        ):
            state, step = training.train(
                state,
                compiled,
                self._global(batches, flags.train_batch_size),
                start_step=start_step,
                num_train_steps=total,
                batch_size=flags.train_batch_size,
                tokens_per_example=flags.max_seq_length,
                log=self.reporter.log,
                save=self._save,
                evaluate=self._evaluate,
                stop_requested=self.interruption.requested,
                log_every_steps=flags.log_every_steps or min(max(total // 100, 1), 100),
                save_checkpoints_steps=flags.save_checkpoints_steps,
                eval_every_steps=flags.eval_every_steps or 0,
                last_saved_step=self.checkpointer.last_saved_step,
                seconds_at_peak=devices.seconds_at_peak(flops * flags.train_batch_size, flags),
                profile=profile,
            )
        self.reporter.status("saving")
        self.checkpointer.wait()
        if step < total:
            raise self.interruption.exception(step)
        if flags.evaluate_at_end and not self._evaluate(step, state):
            raise self.interruption.exception(step)

    def _global(self, batches, batch_size: int) -> Iterator[dict[str, jax.Array]]:
        return (partitioning.to_global_batch(self.mesh, batch, batch_size) for batch in batches)

    def _save(self, step: int, state: Any) -> None:
        self.checkpointer.save(step, state)
        if processes.is_first():
            write_report(self.folder.path)

    def _lacks_evaluation(self, step: int) -> bool:
        """Whether the run was stopped when it had saved this step and not yet evaluated it."""
        every = self.flags.eval_every_steps
        due = every and step % every == 0 and self.first_step < step < self.schedule.num_train_steps
        return bool(due) and not processes.from_first(lambda: self.reporter.has_evaluation(step))

    def _evaluate(self, step: int, state: Any) -> bool:
        """Evaluates on the held-out text; False when a stop was requested before the end."""
        if not self.inputs.eval:
            return True
        size, data = self.flags.eval_batch_size, self.inputs.eval
        count = min(data.num_eval_batches(size), self.flags.max_eval_steps or sys.maxsize)
        stopped = False

        def until_stop(batches):
            nonlocal stopped
            for i, batch in enumerate(itertools.islice(batches, count)):
                if stopped := self.interruption.requested(step):
                    return
                self.reporter.status(f"evaluating {i + 1}/{count}")
                yield batch

        with data.eval_batches(size, partitioning.local_rows(self.mesh, size)) as batches:
            results = training.evaluate(
                self.step.task, self.compiled_eval, state["params"], until_stop(self._global(batches, size))
            )
        if not stopped:
            self.reporter.evaluation(step, results)
        return not stopped
