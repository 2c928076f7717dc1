"""Sentences of words with tags: files in columns as those of CoNLL-2003, and JSON lines.

A line of a column file is a word, maybe more, and its tag; a line of white space ends the sentence, and one that begins
with -DOCSTART- begins a document and is of no sentence. A line in front of a sentence that begins with # and has not as
many columns as words have is a comment. Columns are separated by tabs, or by blanks where a line has no tab, so that
any other character, seen or not, may be part of a word.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from input_pipeline import corpus, files, tag_schemes, text_lines
from input_pipeline.errors import UserError
from input_pipeline.task_examples import DataSet, TaggedExample
from input_pipeline.text_lines import TextLine

DOCUMENT_START = "-DOCSTART-"
COMMENT = "#"
_BYTE_ORDER_MARK = "\ufeff"
_COLUMN_ENDS = re.compile(r"[ \t]+")

# What tells a file's split by its name, in this order: "testa" is CoNLL's development set.
_SPLITS = {"train": re.compile("train"), "dev": re.compile("testa|dev|val"), "test": re.compile("test")}
_ENDINGS = re.compile(
    r"\.(train|testa|testb|txt|conll(03|2003)?|tsv|bio|iob2?|annotated|jsonl?|ndjson)(\.gz)?$", re.IGNORECASE
)
# What fields of JSON lines are called elsewhere.
_OTHER_NAMES = {"words": ("tokens",), "tags": ("ner_tags", "pos_tags", "chunk_tags", "labels")}
# Names that come before others of the same split.
_USUAL_NAMES = re.compile(
    r"(eng|deu|esp|ned)\.(train|testa|testb)|(train|valid|dev|test)\.(txt|conll|tsv|jsonl)", re.IGNORECASE
)


def find(data_dir: str, flag: str = "--data_dir") -> dict[str, str]:
    """The files of a folder by split (train, dev, test), as far as there are any.

    They are known by their names: eng.train, eng.testa and eng.testb, also of other languages; train.txt, valid.txt or
    dev.txt, test.txt; else names with "train", "testa", "dev", "val" or "test" in them.

    Raises:
      UserError: there is none, or more than one of a split; no such folder.
    """
    folder = files.reach(data_dir, flag)
    with files.user_errors(folder, flag):
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
    found: dict[str, list[str]] = {split: [] for split in _SPLITS}
    for name in filter(_ENDINGS.search, names):
        split = next((split for split, pattern in _SPLITS.items() if pattern.search(name.lower())), None)
        if split:
            found[split].append(name)
    chosen = {}
    for split, candidates in found.items():
        candidates = list(filter(_USUAL_NAMES.fullmatch, candidates)) or candidates
        if len(candidates) > 1:
            raise UserError(
                f"{flag}: {data_dir} holds several {split} files ({', '.join(candidates)}): "
                "name yours with --train_file, --eval_file and --predict_file"
            )
        if candidates:
            chosen[split] = str(folder / candidates[0])
    if not chosen:
        raise UserError(
            f"{flag}: {data_dir} holds no files such as eng.train, eng.testa and eng.testb, or train.txt, valid.txt "
            f"and test.txt; there are: {', '.join(names[:10]) or 'none'}"
        )
    return chosen


def read(
    path: str,
    *,
    needs_tags: bool,
    flag: str = "--data_dir",
    word_column: int = 1,
    tag_column: int | None = None,
) -> DataSet:
    """The sentences of a file, in columns or (.jsonl, .json, .ndjson) JSON lines; plain or gzip.

    A JSON line is an object with the lists "words" and "tags", and maybe "id" and "document", which changes where a
    document begins.

    Arguments:
      needs_tags: False: tags are not looked at, and need not be there.
      word_column, tag_column: counted from 1; the tag is in the last column by default.

    Raises:
      UserError: the file cannot be read, holds no sentence, or has a line that is not as it should be, which is named.
    """
    if text_lines.is_json_lines(path):
        examples, notes = list(_json_sentences(path, needs_tags, flag)), []
    else:
        examples, notes = _column_sentences(path, needs_tags, flag, word_column, tag_column)
    if not examples:
        raise UserError(f"{flag}: {path} holds no sentence")
    if needs_tags and tag_schemes.scheme_of(example.tags for example in examples) == tag_schemes.IOB1:
        notes.append(f"{path}: the tags are IOB1; they are learned, predicted and scored as IOB2")
    return DataSet(examples, path, tuple(notes))


def tagged_lines(examples: Iterable[TaggedExample], predictions: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of the examples' file with a column more, the predicted tag: what conlleval reads.

    The lines that begin documents have "O" there. Of examples that are from no such file a line is the word, the right
    tag where it is known, and the predicted one.
    """
    for example, predicted in zip(examples, predictions, strict=True):
        tags = iter(predicted)
        lines = example.lines or tuple(_made_up_lines(example))
        comments = sum(not (_is_blank(line) or line.startswith(DOCUMENT_START)) for line in lines) - len(example.words)
        for line in lines:
            if _is_blank(line):
                yield ""
            elif comments and line.startswith(COMMENT):  # they stand before the words
                comments -= 1
                yield line
            else:
                tag = tag_schemes.OUTSIDE if line.startswith(DOCUMENT_START) else next(tags)
                line = line.rstrip(" \t")
                yield line + ("\t" if "\t" in line else " ") + tag


