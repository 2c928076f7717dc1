"""Mistakes in the flags and files of fine-tuning: one line each, exit code 2."""

import json
import os

import pytest
from small_tasks import losses, read_table

from bert_jax import training


def table(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("classification", {"task_name": None}, "--task_name is missing: one of cola"),
        ("classification", {"task_name": "sst3"}, "--task_name=sst3 must be one of cola"),
        ("classification", {"task_name": "clasification"}, "glue; did you mean classification?"),
        ("classification", {"train_file": None}, "--train_file is missing, and so is --data_dir"),
        ("classification", {"train_file": "/nowhere/a.tsv"}, "--train_file: no such file or folder: /nowhere/a.tsv"),
        ("classification", {"eval_file": "/nowhere/a.tsv"}, "--eval_file: no such file or folder: /nowhere/a.tsv"),
        ("classification", {"predict_file": "/nowhere/a.tsv"}, "--predict_file: no such file or folder"),
        ("classification", {"train_file": "gs://nonexistent-bucket/a.tsv"}, "gs://nonexistent-bucket/a.tsv"),
        ("classification", {"vocab_file": "/nowhere/v.txt"}, "--vocab_file: no such file or folder: /nowhere/v.txt"),
        ("classification", {"init_checkpoint": None}, "--init_checkpoint is missing: the weights to fine-tune"),
        ("classification", {"init_checkpoint": "/nowhere"}, "--init_checkpoint: no such file or folder: /nowhere"),
        ("classification", {"text_field": "body"}, "no column 'body'; there are: key, text, label (--text_field"),
        ("classification", {"labels": "zebra"}, "line 2: field 'label' (--label_field) is 'apple', none of the labels"),
        ("classification", {"labels": "zebra,apple,zebra"}, "--labels: the label 'zebra' stands there twice"),
        ("classification", {"positive_label": "pear"}, "--positive_label=pear must be one of apple, zebra"),
        ("classification", {"max_seq_length": 4}, "--max_seq_length=4 must be between 5"),
        ("classification", {"max_seq_length": 25}, "--max_seq_length=25 must be between 5"),
        ("classification", {"train_batch_size": 6, "gradient_accumulation_steps": 4}, "--train_batch_size=6"),
        ("classification", {"num_train_steps": 5}, "--num_train_steps and --num_train_epochs exclude each other"),
        ("classification", {"num_train_epochs": 0}, "--num_train_epochs=0.0 must be above 0"),
        ("classification", {"eval_fraction": 0.2}, "--eval_fraction and --eval_file exclude each other"),
        ("classification", {"head_features": "embeddings"}, "--head_features=embeddings is for tagging and squad"),
        ("classification", {"reinit_layers": 2}, "--reinit_layers=2: there are 1 layers"),
        ("classification", {"freeze_encoder": "true", "layer_lr_decay": 0.9}, "--freeze_encoder and --layer_lr_decay"),
        ("classification", {"profile_steps": "3"}, "--profile_steps=3 must be FIRST:LAST"),
        ("classification", {"trust_ratio": "decayed"}, "--trust_ratio=decayed is for --optimizer=lamb, not adamw"),
        ("classification", {"mesh": "data=3"}, "--mesh=data=3 is for 3 devices"),
        (
            "classification",
            {"data_dir": "/nowhere"},
            "--data_dir: the files of --task_name=classification are named by",
        ),
        ("classification", {"learning_rate": "fast"}, "--learning_rate=fast"),
        ("classification", {"trian_file": "a.tsv"}, "Unknown command line flag 'trian_file'"),
        (
            "classification",
            {"num_runs": 2, "eval_file": None},
            "several runs are compared by what they are evaluated on",
        ),
        ("tagging", {"head_lstm": "0"}, "--head_lstm=0: sizes of LSTMs are whole numbers"),
        ("tagging", {"head_features": "concat_last_4"}, "--head_features=concat_last_4: the model has 1 layers only"),
        ("span", {"max_seq_length": 5}, "leaves no room for the context in --max_seq_length=5"),
    ],
)
def test_mistakes_in_flags_are_one_line(tasks, tmp_path, capfd, monkeypatch, kind, flags, message):
    monkeypatch.setattr(training, "compile_step", None)
    monkeypatch.setattr(training, "create_state", None)
    assert tasks.run(**tasks.flags(kind, tmp_path / "out", **flags)) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said and said.count("error: ") == 1 and message in said.splitlines()[-1]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("classification", "", "a.tsv is empty"),
        ("classification", "text\tlabel\n", "a.tsv has one line only, which names its columns, and no rows"),
        ("classification", "text\tlabel\ncat\tx\ndog\tx\n", "has the label 'x': there is nothing to tell apart"),
        ("classification", "text\tlabel\ncat\tx\ndog\t\n", "line 3: field 'label' (--label_field) is empty"),
        ("regression", "text\tlabel\ncat\t1\ndog\tnan\n", "line 3: field 'label' (--label_field) is 'nan', no number"),
        ("sst2", "sentence\tlabel\ncat\t1\ndog\t2\n", "line 3: the label '2' is none of sst2: 0, 1"),
        ("sst2", "sentence\tlabel\ncat\t1\ndog\t-1\n", "line 3: the label '-1' is none of sst2: 0, 1"),
        ("mnli", "sentence1\tsentence2\tgold_label\na\tb\thidden\n", "line 2: the label 'hidden' is none of mnli"),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\t7\n", "line 2: the score '7' is no number from 0 to 5"),
        ("squad", '{"data": []}', "no questions"),
        ("tagging", "cat O\ndog\n", "line 2: only 1 column ('dog'); a line is a word and its tag"),
    ],
)
def test_mistakes_in_files_are_one_line(tasks, tmp_path, capfd, task, text, message):
    flags = {"mode": "finetune", "task_name": task, "init_checkpoint": tasks.folder / "bert", "max_seq_length": 24}
    assert tasks.run(**flags, train_file=table(tmp_path, "a.tsv", text), output_dir=tmp_path / "out") == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said and said.count("error: ") == 1 and message in said.splitlines()[-1]
    assert os.listdir(tmp_path) == ["a.tsv"]


def test_a_label_of_none_of_the_training_examples_is_a_mistake(tasks, tmp_path, capfd):
    text = "key\ttext\tlabel\na\tthe cat\tapple\nb\tthe cat\t-1\n"
    flags = tasks.flags("classification", tmp_path / "out", eval_file=table(tmp_path, "dev.tsv", text))
    assert tasks.run(**flags) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert "--eval_file: " in said and "line 3: field 'label' (--label_field) is '-1'" in said
    assert said.endswith("none of the labels apple, zebra")


def test_one_empty_example_of_one_class_in_a_large_batch(tasks, tmp_path, capfd):
    """Whatever can be learned from it, it does not fail: labels are named, and the batch is filled."""
    text = "key\ttext\tlabel\na\t\tapple\n"
    flags = {"train_file": table(tmp_path, "train.tsv", text), "labels": "zebra,apple", "num_train_epochs": 2}
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", max_seq_length=5, **flags)) == 0
    assert len(losses(tmp_path / "out")) == 1
    assert read_table(tmp_path / "out" / "predictions.tsv")[0][2:] == ["probability_zebra", "probability_apple"]
    said = capfd.readouterr().err
    assert "train.tsv" in said and "1 example has an empty text" in said
    assert "dev: all 12 predictions are apple: the model tells nothing apart" in said
    assert json.loads((tmp_path / "out" / "warnings.jsonl").open().readline())["message"].startswith("dev: all 12")
