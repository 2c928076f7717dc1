"""--mode=plan from the command line: on the present machine, for TPUs that are not there, and its search."""

import gzip
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

from bert_jax import planning
from bert_jax.chips import CHIPS
from bert_jax.config import BertConfig
from bert_jax.main import main
from bert_jax.model_costs import parameter_rows, training_flops

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
}


@pytest.fixture
def words(tmp_path):
    """The command line of a plan of a small model, but for the topology."""
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    return [
        "bert_jax",
        "--mode=plan",
        f"--bert_config_file={tmp_path}/bert_config.json",
        "--train_batch_size=32",
        "--num_train_steps=100",
        f"--output_dir={tmp_path}/plan",
    ]


def planned(tmp_path):
    return json.loads((tmp_path / "plan" / "plan.json").read_text())


def program(tmp_path):
    return gzip.decompress((tmp_path / "plan" / "compiled.hlo.txt.gz").read_bytes()).decode()


def model_flops(batch, layers=CONFIG["num_hidden_layers"]):
    config = BertConfig(**{**CONFIG, "num_hidden_layers": layers})
    return batch * training_flops(config, 128, 20)


def computed_flops(batch):
    """Without what the last layer leaves out at the 107 of 128 tokens that are neither masked nor [CLS]: their queries,
    their products with all keys and values, and all that follows."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    a_token = 2 * (2 * hidden**2 + 2 * hidden * inner) + 2 * 2 * 128 * hidden
    return model_flops(batch) - batch * 3 * 107 * a_token


def test_the_present_machine(words, tmp_path, capsys):
    assert main([*words, "--topology=cpu"]) == 0
    plan = planned(tmp_path)
    devices = len(jax.devices("cpu"))
    assert (plan["topology"], plan["devices"], plan["mesh"]["data"]) == ("cpu", devices, devices)
    assert plan["flops"]["model"] == model_flops(32) / devices
    # XLA counts all products and more.
    assert plan["flops"]["compiler"] > computed_flops(32) / devices
    state = 3 * 4 * sum(row.total for row in parameter_rows(BertConfig(**CONFIG)))
    assert state < plan["memory"]["arguments"] < state + 10**6
    assert plan["estimated_step_seconds"] is None and plan["mfu"] is None
    assert program(tmp_path).startswith("HloModule jit_train_step")
    output = capsys.readouterr()
    assert "batch" in output.out and "Memory of a device, GiB" in output.out
    assert "no estimate: only the compiler for TPUs makes one" in output.out
    assert f"{tmp_path}/plan/plan.json holds the figures" in output.err


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
def test_tpus_that_are_not_there(words, tmp_path):
    """In a process of its own, since libtpu changes the environment."""
    command = [sys.executable, "-m", "bert_jax.main", *words[1:], "--topology=v5e:2x2", "--precision=bf16"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    plan, text = planned(tmp_path), program(tmp_path)
    assert (plan["chip"], plan["devices"], plan["chips"], plan["hosts"]) == ("TPU v5e", 4, 4, 1)
    assert plan["memory"]["fits"] is True and plan["memory"]["capacity"] == 16 * 2**30
    # Without loops every estimate of the text counts once.
    assert sum(plan["cycles"].values()) == sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))
    assert plan["flops"]["matmul"] == pytest.approx(computed_flops(32) / 4, rel=0.05)
    assert plan["cycles"]["optimizer"] > 0 and plan["cycles"]["matmul"] > 0
    (axes,) = {row["axes"] for row in plan["collectives"]}
    parameters = sum(row.total for row in parameter_rows(BertConfig(**CONFIG)))
    reduced = sum(row["bytes"] for row in plan["collectives"] if row["opcode"] in ("all-reduce", "reduce-scatter"))
    assert axes == "data" and reduced >= 2 * parameters
    assert plan["estimated_step_seconds"] > sum(plan["cycles"].values()) / plan["clock"]
    assert "MFU" in done.stdout and "DOES NOT FIT" not in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
def test_a_mesh_for_which_the_compiler_cuts_the_program(words, tmp_path):
    flags = ["--topology=v5e:2x2", "--mesh=data=2,fsdp=2", "--precision=bf16", "--gradient_reduction=bf16"]
    command = [sys.executable, "-m", "bert_jax.main", *words[1:], *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    plan = planned(tmp_path)
    assert "fsdp" in {axis for row in plan["collectives"] for axis in re.findall(r"\w+", row["axes"])}
    assert plan["estimated_step_seconds"] > 0 and plan["gradient_reduction"] == "f32"
    assert "warning: --gradient_reduction=bf16 has no effect" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
def test_two_slices_reduce_over_their_own_links_first(words, tmp_path):
    command = [sys.executable, "-m", "bert_jax.main", *words[1:], "--topology=2xv5e:2x2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    plan = planned(tmp_path)
    assert (plan["devices"], plan["chips"], plan["hosts"]) == (8, 8, 2)
    assert (plan["mesh"]["data"], plan["slices"]["data"]) == (8, 2)
    rows = plan["collectives"]
    assert {row["axes"] for row in rows} == {"data"} and {row["network"] for row in rows} == {"ICI", "DCN"}
    # Each of the four devices of a slice sends its part of the gradients to the other slice.
    parameters = sum(row.total for row in parameter_rows(BertConfig(**CONFIG)))
    sums = [row for row in rows if row["network"] == "DCN" and row["opcode"] in ("all-reduce", "reduce-scatter")]
    reduced = sum(row["bytes"] for row in sums)
    assert reduced >= parameters
    seconds = sum(row["seconds"] for row in rows if row["network"] == "DCN")
    assert seconds >= 0.99 * reduced / CHIPS["v5e"].dcn_bytes_per_second
    assert "slices" in done.stdout and "DCN" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--topology is missing"),
        (["--topology=v9:4x4"], "--topology=v9:4x4: chips are v4, v5e, v5p, v6e"),
        (["--topology=v5e:4"], "--topology=v5e:4: v5e needs 2 sizes"),
        (
            ["--topology=cpu", "--mesh=data=1", "--gradient_accumulation_steps=5"],
            "--train_batch_size=32 must be a mult",
        ),
        (["--topology=cpu", "--mesh=data=1000"], "--mesh=data=1000 is for 1000 devices"),
        (["--topology=cpu", "--dcn_mesh=data=2"], "--dcn_mesh=data=2 is for 2 slices, but there is 1"),
        (["--topology=cpu", "--max_seq_length=512"], "--max_seq_length=512 is longer than the position table"),
        (["--topology=cpu", "--masking_split=0.8,0.1"], "--masking_split"),
        (["--topology=cpu", "--max_seq_length=4"], "--max_seq_length"),
        (["--topology=cpu", "--profile_steps=3"], "--profile_steps=3 must be FIRST:LAST"),
        (["--topology=cpu", "--trust_ratio=decayed"], "--trust_ratio=decayed is for --optimizer=lamb"),
        (["--topology=cpu", "--restore_from=/nowhere"], "--restore_from: no such file or folder: /nowhere"),
        (["--topology=v5litepod-16"], "--topology=v5litepod-16: give the chip and its sizes, as in v5e:4x4"),
        (["--topology=cpu", "--plan_search"], "--plan_search needs a topology of TPUs"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(words, tmp_path, capsys, flags, message):
    assert main([*words, *flags]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("defaults ")]
    assert len(lines) == 1 and lines[0].startswith(f"error: {message}")
    assert not (tmp_path / "plan").exists()


def test_epochs_need_data(words, capsys):
    words = [word for word in words if "num_train_steps" not in word]
    assert main([*words, "--topology=cpu", "--num_train_epochs=2"]) == 2
    assert "--num_train_epochs: a plan has no data" in capsys.readouterr().err


def test_the_folder_of_a_run_is_refused(words, tmp_path, capsys):
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "run.json").write_text("{}")
    assert main([*words, "--topology=cpu"]) == 2
    assert f"--output_dir={tmp_path}/plan is the folder of a run" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "plan").iterdir()] == ["run.json"]


def test_a_signal_ends_a_plan_while_it_compiles(words, capsys, monkeypatch):
    """Of a compiler that returns to no handler of signals before its end."""
    begun, ended = threading.Event(), threading.Event()

    def compile_plan(*arguments):
        begun.set()
        ended.wait(60)

    monkeypatch.setattr(planning, "compile_plan", compile_plan)
    threading.Thread(target=lambda: (begun.wait(60), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
    try:
        assert main([*words, "--topology=cpu"]) == 75
    finally:
        ended.set()
    assert capsys.readouterr().err.splitlines()[-1].startswith("stopped; nothing that was written before is lost")


@pytest.fixture
def made_up_chip(monkeypatch):
    """A TPU whose compiler is the present machine's and whose times are made up; what was compiled is collected."""
    compiled = []

    def compile_plan(step, target, num_train_steps):
        layers = step.task.module.config.num_hidden_layers
        flags = step.flags
        compiled.append((layers, flags.mesh, flags.train_batch_size, flags.gradient_accumulation_steps, flags.remat))
        each = flags.train_batch_size // flags.gradient_accumulation_steps
        peak = layers * each * (3 if flags.remat == "none" else 2)
        fits = peak < 600
        plan = planning._outline(step, target, num_train_steps) | {
            "memory": {"peak": peak, "capacity": 600, "fits": fits}
        }
        # Larger batches take less for each sequence; with remat twice as much.
        seconds = layers * (1 + 0.01 * each) * (1 if flags.remat == "none" else 2)
        plan["estimated_step_seconds"] = flags.gradient_accumulation_steps * seconds
        return plan, f"text of {flags.train_batch_size}"

    target = planning.Target("v5e:1x1", CHIPS["v5e"], jax.devices("cpu")[:1], 1, 1)
    monkeypatch.setattr(planning, "check", lambda topology: None)
    monkeypatch.setattr(planning, "open_target", lambda topology: target)
    monkeypatch.setattr(planning, "compile_plan", compile_plan)
    monkeypatch.setattr("bert_jax.modes.plan.tables", lambda plan: [])
    return compiled


