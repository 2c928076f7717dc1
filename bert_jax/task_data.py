"""From --task_name and the flags of files to the examples of each split, whatever form they are in."""

import contextlib
import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bert_jax.heads import FIXED_OUTPUTS
from input_pipeline import choice_data, conll_data, files, glue_data, own_data, squad_data, tag_schemes, tfds_tasks
from input_pipeline.errors import UserError
from input_pipeline.hashing import make_key, unit
from input_pipeline.task_examples import DataSet

# Tasks that are not in glue_data: what kind they are, and where their files are known by name.
_OTHER_TASKS = {
    "squad": "span",
    "swag": "multiple_choice",
    "conll2003": "tagging",
    "classification": "classification",
    "multi_label": "multi_label",
    "regression": "regression",
    "multiple_choice": "multiple_choice",
    "tagging": "tagging",
}
TASK_NAMES = (*glue_data.TASKS, *_OTHER_TASKS)
FILE_FLAGS = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}
_HELD_OUT = 1  # use of the seed


class TaskData(NamedTuple):
    """What a task is to be learned from, evaluated on, and asked.

    Attributes:
        name: one of TASK_NAMES.
        kind: of heads.KINDS.
        labels: names of the outputs; those of kinds with fixed outputs too.
        splits: "train"; "dev" or several "dev_..."; "test", several "test_..." or "diagnostic": those that there are.
        submission: split -> the file that a leaderboard takes.
        version_2: whether questions may have no answer.
        bounds: of a regression's numbers.
        scale: mean and standard deviation by which a regression's labels are standardised; None for labels as they are.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    splits: dict[str, DataSet]
    submission: dict[str, str]
    version_2: bool = False
    bounds: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None


def is_labelled(split: str) -> bool:
    """Whether metrics can be told of a split."""
    return not split.startswith(("test", "diagnostic"))


def task_name(flags: Any) -> str:
    """--task_name in the form used here ("SST-2" is "sst2"). Raises: UserError, for one that is missing or unknown."""
    if flags.task_name is None:
        raise UserError(f"--task_name is missing: one of {', '.join(TASK_NAMES)}")
    name = flags.task_name.lower()
    if name == "glue" and flags.mode == "finetune":
        return name
    for spelled in (name, name.replace("-", "_"), name.replace("-", "").replace("_", "")):
        if spelled in TASK_NAMES:
            return spelled
    known = {"ner": "conll2003", "squad1.1": "squad", "squad2.0": "squad"}
    if name in known:
        return known[name]
    names = [*TASK_NAMES, *(["glue"] if flags.mode == "finetune" else [])]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UserError(f"--task_name={flags.task_name} must be one of {', '.join(names)}{hint}")


def glue_tasks_in(data_dir: str) -> list[str]:
    """The tasks of GLUE to be trained on that a folder has, or TFDS.

    Raises:
        UserError: there is none.
    """
    names = [name for name in glue_data.TASKS if name not in ("ax", "xnli")]
    if data_dir.partition(":")[0] == "tfds":
        return names
    found = []
    for name in names:
        with contextlib.suppress(UserError):
            glue_data.find(name, data_dir, needed=("train", "dev"))
            # A task's own folder, with any name, would do for all whose files are called alike.
            if any((files.as_path(data_dir) / folder).exists() for folder in glue_data.TASKS[name].folders):
                found.append(name)
    if not found:
        folders = ", ".join(glue_data.TASKS[name].folders[0] for name in names)
        raise UserError(f"--data_dir={data_dir} holds no folder of GLUE with train and dev files: {folders}")
    return found


def kind_of(name: str) -> str:
    """The kind of a task's head."""
    return glue_data.TASKS[name].kind if name in glue_data.TASKS else _OTHER_TASKS[name]


def given_labels(flags: Any, name: str) -> tuple[str, ...] | None:
    """The labels of a task as --labels names and orders them; None without it.

    Raises:
        UserError: the task has others by its definition.
    """
    if not flags.labels:
        return None
    known = labels_of(name) or FIXED_OUTPUTS.get(kind_of(name), ())
    if known and set(known) != set(flags.labels):
        raise UserError(f"--labels={','.join(flags.labels)}: --task_name={name} has {', '.join(known)}")
    return tuple(flags.labels)


def labels_of(name: str) -> tuple[str, ...]:
    """The labels that a task has by its definition; none where its data say."""
    return glue_data.TASKS[name].labels if name in glue_data.TASKS else ()


