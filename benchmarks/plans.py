"""Plans of pretraining for sizes, lengths and TPU topologies, as a table and as JSON; needs no TPU.

    pip install -e '.[plan]'
    python benchmarks/plans.py [--models=base,large --lengths=128,512 --topologies=v5e:4x4] [-- FLAGS OF THE RUN]

Each plan is a process of its own, `python -m bert_jax.main --mode=plan`, with bf16 and --device_batches on each device,
and its folder stays in --output_dir: what is there already, by the same command and code, is not made again. A plan of
BERT-base takes minutes on two cores. The times are estimates of the compiler, with bounds for what it leaves out.
"""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import results
from absl import app, flags

import bert_jax
from bert_jax import chips
from input_pipeline.errors import UserError

_MODELS = flags.DEFINE_list("models", ["base", "large"], "Names of sizes, or files of configurations.")
_LENGTHS = flags.DEFINE_list("lengths", ["128", "512"], "Tokens of a sequence.")
_DEVICE_BATCHES = flags.DEFINE_list("device_batches", ["64", "16"], "Sequences of a device, for each of --lengths.")
_TOPOLOGIES = flags.DEFINE_list("topologies", ["v5e:4x4", "v5e:16x16", "v4:4x4x4", "v5p:4x4x4"], "See --mode=plan.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "runs/plans", "Folder for plans.md, plans.json and the plans.")

COLUMNS = "topology | model | length | batch | GiB | fits | GFLOP | waste | transfers MB | ms | MFU | sequences/s"


def plan(model: str, length: str, device_batch: str, topology: str, extra: list[str]) -> dict[str, Any]:
    """What plan.json holds, with the name of the model; of a failure the last line of the error."""
    size = Path(model).stem
    name = f"{size}_{length}_{topology}".replace(":", "_")
    folder = Path(_OUTPUT_DIR.value) / name
    devices = devices_of(topology)
    command = [
        *("--mode=plan", f"--topology={topology}", "--precision=bf16", f"--max_seq_length={length}"),
        f"--{'bert_config_file' if model.endswith('.json') else 'model'}={model}",
        *(f"--train_batch_size={devices * int(device_batch)}", f"--output_dir={folder}", *extra),
    ]
    made, recorded = folder / "plan.json", folder / "command.json"
    made_by = {"command": command, "program": program_hash(model), "versions": results.versions()}
    if not (made.exists() and recorded.exists() and json.loads(recorded.read_text()) == made_by):
        recorded.unlink(missing_ok=True)
        print(f"{name} ...", flush=True)
        done = subprocess.run([sys.executable, "-m", "bert_jax.main", *command], capture_output=True, text=True)
        if done.returncode:
            return {"size": size, "length": length, "topology": topology, "error": done.stderr.splitlines()[-1]}
        recorded.write_text(json.dumps(made_by))
    return {"size": size, **json.loads(made.read_text())}


def devices_of(topology: str) -> int:
    """How many chips a topology has."""
    parsed = chips.parse_topology(topology)
    return parsed.num_slices * math.prod(map(int, parsed.slice.partition(":")[2].split("x")))


def program_hash(model: str) -> str:
    """Of all code of bert_jax, and of the configuration where `model` is a file."""
    digest = hashlib.sha256()
    for file in [*sorted(Path(bert_jax.__file__).parent.rglob("*.py")), Path(model)]:
        if file.suffix:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in found:
        cells = [found["topology"], found["size"], found["length"], found["error"].replace("|", "/")]
        return " | ".join(cells)
    memory, flops, seconds = found["memory"], found["flops"], found["estimated_step_seconds"]
    cells = [
        *(found["topology"], found["size"], str(found["max_seq_length"])),
        f"{found['train_batch_size']:,}",
        "" if memory["peak"] is None else f"{memory['peak'] / 2**30:.2f}",
        "yes" if memory["fits"] else "no",
        f"{flops['model'] / 1e9:,.0f}",
    ]
    if seconds is not None:
        moved = sum(transfer["bytes"] for transfer in found["collectives"])
        cells += [f"{flops['waste']:+.1%}", f"{moved / 1e6:,.0f}", f"{1e3 * seconds:,.1f}", f"{found['mfu']:.1%}"]
        cells += [f"{found['sequences_per_second']:,.0f}"]
    return " | ".join(cells)


def main(arguments):
    if len(_LENGTHS.value) != len(_DEVICE_BATCHES.value):
        raise app.UsageError("--device_batches needs a number for each of --lengths")
    try:
        list(map(devices_of, _TOPOLOGIES.value))
    except UserError as error:
        raise app.UsageError(str(error)) from None
    folder = Path(_OUTPUT_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for topology in _TOPOLOGIES.value:
        for model in _MODELS.value:
            for length, device_batch in zip(_LENGTHS.value, _DEVICE_BATCHES.value, strict=True):
                found.append(plan(model, length, device_batch, topology, arguments[1:]))
                # Written each time, since all of them take hours.
                (folder / "plans.json").write_text(json.dumps(found, indent=1) + "\n")
                lines = [COLUMNS, rule(COLUMNS), *map(row, found)]
                (folder / "plans.md").write_text("".join(f"| {line} |\n" for line in lines))
    print((folder / "plans.md").read_text(), end="")
    return 1 if any("error" in one for one in found) else 0


def rule(columns: str) -> str:
    """The line under the head of a table."""
    return " | ".join("---" for _ in columns.split("|"))


if __name__ == "__main__":
    app.run(main)
