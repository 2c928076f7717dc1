"""The tasks of GLUE (Wang et al., 2018) and XNLI (Conneau et al., 2018): their files, columns and labels."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from input_pipeline import files, tables
from input_pipeline.errors import UserError
from input_pipeline.task_examples import DataSet, TextExample

# The languages of XNLI.
LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
SCORES = (0.0, 5.0)  # of STS-B

_ID_COLUMNS = ("index", "id")  # of files to predict
_NO_GOLD_LABEL = "-"
_OTHER_NAMES = {"contradictory": "contradiction"}  # in the machine-translated training files of XNLI


class Layout(NamedTuple):
    """The columns that hold an example."""

    text: str
    text_pair: str | None
    label: str


class Task(NamedTuple):
    """A data set.

    Attributes:
      kind: "classification" or "regression".
      labels: in the order of the outputs, which is that of google-research/bert (run_classifier.py) where it has the
        task; the names are those of the files and of the leaderboard.
      folders: the usual names of its folder.
      files: split -> possible file names; {language} is that of the training file.
      layouts: the first that fits the header is taken; numbered columns are those of files without a header.
      submission: split -> name of the file that the leaderboard takes.
      corpus_files: split -> file name in the corpus that GLUE was made from, where that is usable itself. It is for
        those who have no file of GLUE with labels: GLUE splits the corpus otherwise, so the two must not be mixed.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    folders: tuple[str, ...]
    files: dict[str, tuple[str, ...]]
    layouts: tuple[Layout, ...]
    submission: dict[str, str]
    corpus_files: Mapping[str, str] = MappingProxyType({})


_BINARY = ("0", "1")
_THREE_WAY = ("contradiction", "entailment", "neutral")
_TWO_WAY = ("entailment", "not_entailment")
_PLAIN_FILES = {split: (f"{split}.tsv",) for split in ("train", "dev", "test")}
_MATCHINGS = [f"{split}_{matching}" for split in ("dev", "test") for matching in ("matched", "mismatched")]
_SENTENCES = Layout("sentence1", "sentence2", "label")
_AX_FILES = ("diagnostic.tsv", "AX.tsv", "test.tsv")


def _task(name: str, folder: str, labels: tuple[str, ...], *layouts: Layout) -> Task:
    return Task(name, "classification", labels, (folder,), _PLAIN_FILES, layouts, {"test": f"{folder}.tsv"})


_TASKS = (
    _task("cola", "CoLA", _BINARY, Layout("sentence", None, "label"), Layout("4", None, "2")),
    _task("sst2", "SST-2", _BINARY, Layout("sentence", None, "label")),
    _task("mrpc", "MRPC", _BINARY, Layout("#1 String", "#2 String", "Quality"))._replace(
        files=_PLAIN_FILES | {"test": ("test.tsv", "msr_paraphrase_test.txt")},
        corpus_files={"train": "msr_paraphrase_train.txt", "dev": "msr_paraphrase_test.txt"},
    ),
    _task("qqp", "QQP", _BINARY, Layout("question1", "question2", "is_duplicate")),
    _task("stsb", "STS-B", (), Layout("sentence1", "sentence2", "score"))._replace(kind="regression"),
    _task("mnli", "MNLI", _THREE_WAY, Layout("sentence1", "sentence2", "gold_label"))._replace(
        files={split: (f"{split}.tsv",) for split in ("train", *_MATCHINGS)} | {"diagnostic": _AX_FILES[:2]},
        submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"},
    ),
    _task("qnli", "QNLI", _TWO_WAY, Layout("question", "sentence", "label")),
    _task("rte", "RTE", _TWO_WAY, _SENTENCES),
    _task("wnli", "WNLI", _BINARY, _SENTENCES),
    _task("ax", "AX", _THREE_WAY, _SENTENCES)._replace(folders=("diagnostic", "AX"), files={"test": _AX_FILES}),
    _task(
        "xnli",
        "XNLI",
        _THREE_WAY,
        Layout("sentence1", "sentence2", "gold_label"),
        Layout("premise", "hypo", "label"),
    )._replace(
        folders=("XNLI", "XNLI-1.0", "XNLI-MT-1.0", "XNLI-MT-1.0/multinli", "multinli"),
        files={
            "train": ("multinli.train.{language}.tsv", "multinli/multinli.train.{language}.tsv"),
            "dev": ("xnli.dev.tsv",),
            "test": ("xnli.test.tsv",),
        },
        submission={},
    ),
)
TASKS = {task.name: task for task in _TASKS}


def find(
    task: str,
    data_dir: str | os.PathLike,
    flag: str = "--data_dir",
    *,
    train_language: str = "en",
    needed: Sequence[str] = ("train", "dev"),
) -> dict[str, str]:
    """The files of a task: split -> path, in the order of the splits.

    The splits are train, dev and test; of MNLI dev_matched, dev_mismatched, test_matched, test_mismatched and, where
    its file is there or in the folder beside, diagnostic.

    Arguments:
      data_dir: the task's own folder, or the one above it.
      train_language: of XNLI's training file.
      needed: kinds of splits that must be there, if the task has them at all: "train", "dev", "test".

    Raises:
      UserError: one of them is not there, or no file at all.
    """
    known = TASKS[task]
    if train_language not in LANGUAGES:
        raise UserError(
            f"--train_language: {train_language!r} is no language of XNLI; there are: {', '.join(LANGUAGES)}"
        )
    root = files.reach(data_dir, flag)
    with files.user_errors(root, flag):
        if not root.exists():
            raise FileNotFoundError
        if not root.is_dir():
            raise NotADirectoryError
        folders = _folders(root, known)
        found = {
            split: _first(folders, [name.format(language=train_language) for name in names])
            for split, names in known.files.items()
        }
        if not found.get("train") and not found.get("dev"):
            found |= {split: _first(folders, [name]) for split, name in known.corpus_files.items()}
        if task == "mnli" and not found["diagnostic"]:
            beside = [folder for above in (root, root.parent) for folder in _folders(above, TASKS["ax"])[:-1]]
            found["diagnostic"] = _first(beside, _AX_FILES[:2])
    found = {split: path for split, path in found.items() if path}
    for kind in (*needed, ""):
        splits = [split for split in known.files if split.startswith(kind)]
        if splits and not any(split in found for split in splits):
            names = dict.fromkeys(name.format(language=train_language) for s in splits for name in known.files[s])
            below = dict.fromkeys(folder.name for folder in folders[:-1])
            raise UserError(
                f"{flag}: {data_dir} holds no {kind or 'file'}{' file' * bool(kind)} of {task}: looked for "
                f"{', '.join(names)} in it and in its folders {', '.join(below)}"
            )
    return found