def open_data(flags: Any, name: str, wanted: Sequence[str], labels: Sequence[str] | None = None) -> TaskData:
    """Reads the examples.

    Args:
        flags: data_dir, or train_file, eval_file and predict_file, and what they are read with.
        name: of TASK_NAMES.
        wanted: kinds of splits that are to be read where they are there: "train", "dev", "test"; the first must be.
        labels: names that may occur: those of --labels or of a model.

    Raises:
        UserError: files that are not there or not as they should be; file and line are named.
    """
    kind = kind_of(name)
    _check_fields(flags)
    places = _places(flags, name, wanted)
    for split in wanted[:1]:
        if not any(_kind_of_split(place) == split for place in places):
            where = f"--data_dir={flags.data_dir} has no file for it" if flags.data_dir else "so is --data_dir"
            raise UserError(f"--{FILE_FLAGS[split]} is missing, and {where}: give one of them")
    version_2 = _version_2(flags, name, places)
    splits: dict[str, DataSet] = {}
    for split, place in places.items():
        splits[split] = _read(flags, name, kind, split, place, labels, version_2)
        if not splits[split].examples:
            why = "".join(f" ({note})" for note in splits[split].notes)
            raise UserError(f"{place[1]}: {splits[split].source} holds no examples for {split}{why}")
        if split == "train" and not labels and kind != "tagging":
            labels = _labels(name, kind, splits)
    if name == "xnli" and not flags.language:
        _note_languages(splits)
    if flags.eval_fraction and "train" in splits:
        if any(split.startswith("dev") for split in splits):
            raise UserError(f"--eval_fraction={flags.eval_fraction}: --data_dir has labelled examples to evaluate on")
        splits = _hold_out(splits, flags.eval_fraction, flags.seed)
    known = glue_data.TASKS.get(name)
    return TaskData(
        name,
        kind,
        tuple(labels) if labels else _labels(name, kind, splits),
        splits,
        dict(known.submission) if known else {},
        version_2,
        glue_data.SCORES if name == "stsb" else None,
        _scale(splits["train"]) if name == "regression" and "train" in splits else None,
    )


def _scale(train: DataSet) -> tuple[float, float]:
    """Mean and standard deviation of the labels, the same on any machine; a deviation of 1 where all are equal."""
    labels = [example.label for example in train.examples]
    mean = math.fsum(labels) / len(labels)
    deviation = math.sqrt(math.fsum((label - mean) ** 2 for label in labels) / len(labels))
    return mean, deviation or 1.0


def _check_fields(flags: Any) -> None:
    """Refuses one column for two parts of an example."""
    seen: dict[str, str] = {}
    for flag in ("text_field", "text_pair_field", "label_field"):
        value = getattr(flags, flag)
        if value in seen:
            raise UserError(f"--{flag}={value}: this is --{seen[value]} already")
        if value is not None:
            seen[value] = flag


def tell_of(data: TaskData, say: Callable[[str], None]) -> None:
    """Says what was read, and all that was odd about it."""
    for split, examples in data.splits.items():
        say(f"{split}: {len(examples.examples):,} examples from {examples.source}")
        for note in examples.notes:
            say(note)
    if data.labels and data.kind not in FIXED_OUTPUTS:
        say(f"{data.kind}: {', '.join(data.labels)}")
        if data.kind == "classification" and len(data.labels) > 20 and all(map(_is_decimal, data.labels)):
            say(f"warning: all {len(data.labels)} classes are numbers; --task_name=regression learns numbers")
    if data.scale:
        mean, deviation = data.scale
        say(f"regression: labels are standardised by their mean {mean:g} and standard deviation {deviation:g}")


