"""Made-up files of every kind of task, so small that training on them takes seconds, and the command line for them."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import small_bert
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import checkpointing
from bert_jax.main import main
from bert_jax.run_folder import find_checkpoint

WORDS = "the a sat ran on under mat tree big small and then it was here there".split()
ANIMALS = ("cat", "dog", "red", "blue")  # what a label depends on
CONFIG = dataclasses.replace(
    small_bert.CONFIG, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
NAMES = ("zebra", "apple")  # labels that are not in order of their names in the head, and mean cat and dog

# What a run of each kind is given; "span" is of SQuAD 1.1.
TASKS = {
    "classification": {"task_name": "classification", "id_field": "key"},
    "multi_label": {"task_name": "multi_label", "num_train_epochs": 20, "learning_rate": 0.005},
    "regression": {
        "task_name": "regression",
        "text_pair_field": "text2",
        "num_train_epochs": 40,
        "learning_rate": 0.005,
    },
    "multiple_choice": {"task_name": "swag"},
    "span": {"task_name": "squad"},
    "span_2": {"task_name": "squad", "version_2_with_negative": "true"},
    "tagging": {"task_name": "tagging", "document_context": "true"},
}
# From 40 examples a tiny model learns two labels at once by heart.
_MORE = {"multi_label": 5}
_ENDINGS = {
    "classification": "tsv",
    "multi_label": "jsonl",
    "regression": "csv",
    "multiple_choice": "csv",
    "span": "json",
    "span_2": "json",
    "tagging": "conll",
}


def words(flags: dict) -> list[str]:
    """The command line for flags; those that are None are left out."""
    return ["bert_jax", *(f"--{name}={value}" for name, value in flags.items() if value is not None)]


def flags_of(kind: str, folder: Path, **flags) -> dict:
    """The flags of a short run on the files in `folder`, as write_all leaves them."""
    given = {split: folder / f"{kind}_{split}.{_ENDINGS[kind]}" for split in ("train", "dev", "test")}
    return {
        "mode": "finetune",
        "train_file": given["train"],
        "eval_file": given["dev"],
        "predict_file": given["test"],
        "init_checkpoint": folder / "bert",
        "max_seq_length": 24,
        "train_batch_size": 8,
        "num_train_epochs": 15,
        "learning_rate": 0.02,
        "log_every_steps": 1,
        **TASKS[kind],
        **flags,
    }


def write_all(folder: Path) -> None:
    """Writes the files of all kinds, and in bert/ the random weights to begin with."""
    small_bert.write_run(folder / "bert", small_bert.loaded(CONFIG))
    for kind in TASKS:
        for number, (split, count) in enumerate((("train", 40 * _MORE.get(kind, 1)), ("dev", 12), ("test", 5))):
            rng = np.random.default_rng(number)
            text = _WRITERS[kind](rng, count, split != "test")
            (folder / f"{kind}_{split}.{_ENDINGS[kind]}").write_text(text)


def _text(rng, *animals) -> str:
    chosen = [*rng.choice(WORDS, rng.integers(2, 7)), *animals]
    return " ".join(rng.permutation(chosen))


def _table(rows, separator) -> str:
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def classification(rng, count: int, labelled: bool) -> str:
    labels = rng.integers(2, size=count)
    rows = [(f"k{n}", _text(rng, ANIMALS[label]), *[NAMES[label]] * labelled) for n, label in enumerate(labels)]
    return _table([("key", "text", *["label"] * labelled), *rows], "\t")


def multi_label(rng, count: int, labelled: bool) -> str:
    lines = []
    for _ in range(count):
        held = [animal for animal in ANIMALS[:2] if rng.integers(2)]
        lines.append({"text": _text(rng, *held)} | ({"label": held} if labelled else {}))
    return "".join(json.dumps(line) + "\n" for line in lines)


def regression(rng, count: int, labelled: bool) -> str:
    numbers = rng.integers(4, size=count)
    rows = [(_text(rng, *["cat"] * n), _text(rng), *[n / 2] * labelled) for n in numbers]
    return _table([("text", "text2", *["label"] * labelled), *rows], ",")


def multiple_choice(rng, count: int, labelled: bool) -> str:
    rows = []
    for _ in range(count):
        right = rng.integers(4)
        endings = [f'"{_text(rng)}, {"cat" if n == right else "dog"}"' for n in range(4)]
        rows.append((_text(rng), "it", *endings, *[right] * labelled))
    head = ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3", *["label"] * labelled)
    return _table([head, *rows], ",")


def span(rng, count: int, labelled: bool, impossible: float = 0.0) -> str:
    questions = []
    for number in range(count):
        context, answer = _text(rng, "cat"), "cat"
        fields = {"id": f"q{number}", "question": "it was"}
        if rng.random() < impossible:
            context = context.replace("cat", "dog")
            answers = []
        else:
            answers = [{"text": answer, "answer_start": context.index(answer)}]
        if labelled:
            fields |= {"answers": answers} | ({"is_impossible": not answers} if impossible else {})
        questions.append({"context": context, "qas": [fields]})
    return json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": questions}]})


def span_2(rng, count: int, labelled: bool) -> str:
    return span(rng, count, labelled, 0.4)


def tagging(rng, count: int, labelled: bool) -> str:
    lines = ["-DOCSTART- -X- O" if labelled else "-DOCSTART- -X-", ""]
    for number in range(count):
        for word in _text(rng, *rng.choice(ANIMALS, 2)).split():
            tag = {"cat": "B-PET", "dog": "B-PET", "red": "B-COLOUR"}.get(word, "O")
            lines.append(" ".join([word, "X", *[tag] * labelled]))
        lines.append("")
        if number % 5 == 4:
            lines += [lines[0], ""]
    return "\n".join(lines) + "\n"


_WRITERS = {
    "classification": classification,
    "multi_label": multi_label,
    "regression": regression,
    "multiple_choice": multiple_choice,
    "span": span,
    "span_2": span_2,
    "tagging": tagging,
}


class Tasks:
    """Runs on the made-up files, in this process or in others; what one has compiled serves all.

    Attributes:
        folder: what write_all wrote, and what is compiled.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._compiled = folder / "compiled"
        self._finished: dict[str, Path] = {}
        write_all(folder)

    def flags(self, kind: str, output_dir: Path, **flags) -> dict:
        return flags_of(kind, self.folder, output_dir=output_dir, **flags)

    def run(self, **flags) -> int:
        """Runs in this process and returns the exit code."""
        wanted = {name.lower(): value for name, value in self._settings().items()}
        before = {name: jax.config.values[name] for name in wanted}
        try:
            self._configure(wanted)
            return main(words(flags))
        finally:
            self._configure(before)

    def start(self, *, devices: int = 1, program=("-m", "bert_jax.main"), **flags) -> subprocess.Popen:
        """Begins a run in another process."""
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            **{name: str(value) for name, value in self._settings().items()},
        }
        arguments = [sys.executable, *program, *words(flags)[1:]]
        return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)

    def finished(self, kind: str) -> Path:
        """The folder of a run of a kind that has come to its end; not to be changed."""
        if kind not in self._finished:
            folder = self.folder / "finished" / kind
            assert self.run(**self.flags(kind, folder)) == 0
            self._finished[kind] = folder
        return self._finished[kind]

    def _settings(self) -> dict:
        return {
            # To compile takes longer than all else, and without optimization half the time.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": True,
            "JAX_COMPILATION_CACHE_DIR": str(self._compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.0,
        }

    @staticmethod
    def _configure(values: dict) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # the cache is looked for once only


def read_table(path: Path) -> list[list[str]]:
    """The rows of a file with tabs."""
    return [line.split("\t") for line in path.read_text().splitlines()]


def parameters(folder: Path) -> dict[str, np.ndarray]:
    """The parameters of the newest checkpoint of a run, by name."""
    checkpoints, step = find_checkpoint(folder, "--init_checkpoint")
    tree = checkpointing.read_parameters(checkpoints, step)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def results_of(folder):
    """What eval_results.json of a run says."""
    return json.loads((folder / "eval_results.json").read_text())


def losses(folder: Path) -> list[float]:
    """The training losses of all steps that were logged."""
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
