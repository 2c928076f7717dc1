"""Fine-tuning through the command line: what each kind of task learns and leaves, how runs go on, what is refused."""

import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
from small_tasks import CONFIG, TASKS, classification, losses, parameters, read_table, words

from bert_jax import devices, finetuning_run, interruption, training
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


def results_of(folder):
    return json.loads((folder / "eval_results.json").read_text())


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
        ("classification", {"mesh": "data=3"}, "--mesh=data=3 needs 3 devices"),
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
