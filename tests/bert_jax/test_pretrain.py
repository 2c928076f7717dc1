"""Pretraining through the command line: what is written, resumed, refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bert_jax.main import main
from input_pipeline.tfrecords import write_tfrecords

STEPS = 6


def command(corpus, output, **flags):
    flags = {
        "mode": "pretrain",
        "input_file": corpus / "text.txt",
        "vocab_file": corpus / "vocab.txt",
        "bert_config_file": corpus / "bert_config.json",
        "max_seq_length": 32,
        "train_batch_size": 8,
        "num_train_steps": STEPS,
        "learning_rate": 1e-3,
        "log_every_steps": 1,
        "save_checkpoints_steps": 4,
        "eval_fraction": 0.1,
        "output_dir": output,
        **flags,
    }
    return ["bert_jax", *(f"--{name}={value}" for name, value in flags.items() if value is not None)]


def metrics(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "out"
    assert main(command(corpus, folder)) == 0
    return folder


def test_what_a_run_leaves(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "bert_config.json",
        "vocab.txt",
        "tokenizer_config.json",
        "run.json",
        "metrics.jsonl",
        "eval_results.json",
        "report.html",
        "tensorboard",
        "checkpoints",
    }
    lines = metrics(finished)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[0].keys() >= {
        "loss",
        "masked_lm_loss",
        "next_sentence_loss",
        "masked_lm_accuracy",
        "next_sentence_accuracy",
        "learning_rate",
        "examples_per_second",
        "tokens_per_second",
        "step_seconds_p50",
        "step_seconds_p90",
        "step_seconds_max",
    }
    assert not lines[0].keys() & {"mfu", "memory_peak_bytes"}  # which a CPU does not have
    results = json.loads((finished / "eval_results.json").read_text())
    assert results["examples"] > 0
    assert results["perplexity"] == pytest.approx(np.exp(results["masked_lm_loss"]))
    assert 2 < results["unigram_loss"] < np.log(32)
    assert "<svg" in (finished / "report.html").read_text()


def test_a_traced_run_is_the_same_run(corpus, finished, tmp_path, capfd):
    assert main(command(corpus, tmp_path, profile_steps="2:3")) == 0
    traces = tmp_path / "tensorboard" / "plugins" / "profile" / "steps_2_3"
    assert len(list(traces.glob("*.xplane.pb"))) == 1
    assert f"the trace of updates 2 to 3 is in {traces}: look at it by xprof" in capfd.readouterr().err
    assert_same_state(finished, tmp_path)


def test_a_finished_folder_says_so(corpus, finished, capfd):
    before = (finished / "metrics.jsonl").read_bytes()
    assert main(command(corpus, finished)) == 0
    assert f"already at step {STEPS} of {STEPS}, nothing to do" in capfd.readouterr().err
    assert (finished / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("learning_rate", 2e-3, "learning_rate is 0.001 there and 0.002 now"),
        ("seed", 7, "seed is 12345 there and 7 now"),
        ("train_batch_size", 16, "train_batch_size is 8 there and 16 now"),
        ("masked_lm_prob", 0.3, "masked_lm_prob is 0.15 there and 0.3 now"),
    ],
)
def test_a_changed_meaning_is_refused(corpus, finished, capfd, flag, value, words):
    assert main(command(corpus, finished, max_predictions_per_seq=5, **{flag: value})) == 2
    assert words in capfd.readouterr().err


def leaves(folder, step):
    """All arrays of a checkpoint, by name, read without the program's own code."""
    item = next((folder / "checkpoints" / str(step)).glob("*/_METADATA")).parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Orbax asks for shardings, which do not matter here
        tree = ocp.PyTreeCheckpointer().restore(os.fspath(item))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same_state(one, other, step=STEPS):
    one, other = leaves(one, step), leaves(other, step)
    assert one.keys() == other.keys() and len(one) > 30
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_an_extended_run_goes_on(corpus, tmp_path, capfd):
    assert main(command(corpus, tmp_path, num_train_steps=3)) == 0
    assert main(command(corpus, tmp_path, num_train_steps=5)) == 0
    assert "--num_train_steps was 3 before" in capfd.readouterr().err
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_ends_where_an_uninterrupted_one_does(corpus, tmp_path, kind):
    steps, environment = 300, os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    flags = {"num_train_steps": steps, "save_checkpoints_steps": 20, "keep_checkpoints": 2}
    assert main(command(corpus, tmp_path / "whole", **flags)) == 0
    words = [sys.executable, "-m", "bert_jax.main", *command(corpus, tmp_path / "killed", **flags)[1:]]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
    wait_for_lines(tmp_path / "killed" / "metrics.jsonl", 50, process)
    process.send_signal(kind)
    process.communicate(timeout=60)
    assert process.returncode == (75 if kind == signal.SIGTERM else -kind)
    assert len(metrics(tmp_path / "killed")) < steps
    again = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert "resuming at step" in again.stderr
    assert_same_state(tmp_path / "whole", tmp_path / "killed", steps)
    one, other = metrics(tmp_path / "whole"), metrics(tmp_path / "killed")
    assert [line["step"] for line in other] == list(range(1, steps + 1))
    assert [line["loss"] for line in one] == [line["loss"] for line in other]


