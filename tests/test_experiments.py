"""The experiments of the paper: their commands are complete, right, and run."""

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
from small_bert import loaded as small_bert
from small_bert import write_run

from bert_jax import finetuning_options, heads
from bert_jax.config import BertConfig
from bert_jax.main import main as bert_jax_main
from bert_jax.main import parse
from launch import experiments, made_up_tasks
from launch.experiment_results import read_result
from launch.experiment_tables import HEADS, MODELS, SCALES, SETUPS, TABLES, Cell
from launch.experiments import MAIN, Options, execute, main, merged, plan, read_command_line, run

ALL = list(TABLES.values())


@pytest.fixture
def data(tmp_path):
    """Empty folders of all tasks."""
    for setup in SETUPS.values():
        (tmp_path / "data" / setup.folders[-1]).mkdir(parents=True, exist_ok=True)
    return tmp_path / "data"


@pytest.fixture(params=SCALES)
def options(request, data):
    if request.param == "cpu":
        return Options(SCALES["cpu"], "out")
    return Options(SCALES["paper"]._replace(input_file="wiki.txt,books.txt"), "out", False, str(data), "vocab.txt")


def flags_of(step):
    return parse([MAIN, *step.arguments])


def by_folder(options, tables=ALL):
    return {step.folder: flags_of(step) for step in plan(tables, options) if step.module == MAIN}


def test_every_command_has_what_an_earlier_one_made(options):
    made = set()
    for step in plan(ALL, options):
        if step.module == MAIN:
            flags = flags_of(step)
            assert flags.output_dir == f"out/{step.folder}"
            assert flags.mode == {"store": "prepare", "pretrain": "pretrain"}.get(step.folder.split("/")[0], "finetune")
            for path in (flags.init_checkpoint, flags.restore_from):
                assert path is None or path.partition("/checkpoints/")[0].removeprefix("out/") in made
            if flags.mode == "pretrain":
                assert flags.input_file == ["out/store"]
            if flags.mode == "finetune":
                finetuning_options.check(flags)
                assert flags.init_checkpoint
                assert Path(flags.data_dir).is_dir() or (flags.data_dir.startswith("out/data/") and "data" in made)
        assert step.folder not in made
        made.add(step.folder)
    places = {experiments.cell_folder(cell, options) for table in ALL for _, cells in table.rows for cell in cells}
    assert places <= made


def test_left_to_right_and_without_nsp(options):
    found = by_folder(options)
    for folder, flags in found.items():
        if folder.startswith("pretrain/"):
            model = folder.split("/")[1]
            assert flags.next_sentence_prediction == (model not in ("no_nsp", "ltr_no_nsp"))
            assert flags.attention == ("left_to_right" if model == "ltr_no_nsp" else None)
    lstm = found["finetune/ltr_no_nsp_bilstm/mnli"]
    assert lstm.head_lstm == [str(options.scale.hidden)] and not lstm.freeze_encoder
    assert lstm.init_checkpoint == found["finetune/ltr_no_nsp/mnli"].init_checkpoint
    assert found["finetune/ltr_no_nsp/mnli"].head_lstm == []


def test_named_entities(options):
    found = by_folder(options, [TABLES["7"]])
    features = [flags for flags in found.values() if flags.mode == "finetune" and flags.freeze_encoder]
    assert {flags.head_features for flags in features} == set(heads.FEATURES) and len(features) == len(heads.FEATURES)
    assert all(flags.head_lstm == [str(options.scale.hidden)] * 2 for flags in features)
    tuned = found["finetune/bert/ner"]
    assert tuned.head_features == "last" and tuned.head_lstm == [] and tuned.document_context


def test_masking(options):
    found = by_folder(options, [TABLES["8"]])
    splits = {}
    for row, cells in TABLES["8"].rows:
        flags = found[f"pretrain/{cells[0].model}/phase1"]
        splits[row] = ", ".join(f"{float(share):.0%}" for share in flags.masking_split)
        assert [cell.setup for cell in cells] == ["mnli", "ner", "ner_features"]
    assert list(splits) == list(splits.values())
    assert found["finetune/mask0_20_80/ner_features"].head_features == "concat_last_4"