def test_a_search_compiles_the_best_in_full(words, tmp_path, capsys, made_up_chip):
    words = [word for word in words if "train_batch_size" not in word]
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    assert main([*words, "--topology=v5e:1x1", "--plan_search"]) == 0
    # 32 and 64 fit; 128 does not without remat, and with it is slower; nothing larger fits.
    assert made_up_chip[-1] == (3, "data=1", 64, 1, "none")
    assert {layers for layers, *_ in made_up_chip[:-1]} == {1, 2}
    plan = planned(tmp_path)
    assert (plan["train_batch_size"], program(tmp_path)) == (64, "text of 64")
    rows = plan["search"]
    assert rows[0]["train_batch_size"] == 64 and rows[0]["fits"] is True
    assert [row["fits"] for row in rows] == sorted((row["fits"] for row in rows), reverse=True)
    output = capsys.readouterr()
    assert "3 layers: estimates from what 1 and 2 layers cost" in output.out
    assert len(re.findall(r"^data=1 ", output.out, re.MULTILINE)) == len(rows)
    best = "best: --mesh=data=1 --train_batch_size=64 --gradient_accumulation_steps=1 --remat=none"
    assert best in output.err.splitlines()


def test_a_search_keeps_to_what_is_given(words, tmp_path, made_up_chip):
    words = [word for word in words if "train_batch_size" not in word]
    given = ["--train_batch_size=128", "--remat=dots", "--mesh=data=-1"]
    assert main([*words, "--topology=v5e:1x1", "--plan_search", *given]) == 0
    assert {row[1:3] + row[4:] for row in made_up_chip} == {("data=-1", 128, "dots")}
    assert {row[3] for row in made_up_chip} == {1, 2, 4}
    assert planned(tmp_path)["gradient_accumulation_steps"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scan_layers"], "--plan_search and --scan_layers exclude each other"),
        (["--gradient_accumulation_steps=2"], "--plan_search finds --gradient_accumulation_steps itself"),
    ],
)
def test_a_search_refuses_what_it_finds_itself(words, capsys, made_up_chip, flags, message):
    assert main([*words, "--topology=v5e:1x1", "--plan_search", *flags]) == 2
    assert message in capsys.readouterr().err and made_up_chip == []


