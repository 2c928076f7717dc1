import logging
import os
import re
import resource
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax import checkpointing
from bert_jax.checkpointing import Checkpointer, latest_step, restore
from input_pipeline.errors import UserError

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def make_state(step: int, rows: int = 6):
    params = {"dense": {"kernel": jnp.full((rows, 4), step / 7), "bias": jnp.arange(4.0) + step}}
    return {"step": jnp.int32(step), "params": params, "opt_state": OPTIMIZER.init(params)}


def target_of(state):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def save_steps(folder, steps, keep=2):
    with Checkpointer(folder, keep) as checkpointer:
        for step in steps:
            checkpointer.save(step, make_state(step))


def test_every_state_is_saved_as_it_was_although_its_buffers_are_donated(tmp_path):
    def update(state):
        return jax.tree.map(lambda x: (x * 1.1 + 1).astype(x.dtype), state) | {"step": state["step"] + 1}

    update = jax.jit(update, donate_argnums=0)
    state, logged = make_state(0, rows=50_000), {}
    with Checkpointer(tmp_path, keep=20) as checkpointer:
        for step in range(1, 21):
            state = update(state)
            logged[step] = jax.tree.map(np.array, state)
            checkpointer.save(step, state)
    for step, expected in logged.items():
        assert_same(restore(tmp_path, step, target_of(state)), expected)


def test_saving_a_step_again_changes_nothing(tmp_path):
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        checkpointer.save(5, make_state(5))
        checkpointer.save(5, make_state(5))
        checkpointer.wait()
        written = os.stat(tmp_path / "5").st_mtime_ns
        checkpointer.save(5, make_state(5))
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        checkpointer.save(5, make_state(5))
    assert os.listdir(tmp_path) == ["5"]
    assert os.stat(tmp_path / "5").st_mtime_ns == written


def test_a_state_is_only_saved_under_its_own_step(tmp_path):
    with (
        Checkpointer(tmp_path, keep=1) as checkpointer,
        pytest.raises(ValueError, match="state of step 4 is not step 5"),
    ):
        checkpointer.save(5, make_state(4))


def test_only_the_newest_steps_are_kept_also_across_restarts(tmp_path):
    for first in (1, 11):
        with Checkpointer(tmp_path, keep=2) as checkpointer:
            for step in range(first, first + 10):
                checkpointer.save(step, make_state(step))
                assert sum(checkpointing.is_complete(folder) for folder in checkpointer.folder.iterdir()) <= 3
    assert sorted(os.listdir(tmp_path)) == ["19", "20"]
    save_steps(tmp_path, [], keep=1)
    assert os.listdir(tmp_path) == ["20"]


def test_an_older_step_stays_until_the_newer_one_is_complete(tmp_path, monkeypatch):
    save_steps(tmp_path, [1], keep=1)
    finalize = checkpointing._StateHandler.finalize
    seen = []

    def slow_finalize(self, directory):
        seen.append(latest_step(tmp_path))
        finalize(self, directory)

    monkeypatch.setattr(checkpointing._StateHandler, "finalize", slow_finalize)
    save_steps(tmp_path, [2], keep=1)
    assert seen == [1]
    assert os.listdir(tmp_path) == ["2"]


def largest_file(folder):
    return max(folder.rglob("d/*"), key=lambda path: path.stat().st_size)  # of those with arrays


