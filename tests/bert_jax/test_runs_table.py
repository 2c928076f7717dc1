import json
import statistics

import pytest

from bert_jax.runs_table import best_run_in, remarks, score, summary, text_table, varied, write_tsv
from input_pipeline.errors import UserError


def run(name, value, warning=None, **settings):
    one = {"name": name, "settings": settings, "metrics": {"accuracy": value, "loss": 0.5}, "main_metric": "accuracy"}
    return one | {"folder": f"runs/{name}"} | ({"warning": warning} if warning else {})


def grid():
    values = {1e-5: [0.8, 0.82, 0.87], 2e-5: [0.9, None, 0.6]}
    return [
        run(f"{rate:g}-{seed}", value, learning_rate=rate, train_batch_size=32, num_train_epochs=3, seed=seed)
        for rate, row in values.items()
        for seed, value in enumerate(row)
    ]


def test_means_are_over_seeds():
    found = summary(grid())
    first, second = found["settings"]
    assert first == {
        "settings": {"learning_rate": 1e-5, "train_batch_size": 32, "num_train_epochs": 3},
        "runs": 3,
        "failed": 0,
        "mean": pytest.approx(0.83),
        "standard_deviation": pytest.approx(statistics.stdev([0.8, 0.82, 0.87])),
        "best": 0.87,
        "worst": 0.8,
    }
    assert (second["runs"], second["failed"], second["mean"]) == (3, 1, 0.75)
    assert found["best_run"] == "2e-05-0" and found["best_score"] == 0.9, "the best run is not of the best settings"
    assert found["best_settings"] == first["settings"]
    assert found["failed"] == [{"name": "2e-05-1", "warning": None}] and found["warnings"] == []
    json.dumps(found, allow_nan=False)


def test_one_run_has_no_deviation():
    entry = summary([run("a", 0.5, seed=1)])["settings"][0]
    assert (entry["mean"], entry["standard_deviation"], entry["best"], entry["worst"]) == (0.5, None, 0.5, 0.5)


def test_all_failed():
    found = summary([run("a", None, seed=1), run("b", float("nan"), "the loss was not finite", seed=2)])
    assert found["best_run"] is found["best_score"] is found["best_settings"] is None
    assert found["settings"][0]["mean"] is None and found["settings"][0]["failed"] == 2
    assert "best run" not in text_table([run("a", None, seed=1)])


def test_a_score_of_zero_is_one():
    assert score(run("a", 0.0)) == 0.0 and summary([run("a", 0.0), run("b", -0.1)])["best_run"] == "a"
    assert score({"main_metric": "f1", "metrics": {}}) is None and score({"main_metric": "f1", "metrics": None}) is None


def test_no_runs():
    assert summary([])["settings"] == [] and text_table([]) == "no runs"


def test_settings_that_differ():
    runs = [run("a", 1, seed=1, warmup=0.1, num_train_epochs=3), run("b", 1, seed=2, warmup=0.2, num_train_epochs=4)]
    assert varied(runs) == ["num_train_epochs", "warmup"]
    assert varied([*runs, run("c", 1, seed=3)]) == ["num_train_epochs", "warmup"] and varied(runs[:1]) == []


def test_a_table_for_the_terminal():
    runs = grid()
    runs[5]["warning"] = "all predictions are one class, 'yes'"
    assert text_table(runs).split("\n") == [
        "learning rate          runs  mean accuracy   std   best  worst",
        "        1e-05             3          83.0%   3.6  87.0%  80.0%",
        "        2e-05  3 (1 failed)          75.0%  21.2  90.0%  60.0%",
        "best run: 2e-05-0, accuracy 90.0%",
        "best settings by mean: learning rate 1e-05",
        "2e-05-1 failed and counts in no mean",
        "2e-05-2: all predictions are one class, 'yes'",
    ]


def test_a_failed_run_says_why():
    assert remarks([run("a", None, "out of memory")]) == ["a failed and counts in no mean: out of memory"]


def test_all_numbers_as_a_table(tmp_path):
    other = run("b\t", 1 / 3, "odd", seed=2, epochs=3) | {"metrics": {"f1": 0.25}}
    write_tsv(tmp_path / "runs.tsv", [run("a", 1 / 3, seed=1), other])
    assert (tmp_path / "runs.tsv").read_text() == (
        "name\tseed\tepochs\taccuracy\tloss\tf1\twarning\tfolder\n"
        "a\t1\t\t0.3333333333333333\t0.5\t\t\truns/a\n"
        "b\\t\t2\t3\t\t\t0.25\todd\truns/b\t\n".replace("runs/b\t", "runs/b\\t")
    )


def test_the_folder_of_the_best_run(tmp_path):
    assert best_run_in(tmp_path, "--init_checkpoint") is None
    (tmp_path / "runs.json").write_text(json.dumps(grid()))
    assert best_run_in(tmp_path, "--init_checkpoint") == "runs/2e-05-0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps([run("a", None)]), "holds several runs, and none has come to an evaluation"),
        ("[]", "holds several runs, and none has come to an evaluation"),
        ("{", "runs.json is damaged"),
        ("[1]", "runs.json is damaged"),
        ('[{"name": "a"}]', "runs.json is damaged"),
    ],
)
def test_a_folder_without_a_best_run(tmp_path, text, message):
    (tmp_path / "runs.json").write_text(text)
    with pytest.raises(UserError, match=f"^--init_checkpoint: .*{message}"):
        best_run_in(tmp_path, "--init_checkpoint")