def test_model_sizes(options):
    found = by_folder(options, [TABLES["6"]])
    sizes = []
    for row, cells in TABLES["6"].rows:
        flags = found[f"pretrain/{cells[0].model}/phase1"]
        file = flags.bert_config_file
        config = BertConfig.from_file(file) if file else BertConfig.named(flags.model)
        assert config.intermediate_size == 4 * config.hidden_size
        sizes.append((config.num_hidden_layers, config.hidden_size, config.num_attention_heads))
        if options.data_dir:  # the paper's scale
            assert row == ", ".join(map(str, sizes[-1]))
        else:
            assert config.vocab_size == options.scale.vocab_size
    assert len(set(sizes)) == 6 and [size[0] for size in sizes] == sorted(size[0] for size in sizes)


def test_steps_of_pretraining(options):
    found = by_folder(options, [TABLES["figure 5"]])
    phases = [found[f"pretrain/bert/phase{number}"] for number in range(1, len(options.scale.phases) + 1)]
    total = phases[-1].num_train_steps
    assert total == (1_000_000 if options.data_dir else 3000)
    for fifths in (1, 2, 3, 4):
        path = found[f"finetune/bert_{fifths}_5/mnli"].init_checkpoint
        assert path == f"out/pretrain/bert/phase1/checkpoints/{fifths * total // 5}"
        # It is saved, and stays until the end.
        first = phases[0]
        assert fifths * total // 5 % first.save_checkpoints_steps == 0
        assert first.save_checkpoints_steps * first.keep_checkpoints >= first.num_train_steps
    assert found["finetune/bert/mnli"].init_checkpoint == f"out/pretrain/bert/phase{len(phases)}"
    assert [flags.restore_from for flags in phases] == [None, "out/pretrain/bert/phase1"][: len(phases)]


def test_the_papers_scale_is_the_papers(data):
    options = Options(SCALES["paper"]._replace(input_file="wiki.txt"), "out", False, str(data))
    found = by_folder(options, [TABLES["5"]])
    first, second = (found[f"pretrain/bert/phase{number}"] for number in (1, 2))
    assert (first.model, first.train_batch_size, first.max_seq_length, second.max_seq_length) == ("base", 256, 128, 512)
    assert found["finetune/bert/squad"].max_seq_length == 384 and found["finetune/bert/mnli"].num_train_epochs == 3
    assert found["finetune/bert/mnli"].num_runs == 5
    assert found["store"].input_file == ["wiki.txt"] and found["store"].vocab_size == 30_000


def test_weights_in_place_of_pretraining(options):
    options = options._replace(init_checkpoint="bert_base")
    found = by_folder(options, [TABLES["7"]])
    assert {flags.mode for flags in found.values()} == {"finetune"}
    assert {flags.init_checkpoint for flags in found.values()} == {"bert_base"}
    assert experiments.cell_folder(Cell("bert", None, 3.99), options) is None


def test_the_tables_know_all_that_they_name():
    for table in ALL:
        for _, cells in table.rows:
            assert len(cells) == len(table.columns)
            assert all(cell.model in MODELS and cell.head in HEADS for cell in cells)
            assert all(cell.setup is None or cell.setup in SETUPS for cell in cells)
    for scale in SCALES.values():
        assert {size for size, _ in MODELS.values()} == set(scale.sizes)


