"""Fine-tuning runs through the command line: how they go on, stop and resume, on one device and on more."""

import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
from small_tasks import classification, losses, parameters, read_table, results_of, words

from bert_jax import finetuning_run, interruption


def same_parameters(folder, other):
    ours, theirs = parameters(folder), parameters(other)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_finished_folder_says_so(tasks, capfd):
    folder = tasks.finished("classification")
    before = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "predictions.tsv", "eval_results.json")}
    assert tasks.run(**tasks.flags("classification", folder)) == 0
    assert "already at step 75 of 75, nothing to do" in capfd.readouterr().err
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_a_finished_folder_tells_how_other_files_are_answered(tasks, tmp_path, capfd):
    folder, new = tasks.finished("classification"), tmp_path / "new.tsv"
    shutil.copy(tasks.folder / "classification_dev.tsv", new)
    assert tasks.run(**tasks.flags("classification", folder, eval_file=new, predict_file=new)) == 0
    said = capfd.readouterr().err
    for mode, flag in (("evaluate", "eval_file"), ("predict", "predict_file")):
        assert (
            f"the finished run had another --{flag} or none; for this one: --mode={mode} "
            f"--init_checkpoint={folder} --{flag}={new}\n"
        ) in said
    assert tasks.run(**tasks.flags("classification", folder, predict_file=None)) == 0
    assert "for this one" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"learning_rate": 0.01}, "learning_rate is 0.02 there and 0.01 now"),
        ({"max_seq_length": 20, "seed": 3}, "max_seq_length is 24 there and 20 now"),
        ({"labels": "zebra,apple"}, 'labels is ["apple", "zebra"] there and ["zebra", "apple"] now'),
        ({"eval_file": None, "eval_fraction": 0.2}, "data is "),
        ({"freeze_encoder": "true"}, "freeze_encoder is false there and true now"),
        ({"head_lstm": 4}, "head_lstm is [] there and [4] now"),
    ],
)
def test_other_settings_in_a_folder_are_refused(tasks, capfd, flags, message):
    folder = tasks.finished("classification")
    assert tasks.run(**tasks.flags("classification", folder, **flags)) == 2
    assert message in capfd.readouterr().err.splitlines()[-1]


def test_more_epochs_extend_a_run(tasks, tmp_path, capfd):
    shutil.copytree(tasks.finished("classification"), tmp_path / "out")
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", num_train_epochs=16)) == 0
    said = capfd.readouterr().err
    assert "resuming at step 75 of 80; --num_train_steps was 75 before" in said
    assert len(losses(tmp_path / "out")) == 80 and results_of(tmp_path / "out")["step"] == 80


SIGNALLED = """
import os, signal, sys, time
from bert_jax import finetuning_run, main
number, at = signal.Signals[os.environ["TEST_SIGNAL"]], int(os.environ["TEST_STEP"])
batch = finetuning_run.PackedBatches.batch
def signalled(self, step):
    if step == at:
        while not os.path.exists(os.environ["TEST_CHECKPOINT"]):  # the one that was begun is completed
            time.sleep(0.1)
        os.kill(os.getpid(), number)
    return batch(self, step)
finetuning_run.PackedBatches.batch = signalled
sys.exit(main.main())
"""


def test_a_killed_and_a_stopped_run_end_where_an_uninterrupted_one_does(tasks, tmp_path, monkeypatch, capfd):
    flags = tasks.flags("classification", tmp_path / "out", save_checkpoints_steps=20)
    monkeypatch.setenv("TEST_CHECKPOINT", str(tmp_path / "out" / "checkpoints" / "40"))
    for number, step, code in ((signal.SIGKILL, 50, -signal.SIGKILL), (signal.SIGTERM, 55, 75)):
        monkeypatch.setenv("TEST_SIGNAL", number.name)
        monkeypatch.setenv("TEST_STEP", str(step))
        process = tasks.start(program=("-c", SIGNALLED), **flags)
        said = process.communicate(timeout=280)[1]
        assert process.returncode == code, said
    assert "resuming at step 40 of 75" in said
    assert "stopped by SIGTERM at step 56; the same command goes on from there" in said
    assert tasks.run(**flags) == 0
    assert "resuming at step 56 of 75" in capfd.readouterr().err
    whole = tasks.finished("classification")
    assert losses(tmp_path / "out") == losses(whole)
    assert same_parameters(tmp_path / "out", whole)
    for name in ("predictions.tsv", "eval_predictions.tsv", "eval_results.json"):
        assert (tmp_path / "out" / name).read_bytes() == (whole / name).read_bytes()


def test_a_stop_does_not_wait_for_the_first_parameters(tasks, tmp_path, monkeypatch, capfd):
    """Which are compiled, for a deep model about as long as the step."""
    may_end, ended = threading.Event(), threading.Event()

    def slow(self):
        os.kill(os.getpid(), signal.SIGTERM)
        may_end.wait(10)
        ended.set()

    monkeypatch.setattr(finetuning_run.FinetuningRun, "initial_state", slow)
    monkeypatch.setattr(interruption.Interrupted, "leave", lambda self: 75)  # it would end this process
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert tasks.run(**tasks.flags("classification", tmp_path / "out")) == 75
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not ended.is_set()
    may_end.set()
    assert "stopped by SIGTERM at step 0; the same command goes on" in capfd.readouterr().err