def _is_decimal(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _kind_of_split(split: str) -> str:
    return "test" if split == "diagnostic" else split.partition("_")[0]


def _places(flags: Any, name: str, wanted: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Split -> where it is (paths, or the split's name for TFDS), and the flag that says so."""
    places: dict[str, tuple[Any, str]] = {}
    if flags.data_dir and flags.data_dir.partition(":")[0] == "tfds":
        places = dict.fromkeys(tfds_tasks.splits(name), (None, "--data_dir"))
    elif flags.data_dir:
        places = {split: ([path], "--data_dir") for split, path in _find(flags, name, wanted).items()}
    for split, flag in FILE_FLAGS.items():
        if paths := getattr(flags, flag):
            # What is named by itself stands for all that the folder has of its kind.
            places = {other: place for other, place in places.items() if _kind_of_split(other) != split}
            places[split] = (list(paths), f"--{flag}")
    order = list(FILE_FLAGS)
    places = {split: place for split, place in places.items() if _kind_of_split(split) in wanted}
    places = dict(sorted(places.items(), key=lambda entry: order.index(_kind_of_split(entry[0]))))
    if name != "xnli":
        return places
    return {own: place for split, place in places.items() for own in _by_language(flags, split, *place)}


def _by_language(flags: Any, split: str, paths: Sequence[str] | None, flag: str) -> list[str]:
    """The splits that XNLI's dev or test set is read as: one for each language that is wanted and there."""
    if split == "train":
        return [split]
    languages: Sequence[str] | None = glue_data.LANGUAGES
    if flags.language:
        languages = [flags.language]
    elif paths and len(paths) == 1:
        languages = glue_data.languages_in(paths[0], flag)
    return [split] if languages is None else [f"{split}_{language}" for language in languages]


def _note_languages(splits: dict[str, DataSet]) -> None:
    """Notes beside the first language of a set of XNLI which ones it has, if not all of them."""
    for kind in ("dev", "test"):
        own = [split for split in splits if split.startswith(f"{kind}_")]
        if own and len(own) < len(glue_data.LANGUAGES):
            languages = ", ".join(split.partition("_")[2] for split in own)
            note = f"{kind}: of the {len(glue_data.LANGUAGES)} languages of XNLI there are {languages}"
            splits[own[0]] = splits[own[0]]._replace(notes=(note, *splits[own[0]].notes))


def _find(flags: Any, name: str, wanted: Sequence[str]) -> dict[str, str]:
    if name in glue_data.TASKS:
        return glue_data.find(name, flags.data_dir, train_language=flags.train_language, needed=wanted[:1])
    if name == "squad":
        return squad_data.find(flags.data_dir, flags.version_2_with_negative)
    if name in ("swag", "multiple_choice"):
        return choice_data.find(flags.data_dir, needed=wanted[:1])
    if name in ("conll2003", "tagging"):
        return conll_data.find(flags.data_dir)
    raise UserError(
        f"--data_dir: the files of --task_name={name} are named by --train_file, --eval_file, --predict_file"
    )


def _version_2(flags: Any, name: str, places: dict[str, tuple[Any, str]]) -> bool:
    if name != "squad":
        return False
    if flags.version_2_with_negative is not None:
        return flags.version_2_with_negative
    paths = [path for found, _ in places.values() for path in found or []]
    if paths:
        return any("v2" in path.rpartition("/")[2] for path in paths)
    return "v2" in (flags.data_dir or "")


def _read(flags, name, kind, split, place, labels, version_2) -> DataSet:
    paths, flag = place
    if paths is None:
        language = flags.train_language if (name, split) == ("xnli", "train") else None
        source = "squad/v2.0" if version_2 else name
        return tfds_tasks.read(source, split, flags.data_dir.partition(":")[2] or None, language=language, flag=flag)
    labelled = is_labelled(split)
    if name in glue_data.TASKS or kind in ("span", "multiple_choice", "tagging"):
        if len(paths) > 1:
            raise UserError(f"{flag}: one file is needed, not {len(paths)}: {', '.join(paths)}")
        path = paths[0]
    if name in glue_data.TASKS:
        language = split.partition("_")[2] or None if name == "xnli" and split != "train" else None
        return glue_data.read(name, split, path, language=language, flag=flag)
    if kind == "span":
        return squad_data.read(path, version_2=version_2, needs_answers=labelled, training=split == "train", flag=flag)
    if kind == "multiple_choice":
        return choice_data.read(path, needs_label=labelled, flag=flag)
    if kind == "tagging":
        word, tag = (_column(name, getattr(flags, name)) for name in ("text_field", "label_field"))
        return conll_data.read(path, needs_tags=labelled, flag=flag, word_column=word or 1, tag_column=tag)
    fields = own_data.Fields(flags.text_field, flags.text_pair_field, flags.label_field or "label", flags.id_field)
    return own_data.read(paths, kind, fields, labels=labels, needs_label=labelled, flag=flag)


def _column(flag: str, value: str | None) -> int | None:
    """The number of a column of words or tags; None where none was given."""
    if value in (None, "text"):
        return None
    if not (value.isascii() and value.isdigit() and int(value)):
        raise UserError(f"--{flag}={value}: columns of words and tags are numbers, counted from 1")
    return int(value)


def _hold_out(splits: dict[str, DataSet], fraction: float, seed: int) -> dict[str, DataSet]:
    """Splits the training examples in two, each by a draw of its own."""
    train = splits["train"]
    draws = [unit(make_key(seed, _HELD_OUT, number)) for number in range(len(train.examples))]
    parts = ([e for e, x in zip(train.examples, draws) if (x < fraction) == held_out] for held_out in (False, True))
    kept, held_out = parts
    if not (kept and held_out):
        raise UserError(f"--eval_fraction={fraction} of {len(train.examples)} examples leaves nothing on one side")
    rest = {split: data for split, data in splits.items() if split != "train"}
    note = f"{len(held_out):,} of {len(train.examples):,} training examples are held out (--eval_fraction={fraction})"
    return {
        "train": train._replace(examples=kept, notes=(*train.notes, note)),
        "dev": DataSet(held_out, train.source),
    } | rest


def _labels(name: str, kind: str, splits: dict[str, DataSet]) -> tuple[str, ...]:
    if kind in FIXED_OUTPUTS:
        return FIXED_OUTPUTS[kind]
    if name in glue_data.TASKS:
        return glue_data.TASKS[name].labels
    labelled = [data for split, data in splits.items() if is_labelled(split)]
    if kind == "tagging":
        names = tag_schemes.label_names([example for data in labelled for example in data.examples])
    else:
        names = own_data.label_names(labelled)
    if len(names) < 2 and kind in ("classification", "tagging"):
        found = f"all that there is has the label {names[0]!r}" if names else "it holds no labels"
        raise UserError(
            f"{labelled[0].source}: {found}: there is nothing to tell apart (--label_field says where the label stands)"
        )
    return names
