"""The tables of README's performance part, from the results that the benchmarks left in benchmarks/results/.

    python benchmarks/table.py [--measure=train_step,encoding,quick_start --encoder=FOLDER --text=FILE]
    python benchmarks/table.py --measure=peer_plans

Prints them, and puts them into README.md. --measure runs benchmarks first, each adding a line to its file of results;
what is to be compared with must be installed (torch, transformers, keras-hub; libtpu for peer_plans). Run it while
nothing else runs. The last line of each file counts.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import results
from absl import app, flags

_MEASURE = flags.DEFINE_list("measure", [], "Benchmarks to run first: train_step, encoding, peer_plans, quick_start.")
_ENCODER = flags.DEFINE_string("encoder", None, "For encoding: folder of a BERT of Hugging Face.")
_TEXT = flags.DEFINE_string("text", None, "For encoding: text in UTF-8, a sentence a line.")

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- from benchmarks/results/ by benchmarks/table.py -->\n", "<!-- end -->\n"
PACKAGES = {
    "torch": "PyTorch",
    "transformers": "Transformers",
    "keras-hub": "KerasHub",
    "jax": "JAX",
    "libtpu": "libtpu",
}


def measured_on(result: dict[str, Any], *packages: str) -> str:
    """Machine, versions and day of a result."""
    versions = [f"{PACKAGES[name]} {result['versions'][name]}" for name in packages if name in result["versions"]]
    return f"{result['machine']}, {', '.join(versions)}, {result['date']}"


def table(columns: str, rows: list[list[str]]) -> str:
    """Lines of Markdown."""
    lines = [columns, " | ".join("---" for _ in columns.split("|")), *map(" | ".join, rows)]
    return "".join(f"| {line} |\n" for line in lines)


def in_turns(found: dict[str, dict[str, float]]) -> str:
    """The table of contestants that were timed in turns."""
    rows = [
        [name, f"{one['seconds']:.2f}", f"{one['ratio']:.2f}", f"{one['cpu_ratio']:.2f}"] for name, one in found.items()
    ]
    return table("| seconds | times bert_jax | the same of CPU time", rows)


def train_step(result: dict[str, Any]) -> str:
    where = measured_on(result, "torch", "transformers", "keras-hub", "jax")
    return (
        f"A training step of BERT-{result['model']} on CPU: {result['batch_size']} sequences of "
        f"{result['max_seq_length']} tokens, {result['max_predictions_per_seq']} predictions each, float32, "
        f"{result['threads']} of the cores; medians of {result['steps']} steps, in turns in one "
        f"process (`benchmarks/train_step.py`; {where}). Hugging Face "
        "scores words at all positions, the rows below at the masked ones as bert_jax; KerasHub trains no "
        "next-sentence prediction.\n\n" + in_turns(result["results"])
    )


def encoding(result: dict[str, Any]) -> str:
    found = result["results"]
    agreement = ""
    if "Hugging Face" in found:
        agreement = f" The vectors agree with Hugging Face's to {found['Hugging Face']['difference']:.0e}."
    where = measured_on(result, "torch", "transformers", "keras-hub", "jax")
    return (
        f"Encoding {result['sentences']:,} sentences of up to {result['max_seq_length']} tokens on CPU, float32, "
        f"{result['threads']} of the cores, tokenizing included; medians of {result['rounds']} rounds after a first "
        f"one that compiles (here {found['bert_jax']['first_seconds']:.1f} s), in turns in one process "
        f"(`benchmarks/encoding.py`, {result['model']}; {where}). The others take batches of {result['batch_size']}."
        f"{agreement}\n\n" + in_turns(found)
    )


def peer_plans(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{1e3 * one['seconds']:.1f}",
            f"{one['mfu']:.1%}",
            f"{one['sequences_per_second']:,.0f}",
            f"{one['ratio']:.2f}",
        ]
        for name, one in result["results"].items()
    ]
    given = "".join(f" `{flag}`" for flag in result["flags"])
    return (
        f"A training step of BERT-{result['model']} on TPU {result['topology']}, {result['max_seq_length']} tokens, "
        f"{result['device_batch']} sequences a chip, bf16, dropout 0.1{', with' + given if given else ''}: no "
        "measurement, but the estimates of the compiler with bounds for what it leaves out, of 1 and 3 layers "
        f"extrapolated to all (`benchmarks/peer_plans.py`; {measured_on(result, 'keras-hub', 'jax', 'libtpu')}). "
        "KerasHub trains no next-sentence prediction.\n\n" + table("| ms | MFU | sequences/s | times bert_jax", rows)
    )


def quick_start(result: dict[str, Any]) -> str:
    return (
        f"From the command of the quick start to its first step: {result['seconds']:.1f} s "
        f"(`benchmarks/quick_start.py`; {result['threads']} of the cores of {measured_on(result, 'jax')}).\n"
    )


PARTS = {"train_step": train_step, "encoding": encoding, "peer_plans": peer_plans, "quick_start": quick_start}


def readme_part(text: str) -> re.Match:
    """Where README has the tables."""
    return re.search(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", text, re.DOTALL)


def markdown(folder: Path) -> str:
    """All parts for which there are results."""
    found = {name: results.last(folder / f"{name}.jsonl") for name in PARTS}
    return "\n".join(PARTS[name](result) for name, result in found.items() if result)


def measure(name: str, folder: Path) -> None:
    """Runs a benchmark, which adds its results.

    Raises:
        UsageError: it is unknown, or failed.
    """
    if name not in PARTS:
        raise app.UsageError(f"--measure={name}: must be of {', '.join(PARTS)}")
    command = [sys.executable, str(HERE / f"{name}.py"), f"--output_file={folder / name}.jsonl"]
    if name == "encoding":
        if not (_ENCODER.value and _TEXT.value):
            raise app.UsageError("--measure=encoding needs --encoder and --text")
        command += [f"--model={_ENCODER.value}", f"--input_file={_TEXT.value}"]
    if subprocess.run(command, check=False).returncode:
        raise app.UsageError(f"--measure={name} failed")


def main(_):
    folder, readme = HERE / "results", HERE.parent / "README.md"
    for name in _MEASURE.value:
        measure(name, folder)
    text = markdown(folder)
    print(text, end="")
    old = readme.read_text(encoding="utf-8")
    part = readme_part(old)
    readme.write_text(old[: part.start()] + text + old[part.end() :], encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
