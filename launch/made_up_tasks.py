"""`python -m launch.made_up_tasks DIR`: made-up tasks in the files of MNLI, QNLI, MRPC, SST-2, SQuAD and CoNLL-2003.

They stand in where nobody gave the real data, so that the paper's experiments run anywhere. All of them are made of
sentences of the builtin corpus, and training and dev examples come from different documents of it:

    MNLI      the second sentence follows the first (entailment), is of the same document (neutral) or of another one
    QNLI      the second sentence follows the first, or is of another document
    MRPC      the two texts are halves of one sentence, or not
    SST-2     a sentence with words of one of two kinds, text or number
    SQuAD     the question asks for the word of one kind
    CoNLL     words of several kinds are tagged with their kind

In the last three, made-up names stand for half of the words in question, so that the word tells its kind half of the
time, and otherwise only the context does. A score on them says nothing about the tasks whose files they resemble.
"""

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from input_pipeline import builtin_corpus, files
from input_pipeline.errors import UserError

TRAIN, DEV = 8000, 500  # examples of each task
SEED = 12345
HIDDEN = 0.5  # share of the words of KINDS behind names

# Words that may be hidden, by kind.
KINDS = {
    "TEXT": "string strings text name names line lines character characters message",
    "NUMBER": "integer int number float size length index value count",
    "GROUP": "list dict dictionary tuple set sequence iterable iterator mapping",
    "CODE": "function method class module object instance code",
    "FILE": "file files path directory stream socket",
}
_TWO = ("TEXT", "NUMBER")  # those of SST-2
_KIND_OF = {word: kind for kind, words in KINDS.items() for word in words.split()}
_WORDS = re.compile(r"\w+|[^\w\s]")

Documents = list[list[list[str]]]  # words of sentences of documents


def documents() -> Documents:
    """The sentences of 6 to 24 words, for each document that has at least four."""
    found = []
    for text in builtin_corpus.documents():
        sentences = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
        words = [_WORDS.findall(sentence) for sentence in sentences if re.match(r"[A-Z].*\.$", sentence, re.DOTALL)]
        words = [sentence for sentence in words if 6 <= len(sentence) <= 24]
        if len(words) >= 4:
            found.append(words)
    return found


def _follows(rng: random.Random, docs: Documents, three_way: bool) -> tuple[str, str, str]:
    document = rng.choice(docs)
    first = rng.randrange(len(document) - 1)
    label = rng.choice(["entailment", "neutral", "contradiction"] if three_way else ["entailment", "not_entailment"])
    if label == "entailment":
        second = document[first + 1]
    elif label == "neutral":
        second = document[rng.choice([n for n in range(len(document)) if n not in (first, first + 1)])]
    else:
        second = rng.choice(rng.choice([other for other in rng.sample(docs, 2) if other is not document]))
    return " ".join(document[first]), " ".join(second), label


def mnli(rng: random.Random, docs: Documents) -> tuple[str, str, str]:
    """Two sentences and their label, one of three."""
    return _follows(rng, docs, three_way=True)


def qnli(rng: random.Random, docs: Documents) -> tuple[str, str, str]:
    """Two sentences and their label, one of two."""
    return _follows(rng, docs, three_way=False)


