"""Evaluate and predict: a finished folder, or a model from elsewhere, on new examples."""

import json
import os
import shutil

import pytest
import small_bert
from small_tasks import CONFIG, TASKS, read_table

from bert_jax import task_use
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.heads import TaskHead

MNLI = ("neutral", "entailment", "contradiction")  # in another order than that of GLUE's task here
PAIRS = "index\tsentence1\tsentence2\tgold_label\n" + "".join(
    f"{number}\tthe {word} sat\t{other} ran\t{label}\n"
    for number, (word, other, label) in enumerate(zip(["cat", "dog", "tree"] * 3, ["red", "big"] * 5, MNLI * 3))
)


def said(capfd):
    return capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("kind", TASKS)
def test_a_finished_folder_predicts_as_its_run_did(tasks, tmp_path, kind):
    """Also a file with labels, which are not looked at."""
    run, flags = tasks.finished(kind), tasks.flags(kind, tmp_path)
    asked = {"init_checkpoint": run, "output_dir": tmp_path}
    ending = {"tagging": "conll", "span": "json", "span_2": "json"}.get(kind, "tsv")

    def predictions(folder, stem="predictions"):
        return (folder / f"{stem}.{ending}").read_text()

    assert tasks.run(mode="predict", predict_file=flags["predict_file"], **asked) == 0
    assert predictions(tmp_path) == predictions(run)
    assert tasks.run(mode="predict", predict_file=flags["eval_file"], **asked) == 0
    if kind == "tagging":
        assert [line.split(" ")[-1] for line in predictions(tmp_path).splitlines()] == [
            line.split(" ")[-1] for line in predictions(run, "eval_predictions").splitlines()
        ]
    else:
        assert predictions(tmp_path) == predictions(run, "eval_predictions")
    assert not (tmp_path / "eval_results.json").exists()
    assert tasks.run(mode="evaluate", eval_file=flags["eval_file"], **asked) == 0
    assert predictions(tmp_path) == predictions(run, "eval_predictions")
    results, ours = (json.loads((folder / "eval_results.json").read_text()) for folder in (run, tmp_path))
    assert results == {"step": results["step"]} | ours
    assert (tmp_path / "report.html").exists() and (tmp_path / "review.json").exists()


def test_the_results_of_a_run_stay(tasks, tmp_path):
    shutil.copytree(tasks.finished("classification"), tmp_path / "run")
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("eval_results.json", "predictions.tsv")}
    asked = {"output_dir": tmp_path / "run", "eval_file": tasks.folder / "classification_train.tsv"}
    assert tasks.run(mode="evaluate", **asked) == 0
    assert json.loads((tmp_path / "run" / "evaluate" / "eval_results.json").read_text())["examples"] == 40
    assert before == {name: (tmp_path / "run" / name).read_bytes() for name in before}


def test_the_results_of_another_run_stay(tasks, tmp_path, capfd):
    (tmp_path / "run.json").touch()
    asked = {"output_dir": tmp_path, "eval_file": tasks.folder / "classification_train.tsv"}
    assert tasks.run(mode="evaluate", init_checkpoint=tasks.finished("classification"), **asked) == 2
    assert said(capfd).startswith(f"error: --output_dir={tmp_path} holds a run, whose results would be lost")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(tasks, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setattr(task_use, "Predictor", lambda *arguments: pytest.fail)
    asked = {"output_dir": tmp_path / "file", "predict_file": tasks.folder / "classification_test.tsv"}
    assert tasks.run(mode="predict", init_checkpoint=tasks.finished("classification"), **asked) == 2
    assert said(capfd) == f"error: --output_dir: {tmp_path}/file is a file, or lies below one: a folder is needed"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab.txt", None, "no vocabulary lies beside the weights: give --vocab_file"),
        (
            "bert_config.json",
            {"hidden_size": 64},
            "arrays are not those that bert_config.json and task_head.json beside",
        ),
        ("task_head.json", {"labels": ["yes"]}, "arrays are not those that bert_config.json and task_head.json beside"),
    ],
)
def test_what_does_not_fit_the_weights_is_named(tasks, tmp_path, capfd, name, change, message):
    run = tmp_path / "run"
    shutil.copytree(tasks.finished("classification"), run)
    if change:
        (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | change))
    else:
        (run / name).unlink()
    new = tasks.folder / "classification_test.tsv"
    assert tasks.run(mode="predict", init_checkpoint=run, predict_file=new, output_dir=tmp_path / "out") == 2
    assert message in said(capfd)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"init_checkpoint": None}, "--mode=predict needs --init_checkpoint"),
        ({"init_checkpoint": "/nowhere"}, "--init_checkpoint: no such file or folder: /nowhere"),
        ({"predict_file": None}, "--predict_file is missing, and so is --data_dir"),
        ({"predict_file": "/nowhere/a.tsv"}, "--predict_file: no such file or folder: /nowhere/a.tsv"),
        ({"task_name": "squad"}, "is a model for classification, but --task_name=squad is span"),
        ({"task_name": "glue"}, "--task_name=glue must be one of cola"),
        ({"labels": "a"}, "--labels=a: 2 different names are needed, one an output"),
        ({"text_field": "body"}, "no column 'body'; there are: key, text"),
        ({"max_seq_length": 25}, "--max_seq_length=25 must be between 5"),
        ({"mode": "evaluate"}, "--eval_file is missing"),
    ],
)
def test_mistakes_are_one_line(tasks, tmp_path, capfd, flags, message):
    asked = {"mode": "predict", "init_checkpoint": tasks.finished("classification"), "output_dir": tmp_path / "out"}
    capfd.readouterr()
    assert tasks.run(**asked | {"predict_file": tasks.folder / "classification_test.tsv"} | flags) == 2
    errors = capfd.readouterr().err
    assert errors.count("error: ") == 1 and message in errors.splitlines()[-1] and "Traceback" not in errors
    assert os.listdir(tmp_path) == []