def test_a_store_is_used_as_it_is(tmp_path):
    (tmp_path / "metadata.json").write_text("{}")
    options = Options(SCALES["cpu"]._replace(input_file=str(tmp_path)), "out")
    found = by_folder(options, [TABLES["5"]])
    assert "store" not in found and found["pretrain/bert/phase1"].input_file == [str(tmp_path)]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((["--a=1", "--b=2"], ["--a=3"]), ["--b=2", "--a=3"]),
        ((["--model=base"], ["--bert_config_file=x"]), ["--bert_config_file=x"]),
        ((["--num_train_epochs=3"], ["--num_train_steps=9"]), ["--num_train_steps=9"]),
        ((["--shuffle"], ["--noshuffle"]), ["--noshuffle"]),
        ((["--noshuffle"], ["--shuffle=true"]), ["--shuffle=true"]),
    ],
)
def test_the_last_flag_counts(groups, expected):
    assert list(merged(*groups)) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--table or --figure is missing: tables and figures are 5, 6, 7, 8, figure 5"),
        (["--table=9"], "there are no experiments of '9'"),
        (["--table=5", "--scale=huge"], "--scale=huge"),
        (["--tabel=5"], "tabel"),
        (["--table=5", "words"], "unexpected 'words'"),
        (["--table=5", "--", "words"], "unexpected 'words' after --"),
        (["--table=5", "--", "--no_such_flag=1"], "no_such_flag"),
        (["--table=5", "--", "--learning_rate=fast"], "learning_rate"),
        (["--table=5", "--only=nothing_like_it"], "--only=nothing_like_it"),
        (["--table=5", "--scale=paper"], "--data_dir is missing"),
        (["--table=5", "--data_dir=no/such/folder"], "--data_dir=no/such/folder is no folder"),
        (["--table=5", "--num_runs=0"], "num_runs"),
        (["--figure=5", "--init_checkpoint=bert"], "--init_checkpoint: figure 5 needs"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, message):
    assert main(["experiments", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said


def test_the_papers_scale_needs_a_text(capsys, data):
    assert main(["experiments", "--table=8", "--scale=paper", f"--data_dir={data}"]) == 2
    assert "--input_file is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "--data_dir: {data}/MNLI"),
        (["MNLI/train.tsv", "MNLI/dev_matched.tsv"], "--data_dir: {data}/conll2003"),
        (["MNLI/train.tsv", "MNLI/dev_matched.tsv", "conll2003/eng.train"], "{data}/conll2003 holds no dev file"),
    ],
)
def test_files_of_tasks_are_looked_for_before_anything_is_run(capsys, tmp_path, files, said):
    data = tmp_path / "data"
    for file in ["MNLI/readme", "conll2003/readme", *files]:
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        (data / file).touch()
    argv = ["experiments", "--table=8", "--scale=paper", f"--data_dir={data}", "--input_file=text"]
    assert main([*argv, f"--output_dir={tmp_path}/out"]) == 2
    shown = capsys.readouterr().err
    assert said.format(data=data) in shown and shown.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_made_up_tasks_stand_in_for_those_that_are_not_there(data):
    for folder in data.iterdir():
        if folder.name != "glue":
            folder.rmdir() if not list(folder.iterdir()) else (folder / "conll2003").rmdir()
    options = Options(SCALES["cpu"], "out", data_dir=str(data))
    found = by_folder(options, [TABLES["8"]])
    assert found["finetune/bert/mnli"].data_dir == f"{data}/glue/MNLI"
    assert found["finetune/bert/ner"].data_dir == "out/data/conll2003"


