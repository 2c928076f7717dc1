"""--mode=plan: compiles the train step of the flags for devices that need not be there, and says what it costs."""

import dataclasses
import json
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from bert_jax import background
from bert_jax.modes.describe import Table, show
from bert_jax.modes.pretrain_options import apply_plan_defaults, data_config
from bert_jax.run_folder import RUN_FILE
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer

TICK_SECONDS = 15


def run(flags: Any) -> int:
    """Writes plan.json and compiled.hlo.txt.gz to --output_dir and prints the tables.

    Raises:
        UserError: what pretrain would refuse too, no compiler for the topology, or a search in which nothing fits.
    """
    from bert_jax import planning, pretraining_step
    from bert_jax.modes.pretrain import check_early, check_weights

    if flags.topology is None:
        raise UserError("--topology is missing: such as v5e:4x4, v4:4x4x4, or cpu or gpu for this machine")
    planning.check(flags.topology)
    given = {name for name in ("mesh", "remat", "train_batch_size", "eval_batch_size") if flags[name].present}
    if flags.plan_search:
        _check_search(flags)
    apply_plan_defaults(flags, say)
    data_config(flags)
    check_early(flags)
    folder = files.as_path(flags.output_dir, "--output_dir")
    with files.user_errors(folder, "--output_dir"):
        if (folder / RUN_FILE).exists():
            raise UserError(f"--output_dir={flags.output_dir} is the folder of a run: give the plan another one")
    target = planning.open_target(flags.topology)
    check_weights(flags)
    config = _config(flags)
    if flags.plan_search:
        plan, text = _search(flags, given, config, target, folder)
    else:
        step, num_train_steps = _step(flags, config, target)
        if warning := pretraining_step.unused_reduction(flags, step.mesh):
            say(f"warning: {warning}")
        _make(folder)
        plan, text = _waiting(
            f"compiling for {len(target.devices)} devices of {target.name}",
            lambda: planning.compile_plan(step, target, num_train_steps),
        )
    _write(folder, plan, text)
    show(tables(plan))
    return 0


def _check_search(flags: Any) -> None:
    from bert_jax import planning

    if flags.topology in planning.PRESENT:
        raise UserError(f"--plan_search needs a topology of TPUs: no times are estimated for {flags.topology}")
    if flags.scan_layers:
        raise UserError("--plan_search and --scan_layers exclude each other: it compares layers that are not scanned")
    if flags.gradient_accumulation_steps > 1:
        raise UserError(
            "--plan_search finds --gradient_accumulation_steps itself: give --train_batch_size, which it keeps to"
        )


def _search(flags: Any, given: set[str], config: Any, target: Any, folder: Any) -> tuple[dict[str, Any], str]:
    """Plans the best candidate; the plan has all of them as "search"."""
    from bert_jax import partitioning, plan_search, planning

    devices = len(target.devices)
    slices = target.num_slices
    meshes = plan_search.meshes(devices, config, slices)
    if flags.attention_kernel == "pallas":
        del meshes[1:]  # it is for meshes of data only, of which the first is one
    if "mesh" in given:
        sizes = partitioning.parse_mesh(flags.mesh, devices)
        meshes = [(flags.mesh, sizes["data"] * sizes["fsdp"])]
    elif flags.dcn_mesh:
        meshes = [row for row in meshes if _takes_slices(row[0], devices, flags.dcn_mesh, slices)]
        if not meshes:
            raise UserError(f"--dcn_mesh={flags.dcn_mesh} fits none of the meshes to try: give a --mesh too")
    batch = flags.train_batch_size if "train_batch_size" in given else None
    if not any(plan_search.batches(parts, flags.max_seq_length, batch) for _, parts in meshes):
        parts = " or ".join(sorted({str(parts) for _, parts in meshes}))
        raise UserError(f"--train_batch_size={batch} must be a multiple of {parts}, into which the mesh cuts it")
    _make(folder)

    def compile(candidate, layers=config.num_hidden_layers):
        # What a step is made of are the flags, and those of the candidate in their place.
        changed = types.SimpleNamespace(**{**flags.flag_values_dict(), **candidate._asdict()})
        if "eval_batch_size" not in given:
            changed.eval_batch_size = changed.train_batch_size
        step, num_train_steps = _step(changed, dataclasses.replace(config, num_hidden_layers=layers), target)
        return _waiting(
            f"compiling {layers} layer{'s' * (layers > 1)}: {candidate.flags()}",
            lambda: planning.compile_plan(step, target, num_train_steps),
        )

    results = list(
        plan_search.search(
            meshes,
            flags.max_seq_length,
            batch,
            [flags.remat] if "remat" in given else plan_search.REMATS,
            config.num_hidden_layers,
            lambda candidate, layers: compile(candidate, layers)[0],
        )
    )
    show([_candidates(results, config.num_hidden_layers, target)])
    say("not tried: more remat where less fits, and larger batches where none fits; the best is now compiled in full")
    best = plan_search.compile_best(results, compile)
    if best is None:
        raise UserError(f"--topology={flags.topology}: no candidate fits into memory; take a larger one")
    result, plan, text = best
    say(f"best: {result.candidate.flags()}")
    rows = [
        {**row.candidate._asdict(), **row._asdict(), "sequences_per_second": row.sequences_per_second}
        for row in plan_search.ranked(results)
    ]
    return plan | {"search": [{k: v for k, v in row.items() if k != "candidate"} for row in rows]}, text


