"""Several runs of one task: what is planned, what is said of them, and that the same command goes on."""

import json
import os
import signal

import pytest
from small_tasks import read_table

from bert_jax import finetuning_run, several_runs
from bert_jax.main import parse
from input_pipeline.errors import UserError


def flags(*words):
    return parse(["bert_jax", "--mode=finetune", *words])


def test_the_grid_of_the_paper():
    given = flags("--grid_search", "--num_runs=5", "--seed=7")
    names = several_runs.searched(given)
    assert names == ["train_batch_size", "learning_rate", "num_train_epochs"]
    planned = several_runs.plan(given, names, True)
    assert len(planned) == 2 * 3 * 3 * 5
    assert planned[0] == {"train_batch_size": 16, "learning_rate": 5e-5, "num_train_epochs": 2.0, "seed": 7}
    assert {settings["seed"] for settings in planned} == {7, 8, 9, 10, 11}
    assert len({several_runs.name_of(settings) for settings in planned}) == len(planned)


def test_what_a_flag_gives_is_not_searched():
    given = flags("--grid_search", "--learning_rate=1e-4", "--train_batch_size=8")
    planned = several_runs.plan(given, several_runs.searched(given), True)
    assert [settings["num_train_epochs"] for settings in planned] == [2.0, 3.0, 4.0]
    assert {(settings["train_batch_size"], settings["learning_rate"]) for settings in planned} == {(8, 1e-4)}
    assert several_runs.name_of(planned[0]) == "batch8_lr0.0001_epochs2_seed12345"
    with pytest.raises(UserError, match=r"--grid_search: all of --train_batch_size, .* are given: nothing to search"):
        several_runs.searched(
            flags("--grid_search", "--learning_rate=1", "--train_batch_size=1", "--num_train_epochs=1")
        )
    assert several_runs.searched(flags()) == []


def test_one_run_with_steps_instead_of_epochs():
    given = flags("--num_train_steps=9", "--train_batch_size=8", "--learning_rate=0.1")
    [settings] = several_runs.plan(given, several_runs.searched(given), True)
    assert settings["num_train_epochs"] is None
    assert several_runs.name_of(settings) == "batch8_lr0.1_seed12345"


def test_settings_are_flags_with_other_values():
    given = flags("--seed=1")
    own = several_runs.Settings(several_runs.Settings(given, seed=2, output_dir="a"), seed=3)
    assert (own.seed, own.output_dir, own.mode) == (3, "a", "finetune")
    own.learning_rate = 0.5
    assert own.learning_rate == 0.5 and given.learning_rate is None
    assert own.flag_values_dict() == given.flag_values_dict() | {"seed": 3, "output_dir": "a"}


def runs_of(folder):
    return json.loads((folder / "runs.json").read_text())


def weights_in(folder):
    return [path.parent.name for path in folder.glob("*/checkpoints")]


@pytest.fixture(scope="module")
def two_runs(tasks, tmp_path_factory):
    """The flags of two runs; the first has been stopped in its evaluation, and the same command has gone on."""
    folder = tmp_path_factory.mktemp("runs") / "out"
    given = tasks.flags("classification", folder, num_runs=2, num_train_epochs=2)
    real, handler = finetuning_run.Predictor.__call__, signal.getsignal(signal.SIGTERM)

    def signalled(self, *arguments, **named):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning_run, "_ASK_EVERY", 1)
        patch.setattr(finetuning_run.Predictor, "__call__", signalled)
        try:
            assert tasks.run(**given) == 75
        finally:
            signal.signal(signal.SIGTERM, handler)
    assert not (folder / "runs.json").exists()
    assert tasks.run(**given) == 0
    return given


