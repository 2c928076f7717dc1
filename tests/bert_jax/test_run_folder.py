import dataclasses
import json
import os
import re
import signal
import subprocess
import sys

import jax.numpy as jnp
import pytest

from bert_jax.checkpointing import Checkpointer
from bert_jax.run_folder import RunFolder, Start, find_checkpoint, read_run
from input_pipeline.errors import UserError

SETTINGS = {
    "train_batch_size": 32,
    "learning_rate": 1e-4,
    "seed": 0,
    "vocabulary": "ab" * 32,
    "masking": (0.8, 0.1, 0.1),
}


def start(path, num_train_steps=10, mode="pretrain", task=None, save=(), flags=None, **settings):
    with RunFolder(path) as run:
        return run.start(
            mode=mode,
            task=task,
            settings=SETTINGS | settings,
            num_train_steps=num_train_steps,
            flags=flags or {"seed": 0},
            save=save,
        )


def save_step(path, step):
    with Checkpointer(path / "checkpoints", keep=2) as checkpointer:
        checkpointer.save(step, {"step": jnp.int32(step), "params": jnp.ones(3)})


def finish(path, step):
    with RunFolder(path) as run:
        run.finish(step)


def test_a_new_run_is_described_and_its_parts_are_saved(tmp_path):
    def save(folder):
        with open(os.path.join(folder, "bert_config.json"), "w") as file:
            file.write("{}")

    folder = tmp_path / "runs" / "new"
    assert start(folder, save=[save], flags={"seed": 0, "mesh": "data=2"}) == Start(0, False, None)
    run = json.loads((folder / "run.json").read_text())
    assert (folder / "bert_config.json").read_text() == "{}"
    assert run["settings"] == SETTINGS | {"masking": [0.8, 0.1, 0.1]}
    assert run["flags"] == {"seed": 0, "mesh": "data=2"}
    assert (run["mode"], run["task"], run["num_train_steps"], run["finished_at_step"]) == ("pretrain", None, 10, None)
    assert run["versions"].keys() == {"python", "bert_jax", "jax", "flax", "optax", "orbax-checkpoint"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", run["created"])
    assert read_run(folder, "--output_dir") == run


def test_the_same_command_resumes_and_keeps_the_parts(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 5)
    created = read_run(tmp_path, "--output_dir")["created"]
    assert start(tmp_path, save=[pytest.fail], flags={"log_every_steps": 7}) == Start(
        5, False, "resuming at step 5 of 10"
    )
    run = read_run(tmp_path, "--output_dir")
    assert (run["created"], run["flags"]) == (created, {"log_every_steps": 7})


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 5)
    save_step(tmp_path, 7)
    file = max((tmp_path / "checkpoints" / "7").rglob("d/*"), key=lambda path: path.stat().st_size)
    file.write_bytes(bytes(file.stat().st_size))
    step, _, message = dataclasses.astuple(start(tmp_path))
    assert step == 5
    assert message.startswith(f"the checkpoint of step 7 is damaged ({file.name}) and was set aside as {tmp_path}/")
    assert message.endswith("; resuming at step 5 of 10")


def test_a_finished_run_says_so(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 10)
    unfinished = Start(10, False, "all 10 updates were done before; what follows them is still to do")
    assert start(tmp_path) == unfinished
    finish(tmp_path, 10)
    assert start(tmp_path) == Start(10, True, "already at step 10 of 10, nothing to do")


def test_more_steps_extend_a_run(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 10)
    finish(tmp_path, 10)
    message = (
        "resuming at step 10 of 20; --num_train_steps was 10 before, so the learning-rate schedule changes from here on"
    )
    assert start(tmp_path, num_train_steps=20) == Start(10, False, message)
    assert start(tmp_path, num_train_steps=20) == Start(10, False, "resuming at step 10 of 20")


def test_fewer_steps_than_were_done_leave_nothing_to_do(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 10)
    message = "already at step 10, past --num_train_steps=4, nothing to do"
    assert start(tmp_path, num_train_steps=4) == Start(10, True, message)
    assert read_run(tmp_path, "--output_dir")["num_train_steps"] == 10


def test_other_settings_are_refused_and_named(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 5)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(UserError) as error:
        start(tmp_path, mode="finetune", seed=1, learning_rate=0.1 + 0.2, vocabulary="cd" * 32, new="x")
    assert str(error.value) == (
        f"--output_dir={tmp_path} holds a run with other settings: mode is pretrain there and finetune now; "
        "learning_rate is 0.0001 there and 0.30000000000000004 now; seed is 0 there and 1 now; "
        "vocabulary is not the same (of other files, or files that have changed); new is not set there and x now. "
        "Choose another folder, or the settings of that run"
    )
    assert (tmp_path / "run.json").read_bytes() == before


