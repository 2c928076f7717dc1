"""What each choice of the train step is worth on a TPU, by plans of a BERT of few layers; needs no TPU.

    pip install -e '.[plan]'
    python benchmarks/fast_paths.py [--model=base --layers=2 --topology=v5e:4x4] [--output_dir=runs/fast_paths]

Each row is the plan of the same run with one flag changed, as a ratio to the defaults: bf16, unrolled layers, state cut
over the data axis. With few layers the embeddings and the masked-LM head weigh more than in the whole model.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import plans
from absl import app, flags

from bert_jax.config import BertConfig

_MODEL = flags.DEFINE_string("model", "base", "Name of a size.")
_LAYERS = flags.DEFINE_integer("layers", 2, "Layers of it.", lower_bound=1)
_TOPOLOGY = flags.DEFINE_string("topology", "v5e:4x4", "See --mode=plan.")

# (length, sequences of a device) -> what is changed.
VARIANTS = {
    ("128", "64"): [
        "",
        "--hidden_act=gelu_tanh",
        "--attention_kernel=pallas",
        "--shard_optimizer=false",
        "--gradient_reduction=bf16",
        "--scan_layers",
        "--remat=dots",
        "--remat=full",
        "--mesh=fsdp=-1",
    ],
    ("512", "16"): ["", "--attention_kernel=xla", "--scan_layers", "--mesh=data=-1,sequence=4"],
}

COLUMNS = "length | change | ms | ratio | M cycles | without an estimate, ms | waiting for transfers, ms | GiB"


def cells(plan: dict[str, Any], first_seconds: float | None) -> list[str]:
    """What a line of the table says of a plan, beside the time of the first one."""
    seconds = plan.get("estimated_step_seconds")
    if seconds is None:
        return [plan.get("error", "does not fit")]
    alone = sum(row["seconds"] for row in plan["unaccounted"] if not row["overlapped"])
    return [
        f"{1e3 * seconds:.2f}",
        f"{seconds / first_seconds:.2f}" if first_seconds else "",
        f"{sum(plan['cycles'].values()) / 1e6:.2f}",
        f"{1e3 * alone:.2f}",
        f"{1e3 * plan['exposed_collective_seconds']:.2f}",
        f"{plan['memory']['peak'] / 2**30:.2f}",
    ]


def main(_):
    folder = Path(plans._OUTPUT_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    config = dataclasses.replace(BertConfig.named(_MODEL.value), num_hidden_layers=_LAYERS.value)
    lines, found, failed = [COLUMNS, plans.rule(COLUMNS)], [], False
    for (length, device_batch), changes in VARIANTS.items():
        first = None
        for change in changes:
            # A folder for each, named by its configuration.
            name = re.sub(r"\W+", "_", change.strip("-") or "defaults")
            file = folder / f"{_MODEL.value}_{_LAYERS.value}_{name}.json"
            file.write_text(config.to_json())
            plan = plans.plan(str(file), length, device_batch, _TOPOLOGY.value, [change] if change else [])
            found.append(plan | {"change": change})
            seconds = plan.get("estimated_step_seconds")
            first, failed = first or seconds, failed or seconds is None
            lines.append(" | ".join([length, change, *cells(plan, first)]))
            (folder / "fast_paths.json").write_text(json.dumps(found, indent=1) + "\n")
            (folder / "fast_paths.md").write_text("".join(f"| {line} |\n" for line in lines))
    print("".join(f"| {line} |\n" for line in lines), end="")
    return int(failed)


if __name__ == "__main__":
    flags.set_default(plans._OUTPUT_DIR, "runs/fast_paths")
    app.run(main)