def wait_for_lines(path, count, process):
    deadline = time.monotonic() + 200
    while not (path.exists() and path.read_bytes().count(b"\n") >= count):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_phase_two_continues_parameters_optimizer_and_step(corpus, finished, tmp_path):
    flags = {"max_seq_length": 16, "train_batch_size": 4, "num_train_steps": STEPS + 2, "restore_from": finished}
    assert main(command(corpus, tmp_path, **flags)) == 0
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [STEPS + 1, STEPS + 2]
    state = leaves(tmp_path, STEPS + 2)
    assert state["['step']"] == STEPS + 2
    assert next(value for name, value in state.items() if "opt_state" in name and "step" in name) == STEPS + 2


def test_a_second_phase_with_a_schedule_of_its_own_resumes_exactly(corpus, finished, tmp_path, capfd):
    """Warm-up of 2 steps and decay by the root of what is left, both counted from the restored step."""
    flags = {"restore_from": finished, "restart_schedule": "true", "num_warmup_steps": 2, "lr_decay_power": 0.5}
    flags |= {"num_train_steps": STEPS + 5, "save_checkpoints_steps": 1, "gradient_accumulation_steps": 2}
    assert main(command(corpus, tmp_path / "whole", **flags)) == 0
    assert "the schedule of the learning rate begins anew there" in capfd.readouterr().err
    rates = [line["learning_rate"] for line in metrics(tmp_path / "whole")]
    np.testing.assert_allclose(rates, 1e-3 * np.array([0, 0.5, *np.sqrt([3 / 5, 2 / 5, 1 / 5])]), rtol=1e-6)

    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for step in (STEPS + 4, STEPS + 5):
        shutil.rmtree(tmp_path / "again" / "checkpoints" / str(step))
    assert main(command(corpus, tmp_path / "again", **flags)) == 0
    assert f"resuming at step {STEPS + 3}" in capfd.readouterr().err
    assert_same_state(tmp_path / "whole", tmp_path / "again", STEPS + 5)
    assert [line["learning_rate"] for line in metrics(tmp_path / "again")] == rates

    assert main(command(corpus, tmp_path / "whole", **flags | {"restart_schedule": None})) == 2
    assert "restart_schedule is true there and not set now" in capfd.readouterr().err


def test_init_checkpoint_starts_at_step_zero(corpus, finished, tmp_path):
    assert main(command(corpus, tmp_path, init_checkpoint=finished, num_train_steps=1, learning_rate=0.0)) == 0
    assert [line["step"] for line in metrics(tmp_path)] == [1]
    before, after = leaves(finished, STEPS), leaves(tmp_path, 1)
    for name in before:
        if "params" in name:
            np.testing.assert_array_equal(before[name], after[name])