def read(
    task: str, split: str, path: str | os.PathLike, *, language: str | None = None, flag: str = "--data_dir"
) -> DataSet:
    """The examples of a file, which is TSV as GLUE has it: quotes are text.

    Labels of the splits test, test_matched, test_mismatched and diagnostic are not looked at, except those of XNLI;
    their ids are in the column "index" or "id". All other ids are the row's number from 0, that of STS-B too. Rows
    of MNLI and XNLI with the label "-", on which people did not agree, are left out, and noted.

    Arguments:
      language: of XNLI's rows; None takes all. Its training files are of one language and have no such column. (The
        Chinese one has blanks between words, which the tokenizer makes no difference of.)

    Raises:
      UserError: a column is missing, a row is damaged or a label unknown; file, line and value are named.
    """
    known = TASKS[task]
    path = os.fspath(path)
    is_test = split.startswith(("test", "diagnostic"))
    odd: Counter = Counter()
    examples: list[TextExample] = []
    languages: dict[str, None] = {}
    first_without = ""
    layout = id_column = None
    number = -1
    for row in tables.read_rows(path, flag, kind="tsv", is_header=_is_header(known), odd=odd):
        if layout is None:
            layout = _layout(known, row)
            has_language = language is not None and "language" in row.columns
            has_label = not is_test or (task == "xnli" and layout.label in row.columns)
            id_column = next((name for name in _ID_COLUMNS if is_test and name in row.columns), None)
            texts = [name for name in (layout.text, layout.text_pair) if name]
            tables.check_columns(row, [*texts, *[layout.label] * has_label], flag)
        if has_language:
            languages[row["language"]] = None
            if row["language"] != language:
                continue
        number += 1
        label = _label(known, row[layout.label].strip(), row, flag) if has_label else None
        if label == _NO_GOLD_LABEL:
            odd["without"] += 1
            first_without = first_without or row.where
            continue
        text, pair = row[layout.text], row[layout.text_pair] if layout.text_pair else None
        odd["empty"] += not (text.strip() and (pair is None or pair.strip()))
        examples.append(TextExample(row[id_column].strip() if id_column else str(number), text, pair, label, row.where))
    if number < 0:
        raise UserError(
            f"{flag}: {path} has no row of language {language!r}; there are: {', '.join(sorted(languages))}"
        )
    notes = tables.notes_of(path, odd)
    if count := odd["without"]:
        what = "example has" if count == 1 else "examples have"
        notes += (f"{path}: {count:,} {what} no agreed label (-) and are left out, first {first_without}",)
    return DataSet(examples, path, notes)


def languages_in(path: str | os.PathLike, flag: str = "--data_dir") -> tuple[str, ...] | None:
    """The languages that a file of XNLI has rows of, in the order of LANGUAGES; None where it has no such column.

    Raises:
      UserError: the file cannot be read, or there is none of LANGUAGES.
    """
    path = os.fspath(path)
    found: set[str] = set()
    for row in tables.read_rows(path, flag, kind="tsv"):
        if "language" not in row.columns:
            return None
        found.add(row["language"])
    if not found.intersection(LANGUAGES):
        raise UserError(f"{flag}: {path} has no row of a language of XNLI; there are: {', '.join(sorted(found))}")
    return tuple(language for language in LANGUAGES if language in found)


def _folders(root, task: Task) -> list:
    """Where files of a task may lie: below `root` first, so that what is beside does not stand for them."""
    names = dict.fromkeys(name for folder in task.folders for name in (folder, folder.lower()))
    return [root / name for name in names] + [root]


def _first(folders: Sequence[os.PathLike], names: Sequence[str]) -> str | None:
    """The first of the files that is there."""
    paths = (folder / name for folder in folders for name in names)
    return next((os.fspath(path) for path in paths if path.exists()), None)


def _is_header(task: Task):
    """The only files without a header line are those of CoLA with labels."""
    if task.name != "cola":
        return lambda first: True
    return lambda first: "sentence" in (name.strip() for name in first)


def _layout(task: Task, row: tables.Row) -> Layout:
    for layout in task.layouts:
        if layout.text in row.columns and layout.text_pair in (*row.columns, None):
            return layout
    return task.layouts[0]


def _label(task: Task, text: str, row: tables.Row, flag: str) -> str | float:
    if task.kind == "regression":
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not SCORES[0] <= value <= SCORES[1]:
            raise UserError(f"{flag}: {row.where}: the score {text!r} is no number from 0 to 5")
        return value
    label = _OTHER_NAMES.get(text, text)
    if label in task.labels or (label == _NO_GOLD_LABEL and task.labels == _THREE_WAY):
        return label
    raise UserError(f"{flag}: {row.where}: the label {text!r} is none of {task.name}: {', '.join(task.labels)}")
