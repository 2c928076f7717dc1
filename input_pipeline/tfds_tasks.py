"""The same examples as from the files of a task, out of TensorFlow Datasets: GLUE, XNLI, SQuAD and CoNLL-2003.

TFDS keeps examples in an order of its own; where they carry an index, they are put back into the order of the files.
Its numbers of labels differ from ours (those of MNLI too), so labels go by name. It has no SWAG.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from input_pipeline import tfds_corpus
from input_pipeline.errors import UserError
from input_pipeline.glue_data import LANGUAGES, TASKS
from input_pipeline.task_examples import Answer, DataSet, QuestionExample, TaggedExample, TextExample


class _Source(NamedTuple):
    """Where TFDS has a task.

    Attributes:
      name: of the data set.
      texts: the fields with the text or pair; None where the task is of another kind.
      splits: ours -> theirs.
      label_names: theirs -> ours, where they differ.
    """

    name: str
    texts: tuple[str, ...] | None
    splits: dict[str, str]
    label_names: Mapping[str, str] = MappingProxyType({})


_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_MATCHINGS = ("matched", "mismatched")
_MNLI_SPLITS = {"train": "train"} | {
    f"{ours}_{matching}": f"{theirs}_{matching}"
    for ours, theirs in (("dev", "validation"), ("test", "test"))
    for matching in _MATCHINGS
}
_PAIR, _NLI = ("sentence1", "sentence2"), ("premise", "hypothesis")


def _binary(no: str, yes: str) -> dict[str, str]:
    return {no: "0", yes: "1"}


_AX = _Source("glue/ax", _NLI, {"test": "test", "diagnostic": "test"})
_SOURCES = {
    "cola": _Source("glue/cola", ("sentence",), _SPLITS, _binary("unacceptable", "acceptable")),
    "sst2": _Source("glue/sst2", ("sentence",), _SPLITS, _binary("negative", "positive")),
    "mrpc": _Source("glue/mrpc", _PAIR, _SPLITS, _binary("not_equivalent", "equivalent")),
    "qqp": _Source("glue/qqp", ("question1", "question2"), _SPLITS, _binary("not_duplicate", "duplicate")),
    "stsb": _Source("glue/stsb", _PAIR, _SPLITS),
    "mnli": _Source("glue/mnli", _NLI, _MNLI_SPLITS | {"diagnostic": "test"}),
    "qnli": _Source("glue/qnli", ("question", "sentence"), _SPLITS),
    "rte": _Source("glue/rte", _PAIR, _SPLITS),
    "wnli": _Source("glue/wnli", _PAIR, _SPLITS, _binary("not_entailment", "entailment")),
    "ax": _AX._replace(splits={"test": "test"}),
    "xnli": _Source("xnli", _NLI, {"train": "train", "dev": "validation", "test": "test"}),
    **{
        task: _Source(name, None, {"train": "train", "dev": "validation"})
        for task, name in (("squad", "squad/v1.1"), ("squad/v1.1", "squad/v1.1"), ("squad/v2.0", "squad/v2.0"))
    },
    "conll2003": _Source("conll2003", None, {"train": "train", "dev": "dev", "test": "test"}),
}


def splits(task: str) -> tuple[str, ...]:
    """The names of the splits that TFDS has of a task; none of a task that it does not have.

    The tasks are those of glue_data, "squad/v1.1" (also "squad"), "squad/v2.0" and "conll2003". Training examples of
    XNLI are those of MNLI.
    """
    return tuple(_SOURCES[task].splits) if task in _SOURCES else ()


def read(
    task: str, split: str, name: str | None = None, *, language: str | None = None, flag: str = "--data_dir"
) -> DataSet:
    """The examples of a split: TextExample of GLUE and XNLI, QuestionExample of SQuAD, TaggedExample of CoNLL-2003.

    Ids, texts and labels are those of the files, with these exceptions: an id of XNLI and CoNLL-2003 is the number of
    the example in TFDS, and each sentence of CoNLL-2003 is a document of its own, since TFDS does not keep documents.

    Arguments:
      split: of `splits`; of XNLI also with a language, such as dev_zh.
      name: of the data set, such as "glue/mrpc:2.0.0", or "glue:2.0.0" for the task's part of it; None: the newest that
        TFDS has. What is from another data set, such as MNLI's diagnostic examples, does not go by it.
      language: of XNLI; None takes all. Its training split is English.

    Raises:
      UserError: TFDS has no such task or split or cannot get it, or the data set has other fields than expected.
    """
    if task == "xnli" and "_" in split:
        split, _, language = split.partition("_")
    if split not in splits(task):
        there = ", ".join(splits(task)) or f"no such task; it has {', '.join(_SOURCES)}"
        raise UserError(f"{flag}: TensorFlow Datasets has no split {split!r} of {task}, there is: {there}")
    source = own = _SOURCES[task]
    if split == "diagnostic":
        source = _AX
    elif (task, split) == ("xnli", "train"):
        if language not in ("en", None):
            raise UserError(f"{flag}: TensorFlow Datasets has no training data of XNLI in {language!r}, only in 'en'")
        source = _SOURCES["mnli"]
    spec = f"tfds:{_name(source, name if source is own else None)}:{source.splits[split]}"
    builder, tfds_split = tfds_corpus.open_split(spec, flag)
    rows = _rows(builder, tfds_split)
    try:
        if source.texts and source.name == "xnli":
            examples = list(_xnli_examples(rows, builder.info.features, language, spec))
        elif source.texts:
            is_test = split.startswith(("test", "diagnostic"))
            examples = _glue_examples(rows, builder.info.features, source, task, is_test, spec)
        elif task == "conll2003":
            examples = list(_tagged_examples(rows, builder.info.features, spec))
        else:
            examples = [_question_example(row, spec, number) for number, row in enumerate(rows, start=1)]
    except KeyError as error:
        there = ", ".join(builder.info.features)
        raise UserError(f"{flag}: {spec} has no field or label {error.args[0]!r}; its fields are: {there}") from None
    if not examples:
        raise UserError(f"{flag}: {spec} holds no examples")
    return DataSet(examples, spec)


def _name(source: _Source, wanted: str | None) -> str:
    """The data set's name as wanted, with the task's part of it where that was left open."""
    name, colon, version = (wanted or source.name).partition(":")
    return (source.name if source.name.startswith(f"{name}/") else name) + colon + version


def _rows(builder, split: str) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets as tfds

    return iter(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)))


def _where(spec: str, number: int) -> str:
    return f"{spec}, example {number}"


def _glue_examples(rows, features, source: _Source, task: str, is_test: bool, spec: str) -> list[TextExample]:
    found = sorted(((int(row["idx"]), row) for row in rows), key=lambda pair: pair[0])
    examples = []
    for number, (index, row) in enumerate(found):
        texts = [_text(row[name]) for name in source.texts]
        if is_test:
            label = None
        elif TASKS[task].kind == "regression":
            label = float(str(row["label"]))  # as a float32 is written: 3.8, not 3.799999952316284
        else:
            label = _label(row["label"], features, source.label_names, TASKS[task].labels)
        # The index of MRPC is that in the corpus, of which GLUE has two parts; of all others it is the row's number.
        id = str(number if task == "mrpc" else index)
        examples.append(TextExample(id, texts[0], texts[1] if texts[1:] else None, label, _where(spec, number + 1)))
    return examples


def _xnli_examples(rows, features, language: str | None, spec: str) -> Iterator[TextExample]:
    count = 0
    for number, row in enumerate(rows, start=1):
        label = _label(row["label"], features, {}, TASKS["xnli"].labels)
        hypotheses = dict(zip(map(_text, row["hypothesis"]["language"]), row["hypothesis"]["translation"]))
        for one in [language] if language else LANGUAGES:
            pair = _text(row["premise"][one]), _text(hypotheses[one])
            yield TextExample(str(count), *pair, label, _where(spec, number))
            count += 1


def _question_example(row: dict[str, Any], spec: str, number: int) -> QuestionExample:
    answers = zip(map(_text, row["answers"]["text"]), map(int, row["answers"]["answer_start"]))
    impossible = bool(row.get("is_impossible", False))
    return QuestionExample(
        _text(row["id"]),
        _text(row["question"]),
        _text(row["context"]),
        () if impossible else tuple(Answer(*answer) for answer in answers),
        impossible,
        _where(spec, number),
    )


def _tagged_examples(rows, features, spec: str) -> Iterator[TaggedExample]:
    tag_names = features["ner"].feature.names
    count = 0
    for number, row in enumerate(rows, start=1):
        if len(row["tokens"]):  # what follows the last blank line of a file is an example too
            tags = tuple(tag_names[tag] for tag in row["ner"])
            yield TaggedExample(str(count), tuple(map(_text, row["tokens"])), tags, count, _where(spec, number))
            count += 1


def _label(number: Any, features, label_names: Mapping[str, str], known: tuple[str, ...]) -> str | None:
    if number == -1:
        return None
    name = features["label"].int2str(int(number))
    name = label_names.get(name, name)
    if name not in known:
        raise KeyError(name)
    return name


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