def test_reference_trajectory_through_the_command_line(data, tmp_path):
    reference = np.load(data / "trajectory_tiny.npz")
    names = (
        "input_ids input_mask segment_ids masked_lm_positions masked_lm_ids masked_lm_weights next_sentence_labels"
    ).split()
    rows = {name: reference[name].reshape(160, *reference[name].shape[2:]) for name in names}
    rows["next_sentence_labels"] = rows["next_sentence_labels"].reshape(160)
    write_tfrecords(
        tmp_path / "batches.tfrecord", [{name: values[i] for name, values in rows.items()} for i in range(160)]
    )
    flags = {
        "mode": "pretrain",
        "input_file": tmp_path / "batches.tfrecord",
        "shuffle": "false",
        "bert_config_file": data / "trajectory_tiny_config.json",
        "init_checkpoint": data / "trajectory_tiny_init.safetensors",
        "max_seq_length": 32,
        "max_predictions_per_seq": rows["masked_lm_ids"].shape[1],
        "train_batch_size": 8,
        "num_train_steps": 20,
        "num_warmup_steps": 5,
        "learning_rate": 1e-3,
        "log_every_steps": 1,
        "output_dir": tmp_path / "out",
    }
    assert main(["bert_jax", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    lines = metrics(tmp_path / "out")
    np.testing.assert_allclose([line["loss"] for line in lines], reference["loss_float64"], atol=1e-5, rtol=0)
    np.testing.assert_allclose([line["gradient_norm"] for line in lines], reference["grad_norm_float64"], atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"input_file": "/nowhere/text.txt"}, "/nowhere/text.txt"),
        ({"vocab_file": "/nowhere/vocab.txt"}, "/nowhere/vocab.txt"),
        ({"bert_config_file": "/nowhere/config.json"}, "/nowhere/config.json"),
        ({"init_checkpoint": "/nowhere/model"}, "/nowhere/model"),
        ({"restore_from": "/nowhere/run"}, "/nowhere/run"),
        ({"profile_steps": "10"}, "--profile_steps=10 must be FIRST:LAST"),
        ({"restart_schedule": "true"}, "--restart_schedule is about the run of --restore_from"),
        ({"trust_ratio": "decayed"}, "--trust_ratio=decayed is for --optimizer=lamb"),
        ({"mesh": "data=7"}, "--mesh=data=7"),
        ({"masking_split": "0.8,0.1"}, "--masking_split"),
        ({"masking_split": "0.8,0.1,x"}, "--masking_split=0.8,0.1,x"),
        ({"max_seq_length": 4}, "--max_seq_length"),
        ({"max_seq_length": 2048}, "--max_seq_length=2048 is longer than the position table"),
        ({"gradient_accumulation_steps": 3}, "--train_batch_size=8"),
        ({"num_train_epochs": 1}, "--num_train_steps and --num_train_epochs exclude each other"),
        ({"process_id": 1}, "--coordinator_address"),
        ({"hidden_act": "gelo"}, "gelo"),
        ({"model": "tiny"}, "exclude each other"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(corpus, tmp_path, capfd, flags, words):
    assert main(command(corpus, tmp_path / "out", **flags)) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and words in errors[0]
    assert not (tmp_path / "out" / "run.json").exists()


def test_batches_and_lengths_that_a_mesh_cannot_cut_are_refused_before_anything_is_compiled(corpus, finished, tmp_path):
    mesh = "data=2,fsdp=2,sequence=2"
    evaluate = ["", "--mode=evaluate", f"--init_checkpoint={finished}", f"--eval_input_file={corpus}/text.txt"]
    commands = [
        command(corpus, tmp_path, mesh=mesh, train_batch_size=6),
        command(corpus, tmp_path, mesh=mesh, eval_batch_size=6),
        command(corpus, tmp_path, mesh="data=2,sequence=4", max_seq_length=30),
        [*evaluate, f"--mesh={mesh}", "--eval_batch_size=7"],
        [*evaluate, f"--mesh={mesh}", "--max_seq_length=31"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", MAIN_WITHOUT_COMPILER, json.dumps(commands)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    rows = "must be a multiple of 4 (data axis 2 x fsdp axis 2)"
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")] == [
        f"error: --train_batch_size=6 {rows}: use 4 or 8",
        f"error: --eval_batch_size=6 {rows}: use 4 or 8",
        "error: --max_seq_length=30 must be a multiple of 4 (sequence axis): use 28 or 32",
        f"error: --eval_batch_size=7 {rows}: use 4 or 8",
        "error: --max_seq_length=31 must be a multiple of 2 (sequence axis): use 30 or 32",
    ]
    assert not list(tmp_path.iterdir()) and not (finished / "evaluate").exists()


MAIN_WITHOUT_COMPILER = """
import json, sys
from bert_jax import training
from bert_jax.main import main

training.compile_step = None
for words in json.loads(sys.argv[1]):
    assert main(words) == 2
"""


def test_a_vocabulary_larger_than_the_model_is_refused(corpus, tmp_path, capfd):
    config = json.loads((corpus / "bert_config.json").read_text()) | {"vocab_size": 20}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(command(corpus, tmp_path / "out", bert_config_file=tmp_path / "config.json")) == 2
    error = capfd.readouterr().err
    assert "26 entries" in error and "vocab_size 20" in error and "vocab.txt" in error


def test_next_sentence_prediction_can_be_switched_off(corpus, tmp_path):
    assert main(command(corpus, tmp_path, next_sentence_prediction="false", num_train_steps=1)) == 0
    assert "next_sentence_loss" not in metrics(tmp_path)[0]
    assert "next_sentence_loss" not in json.loads((tmp_path / "eval_results.json").read_text())


def test_segments_need_two_rows_for_pairs(corpus, tmp_path, capfd):
    config = json.loads((corpus / "bert_config.json").read_text()) | {"type_vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = {"bert_config_file": tmp_path / "config.json", "num_train_steps": 1}
    assert main(command(corpus, tmp_path / "out", **flags)) == 2
    assert "type_vocab_size is 1" in capfd.readouterr().err
    assert main(command(corpus, tmp_path / "out", next_sentence_prediction="false", **flags)) == 0


@pytest.mark.parametrize("flag", ["init_checkpoint", "restore_from"])
def test_parameters_of_another_vocabulary_are_refused(corpus, finished, tmp_path, capfd, flag):
    words = (corpus / "vocab.txt").read_text().split()
    (tmp_path / "vocab.txt").write_text("\n".join(words[:6] + words[:5:-1]) + "\n")
    flags = {"vocab_file": tmp_path / "vocab.txt", "num_train_steps": STEPS + 1, flag: finished}
    assert main(command(corpus, tmp_path / "out", **flags)) == 2
    assert f"--{flag}={finished} was trained with another vocabulary" in capfd.readouterr().err


def test_what_can_be_wrong_is_found_before_text_is_prepared(corpus, tmp_path, capfd):
    (tmp_path / "no_mask.txt").write_text((corpus / "vocab.txt").read_text().replace("[MASK]", "mask"))
    (tmp_path / "empty").mkdir()
    for flags, words in [
        ({"vocab_file": tmp_path / "no_mask.txt"}, "no_mask.txt has no [MASK]"),
        ({"eval_input_file": tmp_path / "nothing.txt"}, "--eval_input_file"),
        ({"restore_from": tmp_path / "empty"}, "--restore_from"),
        ({"init_checkpoint": tmp_path / "empty"}, "--init_checkpoint"),
    ]:
        assert main(command(corpus, tmp_path / "out", **flags)) == 2
        assert words in capfd.readouterr().err
        assert not (tmp_path / "out").exists()
