"""`python -m launch.experiments --table=5 --scale=cpu --output_dir=DIR`: the experiments of a table of the paper.

Pretrains what the table needs, fine-tunes it, and writes the table with the paper's numbers beside ours into
--output_dir (.md, .json, .html). The commands are those of `python -m bert_jax.main`; --dry_run prints them. Each goes
on where it was stopped, so the same command again goes on with the whole; what is finished is not run again. Flags
after -- go to all of them: `... -- --mesh=data=4 --precision=bf16`.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from bert_jax.main import EXIT_FAILED, EXIT_STOPPED, EXIT_USER_ERROR, parse
from input_pipeline import conll_data, files, glue_data, squad_data
from input_pipeline.errors import UserError
from input_pipeline.token_store import is_token_store
from launch import made_up_tasks
from launch.experiment_results import write_table
from launch.experiment_tables import ALONG_THE_WAY, HEADS, MODELS, SCALES, SETUPS, TABLES, Cell, Scale, Table

LAUNCH = Path(__file__).parent
DONE_FILE = ".command.json"
MAIN = "bert_jax.main"

# A flag that takes the place of another one.
_INSTEAD = {
    "bert_config_file": "model",
    "model": "bert_config_file",
    "num_train_steps": "num_train_epochs",
    "num_train_epochs": "num_train_steps",
    "num_warmup_steps": "warmup_proportion",
    "warmup_proportion": "num_warmup_steps",
}


class Step(NamedTuple):
    """A command.

    Attributes:
        folder: what it makes, below --output_dir.
        module: of Python, which is run with `arguments`.
    """

    folder: str
    module: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self.arguments]


class Options(NamedTuple):
    """What the user says.

    Attributes:
        scale: of SCALES, with what was given in place of its values.
        output_dir: for everything.
        may_make_up: whether made-up tasks stand in for those that are not in data_dir.
        data_dir: folder with those of the tasks.
        vocab_file: of the text; a vocabulary is trained without it.
        init_checkpoint: weights in place of the model "bert".
        only: part of the names of the fine-tuned models that are wanted.
        extra: flags for all commands of bert_jax.main.
    """

    scale: Scale
    output_dir: str
    may_make_up: bool = True
    data_dir: str | None = None
    vocab_file: str | None = None
    init_checkpoint: str | None = None
    only: str = ""
    extra: tuple[str, ...] = ()


def define(values: flags.FlagValues) -> None:
    """Defines all flags on `values`."""
    module = __name__

    def string(name: str, text: str) -> None:
        flags.DEFINE_string(name, None, text, values, module_name=module)

    names = [name for name in TABLES if name.isdigit()]
    figures = [name.removeprefix("figure ") for name in TABLES if not name.isdigit()]
    flags.DEFINE_list("table", [], f"Tables of the paper: {', '.join(names)}.", values, module_name=module)
    flags.DEFINE_list("figure", [], f"Figures of the paper: {', '.join(figures)}.", values, module_name=module)
    flags.DEFINE_enum(
        "scale",
        "cpu",
        list(SCALES),
        "paper: BERT base and a million steps, on --input_file; cpu: a twin of a million parameters and 3,000 steps.",
        values,
        module_name=module,
    )
    string("output_dir", "Folder for all runs and for the tables; default runs/experiments_SCALE.")
    string("input_file", "Text or token store to pretrain on; default of cpu: builtin.")
    string("vocab_file", "Vocabulary of the text; without it one is trained. A store has its own.")
    string(
        "data_dir",
        "Folder with MNLI, QNLI, MRPC, SST-2 (or glue/MNLI, ...), squad and conll2003. cpu: made-up tasks stand in for "
        "what it does not have.",
    )
    string("init_checkpoint", "Weights that take the place of the pretrained BERT base.")
    string("only", "Only the fine-tuned models with this in the name of their folder, such as ltr or mnli.")
    flags.DEFINE_integer(
        "num_runs", None, "Runs of each fine-tuning; default of paper 5, of cpu 1.", 1, 100, values, module_name=module
    )
    flags.DEFINE_boolean("dry_run", False, "Print the commands and run none.", values, module_name=module)
    flags.DEFINE_flag(flags.BooleanFlag("help", False, "show this help", short_name="h"), values, module_name=module)


def read_command_line(argv: list[str]) -> tuple[flags.FlagValues, list[Table], Options]:
    """The flags, the tables that are asked for, and everything else.

    Raises:
        UserError: a mistake in a flag.
    """
    values = flags.FlagValues()
    define(values)
    own, extra = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    try:
        rest = values(own)
    except flags.Error as error:
        raise UserError(" ".join(str(error).replace("flag --", "--").split())) from None
    if rest[1:]:
        raise UserError(f"unexpected {rest[1]!r}: flags are written --name=value; those for all commands come after --")
    if wrong := next((flag for flag in extra if not flag.startswith("--")), None):
        raise UserError(f"unexpected {wrong!r} after --: only flags, written --name=value, are passed on")
    if values.help:
        return values, [], Options(SCALES[values.scale], "")
    names = [*values.table, *(f"figure {number}" for number in values.figure)]
    if not names:
        raise UserError(f"--table or --figure is missing: tables and figures are {', '.join(TABLES)}")
    for name in names:
        if name not in TABLES:
            raise UserError(f"there are no experiments of {name!r}: tables and figures are {', '.join(TABLES)}")
    given = {name: getattr(values, name) for name in ("input_file", "num_runs") if getattr(values, name)}
    options = Options(
        SCALES[values.scale]._replace(**given),
        values.output_dir or f"runs/experiments_{values.scale}",
        values.scale == "cpu",
        values.data_dir,
        values.vocab_file,
        values.init_checkpoint,
        values.only or "",
        tuple(extra),
    )
    return values, [TABLES[name] for name in names], options


def recipe(name: str) -> list[str]:
    """The flags of a recipe."""
    lines = (LAUNCH / "recipes" / f"{name}.flags").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.startswith("--")]


def merged(*groups: Iterable[str]) -> tuple[str, ...]:
    """Each flag once, as the last that names it has it."""
    chosen: dict[str, str] = {}
    for flag in (flag for group in groups for flag in group):
        name = flag.removeprefix("--").partition("=")[0]
        for gone in (name, _INSTEAD.get(name), f"no{name}", name.removeprefix("no")):
            chosen.pop(gone, None)
        chosen[name] = flag
    return tuple(chosen.values())


def is_wanted(cell: Cell, options: Options) -> bool:
    """Whether --only leaves a cell in."""
    return options.only in (finetuning_folder(cell) if cell.setup else f"pretrain/{cell.model}")


def finetuning_folder(cell: Cell) -> str:
    """Where a fine-tuned model is, below --output_dir."""
    model = "_".join([cell.model, *([cell.head] if cell.head else []), *([f"{cell.fifths}_5"] * (cell.fifths < 5))])
    return f"finetune/{model}/{cell.setup}"


def cell_folder(cell: Cell, options: Options) -> str | None:
    """The run, below --output_dir, with the number of a cell; None where no run of ours has it."""
    if cell.setup:
        return finetuning_folder(cell)
    if cell.model == "bert" and options.init_checkpoint:
        return None
    return f"pretrain/{cell.model}/phase{len(options.scale.phases)}"


def task_folder(setup: str, options: Options) -> str | None:
    """The folder of a task in --data_dir; None where the made-up one is used.

    Raises:
        UserError: nothing may stand in for --data_dir, or it is no folder.
    """
    folders = SETUPS[setup].folders
    if not options.data_dir:
        if options.may_make_up:
            return None
        raise UserError("--data_dir is missing: the folder with MNLI, QNLI, MRPC, SST-2, squad and conll2003")
    root = files.as_path(options.data_dir, "--data_dir")
    with files.user_errors(root, "--data_dir"):
        found = next((folder for folder in folders if (root / folder).is_dir()), None)
        if not found and options.may_make_up:
            if not root.is_dir():
                raise UserError(f"--data_dir={options.data_dir} is no folder")
            return None
    return f"{options.data_dir}/{found or folders[0]}"


def check_data(steps: Iterable[Step], options: Options) -> None:
    """Finds the files of all tasks before anything is pretrained, which may take days.

    Raises:
        UserError: a task has no file to train on or to evaluate on.
    """
    for step in steps:
        flags = parse([MAIN, *step.arguments]) if step.folder.startswith("finetune") else None
        if flags is None or flags.data_dir.startswith(f"{options.output_dir}/data/"):
            continue
        if flags.task_name in glue_data.TASKS:
            glue_data.find(flags.task_name, flags.data_dir)
            continue
        squad = flags.task_name == "squad"
        found = squad_data.find(flags.data_dir, False) if squad else conll_data.find(flags.data_dir)
        for split in ("train", "dev"):
            if split not in found:
                raise UserError(f"--data_dir: {flags.data_dir} holds no {split} file of {flags.task_name}")


def plan(tables: Sequence[Table], options: Options) -> list[Step]:
    """The commands for the tables, in an order in which they can be run, each once.

    Raises:
        UserError: something is missing, or a flag is wrong.
    """
    cells = [cell for table in tables for _, cells in table.rows for cell in cells if is_wanted(cell, options)]
    if not cells:
        raise UserError(f"--only={options.only}: no fine-tuned model of {', '.join(t.name for t in tables)} is left")
    if options.init_checkpoint and any(cell.fifths < 5 for cell in cells):
        raise UserError("--init_checkpoint: figure 5 needs the checkpoints along the way, so BERT must be pretrained")
    models = dict.fromkeys(cell.model for cell in cells if not (cell.model == "bert" and options.init_checkpoint))
    steps = _data_steps(cells, options)
    if models:
        text, needed = _text(options)
        steps += needed
        for model in models:
            steps += _pretraining(model, text, options)
    steps += [_finetuning(cell, options) for cell in cells if cell.setup]
    steps = list({step.folder: step for step in steps}.values())
    for step in steps:
        if step.module == MAIN:
            parse([MAIN, *step.arguments])
    return steps


def _data_steps(cells: Sequence[Cell], options: Options) -> list[Step]:
    setups = dict.fromkeys(cell.setup for cell in cells if cell.setup)
    if all(task_folder(setup, options) for setup in setups):
        return []
    return [Step("data", made_up_tasks.__name__, (f"{options.output_dir}/data",))]


def _text(options: Options) -> tuple[str, list[Step]]:
    """What is pretrained on, a token store, and the command that makes it where it is not one already."""
    spec = options.scale.input_file
    if spec is None:
        raise UserError("--input_file is missing: text of books and Wikipedia, or the token store of it")
    if "," not in spec and ":" not in spec and is_token_store(spec):
        return spec, []
    vocabulary = f"--vocab_file={options.vocab_file}" if options.vocab_file else None
    arguments = merged(
        ["--mode=prepare", f"--input_file={spec}", vocabulary or f"--vocab_size={options.scale.vocab_size}"],
        options.extra,
        [f"--output_dir={options.output_dir}/store"],
    )
    return f"{options.output_dir}/store", [Step("store", MAIN, arguments)]


def _pretraining(model: str, text: str, options: Options) -> list[Step]:
    size, own = MODELS[model]
    scale, steps = options.scale, []
    for number, (name, phase, _) in enumerate(scale.phases, start=1):
        before = [f"--restore_from={options.output_dir}/{steps[-1].folder}"] if steps else []
        folder = f"pretrain/{model}/phase{number}"
        arguments = merged(
            recipe(name),
            phase,
            [_filled(scale.sizes[size], scale)],
            own,
            scale.checkpoints if model in ALONG_THE_WAY else (),
            options.extra,
            [f"--input_file={text}", *before, f"--output_dir={options.output_dir}/{folder}"],
        )
        steps.append(Step(folder, MAIN, arguments))
    return steps


def _finetuning(cell: Cell, options: Options) -> Step:
    setup, scale = SETUPS[cell.setup], options.scale
    folder = finetuning_folder(cell)
    known = [*scale.finetuning.get("", ()), *scale.finetuning.get(cell.setup, ()), *HEADS[cell.head]]
    arguments = merged(
        recipe(setup.recipe),
        setup.flags,
        [_filled(flag, scale) for flag in known],
        [f"--num_runs={scale.num_runs}"] if scale.num_runs > 1 else (),
        options.extra,
        [
            f"--data_dir={task_folder(cell.setup, options) or f'{options.output_dir}/data/{setup.folders[0]}'}",
            f"--init_checkpoint={_weights(cell, options)}",
            f"--output_dir={options.output_dir}/{folder}",
        ],
    )
    return Step(folder, MAIN, arguments)


def _weights(cell: Cell, options: Options) -> str:
    if cell.model == "bert" and options.init_checkpoint:
        return options.init_checkpoint
    lasts = [last for _, _, last in options.scale.phases]
    step = lasts[-1] * cell.fifths // 5
    phase = next(number for number, last in enumerate(lasts, start=1) if step <= last)
    folder = f"{options.output_dir}/pretrain/{cell.model}/phase{phase}"
    return folder if step == lasts[phase - 1] else f"{folder}/checkpoints/{step}"


def _filled(flag: str, scale: Scale) -> str:
    return flag.format(hidden=scale.hidden, configs=os.path.relpath(LAUNCH / "configs"))


def is_done(step: Step, options: Options) -> bool:
    """Whether the step was run to its end.

    Raises:
        UserError: another command made its folder.
    """
    file = files.as_path(options.output_dir) / step.folder / DONE_FILE
    if not file.exists():
        return False
    before, now = json.loads(files.read_text(file, "--output_dir")), list(step.arguments)
    if before != now:
        changed = [flag for flag in now if flag not in before] + [flag for flag in before if flag not in now]
        raise UserError(
            f"--output_dir={options.output_dir}: {step.folder} was made with other flags ({changed[0]} is one of the "
            "differences): choose another folder"
        )
    return True


def run(steps: Sequence[Step], tables: Sequence[Table], options: Options, execute: Callable[[list[str]], int]) -> int:
    """Runs what is not done yet, and writes the tables after each step.

    A fine-tuning that fails (its loss is not finite) is left out; anything else that fails ends the whole.

    Args:
        execute: runs a command, and returns its exit code.

    Returns:
        The exit code.
    """
    failed = []
    for number, step in enumerate(steps, start=1):
        if is_done(step, options):
            continue
        print(f"[{number}/{len(steps)}] {step.folder}: {shlex.join(step.command)}", flush=True)
        code = execute(step.command)
        if code == 0:
            done = files.as_path(options.output_dir) / step.folder / DONE_FILE
            files.write_json_atomic(done, list(step.arguments))
        elif code == EXIT_FAILED and step.folder.startswith("finetune"):
            failed.append(step.folder)
        else:
            print(f"{step.folder} ended with exit code {code}; the same command goes on there", file=sys.stderr)
            return code if code > 0 else EXIT_FAILED
        write_tables(tables, options)
    for text in write_tables(tables, options):
        print(f"\n{text}", end="")
    print(f"\nwritten to {options.output_dir}: {', '.join(f'{table.name}.md, .json, .html' for table in tables)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return EXIT_FAILED if failed else 0


def write_tables(tables: Sequence[Table], options: Options) -> list[str]:
    """Writes the tables as far as their numbers are there; returns them as Markdown."""
    made_up = {name for name in SETUPS if options.may_make_up and task_folder(name, options) is None}
    places = lambda cell: cell_folder(cell, options)
    return [write_table(options.output_dir, table, places, made_up, options.scale.num_runs) for table in tables]


def execute(command: list[str]) -> int:
    """Runs a command, which is stopped, saves and ends before this program does; returns its exit code."""
    stopped = False
    process: subprocess.Popen | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal stopped
        stopped = True
        if process and number == signal.SIGTERM:  # a terminal sends Ctrl-C to both
            process.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process = subprocess.Popen(command)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return EXIT_STOPPED if stopped else code


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code: that of the command that failed, or was stopped."""
    try:
        values, tables, options = read_command_line(sys.argv if argv is None else argv)
        if values.help:
            print(__doc__ + "\nflags:\n" + values.module_help(__name__).partition("\n")[2])
            return 0
        steps = plan(tables, options)
        if not values.dry_run:
            check_data(steps, options)
            return run(steps, tables, options, execute)
        for step in steps:
            print(f"# {step.folder}\n{shlex.join(['python', *step.command[1:]])}")
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:  # between two commands
        return EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
