"""Runs of --mode=pretrain on a made-up text, in this process or in others."""

import functools
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import small_tasks

RECORDED_RUN = Path(__file__).with_name("recorded_run.py")
WORDS = "the a cat dog sat ran on under mat tree big small and then it was red blue here there".split()
CONFIG = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 1024,  # a table that is large enough to be cut over the data axis
    "type_vocab_size": 2,
}

# A loaded machine may be this slow to start a few processes; no test waits that long on another one.
TIMEOUT_SECONDS = 280


class PretrainingRun:
    """One run of 150 steps in `folder`/out, which several calls may begin and continue.

    What takes long is to compile, so all runs share what was compiled for one of them.

    Args:
        corpus: folder of the text, the vocabulary and the model.
        folder: a folder for this run alone.
        flags: other flags than usual.

    Attributes:
        folder: the output folder.
        batches: for each process of the last call that ended by itself, its batches: row number -> digest.
        errors: for each process of the last call of `elsewhere`, what it wrote to stderr.
        seconds_after_signal: how long the last call of `elsewhere` took from the signal it sent until all had ended.
    """

    def __init__(self, corpus: Path, folder: Path, **flags):
        self.folder, self.batches, self.errors = folder / "out", [], []
        self.seconds_after_signal: float | None = None
        self._compiled = corpus / "compiled"
        self._records = folder
        self._flags = {
            "mode": "pretrain",
            "input_file": corpus / "text.txt",
            "vocab_file": corpus / "vocab.txt",
            "bert_config_file": corpus / "bert_config.json",
            "max_seq_length": 32,
            "train_batch_size": 8,
            "num_train_steps": 150,
            "save_checkpoints_steps": 140,
            "learning_rate": 1e-3,
            "log_every_steps": 1,
            "eval_fraction": 0.1,
            "output_dir": self.folder,
            **flags,
        }

    def here(self, **flags) -> int:
        """Runs in this process and returns the exit code."""
        script = runpy.run_path(os.fspath(RECORDED_RUN))
        before = jax.config.jax_compilation_cache_dir
        jax.config.update("jax_compilation_cache_dir", os.fspath(self._compiled))
        try:
            with script["recorded"]() as batches:
                code = script["main"](["bert_jax", *self._words(flags)])
        finally:
            jax.config.update("jax_compilation_cache_dir", before)
        self.batches = [batches]
        return code

    def elsewhere(self, num_processes=1, *, devices=1, send=None, own=None, **flags) -> list[int]:
        """Runs in other processes and returns the exit code of each.

        Args:
            devices: of each process.
            send: (signal, process, batch) for a signal that a process gets before a batch.
            own: for each process, flags that it alone is given.
        """
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            # Without optimization compiling takes half the time, and it takes longer than the run.
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
            "JAX_COMPILATION_CACHE_DIR": os.fspath(self._compiled),
        }
        if num_processes > 1:
            with socket.socket() as probe:
                probe.bind(("localhost", 0))
                address = f"localhost:{probe.getsockname()[1]}"
            flags = {**flags, "coordinator_address": address, "num_processes": num_processes}
        records = [self._records / f"batches-{index}.json" for index in range(num_processes)]
        running = []
        for index, record in enumerate(records):
            record.unlink(missing_ok=True)
            number, batch = (send[0].name, send[2]) if send and send[1] == index else ("SIGTERM", -1)
            words = [sys.executable, RECORDED_RUN, record, number, str(batch), *self._words(flags)]
            if num_processes > 1:
                words.append(f"--process_id={index}")
            if own:
                words += [f"--{name}={value}" for name, value in own[index].items()]
            running.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
        try:
            self.errors = [process.communicate(timeout=TIMEOUT_SECONDS)[1] for process in running]
        finally:
            for process in running:
                process.kill()
        if send:
            self.seconds_after_signal = time.time() - os.stat(f"{records[send[1]]}.signal").st_mtime
        self.batches = [json.loads(record.read_text()) for record in records if record.exists()]
        print("\n".join(self.errors), file=sys.stderr)
        return [process.returncode for process in running]

    def metrics(self, name="metrics.jsonl") -> list[dict]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def losses(self) -> list[float]:
        return [line["loss"] for line in self.metrics()]

    def results(self) -> dict:
        return json.loads((self.folder / "eval_results.json").read_text())

    def steps_saved(self) -> list[int]:
        names = (path.name for path in (self.folder / "checkpoints").iterdir())
        return sorted(int(name) for name in names if name.isdigit())

    def copy_without_last_checkpoint(self, other: "PretrainingRun") -> None:
        """Becomes a copy of `other`, which is finished, as if it had ended between its last two checkpoints."""
        shutil.copytree(other.folder, self.folder)
        shutil.rmtree(self.folder / "checkpoints" / str(self.steps_saved()[-1]))

    def state(self, step: int) -> dict[str, np.ndarray]:
        """All arrays of a checkpoint by their names, whatever devices it was saved from."""
        path = self.folder / "checkpoints" / str(step) / "state"
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            tree = reader.metadata(path).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            tree = reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
        return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}

    def _words(self, flags) -> list[str]:
        return [f"--{name}={value}" for name, value in {**self._flags, **flags}.items()]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Made-up text, its vocabulary and a model: 40 documents of 12 sentences."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    documents = [
        "\n".join(" ".join(rng.choice(WORDS, rng.integers(4, 12))) + " ." for _ in range(12)) for _ in range(40)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]) + "\n")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "three_layers.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    return folder


@pytest.fixture(scope="session")
def pretraining(corpus):
    """PretrainingRun on the made-up text."""
    return functools.partial(PretrainingRun, corpus)


@pytest.fixture(scope="session")
def alone(pretraining, tmp_path_factory):
    """The run of one process with one device that others are compared with."""
    run = pretraining(tmp_path_factory.mktemp("alone"))
    assert run.here() == 0
    assert run.steps_saved() == [140, 150]
    return run


@pytest.fixture(scope="session")
def tiny_bert_folder(data, tmp_path_factory):
    """A Hugging Face folder with the random weights of data/ and a vocabulary of WORDS; 20 positions, width 24."""
    folder = tmp_path_factory.mktemp("tiny_bert")
    shutil.copy(data / "random_tiny.safetensors", folder / "model.safetensors")
    shutil.copy(data / "random_tiny_config.json", folder / "config.json")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "##s", *WORDS]
    pieces += [f"[unused{number}]" for number in range(97 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    """small_tasks.Tasks."""
    return small_tasks.Tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
