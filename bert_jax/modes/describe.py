"""--mode=describe: parameters by part, floating-point operations and memory of a model."""

import itertools
import math
import sys
from collections.abc import Iterable
from typing import NamedTuple

from bert_jax.beside_checkpoint import configuration
from bert_jax.config import BertConfig
from bert_jax.model_costs import inference_flops, parameter_rows, training_flops, training_state_bytes
from input_pipeline.errors import UserError
from input_pipeline.tokenization import load_tokenizer

DEFAULT_SIZE = "base"
DEFAULT_LENGTH = 128
HEADS = ("MLM head", "NSP head")
PAPER_TOTALS = {"base": " (110M in the paper)", "large": " (340M in the paper)"}  # section 3


class Table(NamedTuple):
    """Rows of text cells under a title; all columns but the first `left` are numbers."""

    title: str
    columns: tuple[str, ...]
    left: int
    rows: list[tuple[str, ...]]


def run(flags) -> None:
    """Prints the tables of the model that --model, --bert_config_file or --init_checkpoint names (default: base).

    Args:
        flags: the flags of beside_checkpoint.configuration, and vocab_file, do_lower_case, max_seq_length,
            masked_lm_prob and max_predictions_per_seq.

    Raises:
        UserError: a bad value, a sequence longer than the model's positions, or more predictions than tokens.
    """
    message = lambda text: print(text, file=sys.stderr)
    vocab_size = load_tokenizer(flags.vocab_file, flags.do_lower_case).vocab_size if flags.vocab_file else None
    name, config = configuration(flags, DEFAULT_SIZE, vocab_size, f"--vocab_file={flags.vocab_file}", message)
    length = flags.max_seq_length or min(DEFAULT_LENGTH, config.max_position_embeddings)
    if length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length={length} is more than max_position_embeddings {config.max_position_embeddings}"
        )
    if not 0 < flags.masked_lm_prob <= 1:
        raise UserError(f"--masked_lm_prob={flags.masked_lm_prob}: must be above 0 and at most 1")
    predictions = flags.max_predictions_per_seq or math.ceil(length * flags.masked_lm_prob)
    if predictions > length:
        raise UserError(f"--max_predictions_per_seq={predictions} is more than the {length} tokens of a sequence")
    show([parameter_table(name, config), flops_table(config, length, predictions), memory_table(config)])


def parameter_table(name: str, config: BertConfig) -> Table:
    """A row for each kind of parameter with its formula, subtotals of the parts, and totals.

    The letters are V words, P positions, S segments, H hidden and F feed-forward units.
    """
    rows = parameter_rows(config)
    cells = []
    for part, group in itertools.groupby(rows, key=lambda row: row.part):
        members = list(group)
        for row in members:
            cells.append((part, row.name, row.formula, f"{row.count:,}", str(row.copies), f"{row.total:,}"))
            part = ""
        if len(members) > 1:
            layers = f"{config.num_hidden_layers} layers" if members[0].part == "encoder" else ""
            each = f"{sum(row.count for row in members):,}" if layers else ""
            cells.append(("", f"= {layers or members[0].part}", "", each, "", f"{sum(r.total for r in members):,}"))
    total = sum(row.total for row in rows)
    heads = sum(row.total for row in rows if row.part in HEADS)
    cells.append(("total", "without heads", "", "", "", f"{total - heads:,}"))
    cells.append(("total", "with both heads", "", "", "", f"{total:,}"))
    title = (
        f"{name}: {total / 1e6:.1f}M parameters{PAPER_TOTALS.get(name, '')}, "
        f"{(total - heads) / 1e6:.1f}M without heads\n"
        f"{config.num_hidden_layers} layers of {config.num_attention_heads} attention heads, "
        f"V {config.vocab_size}, P {config.max_position_embeddings}, S {config.type_vocab_size}, "
        f"H {config.hidden_size}, F {config.intermediate_size}"
    )
    return Table(title, ("part", "", "formula", "each", "copies", "parameters"), 3, cells)


def flops_table(config: BertConfig, length: int, predictions: int) -> Table:
    """Operations of one sequence; L is its length and M the number of predictions."""
    parts = inference_flops(config, length, predictions)
    layers = config.num_hidden_layers
    formulas = (f"2 x {layers} (4 H^2 + 2 H F) L", f"4 x {layers} L^2 H", "2 M (H^2 + H V)")
    cells = [
        (name, formula, f"{flops / 1e9:,.3f}", f"{3 * flops / 1e9:,.3f}")
        for (name, flops), formula in zip(parts.items(), formulas, strict=True)
    ]
    inference, training = sum(parts.values()), training_flops(config, length, predictions)
    cells.append(("total", "", f"{inference / 1e9:,.3f}", f"{training / 1e9:,.3f}"))
    title = f"GFLOPs of a sequence of L = {length} tokens with M = {predictions} predictions"
    return Table(title, ("part", "formula", "inference", "training"), 2, cells)


def memory_table(config: BertConfig) -> Table:
    """Bytes of the training state, over all devices."""
    parts = training_state_bytes(config)
    cells = [(name, f"{count / 1e6:,.1f}") for name, count in parts.items()]
    cells.append(("total", f"{sum(parts.values()) / 1e6:,.1f}"))
    title = f"Megabytes in training (float32, {config.padded_vocab_size} word rows; without activations)"
    return Table(title, ("part", "MB"), 1, cells)


def show(tables: Iterable[Table]) -> None:
    """Prints to standard output: drawn tables on a terminal, aligned plain text elsewhere."""
    if sys.stdout.isatty():
        import rich.box
        import rich.console
        import rich.table

        console = rich.console.Console(highlight=False)
        for table in tables:
            console.print(table.title)
            drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
            for i, column in enumerate(table.columns):
                drawn.add_column(column, justify="left" if i < table.left else "right")
            for row in table.rows:
                drawn.add_row(*row, style="bold" if row[0] == "total" or row[1].startswith("=") else None)
            console.print(drawn)
        return
    for number, table in enumerate(tables):
        print(("\n" if number else "") + table.title)
        lines = [table.columns, *table.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
        for line in lines:
            cells = [
                cell.ljust(width) if i < table.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths))
            ]
            print("  ".join(cells).rstrip())