def _takes_slices(mesh: str, devices: int, dcn_mesh: str, slices: int) -> bool:
    from bert_jax import partitioning

    try:
        partitioning.parse_dcn_mesh(dcn_mesh, partitioning.parse_mesh(mesh, devices), slices)
    except UserError:
        return False
    return True


def _make(folder: Any) -> None:
    with files.user_errors(folder, "--output_dir"):
        folder.mkdir(parents=True, exist_ok=True)


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


def _config(flags: Any) -> Any:
    from bert_jax.modes.pretrain import model_config

    tokenizer = load_tokenizer(flags.vocab_file, flags.do_lower_case) if flags.vocab_file else None
    config = model_config(flags, tokenizer, f"--vocab_file={flags.vocab_file}", say)
    if flags.vocab_size and flags.model and not flags.init_checkpoint:  # of a vocabulary that is still to be trained
        config = dataclasses.replace(config, vocab_size=flags.vocab_size)
    return config


def _step(flags: Any, config: Any, target: Any) -> tuple[Any, int]:
    """The train step of the flags, and how many updates there are left to make."""
    import jax

    from bert_jax import partitioning, pretraining_step
    from bert_jax.modes.pretrain import check_steps_left
    from bert_jax.run_folder import find_checkpoint
    from bert_jax.schedule import schedule_from

    precision = flags.matmul_precision or ("highest" if flags.precision == "f32" else "default")
    jax.config.update("jax_default_matmul_precision", precision)
    mesh = partitioning.make_mesh(flags.mesh, list(target.devices), flags.dcn_mesh)
    partitioning.check_batch_size(mesh, "--train_batch_size", flags.train_batch_size, flags.gradient_accumulation_steps)
    partitioning.check_batch_size(mesh, "--eval_batch_size", flags.eval_batch_size)
    partitioning.check_length(mesh, flags.max_seq_length)
    first_step = find_checkpoint(flags.restore_from, "--restore_from")[1] if flags.restore_from else 0
    schedule = schedule_from(flags, 0)
    check_steps_left(flags, schedule, first_step)
    return pretraining_step.make(flags, config, mesh, schedule), schedule.num_train_steps - first_step


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _waiting(what: str, work: Callable[[], background.T]) -> background.T:
    """The result of long work, which tells from time to time that it goes on."""
    started = time.monotonic()
    say(what)
    return background.wait_for(
        work,
        lambda: say(f"{what}: {time.monotonic() - started:.0f} s (a large model takes some minutes)"),
        TICK_SECONDS,
    )


def tables(plan: dict[str, Any]) -> list[Table]:
    """The plan for people."""
    return [
        table
        for table in (_summary(plan), _memory(plan), _time(plan), _unaccounted(plan), _collectives(plan))
        if table.rows
    ]


def _candidates(results: Any, layers: int, target: Any) -> Table:
    from bert_jax import plan_search

    rows = [
        (
            result.candidate.mesh,
            result.candidate.remat,
            "yes" if result.fits else "no",
            str(result.per_device_batch),
            str(result.candidate.gradient_accumulation_steps),
            f"{result.candidate.train_batch_size:,}",
            "-" if result.peak is None else f"{result.peak / 2**30:,.2f}",
            "-" if result.seconds is None else f"{1e3 * result.seconds:,.2f}",
            f"{result.sequences_per_second:,.0f}" if result.seconds else "-",
        )
        for result in plan_search.ranked(results)
    ]
    columns = ("mesh", "remat", "fits", "rows of a device", "parts", "batch", "GiB", "ms", "sequences/s")
    title = f"{target.name}, {layers} layers: estimates from what 1 and 2 layers cost"
    return Table(title, columns, 3, rows)