def test_dry_run(capsys, tmp_path):
    out = tmp_path / "out"
    assert main(["experiments", "--table=7", f"--output_dir={out}", "--dry_run", "--", "--precision=bf16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"python -m launch.made_up_tasks {out}/data"
    assert len(lines) == 2 * (2 + 1 + 7) and all("--precision=bf16" in line for line in lines[3::2])
    assert not out.exists()


def test_help(capsys):
    assert main(["experiments", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--table" in shown and "--dry_run" in shown


class Machine:
    """Stands for the programs: notes the commands, and leaves results."""

    def __init__(self, codes=()):
        self.commands, self.codes = [], dict(codes)

    def __call__(self, command):
        if command[2] != MAIN:
            folder = Path(command[-1])
        else:
            flags = parse(command[2:])
            folder = Path(flags.output_dir)
        name = "/".join(folder.parts[-2:])
        self.commands.append(name)
        folder.mkdir(parents=True, exist_ok=True)
        if code := self.codes.get(name):
            return code
        results = {"accuracy": len(self.commands) / 100, "f1": len(self.commands) / 10, "perplexity": 7.125}
        (folder / "eval_results.json").write_text(json.dumps(results))
        return 0


@pytest.fixture
def small(tmp_path):
    return [TABLES["6"]], Options(SCALES["cpu"], str(tmp_path / "out"), only="3-768-12")


def test_a_run_makes_the_table_and_is_done_once(small, capsys):
    tables, options = small
    steps, machine = plan(tables, options), Machine()
    assert run(steps, tables, options, machine) == 0
    assert len(machine.commands) == len(steps) == 2 + 1 + 3
    text = Path(options.output_dir, "table6.md").read_text()
    assert "| 3, 768, 12 | 7.12 | 5.84 | 4.0 | 77.9 | 5.0 | 79.8 | 6.0 | 88.4 |" in text
    assert "| 12, 768, 12 | - | 3.99 | - | 84.4 |" in text
    assert "Of made-up data" in text and text in capsys.readouterr().out
    content = json.loads(Path(options.output_dir, "table6.json").read_text())
    cell = content["rows"][0]["cells"][1]
    assert cell == {
        "column": "MNLI-m accuracy",
        "ours": pytest.approx(4.0),
        "deviation": None,
        "runs": 1,
        "paper": 77.9,
        "made_up": True,
        "folder": "finetune/3-768-12/mnli",
    }
    page = Path(options.output_dir, "table6.html").read_text()
    assert "<td>77.9</td>" in page and "Table 6" in page

    again = Machine()
    assert run(steps, tables, options, again) == 0 and again.commands == []


def test_other_flags_in_the_same_folder_are_refused(small, capsys):
    tables, options = small
    run(plan(tables, options), tables, options, Machine())
    argv = ["experiments", "--table=6", "--only=3-768-12", f"--output_dir={options.output_dir}", "--", "--seed=3"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --output_dir=") and "--seed=3" in said


def test_a_failed_fine_tuning_is_left_out(small, capsys):
    tables, options = small
    steps, machine = plan(tables, options), Machine({"3-768-12/mrpc": 1})
    assert run(steps, tables, options, machine) == 1
    assert len(machine.commands) == len(steps)
    assert "| - | 79.8 | 6.0 | 88.4 |" in Path(options.output_dir, "table6.md").read_text()
    assert capsys.readouterr().err == "failed: finetune/3-768-12/mrpc\n"
    again = Machine()
    assert run(steps, tables, options, again) == 0 and again.commands == ["3-768-12/mrpc"]


@pytest.mark.parametrize(("name", "code"), [("3-768-12/phase1", 1), ("3-768-12/mrpc", 75), ("3-768-12/mrpc", 2)])
def test_anything_else_ends_the_whole(small, capsys, name, code):
    tables, options = small
    machine = Machine({name: code})
    assert run(plan(tables, options), tables, options, machine) == code
    assert machine.commands[-1] == name and f"exit code {code}" in capsys.readouterr().err


def test_several_runs_are_told_by_their_mean(tmp_path):
    runs = [{"metrics": {"accuracy": value}} for value in (0.8, 0.9)] + [{"metrics": {}}]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    mean, deviation, count = read_result(tmp_path, Cell("bert", "mnli", 84.4))
    assert mean == pytest.approx(85) and deviation == pytest.approx(7.0710678) and count == 2


def test_a_command_that_runs():
    assert execute([sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_a_signal_stops_the_command_first(tmp_path):
    script = (
        "import signal, sys, time, pathlib\n"
        "def stop(*_): pathlib.Path(sys.argv[1], 'saved').touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "pathlib.Path(sys.argv[1], 'ready').touch()\n"
        "time.sleep(60)\n"
    )

    def send():
        while not (tmp_path / "ready").exists():
            pause.wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    pause, before = threading.Event(), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=send)
    thread.start()
    assert execute([sys.executable, "-c", script, str(tmp_path)]) == 75
    thread.join()
    assert (tmp_path / "saved").exists() and signal.getsignal(signal.SIGTERM) is before


def test_one_experiment_for_real(tmp_path, monkeypatch, capsys):
    """Everything but the processes: from made-up data and weights to a cell of the table."""
    small_data = list(made_up_tasks.make((24, 8)))
    monkeypatch.setattr(made_up_tasks, "make", lambda: small_data)
    weights = write_run(tmp_path / "bert", small_bert())

    def in_process(command):
        return made_up_tasks.main(command[2:]) if command[2] != MAIN else bert_jax_main(command[2:])

    extra = ["--num_train_steps=2", "--train_batch_size=4", "--max_seq_length=16", "--num_workers=1"]
    argv = ["experiments", "--table=7", "--only=weighted_all", f"--init_checkpoint={weights}"]
    _, tables, options = read_command_line([*argv, f"--output_dir={tmp_path}/out", "--", *extra])
    options = options._replace(scale=options.scale._replace(hidden=8))
    assert run(plan(tables, options), tables, options, in_process) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\| features: weighted sum of all layers \| \d+\.\d \| 95\.5 \|", shown)
    results = json.loads(
        Path(options.output_dir, "finetune/bert_weighted_all/ner_features/eval_results.json").read_text()
    )
    assert f"{100 * results['f1']:.1f} | 95.5" in shown
