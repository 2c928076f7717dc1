"""Small parts of the reports' pages; whatever is put into them is escaped."""

import os
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from bert_jax.metric_names import format_value
from input_pipeline.files import as_path


def text(value: Any) -> str:
    """`value` as the text of an element or an attribute; half of a surrogate pair is U+FFFD there."""
    return escape(str(value).encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


def value_text(name: str, value: Any) -> str:
    """The number of a metric as people read it, and "-" where there is none."""
    return "-" if value is None else text(format_value(name, value))


def notes(lines: Iterable[str]) -> str:
    """A box of lines that should be read, empty without any."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def tiles(cells: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers: title, value and note of each."""
    cells = "".join(
        f"<div><dt>{text(title)}</dt><dd>{text(value)}<small>{text(note)}</small></dd></div>"
        for title, value, note in cells
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; the first of a row names it."""
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def run_link(name: str, folder: str | os.PathLike | None, page_folder: str | os.PathLike) -> str:
    """The name of a run, as a link to its report where that lies below the folder of the page."""
    if folder is None:
        return text(name)
    inside, below = os.fspath(as_path(page_folder)), os.fspath(as_path(folder))
    relative = os.path.relpath(below, inside) if "://" not in below + inside else ""
    if relative in ("", ".") or relative.startswith("..") or not (as_path(folder) / "report.html").exists():
        return text(name)
    return f'<a href="{quote(relative, errors="surrogateescape")}/report.html">{text(name)}</a>'