def _summary(plan: dict[str, Any]) -> Table:
    from bert_jax import planning

    mesh = ", ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1) or "one device"
    slices = ", ".join(f"{axis} {size}" for axis, size in plan["slices"].items() if size > 1)
    model = plan["model"]
    settings = [plan["optimizer"], f"remat {plan['remat']}", f"attention {plan['attention_kernel']}"]
    settings += ["scanned layers"] * plan["scan_layers"] + ["state not cut over data"] * (not plan["shard_optimizer"])
    settings += [f"gradients in {plan['gradient_reduction']}"] * (plan["gradient_reduction"] != "f32")
    rows = [
        (
            "model",
            f"{plan['parameters'] / 1e6:,.1f}M parameters: {_count(model['num_hidden_layers'], 'layer')} of "
            f"{model['hidden_size']:,}",
        ),
        ("step", ", ".join(settings)),
        (
            "devices",
            f"{plan['devices']:,} on {_count(plan['chips'], 'chip')}, {_count(plan['hosts'], 'host')}",
        ),
        ("mesh", mesh),
        *([("slices", slices)] if slices else []),
        ("batch", f"{plan['train_batch_size']:,} ({plan['per_device_batch']:g} a device at a time)"),
        ("length", f"{plan['max_seq_length']} tokens, {plan['max_predictions_per_seq']} predictions"),
        ("model FLOPs", f"{plan['flops']['model'] / 1e9:,.1f} GFLOP a device and step"),
    ]
    if (seconds := plan["estimated_step_seconds"]) is not None:
        days, steps, waiting = plan["days"], plan["num_train_steps"], plan["exposed_collective_seconds"]
        whole = f"{days:,.1f} days" if days >= 1 else f"{24 * days:,.1f} hours"
        rows += [
            ("compiled FLOPs", f"{plan['flops']['matmul'] / 1e9:,.1f} GFLOP ({plan['flops']['waste']:+.1%})"),
            ("estimate", f"{1e3 * seconds:,.2f} ms a step, {1e3 * waiting:,.2f} ms of it waiting for transfers"),
            ("MFU (HFU)", f"{plan['mfu']:.1%} ({plan['hfu']:.1%})"),
            ("sequences/s", f"{plan['sequences_per_second']:,.0f}"),
            ("in all", f"{whole} for {steps:,} steps, {plan['chip_hours']:,.0f} chip hours"),
        ]
    elif plan["topology"] in planning.PRESENT:
        rows += [
            ("compiled FLOPs", f"{plan['flops']['compiler'] / 1e9:,.1f} GFLOP (as XLA counts them)"),
            ("step, MFU, time", "no estimate: only the compiler for TPUs makes one; a run logs what it measures"),
        ]
    else:
        rows.append(("step, MFU, time", "no estimate: the compiler gives up where memory does not suffice"))
    return Table(f"{plan['topology']} ({plan['chip']}), {plan['precision']}", ("", ""), 2, rows)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _memory(plan: dict[str, Any]) -> Table:
    memory = plan["memory"]
    names = ("arguments", "results", "temporaries", "code", "peak")
    rows = [(name, f"{memory[name] / 2**30:,.2f}") for name in names if memory.get(name) is not None]
    title = "Memory of a device, GiB"
    if memory["fits"] is not None:
        title += ": fits" if memory["fits"] else ": DOES NOT FIT"
    if memory["capacity"]:
        title += f" in {memory['capacity'] / 2**30:,.2f}"
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
            row["network"],
            row["dtype"],
            str(row["count"]),
            f"{row['bytes'] / 1e6:,.1f}",
            f"{1e3 * row['seconds']:,.2f}",
            f"{1e3 * row['exposed_seconds']:,.2f}",
        )
        for row in plan.get("collectives", [])
    ]
    columns = ("", "over", "by", "dtype", "count", "MB", "ms", "waiting ms")
    return Table("Transfers between devices: bounds by the links", columns, 4, rows)
