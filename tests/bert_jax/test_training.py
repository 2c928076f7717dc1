"""The loop and the steps: exact against the reference trajectory, the same for any mesh and any cut of a batch."""

import gzip
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import modeling, optimization, partitioning, pretraining, training
from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.convert.weights import weight_table
from bert_jax.profiling import Profile

REFERENCE = "trajectory_tiny"
LENGTH, BATCH, STEPS = 32, 8, 20


class Setup:
    """The reference run of tests/data/trajectory_tiny.npz, ready to be trained."""

    def __init__(self, data, mesh="", accumulation_steps=1, dropout=0.0):
        config = BertConfig.from_file(data / f"{REFERENCE}_config.json")
        config = BertConfig(
            **{**config.__dict__, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        )
        _, self.params, _ = load_huggingface(data / f"{REFERENCE}_init.safetensors", config)
        self.config, self.mesh = config, partitioning.make_mesh(mesh)
        self.task = pretraining.PretrainingTask(modeling.BertForPreTraining(config))
        self.schedule = optimization.learning_rate_schedule(1e-3, STEPS, 5)
        self.optimizer = optimization.make_optimizer("bert_adam", self.schedule)
        self.reference = np.load(data / f"{REFERENCE}.npz")
        initialize = lambda key: modeling.initialize(self.task.module, key)
        self.shapes, self.shardings = training.state_shapes(self.mesh, initialize, self.optimizer)
        predictions = self.reference["masked_lm_positions"].shape[-1]
        self.step = training.compile_step(
            training.make_train_step(self.task, self.optimizer, self.schedule, 0, self.shardings, accumulation_steps),
            self.mesh,
            self.shardings,
            (self.shapes, pretraining.batch_shapes(BATCH, LENGTH, predictions)),
            donate_state=True,
        )

    def state(self):
        params = self.params
        state = {"step": jnp.int32(0), "params": params, "opt_state": self.optimizer.init(params)}
        return jax.device_put(state, self.shardings)

    def batches(self, start=0):
        names = pretraining.batch_shapes(1, 1, 1).items()
        for i in range(start, STEPS):
            rows = {
                name: np.asarray(self.reference[name][i], shape.dtype)
                for name, shape in names
                if name in self.reference
            }
            rows["next_sentence_labels"] = rows["next_sentence_labels"].reshape(BATCH)
            rows["example_weights"] = np.ones(BATCH, np.float32)
            yield partitioning.to_global_batch(self.mesh, rows, BATCH)

    def run(self, steps=STEPS, batches=None, **options):
        logged, saved = [], []
        state, step = training.train(
            self.state(),
            self.step,
            self.batches() if batches is None else batches,
            **{
                "start_step": 0,
                "num_train_steps": steps,
                "batch_size": BATCH,
                "tokens_per_example": LENGTH,
                "log": lambda step, metrics: logged.append((step, metrics)),
                "save": lambda step, state: saved.append(step),
                "evaluate": lambda step, state: None,
                "stop_requested": lambda step: False,
                "log_every_steps": 1,
                "save_checkpoints_steps": 0,
                "eval_every_steps": 0,
                **options,
            },
        )
        return state, step, logged, saved


@pytest.fixture(scope="module")
def setup(data):
    return Setup(data)


def test_reference_trajectory(setup):
    state, step, logged, _ = setup.run()
    reference = setup.reference
    assert step == int(state["step"]) == int(state["opt_state"].step) == STEPS
    for name, theirs, tolerance in [
        ("loss", "loss_float64", 1e-5),
        ("masked_lm_loss", "mlm_loss_float64", 1e-5),
        ("next_sentence_loss", "nsp_loss_float64", 1e-5),
        ("gradient_norm", "grad_norm_float64", 1e-5),
        ("learning_rate", "learning_rate", 1e-9),
    ]:
        ours = [metrics[name] for _, metrics in logged]
        np.testing.assert_allclose(ours, reference[theirs], atol=tolerance, rtol=0, err_msg=name)
    leaves = {weight.name: weight for weight in weight_table(setup.config)}
    compared = 0
    for i, name in enumerate(reference["names"]):
        weight = leaves.get(str(name))
        if weight is None:
            continue
        leaf = state["params"]
        for key in weight.path:
            leaf = leaf[key]
        leaf = np.asarray(leaf)
        if weight.path[-1] == "kernel":
            leaf = leaf.reshape(weight.torch_shape[::-1]).T
        leaf = leaf.ravel()[: np.prod(weight.torch_shape)]
        np.testing.assert_allclose(
            leaf[reference["probe_index"][i]], reference["final_float64_probe"][i], atol=5e-6, rtol=0, err_msg=name
        )
        np.testing.assert_allclose(np.linalg.norm(leaf), reference["final_float64_l2"][i], rtol=1e-5, err_msg=name)
        compared += 1
    assert compared == len(reference["names"])


def test_accumulated_parts_of_a_batch_reach_the_same(data, setup):
    losses = [metrics["loss"] for _, metrics in Setup(data, accumulation_steps=4).run()[2]]
    np.testing.assert_allclose(losses, setup.reference["loss_float64"], atol=1e-5, rtol=0)


def test_steps_logged_and_saved(setup):
    _, _, logged, saved = setup.run(steps=7, log_every_steps=3, save_checkpoints_steps=5)
    assert [step for step, _ in logged] == [1, 3, 6, 7]
    assert saved == [5, 7]
    assert all(metrics["examples_per_second"] > 0 for _, metrics in logged)
    assert setup.run(steps=10, save_checkpoints_steps=5)[3] == [5, 10]


def test_a_stop_saves_the_step_reached(setup):
    asked = itertools.count()
    _, step, _, saved = setup.run(stop_requested=lambda step: next(asked) == 4, log_every_steps=100)
    assert (step, saved) == (4, [4])


def test_a_loss_that_is_not_finite_stops_the_run_and_saves_nothing_after_it(setup):
    def batches():
        for i, batch in enumerate(setup.batches()):
            if i == 6:
                batch["masked_lm_weights"] = batch["masked_lm_weights"] * jnp.nan
            yield batch

    saved = []
    with pytest.raises(
        training.TrainingError, match=r"nan.* at step 7: not finite; the last good checkpoint is step 5"
    ):
        training.train(
            setup.state(),
            setup.step,
            batches(),
            start_step=0,
            num_train_steps=STEPS,
            batch_size=BATCH,
            tokens_per_example=LENGTH,
            log=lambda step, metrics: None,
            save=lambda step, state: saved.append(step),
            evaluate=lambda step, state: None,
            stop_requested=lambda step: False,
            log_every_steps=1,
            save_checkpoints_steps=5,
            eval_every_steps=0,
            last_saved_step=lambda: saved[-1] if saved else None,
        )
    assert saved == [5]


def test_input_waits_are_told_from_step_time_and_from_the_start_of_the_input(setup):
    now = [0.0]

    def batches():
        for i, batch in enumerate(setup.batches()):
            if i in (0, 3):
                now[0] += 100.0
                jax.block_until_ready(jax.live_arrays())  # the device is done with all that it has
            yield batch

    _, _, logged, _ = setup.run(steps=5, batches=batches(), clock=lambda: now[0])
    shares = {step: metrics["input_wait_fraction"] for step, metrics in logged}
    assert [step for step, share in shares.items() if share > 0.9] == [2]  # read while the fourth batch was made
    assert logged[0][1]["seconds_per_step"] < 1


def test_step_times_and_the_share_of_the_peak_are_logged(setup):
    _, _, logged, _ = setup.run(steps=6, log_every_steps=3, seconds_at_peak=1e-9)
    for _, metrics in logged:
        assert 0 < metrics["step_seconds_p50"] <= metrics["step_seconds_p90"] <= metrics["step_seconds_max"]
        assert metrics["mfu"] == pytest.approx(1e-9 / metrics["seconds_per_step"])
    assert "mfu" not in setup.run(steps=1)[2][0][1]


def test_a_trace_changes_nothing_and_holds_its_updates_only(setup, tmp_path):
    with Profile(range(3, 5), tmp_path) as profile:
        _, _, logged, saved = setup.run(steps=7, save_checkpoints_steps=4, profile=profile)
    assert [step for step, _ in logged] == [1, 2, 3, 4, 5, 6, 7] and saved == [4, 7]
    losses = [metrics["loss"] for _, metrics in logged]
    assert losses == [metrics["loss"] for _, metrics in setup.run(steps=7)[2]]
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [event["args"]["step_num"] for event in events if event.get("name") == "train"] == ["3", "4"]


MESHES = """
import sys
from pathlib import Path
import jax, numpy as np
sys.path.insert(0, {folder!r})
from test_training import Setup
assert jax.device_count() == 8
data = Path({data!r})
expected = np.load(data / "trajectory_tiny.npz")["loss_float64"]
dropped = None
for mesh in ["data=8", "data=4,tensor=2", "data=2,fsdp=2,tensor=2", "data=2,sequence=4"]:
    losses = [m["loss"] for _, m in Setup(data, mesh).run()[2]]
    np.testing.assert_allclose(losses, expected, atol=1e-5, rtol=0, err_msg=mesh)
    losses = [m["loss"] for _, m in Setup(data, mesh, dropout=0.1).run()[2]]
    np.testing.assert_allclose(losses, {dropped}, atol=1e-5, rtol=0, err_msg=mesh)
print("same")
"""


def test_eight_devices_give_the_losses_of_one(data, tmp_path):
    dropped = [metrics["loss"] for _, metrics in Setup(data, dropout=0.1).run()[2]]
    script = tmp_path / "meshes.py"
    script.write_text(MESHES.format(folder=os.path.dirname(__file__), data=str(data), dropped=dropped))
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"
