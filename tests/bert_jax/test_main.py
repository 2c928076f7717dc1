"""The command line itself: help, exit codes, and what importing costs."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.flags import MODES
from bert_jax.main import main
from bert_jax.modes import predict

ROOT = Path(__file__).resolve().parents[2]


def test_help_is_quick_and_names_modes_and_flags():
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "bert_jax.main", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert time.monotonic() - started < 5
    assert done.returncode == 0
    for words in (*MODES, "--max_seq_length", "--[no]whole_word_masking", "75"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--mode is missing"),
        (["--mode=trian"], "--mode=trian"),
        (["--mode=pretrain", "--max_seq_lenght=3"], "Did you mean: max_seq_length"),
        (["--mode=pretrain", "--seed=x"], "--seed=x"),
        (["--mode=pretrain", "--masked_lm_prob=1.5"], "--masked_lm_prob=1.5"),
        (["--mode=pretrain", "--optimizer=adam"], "--optimizer=adam"),
        (["--mode=pretrain", "--shuffle=maybe"], "error: --shuffle=maybe: Non-boolean argument to boolean flag\n"),
        (["--mode=pretrain", "shuffle"], "unexpected 'shuffle'"),
        (["--mode=pretrain", "--init_checkpoint="], "--init_checkpoint is empty"),
        (["--mode=pretrain", "--input_file="], "--input_file is empty"),
        (["--mode=pretrain", "--learning_rate=nan"], "--learning_rate=nan"),
        (["--mode=pretrain", "--masked_lm_prob=nan"], "--masked_lm_prob=nan"),
        (["--mode=pretrain", "--num_train_steps=3000000000"], "--num_train_steps=3000000000"),
        (["--flagfile=/nowhere/x.flags"], "/nowhere/x.flags"),
        (["--flagfile="], "--flagfile is empty"),
        (["--mode=pretrain", "--needs=restore_from"], "--restore_from is missing, which the other flags need"),
        (["--mode=pretrain", "--needs=restore"], "--needs=restore: there is no flag restore"),
    ],
)
def test_mistakes_exit_with_two_and_one_line(arguments, words, capsys):
    assert main(["bert_jax", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error


def test_a_file_of_flags_that_is_no_text(tmp_path, capsys):
    (tmp_path / "x.flags").write_bytes(b"--mode=pretrain\n\x9d\n")
    assert main(["bert_jax", f"--flagfile={tmp_path}/x.flags"]) == 2
    assert capsys.readouterr().err == f"error: --flagfile={tmp_path}/x.flags: a file of flags must be text in UTF-8\n"


def test_what_a_file_of_flags_needs(tmp_path, capsys):
    file = tmp_path / "x.flags"
    file.write_text("--needs=input_file,init_checkpoint\n")
    assert main(["bert_jax", "--mode=pretrain", "--input_file=text", f"--flagfile={file}"]) == 2
    words = "--init_checkpoint is missing, which the other flags need (--needs=input_file,init_checkpoint)"
    assert capsys.readouterr().err == f"error: {words}\n"


def shell(words, **environment):
    script = f"exec {sys.executable} -m bert_jax.main {words}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | environment
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("words", ["--version", "--mode=describe --model=tiny", "--mode=tokenize"])
def test_a_standard_output_that_takes_nothing(words, environment, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    if words == "--mode=tokenize":
        words += f" --vocab_file={tmp_path}/vocab.txt --input_file={tmp_path}/vocab.txt"
    for output, reason in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        done = shell(f"{words} {output}", **environment)
        assert (done.returncode, done.stderr) == (2, f"error: standard output: {reason}\n")


def test_closed_input_and_errors_that_nobody_can_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    done = shell(f"--mode=tokenize --vocab_file={tmp_path}/vocab.txt <&-")
    assert done.returncode == 2
    assert done.stderr == "error: standard input cannot be read (Bad file descriptor): give --input_file\n"
    for errors in ("2>&-", "2>/dev/full"):
        done = shell(f"--mode=describe --model=tiny {errors}")
        assert done.returncode == 0 and "parameters" in done.stdout
        done = shell(f"--mode=tokenize {errors}")
        assert (done.returncode, done.stdout) == (2, "")


def test_flagfile(tmp_path, capsys):
    (tmp_path / "x.flags").write_text("# a comment\n--mode=describe\n--model=tiny\n")
    assert main(["bert_jax", f"--flagfile={tmp_path}/x.flags", "--model=mini"]) == 0
    assert "256" in capsys.readouterr().out


def test_the_command_line_counts_more_than_a_file_of_flags(tmp_path, capsys):
    (tmp_path / "x.flags").write_text("--mode=describe\n--model=tiny\n--bert_config_file=nowhere\n")
    config = {"vocab_size": 300, "hidden_size": 52, "num_hidden_layers": 1, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    file = f"--flagfile={tmp_path}/x.flags"
    assert main(["bert_jax", file, "--model=mini"]) == 0
    assert "H 256" in capsys.readouterr().out
    assert main(["bert_jax", file, f"--bert_config_file={tmp_path}/config.json"]) == 0
    assert "H 52" in capsys.readouterr().out
    assert main(["bert_jax", file]) == 2
    assert main(["bert_jax", file, "--model=mini", f"--bert_config_file={tmp_path}/config.json"]) == 2
    assert capsys.readouterr().err.count("exclude each other") == 2


def raise_in_a_callback():
    class Lost:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    Lost()
    time.sleep(20)


def raise_in_an_import():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("the extension could not be initialised") from None


@pytest.fixture
def heeds_ctrl_c():
    """Where the tests run in the background, the shell has told them to ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("work", [raise_in_a_callback, raise_in_an_import])
def test_a_signal_is_not_lost_where_a_library_swallows_what_it_raises(work, monkeypatch, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    monkeypatch.setattr(predict, "run", lambda flags: work())
    started = time.monotonic()
    assert main(["bert_jax", "--mode=predict"]) == 75
    assert time.monotonic() - started < 10
    assert capsys.readouterr().err.startswith("stopped; ")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)] == before


def test_a_stop_within_exec_keeps_its_exit_code():
    """For which Python would end by SIGINT."""
    code = "from bert_jax.main import _end\ntry: exec('raise KeyboardInterrupt')\nexcept KeyboardInterrupt: _end(75)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 75


def test_importing_the_package_touches_no_device_and_no_tensorflow():
    script = (
        "import sys, bert_jax, bert_jax.main, bert_jax.flags, input_pipeline\n"
        "assert not {'jax', 'tensorflow', 'flax', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
        "import bert_jax.training, bert_jax.pretraining, bert_jax.modeling\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_input_pipeline_does_not_know_the_model():
    for path in (ROOT / "input_pipeline").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in modules if name.split(".")[0] == "bert_jax"], path