def test_the_folder_of_another_task_is_refused_early(tmp_path):
    start(tmp_path, mode="finetune", task="mrpc")
    with RunFolder(tmp_path) as run:
        run.refuse_others(mode="finetune", task="cola")  # nothing would be lost yet
    save_step(tmp_path, 3)
    with RunFolder(tmp_path) as run:
        run.refuse_others(mode="finetune", task="mrpc")
        with pytest.raises(UserError, match="task is mrpc there and cola now"):
            run.refuse_others(mode="finetune", task="cola")


def test_without_a_checkpoint_other_settings_begin_anew(tmp_path):
    start(tmp_path)
    assert start(tmp_path, seed=1) == Start(0, False, None)
    assert read_run(tmp_path, "--output_dir")["settings"]["seed"] == 1


def test_a_folder_with_something_else_is_refused(tmp_path):
    for name in ("thesis.tex", "b", "c", "d"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"is not empty and holds no run \(b, c, d, ...\): choose a new"):
        start(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["b", "c", "d", "thesis.tex"]


def test_logs_and_hidden_files_are_no_obstacle_nor_is_a_start_that_broke_off(tmp_path):
    (tmp_path / "train.log").touch()
    (tmp_path / ".gitignore").touch()
    (tmp_path / "lost+found").mkdir()
    with RunFolder(tmp_path):
        (tmp_path / "cache").mkdir()
    assert start(tmp_path).step == 0


def test_checkpoints_whose_run_is_unknown_are_refused(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 5)
    whole = json.loads((tmp_path / "run.json").read_text())
    for damaged in ("{", "[1]", '{"format_version": 1}', json.dumps(whole | {"num_train_steps": "10"})):
        (tmp_path / "run.json").write_text(damaged)
        with pytest.raises(UserError, match=r"run\.json is damaged"):
            start(tmp_path)
    (tmp_path / "run.json").write_text('{"format_version": 2}')
    with pytest.raises(UserError, match="was written in format 2, this program reads format 1"):
        start(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(UserError, match=r"--output_dir: .* has no run\.json, which describes a run"):
        start(tmp_path)


def test_unusable_paths(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"--output_dir: .*file"):
            start(path)


HOLDER = """
import sys, time
from bert_jax.run_folder import RunFolder
with RunFolder(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_until_its_process_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=rf"--output_dir={tmp_path} is in use by process {holder.pid} on .*: wait"):
            start(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert start(tmp_path).step == 0


def test_a_checkpoint_of_another_run_is_found(tmp_path):
    start(tmp_path)
    save_step(tmp_path, 5)
    save_step(tmp_path, 10)
    assert find_checkpoint(tmp_path, "--restore_from") == (tmp_path / "checkpoints", 10)
    assert find_checkpoint(tmp_path / "checkpoints" / "5", "--restore_from") == (tmp_path / "checkpoints", 5)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    def complaint(path):
        with pytest.raises(UserError) as error:
            find_checkpoint(path, "--restore_from")
        return str(error.value)

    assert complaint(tmp_path / "x") == f"--restore_from: no such file or folder: {tmp_path}/x"
    assert complaint(tmp_path) == (
        f"--restore_from: {tmp_path} is not the output folder of a run: it has no folder checkpoints"
    )
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    assert complaint(tmp_path) == f"--restore_from: {tmp_path}/checkpoints holds no complete checkpoint"
    assert complaint(tmp_path / "checkpoints" / "5") == (
        f"--restore_from: {tmp_path}/checkpoints/5 is no complete checkpoint"
    )


def fail_in(path, *names):
    """Enters a run folder, puts files into it, and fails."""
    with pytest.raises(UserError, match="a mistake"), RunFolder(path):
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("x")
        (path / "cache").mkdir(exist_ok=True)
        raise UserError("a mistake")


def test_a_folder_that_was_made_for_nothing_is_taken_away(tmp_path):
    fail_in(tmp_path / "runs" / "new")
    assert os.listdir(tmp_path) == []
    (tmp_path / "runs").mkdir()
    fail_in(tmp_path / "runs" / "new")
    assert os.listdir(tmp_path) == ["runs"] and os.listdir(tmp_path / "runs") == []


@pytest.mark.parametrize("name", ["run.json", "cache/features.npy", "notes.log"])
def test_a_folder_that_holds_something_stays(tmp_path, name):
    fail_in(tmp_path / "new", name)
    assert (tmp_path / "new" / name).read_text() == "x"


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "own").mkdir()
    fail_in(tmp_path / "own")
    assert (tmp_path / "own").is_dir()


def test_only_what_is_empty_above_it_is_taken_away(tmp_path):
    with pytest.raises(UserError), RunFolder(tmp_path / "runs" / "new"):
        (tmp_path / "runs" / "other").mkdir()
        raise UserError("a mistake")
    assert os.listdir(tmp_path / "runs") == ["other"]


def test_a_folder_without_an_error_stays(tmp_path):
    with RunFolder(tmp_path / "new"):
        pass
    assert (tmp_path / "new").is_dir()