def test_runs_side_by_side(two_runs):
    folder = two_runs["output_dir"]
    names = [f"batch8_lr0.02_epochs2_seed{seed}" for seed in (12345, 12346)]
    runs = runs_of(folder)
    assert [run["name"] for run in runs] == names and {run["main_metric"] for run in runs} == {"accuracy"}
    for run in runs:
        results = json.loads((folder / run["folder"] / "eval_results.json").read_text())
        assert results == {"step": 10} | run["metrics"]
    best = max(runs, key=lambda run: run["metrics"]["accuracy"])
    assert weights_in(folder) == [best["name"]]
    assert [row[0] for row in read_table(folder / "runs.tsv")] == ["name", *names]
    assert "<html" in (folder / "report.html").read_text()


def test_what_is_finished_is_not_run_again(tasks, two_runs, capfd):
    folder = two_runs["output_dir"]
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    assert tasks.run(**two_runs) == 0
    said = capfd.readouterr().err
    assert "run 1 of 2" not in said and "best run: batch8_lr0.02_epochs2" in said
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"step": 10}', b'{"step": 10, "accuracy": NaN}'])
def test_a_finished_run_whose_metrics_are_lost_keeps_its_weights(tasks, two_runs, capfd, content):
    folder = two_runs["output_dir"]
    [best] = weights_in(folder)
    file, table = folder / best / "eval_results.json", folder / "runs.json"
    before = file.read_bytes(), table.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    try:
        assert tasks.run(**two_runs) == 2
    finally:
        file.write_bytes(before[0])
    assert f"{file} is damaged" in capfd.readouterr().err.splitlines()[-1]
    assert weights_in(folder) == [best]
    assert tasks.run(**two_runs) == 0
    assert table.read_bytes() == before[1]


def test_other_files_are_for_the_best_run(tasks, two_runs, capfd):
    new = tasks.folder / "classification_dev.tsv"
    assert tasks.run(**two_runs | {"predict_file": new}) == 0
    said = capfd.readouterr().err
    assert f"for this one: --mode=predict --init_checkpoint={two_runs['output_dir']} --predict_file={new}\n" in said
    assert said.count("for this one") == 1


def test_the_folder_above_the_runs_is_the_best_one(tasks, two_runs, capfd):
    folder = two_runs["output_dir"]
    [best] = weights_in(folder)
    given = {"mode": "evaluate", "eval_file": two_runs["eval_file"]}
    for place in ("init_checkpoint", "output_dir"):
        assert tasks.run(**given, **{place: folder}) == 0
        assert f"{folder}: parameters of step 10 of {best}, the best of the runs\n" in capfd.readouterr().err
    results = json.loads((folder / best / "evaluate" / "eval_results.json").read_text())
    assert {"step": 10} | results == json.loads((folder / best / "eval_results.json").read_text())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_decay": 0.5}, "weight_decay is 0.01 there and 0.5 now"),
        ({"max_seq_length": 20}, "max_seq_length is 24 there and 20 now"),
    ],
)
def test_another_experiment_needs_another_folder(tasks, two_runs, capfd, changed, message):
    assert tasks.run(**two_runs | changed) == 2
    assert message in capfd.readouterr().err.splitlines()[-1]


def test_a_grid_over_what_no_flag_gives(tasks, tmp_path, capfd):
    given = {"grid_search": "true", "train_batch_size": None, "num_train_epochs": 1, "learning_rate": 0.02}
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", **given)) == 0
    names = [f"batch{size}_lr0.02_epochs1_seed12345" for size in (16, 32)]
    assert [run["name"] for run in runs_of(tmp_path / "out")] == names
    assert [run["settings"]["train_batch_size"] for run in runs_of(tmp_path / "out")] == [16, 32]
    assert len(weights_in(tmp_path / "out")) == 1
    said = capfd.readouterr().err
    assert "batch size  runs" in said and "best settings by mean: batch size" in said
    assert "defaults (the paper's)" not in said


def test_runs_need_something_to_be_compared_by(tasks, tmp_path, capfd):
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", num_runs=2, eval_file=None)) == 2
    assert "give --eval_file or --eval_fraction" in capfd.readouterr().err.splitlines()[-1]
