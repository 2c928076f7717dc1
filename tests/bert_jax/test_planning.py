"""Targets of plans, and what is made of a compiled step or of a compiler that gives up."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax import planning
from bert_jax.chips import CHIPS
from bert_jax.config import BertConfig
from input_pipeline.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
V5E = planning.Target("v5e:1x1", CHIPS["v5e"], [types.SimpleNamespace(coords=(0, 0, 0), id=0)], 1, 1)
PROGRAM = """HloModule jit_train_step, is_scheduled=true

ENTRY %main (x: f32[1000,1000]) -> f32[1000,1000] {
  %x = f32[1000,1000]{1,0} parameter(0)
  %y = f32[1000,1000]{1,0} negate(%x), backend_config={"estimated_cycles":"3000000"}
  ROOT %d = f32[1000,1000]{1,0} dot(%y, %y), lhs_contracting_dims={1}, backend_config={"estimated_cycles":"6000000"}
}
"""


class Compiled:
    """Of a step: 2 GiB of arguments of which 1 GiB is given back as results of 1.5 GiB."""

    def __init__(self, temporaries):
        self.stats = types.SimpleNamespace(
            argument_size_in_bytes=2 * GIB,
            output_size_in_bytes=3 * GIB // 2,
            alias_size_in_bytes=GIB,
            temp_size_in_bytes=temporaries,
            generated_code_size_in_bytes=GIB,
        )

    def memory_analysis(self):
        return self.stats

    def cost_analysis(self):
        return {"flops": 5.0}

    def as_text(self):
        return PROGRAM


def step(compile_train):
    flags = types.SimpleNamespace(
        max_seq_length=128,
        max_predictions_per_seq=20,
        train_batch_size=64,
        gradient_accumulation_steps=2,
        precision="bf16",
        remat="none",
        optimizer="lamb",
        scan_layers=False,
        shard_optimizer=True,
        gradient_reduction="f32",
    )
    mesh = types.SimpleNamespace(
        shape={"data": 1, "fsdp": 1, "tensor": 1}, devices=np.array(V5E.devices).reshape(1, 1, 1), size=1
    )
    task = types.SimpleNamespace(module=types.SimpleNamespace(config=BertConfig.named("tiny"), attention_kernel="xla"))
    return types.SimpleNamespace(flags=flags, mesh=mesh, task=task, compile_train=compile_train)


def test_figures_of_a_compiled_step():
    plan, text = planning.compile_plan(step(lambda: Compiled(10 * GIB)), V5E, 1000)
    assert text == PROGRAM
    assert plan["memory"] == {
        "arguments": 2 * GIB,
        "results": GIB // 2,
        "temporaries": 10 * GIB,
        "code": GIB,
        "peak": 27 * GIB // 2,
        "capacity": 16 * GIB,
        "fits": True,
    }
    # 9 M cycles at 1.5 GHz; the model's FLOPs are those of test_model_costs' formula.
    assert plan["estimated_step_seconds"] == pytest.approx(0.006)
    assert plan["sequences_per_second"] == pytest.approx(64 / 0.006)
    assert plan["days"] == pytest.approx(6 / 86400) and plan["chip_hours"] == pytest.approx(6 / 3600)
    assert (plan["optimizer"], plan["attention_kernel"], plan["model"]["hidden_size"]) == ("lamb", "xla", 128)
    assert plan["parameters"] == 4_433_468
    hidden, layers = 128, 2
    model = (
        64
        * 6
        * (layers * (128 * (4 * hidden**2 + 8 * hidden**2) + 2 * 128**2 * hidden) + 20 * (hidden**2 + hidden * 30522))
    )
    assert plan["flops"]["model"] == model
    assert plan["flops"]["matmul"] == 2e9 and plan["flops"]["compiler"] == 5.0
    assert plan["flops"]["waste"] == pytest.approx(2e9 / model - 1)
    assert plan["mfu"] == pytest.approx(model / 0.006 / 197e12)
    assert plan["hfu"] == pytest.approx(2e9 / 0.006 / 197e12)
    assert (plan["per_device_batch"], plan["loops_counted_once"]) == (32, 0)


def test_the_tables_of_the_benchmarks_are_made_of_plans(tmp_path):
    plan, _ = planning.compile_plan(step(lambda: Compiled(10 * GIB)), V5E, 1000)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    script = (
        "import json, sys, plans, fast_paths\n"
        "plan = {'size': 'tiny', **json.load(open(sys.argv[1]))}\n"
        "print(plans.row(plan)); print(*fast_paths.cells(plan, 0.003), sep=' | ')\n"
        "print(plans.devices_of('v5e:4x4'), plans.devices_of('2xv4:2x2x4'))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}
    words = [sys.executable, "-c", script, str(tmp_path / "plan.json")]
    printed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    waste, mfu = plan["flops"]["waste"], plan["mfu"]
    flops = f"{plan['flops']['model'] / 1e9:,.0f}"
    assert printed.splitlines() == [
        f"v5e:1x1 | tiny | 128 | 64 | 13.50 | yes | {flops} | {waste:+.1%} | 0 | 6.0 | {mfu:.1%} | 10,667",
        "6.00 | 2.00 | 9.00 | 0.00 | 0.00 | 13.50",
        "16 32",
    ]


def test_more_than_the_memory_does_not_fit():
    plan, _ = planning.compile_plan(step(lambda: Compiled(13 * GIB)), V5E, 1000)
    assert plan["memory"]["peak"] > plan["memory"]["capacity"] and plan["memory"]["fits"] is False


@pytest.mark.parametrize(
    ("message", "peak"),
    [
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (43.50G) exceeds available HBM "
            "(15.75G).",
            43.5,
        ),
        ("Ran out of memory in memory space hbm. Used 17.25G of 15.75G hbm. Exceeded hbm capacity by 1.50G.", 17.25),
        ("out of memory", None),
    ],
)
def test_a_compiler_that_gives_up_tells_the_memory(message, peak):
    def give_up():
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {message}")

    plan, text = planning.compile_plan(step(give_up), V5E, 1000)
    capacity = peak and int(15.75 * GIB)
    assert plan["memory"] == {"peak": peak and int(peak * GIB), "capacity": capacity, "fits": False}
    assert text == "" and plan["estimated_step_seconds"] is None and plan["flops"]["model"] > 0


@pytest.mark.parametrize("message", ["INTERNAL: a bug", "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem."])
def test_other_errors_of_the_compiler_are_not_hidden(message):
    def fail():
        raise jax.errors.JaxRuntimeError(message)

    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        planning.compile_plan(step(fail), V5E, 1000)


def test_the_present_machine_is_a_target_without_times():
    target = planning.open_target("cpu")
    assert (target.chip, target.chips, target.hosts) == (None, len(jax.devices("cpu")), 1)
    assert target.devices == jax.devices("cpu") and target.chip_share == 1.0


def test_devices_that_are_not_there():
    with pytest.raises(UserError, match="--topology=gpu: this machine has no GPU"):
        planning.open_target("gpu")


def test_no_compiler_for_tpus(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the compiler for TPUs, libtpu: pip install -e '.\[plan\]'"):
        planning.check("v5e:4x4")
    planning.check("cpu")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install -e '.[plan]'")
def test_a_single_chip_is_a_target():
    """In a process of its own, since libtpu changes the environment."""
    script = (
        "from bert_jax import planning; x = planning.open_target('v5e:1x1'); print(len(x.devices), x.chips, x.hosts)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "1 1 1\n", done.stderr


def test_libraries_are_silenced_but_python_is_not():
    code = (
        "import os, sys\nfrom bert_jax import planning\n"
        "with planning._quiet_stderr():\n    os.write(2, b'noise ')\n    print('word', file=sys.stderr)\n"
        "os.write(2, b'after ')\nprint('end', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stderr == "word\nafter end\n"


def test_the_same_text_is_compressed_to_the_same_bytes():
    assert gzip.decompress(planning.compressed(PROGRAM)).decode() == PROGRAM
    assert planning.compressed(PROGRAM) == planning.compressed(PROGRAM)
    assert planning.compressed(PROGRAM)[4:8] == bytes(4)
