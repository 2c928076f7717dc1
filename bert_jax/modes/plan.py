"""--mode=plan: compiles the train step of the flags for devices that need not be there, and says what it costs."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.modes.describe import Table, show
from bert_jax.modes.pretrain_options import apply_plan_defaults
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer

TICK_SECONDS = 15


def run(flags: Any) -> int:
    """Writes plan.json and compiled.hlo.txt.gz to --output_dir and prints the tables.

    Raises:
        UserError: a bad flag, or no compiler for the topology.
    """
    from bert_jax import planning

    if flags.topology is None:
        raise UserError("--topology is missing: such as v5e:4x4, v4:4x4x4, or cpu or gpu for this machine")
    planning.check(flags.topology)
    apply_plan_defaults(flags, say)
    folder = files.as_path(flags.output_dir, "--output_dir")
    target = planning.open_target(flags.topology)
    step, schedule = _step(flags, target)
    with files.user_errors(folder, "--output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
    with _ticking(f"compiling for {len(target.devices)} devices of {target.name}"):
        plan, text = planning.compile_plan(step, target, schedule.num_train_steps)
    _write(folder, plan, text)
    show(tables(plan))
    return 0


def _write(folder: Any, plan: dict[str, Any], text: str) -> None:
    from bert_jax import planning

    files.write_bytes_atomic(folder / "plan.json", (json.dumps(plan, indent=1) + "\n").encode())
    program = folder / "compiled.hlo.txt.gz"
    if text:
        files.write_bytes_atomic(program, planning.compressed(text))
        say(f"{folder}/plan.json holds the figures, compiled.hlo.txt.gz the compiled program")
    else:
        program.unlink(missing_ok=True)
        say(f"{folder}/plan.json holds the figures; the compiler gives up on a step that does not fit into memory")


def _step(flags: Any, target: Any) -> tuple[Any, Any]:
    import jax

    from bert_jax import partitioning, pretraining_step
    from bert_jax.modes.pretrain import model_config
    from bert_jax.schedule import schedule_from

    precision = flags.matmul_precision or ("highest" if flags.precision == "f32" else "default")
    jax.config.update("jax_default_matmul_precision", precision)
    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case) if flags.vocab_file else None
    config = model_config(flags, tokenizer, f"--vocab_file={flags.vocab_file}", say)
    mesh = partitioning.make_mesh(flags.mesh, list(target.devices))
    partitioning.check_batch_size(mesh, "--train_batch_size", flags.train_batch_size, flags.gradient_accumulation_steps)
    schedule = schedule_from(flags, 0)
    return pretraining_step.make(flags, config, mesh, schedule), schedule


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _ticking(what: str) -> Iterator[None]:
    """Tells from time to time that something long goes on."""
    done, started = threading.Event(), time.monotonic()

    def tick():
        while not done.wait(TICK_SECONDS):
            say(f"{what}: {time.monotonic() - started:.0f} s (a large model takes some minutes)")

    say(what)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def tables(plan: dict[str, Any]) -> list[Table]:
    """The plan for people."""
    return [
        table
        for table in (_summary(plan), _memory(plan), _time(plan), _unaccounted(plan), _collectives(plan))
        if table.rows
    ]


def _summary(plan: dict[str, Any]) -> Table:
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1) or "one device"
    rows = [
        ("devices", f"{plan['devices']} on {plan['chips']} chips, {plan['hosts']} hosts"),
        ("mesh", mesh),
        ("batch", f"{plan['train_batch_size']:,} ({plan['per_device_batch']:g} a device at a time)"),
        ("length", f"{plan['max_seq_length']} tokens, {plan['max_predictions_per_seq']} predictions"),
        ("model FLOPs", f"{plan['flops']['model'] / 1e9:,.1f} GFLOP a device and step"),
    ]
    if (seconds := plan["estimated_step_seconds"]) is not None:
        days, steps = plan["days"], plan["num_train_steps"]
        rows += [
            ("compiled FLOPs", f"{plan['flops']['matmul'] / 1e9:,.1f} GFLOP ({plan['flops']['waste']:+.1%})"),
            ("step", f"{1e3 * seconds:,.2f} ms (estimated)"),
            ("MFU", f"{plan['mfu']:.1%}"),
            ("sequences/s", f"{plan['sequences_per_second']:,.0f}"),
            (
                "time",
                f"{days:,.1f} days for {steps:,} steps" if days >= 1 else f"{24 * days:,.1f} hours for {steps:,} steps",
            ),
        ]
    return Table(f"{plan['topology']} ({plan['chip']}), {plan['precision']}", ("", ""), 2, rows)


def _memory(plan: dict[str, Any]) -> Table:
    memory = plan["memory"]
    names = ("arguments", "results", "temporaries", "code", "peak")
    rows = [(name, f"{memory[name] / 2**30:,.2f}") for name in names if name in memory]
    title = "Memory of a device, GiB"
    if memory["capacity"]:
        fits = "fits" if memory["fits"] else "DOES NOT FIT"
        title += f": {fits} in {memory['capacity'] / 2**30:,.1f}"
    return Table(title, ("", "GiB"), 1, rows)


def _time(plan: dict[str, Any]) -> Table:
    cycles = plan.get("cycles", {})
    total = sum(cycles.values()) or 1
    rows = [
        (kind, f"{count / 1e6:,.2f}", f"{1e3 * count / plan['clock']:,.2f}", f"{count / total:.1%}")
        for kind, count in sorted(cycles.items(), key=lambda item: -item[1])
    ]
    return Table("The compiler's estimate by kind of work", ("", "M cycles", "ms", "share"), 1, rows)


def _unaccounted(plan: dict[str, Any]) -> Table:
    rows = [
        (
            row["what"],
            f"{row['count']:,}",
            f"{row['bytes'] / 1e6:,.1f}",
            f"{1e3 * row['seconds']:,.3f}",
            "beside other work" if row["overlapped"] else "alone",
        )
        for row in plan.get("unaccounted", [])
        if row["seconds"] > 0
    ]
    if plan.get("loops_counted_once"):
        rows.append(("loops of unknown length, counted once", str(plan["loops_counted_once"]), "", "", ""))
    return Table("Without an estimate of the compiler: bounds", ("", "count", "MB", "ms", "runs"), 1, rows)


def _collectives(plan: dict[str, Any]) -> Table:
    rows = [
        (
            row["opcode"],
            row["axes"],
            row["dtype"],
            str(row["count"]),
            f"{row['bytes'] / 1e6:,.1f}",
            f"{1e3 * row['seconds']:,.2f}",
        )
        for row in plan.get("collectives", [])
    ]
    return Table("Transfers between devices: bounds by the links", ("", "over", "dtype", "count", "MB", "ms"), 3, rows)