def test_a_search_in_which_nothing_fits(words, tmp_path, capsys, made_up_chip):
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 12}))
    assert main([*words, "--topology=v5e:1x1", "--plan_search"]) == 2
    assert "no candidate fits into memory" in capsys.readouterr().err
    assert not (tmp_path / "plan" / "plan.json").exists()


@pytest.fixture
def flags_of_steps(monkeypatch):
    """The flags and the configuration of each step that would have been compiled."""
    made = []

    def compile_plan(step, target, num_train_steps):
        made.append((step.flags, step.task.module.config, num_train_steps))
        plan = planning._outline(step, target, num_train_steps)
        plan["flops"]["compiler"] = 1e9
        return plan | {"memory": {"peak": 1, "capacity": None, "fits": None}}, ""

    monkeypatch.setattr(planning, "compile_plan", compile_plan)
    return made


def test_a_vocabulary_that_is_still_to_be_trained_has_its_size(words, flags_of_steps):
    words = [word for word in words if "bert_config_file" not in word]
    assert main([*words, "--topology=cpu", "--model=tiny", "--vocab_size=4096"]) == 0
    ((_, config, _),) = flags_of_steps
    assert config.vocab_size == 4096


def test_data_need_not_be_there(words, flags_of_steps):
    assert main([*words, "--topology=cpu", "--input_file=/nowhere/a", "--eval_input_file=/nowhere/b"]) == 0


def test_a_second_phase_is_planned_for_the_updates_that_are_left(words, flags_of_steps, monkeypatch, capsys):
    monkeypatch.setattr("bert_jax.modes.pretrain.find_checkpoint", lambda path, flag: (path, 60))
    monkeypatch.setattr("bert_jax.run_folder.find_checkpoint", lambda path, flag: (path, 60))
    monkeypatch.setattr("bert_jax.beside_checkpoint.take_all", lambda flags, name: None)
    flags = ["--topology=cpu", "--restore_from=runs/phase1", "--restart_schedule"]
    assert main([*words, *flags]) == 0
    assert flags_of_steps[0][2] == 40
    assert main([*words, *flags, "--num_train_steps=60"]) == 2
    assert "it must be more than the 60 of --restore_from=runs/phase1" in capsys.readouterr().err


def test_the_schedule_of_a_second_phase_can_be_planned_before_the_first_is_there(words, flags_of_steps):
    assert main([*words, "--topology=cpu", "--restart_schedule"]) == 0