def _column_sentences(
    path: str, needs_tags: bool, flag: str, word_column: int, tag_column: int | None
) -> tuple[list[TaggedExample], list[str]]:
    found: list[TaggedExample] = []
    words: list[str] = []
    tags: list[str] = []
    lines: list[str] = []
    document, first, undecoded, comments = 0, None, [], []
    reader = _ColumnReader(needs_tags, flag, word_column, tag_column)

    def end_sentence():
        if words:
            where = f"{path}, line {first.number}"
            shown = tuple(tags) if needs_tags else None
            found.append(TaggedExample(str(len(found)), tuple(words), shown, document, where, tuple(lines)))
            words.clear(), tags.clear(), lines.clear()

    all_lines = list(text_lines.read_lines([path], flag=flag))
    width = _width(all_lines)
    for line in all_lines:
        if "\r" in line.text:
            raise UserError(f"{line.where(flag)}: a carriage return within the line; lines end with \\n or \\r\\n")
        if "\ufffd" in line.text:
            undecoded.append(line.number)
        if _is_blank(line.text):
            end_sentence()
        elif line.text.startswith(COMMENT) and not words and len(_columns(line.text)) != width:
            comments.append(line.number)
        elif line.text.startswith(DOCUMENT_START):
            end_sentence()
            document += bool(found) and found[-1].document == document
        else:
            first = line if not words else first
            word, tag = reader.word_and_tag(line)
            words.append(word)
            tags.append(tag)
        lines.append(line.text)
    end_sentence()
    if found:
        found[-1] = found[-1]._replace(lines=found[-1].lines + tuple(lines))
    notes = []
    if comments:
        notes.append(
            f"{path}: lines before a sentence that begin with {COMMENT}: {len(comments):,}, the first is "
            f"{comments[0]}; they are comments"
        )
    if undecoded:
        notes.append(
            f"{path}: lines with U+FFFD, as which all is read that is no UTF-8: {len(undecoded):,}, the first is "
            f"{undecoded[0]}; convert the file, such as by iconv -f latin1 -t utf8"
        )
    return found, notes


def _width(lines: Iterable[TextLine]) -> int | None:
    """The number of columns of the first line that is surely a word; None where all may be comments."""
    for line in lines:
        if not (_is_blank(line.text) or line.text.startswith((DOCUMENT_START, COMMENT))):
            return len(_columns(line.text))
    return None


class _ColumnReader:
    """Takes lines apart, all into the same number of columns."""

    def __init__(self, needs_tags: bool, flag: str, word_column: int, tag_column: int | None):
        self._needs_tags = needs_tags
        self._flag = flag
        self._word_column = word_column
        self._tag_column = tag_column
        self._least = max(word_column, (tag_column or 2) if needs_tags else 1)
        self._first: tuple[int, int] | None = None  # number and columns of the first line

    def word_and_tag(self, line: TextLine) -> tuple[str, str]:
        columns = _columns(line.text)
        count = len(columns)
        if count < self._least:
            need = "a line is a word and its tag" if self._least == 2 else f"column {self._least} is needed"
            raise self._error(line, f"only {count} {_columns_word(count)} ({_shown(line.text)}); {need}")
        self._first = self._first or (line.number, count)
        if count != self._first[1]:
            raise self._error(
                line,
                f"{count} {_columns_word(count)} ({_shown(line.text)}), but {self._first[1]} in line {self._first[0]}; "
                "a line is one word, and all have as many columns",
            )
        word, tag = columns[self._word_column - 1], columns[(self._tag_column or count) - 1]
        if not word or (self._needs_tags and not tag):
            raise self._error(line, f"no {'tag' if word else 'word'} ({_shown(line.text)})")
        return word, tag

    def _error(self, line: TextLine, what: str) -> UserError:
        return UserError(f"{line.where(self._flag)}: {what}")


def _columns(line: str) -> list[str]:
    line = line.rstrip(" \t")
    if "\t" in line:
        columns = [column.strip(" ") for column in line.split("\t")]
        if " " not in columns[-1]:
            return columns
    return _COLUMN_ENDS.split(line.lstrip(" \t"))


def _columns_word(count: int) -> str:
    return "column" if count == 1 else "columns"


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def _is_blank(line: str) -> bool:
    """Whether a line ends a sentence; some files have a byte order mark in the middle, where they were joined."""
    return not line.replace(_BYTE_ORDER_MARK, "").strip()


def _json_sentences(path: str, needs_tags: bool, flag: str) -> Iterator[TaggedExample]:
    document, name, count = -1, None, 0
    with corpus.open_text(path, flag) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            fields = _json_object(line, f"{flag}: {where}")
            words = _strings(fields, "words", f"{flag}: {where}")
            tags = _strings(fields, "tags", f"{flag}: {where}") if needs_tags else None
            if tags is not None and len(tags) != len(words):
                raise UserError(f"{flag}: {where}: {len(words)} words, but {len(tags)} tags")
            if document < 0 or fields.get("document") != name:
                document, name = document + 1, fields.get("document")
            yield TaggedExample(str(fields.get("id", count)), words, tags, document, where)
            count += 1


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    hint = text_lines.json_lines_hint(line.decode("utf-8", "replace"))
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); a line is an object with the list 'words'{hint}") from None
    if not isinstance(fields, dict):
        raise UserError(f"{where}: not a JSON object with the list 'words'{hint}")
    return fields


def _strings(fields: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = fields.get(name)
    if not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        found = "is no list of strings" if name in fields else f"is missing; there are: {', '.join(fields) or 'none'}"
        if name not in fields and (theirs := next((one for one in _OTHER_NAMES[name] if one in fields), None)):
            numbers = ", and its numbers are names of tags here" if name == "tags" else ""
            found += f"; {theirs!r}, as Hugging Face's data sets have it, is called {name!r} here{numbers}"
        raise UserError(f"{where}: field {name!r} {found}")
    return tuple(value)


def _made_up_lines(example: TaggedExample) -> Iterator[str]:
    for place, word in enumerate(example.words):
        columns = [word] if example.tags is None else [word, example.tags[place]]
        yield " ".join(re.sub(r"\s", "_", column) or "_" for column in columns)
    yield ""
