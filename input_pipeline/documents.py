"""Files -> documents with an id each: JSON lines, or text where a document is a file, a line or a paragraph."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from input_pipeline import text_lines
from input_pipeline.errors import UserError
from input_pipeline.text_lines import TextLine

DOCUMENTS = ("auto", "file", "line", "paragraph")


class Document(NamedTuple):
    """A document; `label` is its known class, or None."""

    id: str
    text: str
    label: str | None


def read_documents(
    paths: list[str],
    *,
    documents: str = "auto",
    text_field: str = "text",
    label_field: str | None = None,
    message: Callable[[str], None] = lambda text: None,
    flag: str = "--input_file",
) -> list[Document]:
    """The documents of all files in their order, also those without text.

    A line of JSON is a document. Its id is the field "id" where there is one, else, as of all others, the file with the
    number of the (first) line; where a file is a document its path.

    Args:
      paths: files; with none, standard input, where a line is a document.
      documents: of DOCUMENTS, for files of text; "auto": the file where there are several files, else the line.
      label_field: field of JSON lines with the class.
      message: takes a line about what is odd.

    Raises:
      UserError: a file that cannot be read, or labels that are nowhere.
    """
    if documents == "auto":
        documents = "file" if sum(not text_lines.is_json_lines(path) for path in paths) > 1 else "line"
    found: list[Document] = []
    seen_fields: dict[str, None] = {}
    for path in paths or [None]:
        lines = text_lines.read_lines([path] if path else [], text_field, flag)
        if path and text_lines.is_json_lines(path):
            for line in lines:
                seen_fields |= dict.fromkeys(line.fields)
                found.append(_from_json(line, label_field))
        elif documents == "file" and path:
            found.append(Document(path, "\n".join(line.text for line in lines), None))
        elif documents == "paragraph":
            found += _paragraphs(lines)
        else:
            found += (Document(f"{line.path}:{line.number}", line.text, None) for line in lines)
    if label_field:
        _check_labels(found, label_field, seen_fields, message)
    doubled = len(found) - len({document.id for document in found})
    if doubled:
        message(f"{doubled:,} ids stand there more than once; documents are told apart by their order")
    return found


def _from_json(line: TextLine, label_field: str | None) -> Document:
    id = line.fields.get("id")
    label = line.fields.get(label_field) if label_field else None
    if not isinstance(id, str | int) or isinstance(id, bool):
        id = f"{line.path}:{line.number}"
    return Document(str(id), line.text, None if label is None else _as_text(label))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _paragraphs(lines: Iterator[TextLine]) -> Iterator[Document]:
    first, texts = None, []
    for line in lines:
        if line.text.strip():
            first = first or line
            texts.append(line.text)
        elif texts:
            yield Document(f"{first.path}:{first.number}", "\n".join(texts), None)
            first, texts = None, []
    if texts:
        yield Document(f"{first.path}:{first.number}", "\n".join(texts), None)


def _check_labels(found: list[Document], label_field: str, fields: dict[str, None], message) -> None:
    missing = sum(document.label is None for document in found)
    if found and missing == len(found):
        names = ", ".join(fields) or "none, since only JSON lines have fields"
        raise UserError(f"--label_field={label_field}: no document has this field; there are: {names}")
    if missing:
        message(f"--label_field={label_field}: {missing:,} of {len(found):,} documents have no label")
