"""All of GLUE that a folder has: each task in its own folder, a table beside the paper's, and one zip."""

import json
import zipfile

import numpy as np
import pytest

from bert_jax import suite
from bert_jax.main import parse
from input_pipeline.errors import UserError

MNLI = ("neutral", "entailment", "contradiction")
PAIRS = [("index", "sentence1", "sentence2", "gold_label")]
PAIRS += [(n, "the cat sat", f"{word} ran", MNLI[n % 3]) for n, word in enumerate(["a", "red", "big"] * 3)]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """CoLA, and MNLI with its two dev sets and the diagnostic one."""
    folder = tmp_path_factory.mktemp("glue")
    for split in ("train", "dev"):
        write(folder / "CoLA" / f"{split}.tsv", [("x", n % 2, "", f"the cat {'sat' * (n % 2)}") for n in range(8)])
    write(folder / "CoLA" / "test.tsv", [("index", "sentence"), (0, "a cat"), (1, "a dog")])
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(folder / "MNLI" / f"{split}.tsv", PAIRS)
    for split in ("MNLI/test_matched", "MNLI/test_mismatched", "diagnostic/diagnostic"):
        write(folder / f"{split}.tsv", [row[:3] for row in PAIRS[:5]])
    return folder


def test_each_task_and_all_of_them(tasks, glue, tmp_path, capfd):
    given = {"mode": "finetune", "task_name": "glue", "data_dir": glue, "init_checkpoint": tasks.folder / "bert"}
    given |= {"max_seq_length": 24, "train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 0.01}
    assert tasks.run(**given, output_dir=tmp_path) == 0
    said = capfd.readouterr().err
    assert "tasks in " in said and "task 1 of 2: cola" in said and "task 2 of 2: mnli" in said
    results = json.loads((tmp_path / "mnli" / "eval_results.json").read_text())
    assert {"accuracy", "accuracy_matched", "accuracy_mismatched", "examples_mismatched"} <= results.keys()
    assert results["accuracy"] == results["accuracy_matched"] and results["examples_mismatched"] == 9
    cola = json.loads((tmp_path / "cola" / "eval_results.json").read_text())
    assert "matthews_correlation" in cola and "accuracy" not in cola
    with zipfile.ZipFile(tmp_path / "submission.zip") as packed:
        tables = {name: packed.read(name).decode().splitlines() for name in packed.namelist()}
    assert {name: len(rows) - 1 for name, rows in tables.items()} == {
        "CoLA.tsv": 2,
        "MNLI-m.tsv": 4,
        "MNLI-mm.tsv": 4,
        "AX.tsv": 4,
    }
    assert all(row.split("\t")[1] in MNLI for row in tables["AX.tsv"][1:])
    assert "submission.zip has 4 of 11 tables; missing: SST-2.tsv" in said and said.count("of 11 tables") == 1
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"glue_results.html", "glue_results.md", "glue_results.json", "cola", "mnli"}
    table = (tmp_path / "glue_results.json").read_text()
    assert tasks.run(**given, output_dir=tmp_path) == 0
    assert capfd.readouterr().err.count("nothing to do") == 2
    assert (tmp_path / "glue_results.json").read_text() == table


def test_a_task_alone_says_what_a_submission_still_needs(tasks, glue, tmp_path, capfd):
    given = {"mode": "finetune", "task_name": "cola", "data_dir": glue, "init_checkpoint": tasks.folder / "bert"}
    given |= {"max_seq_length": 24, "train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 0.01}
    assert tasks.run(**given, output_dir=tmp_path / "out") == 0
    said = capfd.readouterr().err
    assert said.count("submission.zip has 1 of 11 tables; missing: SST-2.tsv, MRPC.tsv") == 1


def test_several_runs_of_each_task(glue, tmp_path):
    """Each task has its own flags; what one task sets is not seen by the next."""
    flags = parse(["bert_jax", "--mode=finetune", f"--data_dir={glue}", f"--output_dir={tmp_path}", "--num_runs=2"])
    seen = []

    def run_task(own, name):
        seen.append((name, own.task_name, own.output_dir, own.num_runs, own.max_seq_length))
        own.max_seq_length = 7
        return {"accuracy": 0.5, "matthews_correlation": np.float64(0.1)}

    assert suite.run(flags, run_task) == 0
    assert seen == [(name, name, str(tmp_path / name), 2, None) for name in ("cola", "mnli")]
    assert not (tmp_path / "submission.zip").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--data_dir is missing: the folder with those of the tasks"),
        (["--data_dir=x", "--eval_file=a"], "--task_name=glue takes the files of --data_dir, not --train_file"),
        (["--data_dir=/nowhere"], "--data_dir=/nowhere holds no folder of GLUE"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(UserError, match=message):
        suite.run(parse(["bert_jax", "--mode=finetune", *words]), None)
