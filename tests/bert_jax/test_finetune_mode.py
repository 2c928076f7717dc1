"""Fine-tuning through the command line: what each kind of task learns and leaves."""

import json
import os

import numpy as np
import pytest
from small_tasks import CONFIG, TASKS, losses, parameters, read_table, results_of

from bert_jax import devices
from bert_jax.heads import read_head

RUN_FILES = {"run.json", "task_head.json", "bert_config.json", "vocab.txt", "metrics.jsonl", "eval_results.json"}
RUN_FILES |= {"report.html", "review.json", "tensorboard", "checkpoints"}
LABELS = {
    "classification": ("apple", "zebra"),
    "multi_label": ("cat", "dog"),
    "regression": ("value",),
    "multiple_choice": ("choice",),
    "span": ("start", "end"),
    "span_2": ("start", "end"),
    "tagging": ("O", "B-COLOUR", "I-COLOUR", "B-PET", "I-PET"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_what_a_run_leaves(tasks, kind):
    folder = tasks.finished(kind)
    assert set(os.listdir(folder)) >= RUN_FILES
    assert read_head(folder, "--init_checkpoint").labels == LABELS[kind]
    results = results_of(folder)
    assert results["examples"] == 12
    assert results["step"] == json.loads((folder / "run.json").read_text())["finished_at_step"]
    assert len(losses(folder)) == results["step"] and losses(folder)[-1] < losses(folder)[0] / 3


def test_texts_get_the_names_of_their_labels(tasks):
    folder = tasks.finished("classification")
    assert results_of(folder)["accuracy"] == 1.0
    heads, *rows = read_table(folder / "predictions.tsv")
    assert heads == ["id", "prediction", "probability_apple", "probability_zebra"]
    texts = [text for _, text in read_table(tasks.folder / "classification_test.tsv")[1:]]
    assert [row[0] for row in rows] == [f"k{number}" for number in range(5)]
    assert [row[1] for row in rows] == ["zebra" if "cat" in text.split() else "apple" for text in texts]
    np.testing.assert_allclose([float(row[2]) + float(row[3]) for row in rows], 1, atol=1e-5)
    assert [row[0] for row in read_table(folder / "eval_predictions.tsv")[1:]] == [f"k{n}" for n in range(12)]


def test_any_number_of_labels_may_hold(tasks):
    folder = tasks.finished("multi_label")
    assert results_of(folder)["f1_micro"] > 0.8
    heads, *rows = read_table(folder / "predictions.tsv")
    assert heads == ["id", "prediction", "probability_cat", "probability_dog"]
    texts = [json.loads(line)["text"].split() for line in (tasks.folder / "multi_label_test.jsonl").open()]
    right = ["|".join(name for name in ("cat", "dog") if name in text) for text in texts]
    assert sum(row[1] == label for row, label in zip(rows, right, strict=True)) >= 4
    assert all(float(row[2 + n]) > 0.5 for row in rows for n, name in enumerate(("cat", "dog")) if name in row[1])


def test_numbers_are_predicted(tasks):
    folder = tasks.finished("regression")
    assert results_of(folder)["pearson"] > 0.8
    heads, *rows = read_table(folder / "predictions.tsv")
    assert heads == ["id", "prediction"] and [row[0] for row in rows] == [str(number) for number in range(5)]
    assert all(-1 < float(row[1]) < 3 for row in rows)


@pytest.fixture(scope="module")
def prices(tasks, tmp_path_factory):
    """The flags of a finished regression whose labels are far from unit scale."""
    folder = tmp_path_factory.mktemp("prices")
    for split in ("train", "dev"):
        heads, *rows = [line.split(",") for line in (tasks.folder / f"regression_{split}.csv").read_text().splitlines()]
        rows = [[*texts, f"{float(label) * 1e5 + 4e5:.0f}"] for *texts, label in rows]
        (folder / f"{split}.csv").write_text("".join(",".join(row) + "\n" for row in [heads, *rows]))
    files = {"train_file": folder / "train.csv", "eval_file": folder / "dev.csv"}
    given = tasks.flags("regression", folder / "out", **files)
    assert tasks.run(**given) == 0
    return given


def test_numbers_of_any_unit_are_learned_alike(tasks, prices):
    folder, plain = prices["output_dir"], tasks.finished("regression")
    np.testing.assert_allclose(losses(folder)[:5], losses(plain)[:5], rtol=1e-3)
    results, theirs = results_of(folder), results_of(plain)
    assert results["pearson"] > 0.8 and results["mean_squared_error"] < 2e9
    assert results["loss"] == pytest.approx(theirs["loss"], rel=0.5)
    ours = [float(row[1]) for row in read_table(folder / "predictions.tsv")[1:]]
    assert all(3e5 < value < 7e5 for value in ours)


@pytest.mark.parametrize("form", ["huggingface", "tf1"])
def test_exported_numbers_are_in_the_unit_of_the_labels(tasks, prices, tmp_path, form):
    folder = prices["output_dir"]
    exported = {"mode": "export", "format": form, "init_checkpoint": folder, "output_dir": tmp_path / "model"}
    assert tasks.run(**exported) == 0
    asked = {"mode": "evaluate", "task_name": "regression", "text_pair_field": "text2", "max_seq_length": 24}
    asked |= {"eval_file": prices["eval_file"], "init_checkpoint": tmp_path / "model", "output_dir": tmp_path / "out"}
    assert tasks.run(**asked) == 0
    ours, theirs = (
        read_table(place)[1:] for place in (tmp_path / "out/predictions.tsv", folder / "eval_predictions.tsv")
    )
    ours, theirs = ([float(row[1]) for row in rows] for rows in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_ending_is_chosen(tasks):
    folder = tasks.finished("multiple_choice")
    assert results_of(folder)["accuracy"] == 1.0
    heads, *rows = read_table(folder / "predictions.tsv")
    assert heads == ["id", "prediction", *(f"probability_{number}" for number in range(4))]
    lines = (tasks.folder / "multiple_choice_test.csv").read_text().splitlines()[1:]
    assert [row[:2] for row in rows] == [
        [str(n), str(line.split('"')[1::2].index(next(e for e in line.split('"')[1::2] if e.endswith("cat"))))]
        for n, line in enumerate(lines)
    ]


@pytest.mark.parametrize("kind", ["span", "span_2"])
def test_answers_are_found(tasks, kind):
    folder = tasks.finished(kind)
    assert results_of(folder)["exact" if kind == "span_2" else "exact_match"] == 100.0
    articles = json.loads((tasks.folder / f"{kind}_test.json").read_text())["data"]
    contexts = {part["qas"][0]["id"]: part["context"] for part in articles[0]["paragraphs"]}
    predictions = json.loads((folder / "predictions.json").read_text())
    assert predictions == {number: "cat" if "cat" in context else "" for number, context in contexts.items()}
    assert list(predictions) == list(contexts)
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    assert all(sum(one["probability"] for one in found) == pytest.approx(1) for found in nbest.values())
    odds = folder / "null_odds.json"
    assert odds.exists() == (kind == "span_2")
    if odds.exists():
        assert all((value > 0) == (predictions[number] == "") for number, value in json.loads(odds.read_text()).items())


def test_words_are_tagged(tasks):
    folder = tasks.finished("tagging")
    assert results_of(folder)["f1"] == 1.0
    given = (tasks.folder / "tagging_test.conll").read_text().splitlines()
    lines = (folder / "predictions.conll").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == given
    tags = {"cat": "B-PET", "dog": "B-PET", "red": "B-COLOUR"}
    assert [line.rpartition(" ")[2] for line in lines] == ["" if not g else tags.get(g.split()[0], "O") for g in given]


def test_what_the_paper_varied_learns_with_a_frozen_encoder(tasks, tmp_path, capfd):
    """Features of several layers and two LSTMs, of which a folder knows all that evaluate needs."""
    flags = {"freeze_encoder": "true", "head_lstm": "6,4", "head_features": "weighted_all", "document_context": "false"}
    assert tasks.run(**tasks.flags("tagging", tmp_path / "out", num_train_epochs=2, **flags)) == 0
    before, after = parameters(tasks.folder / "bert"), parameters(tmp_path / "out")
    encoder = [name for name in after if name.startswith(("['bert']['encoder']", "['bert']['embeddings']"))]
    assert len(encoder) > 15 and all(np.array_equal(before[name], after[name]) for name in encoder)
    assert losses(tmp_path / "out")[-1] < losses(tmp_path / "out")[0]
    asked = {"mode": "evaluate", "init_checkpoint": tmp_path / "out", "eval_file": tasks.folder / "tagging_dev.conll"}
    assert tasks.run(**asked) == 0
    assert results_of(tmp_path / "out") == {"step": 10} | results_of(tmp_path / "out" / "evaluate")


@pytest.mark.parametrize(("frozen", "passes"), [("false", 3), ("true", 1)])
def test_mfu_counts_the_tokens_that_there_are(tasks, tmp_path, monkeypatch, frozen, passes):
    found = []
    monkeypatch.setattr(devices, "seconds_at_peak", lambda flops, flags: found.append(flops) or 1e-6)
    flags = {"num_train_epochs": None, "num_train_steps": 2, "freeze_encoder": frozen}
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", **flags)) == 0
    line = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["mfu"] == pytest.approx(1e-6 / line["seconds_per_step"])
    facts, size = json.loads((tmp_path / "out" / "facts.json").read_text()), CONFIG
    tokens = 8 * facts["data"]["training tokens"] / facts["data"]["training examples"]
    hidden, inner = size.hidden_size, size.intermediate_size
    kernels = tokens * size.num_hidden_layers * 2 * (4 * hidden**2 + 2 * hidden * inner)
    attention_at_most = tokens * size.num_hidden_layers * 4 * 24 * hidden
    assert passes * kernels < found[0] < passes * (kernels + attention_at_most)


def test_half_precision_and_layers_that_begin_anew(tasks, tmp_path):
    flags = {"precision": "bf16", "reinit_layers": 1, "layer_lr_decay": 0.01, "optimizer": "lamb"}
    flags |= {"trust_ratio": "decayed", "lr_decay_power": 0.5, "learning_rate": 0.02, "num_warmup_steps": 0}
    flags |= {"train_batch_size": 64, "num_train_epochs": 5}  # a batch of more examples than there are
    assert tasks.run(**tasks.flags("classification", tmp_path / "out", profile_steps="2:3", **flags)) == 0
    assert list((tmp_path / "out" / "tensorboard" / "plugins" / "profile" / "steps_2_3").glob("*.xplane.pb"))
    assert len(losses(tmp_path / "out")) == 4 and all(np.isfinite(losses(tmp_path / "out")))
    before, after = parameters(tasks.folder / "bert"), parameters(tmp_path / "out")
    change = {name: np.abs(after[name] - before[name]).max() for name in before.keys() & after.keys()}
    kernels = [name for name in change if "layer_0" in name and "kernel" in name]
    assert len(kernels) == 6 and all(change[name] > 0.3 for name in kernels)  # weights of 0.3, and now of 0.02
    assert all(0 < change[name] < 0.05 for name in change if "embedding" in name)