def mrpc(rng: random.Random, docs: Documents) -> tuple[str, str, str]:
    """Two halves and whether they are of one sentence."""
    one, other = (rng.choice(rng.choice(docs)) for _ in range(2))
    same = rng.random() < 0.5
    second = one if same else other
    return " ".join(one[: len(one) // 2]), " ".join(second[len(second) // 2 :]), str(int(same))


def sst2(rng: random.Random, docs: Documents) -> tuple[str, str]:
    """A sentence with words of one kind, and whether they are numbers."""
    label = rng.randrange(2)
    while True:
        shown, tags = hidden(rng, rng.choice(rng.choice(docs)))
        if set(tags) == {"O", f"B-{_TWO[label]}"}:
            return " ".join(shown), str(label)


def _name(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)).capitalize()


def hidden(rng: random.Random, words: list[str]) -> tuple[list[str], list[str]]:
    """The words, with a share of those of KINDS behind names, each with its own, and tags in IOB2."""
    names = {word: _name(rng) if rng.random() < HIDDEN else word for word in words if word in _KIND_OF}
    shown = [names.get(word, word) for word in words]
    return shown, [f"B-{_KIND_OF[word]}" if word in _KIND_OF else "O" for word in words]


def conll(rng: random.Random, docs: Documents) -> str:
    """A sentence with at least one word of KINDS, in CoNLL's columns."""
    while not _KIND_OF.keys() & set(words := rng.choice(rng.choice(docs))):
        pass
    return "".join(f"{word} {tag}\n" for word, tag in zip(*hidden(rng, words)))


def squad(rng: random.Random, docs: Documents) -> dict[str, Any]:
    """A paragraph with one question; no kind of word is in it twice."""
    while True:
        words = rng.choice(rng.choice(docs))
        kinds = [_KIND_OF[word] for word in words if word in _KIND_OF]
        if len(kinds) > 1 and len(set(kinds)) == len(kinds):
            break
    shown, tags = hidden(rng, words)
    kind = rng.choice(kinds)
    place = tags.index(f"B-{kind}")
    start = len(" ".join(shown[:place])) + (place > 0)
    question = {"question": f"Which is the {kind.lower()}?", "answers": [{"text": shown[place], "answer_start": start}]}
    return {"context": " ".join(shown), "qas": [question]}


def _table(heads: str) -> Callable[[list], str]:
    return lambda examples: "".join("\t".join(row) + "\n" for row in [heads.split(","), *examples])


def _squad_json(paragraphs: list) -> str:
    for number, paragraph in enumerate(paragraphs):
        paragraph["qas"][0]["id"] = str(number)
    return json.dumps({"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}) + "\n"


# Folder -> the maker of an example, the names of the files, and what makes a file of examples.
TASKS: dict[str, tuple[Callable, tuple[str, str], Callable[[list], str]]] = {
    "MNLI": (mnli, ("train.tsv", "dev_matched.tsv"), _table("sentence1,sentence2,gold_label")),
    "QNLI": (qnli, ("train.tsv", "dev.tsv"), _table("question,sentence,label")),
    "MRPC": (mrpc, ("train.tsv", "dev.tsv"), _table("#1 String,#2 String,Quality")),
    "SST-2": (sst2, ("train.tsv", "dev.tsv"), _table("sentence,label")),
    "squad": (squad, ("train-v1.1.json", "dev-v1.1.json"), _squad_json),
    "conll2003": (conll, ("eng.train", "eng.testa"), "\n".join),
}


def make(sizes: tuple[int, int] = (TRAIN, DEV)) -> Iterator[tuple[str, str]]:
    """The files: path within the folder, and text; always the same with one version of Python.

    Args:
        sizes: how many examples to train on and to evaluate on.
    """
    docs = documents()
    random.Random(SEED).shuffle(docs)
    cut = len(docs) // 5
    for folder, (one, names, text) in TASKS.items():
        for name, size, part in zip(names, sizes, (docs[cut:], docs[:cut])):
            rng = random.Random(f"{SEED} {folder} {name}")
            yield f"{folder}/{name}", text([one(rng, part) for _ in range(size)])


def main(argv: list[str]) -> int:
    """Writes all files below the folder that is named."""
    try:
        if len(argv) != 2 or argv[1].startswith("-"):
            raise UserError("one folder is needed: python -m launch.made_up_tasks DIR")
        folder = files.as_path(argv[1], "DIR")
        for name, text in make():
            files.write_bytes_atomic(folder / name, text.encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{folder} holds made-up tasks: {', '.join(TASKS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