@pytest.mark.parametrize(("prediction", "step"), [(0, 30), (2, 75), (3, 75)])
def test_a_run_can_be_stopped_while_it_evaluates(tasks, tmp_path, monkeypatch, capfd, prediction, step):
    """In the first of the evaluations between updates, in the one at the end, and while it predicts."""
    real, count = finetuning_run.Predictor.__call__, iter(range(100))

    def signalled(self, *arguments, **named):
        if next(count) == prediction:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments, **named)

    monkeypatch.setattr(finetuning_run.Predictor, "__call__", signalled)
    monkeypatch.setattr(finetuning_run, "_ASK_EVERY", 1)
    flags = tasks.flags("classification", tmp_path / "out", eval_every_steps=30)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert tasks.run(**flags) == 75
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert f"stopped by SIGTERM at step {step}; the same command goes on" in capfd.readouterr().err
    assert not (tmp_path / "out" / "predictions.tsv").exists()
    assert tasks.run(**flags) == 0
    said = capfd.readouterr().err
    assert ("all 75 updates were done before; what follows" if step == 75 else "resuming at step 30 of 75") in said
    assert same_parameters(tmp_path / "out", tasks.finished("classification"))
    evaluated = [json.loads(line)["step"] for line in (tmp_path / "out" / "eval_metrics.jsonl").open()]
    assert evaluated == [30, 60, 75]


@pytest.fixture(scope="module")
def ten_steps(tasks, tmp_path_factory):
    """A run that others are compared with."""
    folder = tmp_path_factory.mktemp("ten") / "out"
    assert tasks.run(**tasks.flags("classification", folder, num_train_epochs=2)) == 0
    return folder


def assert_same_run(folder, other, rtol=1e-5):
    np.testing.assert_allclose(losses(folder), losses(other), rtol=rtol)
    for name in ("predictions.tsv", "eval_predictions.tsv"):
        (heads, *rows), (their_heads, *their_rows) = read_table(folder / name), read_table(other / name)
        assert heads == their_heads and [row[:2] for row in rows] == [row[:2] for row in their_rows]
        ours, theirs = ([[float(x) for x in row[2:]] for row in one] for one in (rows, their_rows))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=10 * rtol)


def test_eight_devices_learn_and_predict_as_one(tasks, ten_steps, tmp_path):
    """1012 examples in batches of 64, and fewer than devices: each has its prediction."""
    (tmp_path / "1012.tsv").write_text(classification(np.random.default_rng(0), 1012, False))
    runs = [
        tasks.flags("classification", tmp_path / "out", num_train_epochs=2),
        {
            "mode": "predict",
            "init_checkpoint": ten_steps,
            "eval_batch_size": 64,
            "predict_file": tmp_path / "1012.tsv",
            "output_dir": tmp_path / "many",
        },
    ]
    script = "import json, sys; from bert_jax.main import main\n"
    script += "sys.exit(any([main(line) for line in json.loads(sys.argv[1].removeprefix('--runs='))]))"
    process = tasks.start(devices=8, program=("-c", script), runs=json.dumps([words(flags) for flags in runs]))
    said = process.communicate(timeout=280)[1]
    assert process.returncode == 0 and "8 cpu devices" in said, said
    assert_same_run(tmp_path / "out", ten_steps)
    assert tasks.run(**runs[1] | {"output_dir": tmp_path / "alone"}) == 0
    rows, alone = (read_table(tmp_path / name / "predictions.tsv") for name in ("many", "alone"))
    assert [row[0] for row in rows] == ["id", *(f"k{number}" for number in range(1012))]
    assert [row[0] for row in alone] == [row[0] for row in rows]
    ours, theirs = ([float(row[2]) for row in one[1:]] for one in (rows, alone))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_two_processes_learn_as_one_and_the_first_writes(tasks, ten_steps, tmp_path, free_port):
    flags = tasks.flags("classification", tmp_path / "out", num_train_epochs=2)
    flags |= {"coordinator_address": f"localhost:{free_port}", "num_processes": 2}
    running = [tasks.start(**flags, process_id=number) for number in range(2)]
    try:
        said = [process.communicate(timeout=280)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    assert "written to" in said[0] and "written to" not in said[1]
    assert_same_run(tmp_path / "out", ten_steps)
    ours, theirs = results_of(tmp_path / "out"), results_of(ten_steps)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_parts_of_a_batch_and_scanned_layers_change_nothing(tasks, ten_steps, tmp_path):
    flags = {"gradient_accumulation_steps": 2, "scan_layers": "true", "remat": "full"}
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", num_train_epochs=2, **flags)) == 0
    assert_same_run(tmp_path / "out", ten_steps)