DAMAGES = {
    "empty folder": lambda step: (shutil.rmtree(step), step.mkdir()),
    "no metadata": lambda step: [path.unlink() for path in step.rglob("*.json")],
    "half of the files": lambda step: shutil.rmtree(step / "state" / "ocdbt.process_0"),
    "cut array file": lambda step: os.truncate(largest_file(step), largest_file(step).stat().st_size - 1),
    "cut list of files": lambda step: os.truncate(step / "state" / "file_list.json", 10),
    "empty list of files": lambda step: (step / "state" / "file_list.json").write_text("{}"),
    "a list of no files": lambda step: (step / "state" / "file_list.json").write_text("[1]"),
    "sizes that are none": lambda step: (step / "state" / "file_list.json").write_text('{"_METADATA": 1}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_step_is_passed_over_and_can_be_saved_again(tmp_path, damage):
    save_steps(tmp_path, [5, 10])
    damage(tmp_path / "10")
    (tmp_path / "15.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    assert latest_step(tmp_path) == 5
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        assert checkpointer.latest_step() == 5
        unfinished, damaged = checkpointer.warnings
        assert unfinished.startswith("15.orbax-checkpoint-tmp:")
        assert damaged == f"the checkpoint of step 10 is not complete and was set aside as {tmp_path}/10.incomplete"
        checkpointer.save(10, make_state(10))
    assert_same(restore(tmp_path, 10, target_of(make_state(0))), make_state(10))
    assert sorted(os.listdir(tmp_path)) == ["10", "10.incomplete", "5"]


def test_an_interrupted_deletion_is_ended(tmp_path):
    save_steps(tmp_path, [5, 10])
    DAMAGES["no metadata"](tmp_path / "5")
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        assert checkpointer.warnings == []
    assert os.listdir(tmp_path) == ["10"]


def test_an_older_step_that_would_be_kept_is_set_aside_as_often_as_it_is_damaged(tmp_path):
    save_steps(tmp_path, [5, 10])
    DAMAGES["no metadata"](tmp_path / "5")
    for _ in range(2):
        (tmp_path / "5").mkdir(exist_ok=True)
        with Checkpointer(tmp_path, keep=2) as checkpointer:
            assert [warning.split(" is ")[0] for warning in checkpointer.warnings] == ["the checkpoint of step 5"]
        assert sorted(os.listdir(tmp_path)) == ["10", "5.incomplete"]


def test_the_last_saved_step_is_that_of_a_save_that_still_runs(tmp_path, monkeypatch):
    finalize = checkpointing._StateHandler.finalize

    def slowly(self, directory):
        time.sleep(0.5)
        finalize(self, directory)

    monkeypatch.setattr(checkpointing._StateHandler, "finalize", slowly)
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        checkpointer.save(3, make_state(3))
        assert checkpointer.latest_step() is None
        assert checkpointer.last_saved_step() == 3


def test_no_checkpoint(tmp_path):
    assert latest_step(tmp_path / "missing") is None
    (tmp_path / "notes").mkdir()
    (tmp_path / "10").write_text("a file")
    assert latest_step(tmp_path) is None


def test_parameters_alone_can_be_restored(tmp_path):
    save_steps(tmp_path, [3])
    restored = restore(tmp_path, 3, {"params": target_of(make_state(0))["params"]})
    assert_same(restored, {"params": make_state(3)["params"]})


def change(**leaves):
    state = make_state(0)
    state["params"]["dense"] |= leaves
    return {"params": {"dense": {name: x for name, x in state["params"]["dense"].items() if x is not None}}}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (change(bias=jnp.zeros(5)), r"params/dense/bias is float32\[4\] in the checkpoint, float32\[5\] in this model"),
        (change(bias=jnp.zeros(4, jnp.bfloat16)), r"params/dense/bias is float32\[4\] .*, bfloat16\[4\] in this model"),
        (change(scale=jnp.zeros(4)), "params/dense/scale is not in the checkpoint"),
        (change(bias=None), "params/dense/bias is in the checkpoint but not in this model"),
        (change(bias=jnp.zeros(5), kernel=jnp.zeros(5)), r"\(and 1 more differences\)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, state, message):
    save_steps(tmp_path, [3])
    with pytest.raises(UserError, match=message) as error:
        restore(tmp_path, 3, target_of(state))
    assert f"{tmp_path}/3 does not fit" in str(error.value)


def test_bytes_that_cannot_be_read_are_reported(tmp_path, monkeypatch):
    save_steps(tmp_path, [3])
    manifest = tmp_path / "3" / "state" / "manifest.ocdbt"
    manifest.write_bytes(bytes(manifest.stat().st_size))
    monkeypatch.setattr(checkpointing, "_changed_file", lambda step_folder: None)
    with pytest.raises(UserError, match=f"the checkpoint {tmp_path}/3 cannot be read: .* is used$"):
        restore(tmp_path, 3, target_of(make_state(0)))


def invert_middle(file):
    data = bytearray(file.read_bytes())
    middle = slice(len(data) // 2, len(data) // 2 + 64)
    data[middle] = bytes(255 - byte for byte in data[middle])
    file.write_bytes(data)


def test_changed_bytes_are_noticed_when_a_step_is_restored(tmp_path):
    save_steps(tmp_path, [3])
    file = largest_file(tmp_path / "3")
    invert_middle(file)
    assert latest_step(tmp_path) == 3  # quick: by the sizes
    with pytest.raises(UserError, match=f"the checkpoint {tmp_path}/3 is damaged: {file} is not what was written; "):
        restore(tmp_path, 3, target_of(make_state(0)))


def test_the_newest_sound_step_is_found(tmp_path):
    save_steps(tmp_path, [3, 6, 9], keep=3)
    assert checkpointing.set_aside_damaged(tmp_path) == []
    for step in ("6", "9"):
        invert_middle(largest_file(tmp_path / step))
    first, second = checkpointing.set_aside_damaged(tmp_path)
    assert first.startswith("the checkpoint of step 9 is damaged (")
    assert second.endswith(f" and was set aside as {tmp_path}/6.incomplete")
    assert sorted(os.listdir(tmp_path)) == ["3", "6.incomplete", "9.incomplete"]
    assert checkpointing.set_aside_damaged(tmp_path / "missing") == []


def test_a_lost_process_is_not_blamed_on_the_checkpoint(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("Gloo AllGather failed: Connection closed by peer")

    save_steps(tmp_path, [3])
    monkeypatch.setattr(checkpointing.ocp.Checkpointer, "restore", fail)
    with pytest.raises(UserError, match="cannot be read: Gloo AllGather failed"):  # of a single process
        restore(tmp_path, 3, target_of(make_state(0)))
    monkeypatch.setattr(checkpointing.processes, "are_lost", lambda error: "Gloo" in str(error))
    with pytest.raises(RuntimeError, match=r"^Gloo AllGather failed"):
        restore(tmp_path, 3, target_of(make_state(0)))


def test_a_failed_save_surfaces_at_the_next_one_and_the_last_complete_step_remains(tmp_path, capfd):
    large = make_state(2, rows=500_000)  # 24 MB with the moments
    size_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    message = f"^saving a checkpoint in {tmp_path} failed: File too large; the last complete checkpoint is step 1, .*"
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(1, make_state(1))
        checkpointer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, size_limits[1]))
        try:
            checkpointer.save(2, large)
            with pytest.raises(UserError, match=message):
                checkpointer.save(3, large | {"step": jnp.int32(3)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, size_limits)
    assert os.listdir(tmp_path) == ["1"]
    assert_same(restore(tmp_path, 1, target_of(make_state(0))), make_state(1))
    assert capfd.readouterr() == ("", "")


def test_errors_that_orbax_dropped_are_not_told_again(tmp_path, caplog):
    save_steps(tmp_path, [1])
    for kind in ("Future", "Task"):
        logging.getLogger("asyncio").error(f"{kind} exception was never retrieved\nfuture: <...>")
    logging.getLogger("asyncio").error("something else")
    assert caplog.messages == ["something else"]


def test_a_failed_last_save_surfaces_at_the_end(tmp_path):
    size_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, size_limits[1]))
    try:
        with (
            pytest.raises(UserError, match="no checkpoint is complete"),
            Checkpointer(tmp_path, keep=1) as checkpointer,
        ):
            checkpointer.save(2, make_state(2, rows=500_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size_limits)


def test_unusable_folders_and_counts(tmp_path):
    with pytest.raises(UserError, match=re.escape("--keep_checkpoints=0")):
        Checkpointer(tmp_path, keep=0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file"):
        Checkpointer(tmp_path / "file" / "below", keep=1)
