"""Examples of fine-tuning tasks as they stand in their files: texts and labels, before any token is made."""

from typing import NamedTuple


class TextExample(NamedTuple):
    """A text or a pair of texts to classify, or to give a number.

    Attributes:
      id: as prediction files name it: the data set's own index, else the row's number from 0.
      label: a name; a number of a regression; a tuple of names where any number of labels may hold; None where unknown.
      where: file and line, for messages.
    """

    id: str
    text: str
    text_pair: str | None
    label: str | float | tuple[str, ...] | None
    where: str


class ChoiceExample(NamedTuple):
    """A context and its possible endings.

    Attributes:
      text: the context; the first text of each pair.
      stem: how all endings begin; "" where they have nothing in common. The second text is stem and ending.
      label: number of the right ending from 0; None where unknown.
    """

    id: str
    text: str
    stem: str
    endings: tuple[str, ...]
    label: int | None
    where: str


class Answer(NamedTuple):
    """An answer and the character of the context at which it starts."""

    text: str
    start: int


class QuestionExample(NamedTuple):
    """A question and the context that answers it, or does not.

    Attributes:
      answers: all that were given by people; empty for questions without an answer or without a known one.
      is_impossible: whether the context holds no answer; None where unknown.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool | None
    where: str


class TaggedExample(NamedTuple):
    """A sentence whose words carry tags.

    Attributes:
      tags: one a word, as in the file; None where unknown.
      document: number of the document that the sentence is part of, from 0.
      where: file and first line.
      lines: the sentence as it stands in a file of columns, with the lines before it that are of no sentence, after the
        last one also those behind; empty where it is from elsewhere.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int
    where: str
    lines: tuple[str, ...] = ()


class DataSet(NamedTuple):
    """The examples of one split, in the order of the file.

    Attributes:
      source: file or name, for messages.
      notes: what the user should know of how they were read, a line each.
    """

    examples: list
    source: str
    notes: tuple[str, ...] = ()