def test_what_was_pretrained_predicts_nothing(tasks, capfd):
    flags = {"task_name": "classification", "predict_file": tasks.folder / "classification_test.tsv"}
    assert tasks.run(mode="predict", init_checkpoint=tasks.folder / "bert", **flags) == 2
    assert "it has no task; fine-tune it first (--mode=finetune)" in said(capfd)


def test_unknown_labels_and_missing_ones(tasks, tmp_path, capfd):
    run = tasks.finished("classification")
    (tmp_path / "pear.tsv").write_text("key\ttext\tlabel\na\tthe cat\tpear\n")
    assert tasks.run(mode="evaluate", init_checkpoint=run, eval_file=tmp_path / "pear.tsv") == 2
    assert "pear.tsv, line 2: field 'label' (--label_field) is 'pear', none of the labels apple, zebra" in said(capfd)
    unlabelled = tasks.folder / "classification_test.tsv"
    assert tasks.run(mode="evaluate", init_checkpoint=run, eval_file=unlabelled) == 2
    assert "--eval_file: " in (line := said(capfd)) and "has no column 'label'" in line


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    """A model of Hugging Face's form for MNLI, and the same without names of its outputs."""
    folder = tmp_path_factory.mktemp("mnli")
    (folder / "pairs.tsv").write_text(PAIRS)
    for name, labels in (("named", MNLI), ("numbered", ("LABEL_0", "LABEL_1", "LABEL_2"))):
        bert = small_bert.loaded(CONFIG, TaskHead("classification", labels))
        (folder / name).mkdir()
        export_huggingface(folder / name, CONFIG, bert.module.head, bert.params, bert.tokenizer)
    return folder


def test_labels_go_by_name(tasks, mnli, tmp_path, capfd):
    asked = {"mode": "evaluate", "task_name": "mnli", "eval_file": mnli / "pairs.tsv"}
    assert tasks.run(**asked, init_checkpoint=mnli / "named", output_dir=tmp_path / "named") == 0
    heads, *rows = read_table(tmp_path / "named" / "predictions.tsv")
    assert heads == ["id", "prediction", *(f"probability_{label}" for label in MNLI)]
    assert all(row[1] == MNLI[row[2:].index(max(row[2:], key=float))] for row in rows)
    right = sum(row[1] == label for row, label in zip(rows, MNLI * 3, strict=True))
    assert json.loads((tmp_path / "named" / "eval_results.json").read_text())["accuracy"] == right / 9
    capfd.readouterr()
    assert tasks.run(**asked, init_checkpoint=mnli / "numbered") == 2
    assert (
        "has the labels LABEL_0, LABEL_1, LABEL_2, but --task_name=mnli has contradiction, entailment, neutral: "
        "name the outputs in their order with --labels"
    ) in said(capfd)
    flags = {"labels": ",".join(MNLI), "output_dir": tmp_path / "numbered"}
    assert tasks.run(**asked, init_checkpoint=mnli / "numbered", **flags) == 0
    assert (tmp_path / "numbered" / "predictions.tsv").read_text() == (
        tmp_path / "named" / "predictions.tsv"
    ).read_text()


def test_a_leaderboard_takes_what_is_predicted(tasks, mnli, tmp_path, capfd):
    rows = [line.rpartition("\t")[0] for line in PAIRS.splitlines()]
    for name in ("MNLI/test_matched.tsv", "MNLI/test_mismatched.tsv", "diagnostic/diagnostic.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    asked = {"mode": "predict", "init_checkpoint": mnli / "named", "data_dir": tmp_path}
    assert tasks.run(**asked, task_name="mnli", output_dir=tmp_path / "out") == 0
    assert {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", "submission.zip"} <= set(os.listdir(tmp_path / "out"))
    assert "submission.zip has 3 of 11 tables; missing: CoLA.tsv, SST-2.tsv" in said(capfd)
    assert tasks.run(**asked, task_name="ax", output_dir=tmp_path / "ax") == 0
    table = read_table(tmp_path / "ax" / "AX.tsv")
    assert table == read_table(tmp_path / "out" / "AX.tsv") and table[0] == ["index", "prediction"]
    assert [row[0] for row in table[1:]] == [str(number) for number in range(9)]
    assert {row[1] for row in table[1:]} <= set(MNLI)
