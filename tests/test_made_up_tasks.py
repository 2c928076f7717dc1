"""The made-up tasks are read by the readers of the real ones."""

import collections
import random

import pytest

from input_pipeline import conll_data, glue_data, squad_data
from launch import made_up_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, text in made_up_tasks.make((60, 20)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("task", "count"), [("mnli", 3), ("qnli", 2), ("mrpc", 2), ("sst2", 2)])
def test_glue(folder, task, count):
    found = glue_data.find(task, folder)
    for split, size in zip(found, (60, 20), strict=True):
        examples = glue_data.read(task, split, found[split]).examples
        labels = collections.Counter(example.label for example in examples)
        assert len(examples) == size and len(labels) == count
        assert max(labels.values()) < 0.75 * size
    assert (examples[0].text_pair is None) == (task == "sst2")


def test_squad(folder):
    found = squad_data.find(folder / "squad", None)
    for split, size in zip(("train", "dev"), (60, 20)):
        data = squad_data.read(found[split], version_2=False, needs_answers=True, training=True)
        assert len(data.examples) == size and not data.notes  # every answer stands where it should


def test_conll(folder):
    found = conll_data.find(folder / "conll2003")
    sentences = conll_data.read(found["train"], needs_tags=True).examples
    assert len(sentences) == 60
    assert all(set(sentence.tags) - {"O"} for sentence in sentences)
    known = {f"B-{kind}" for kind in made_up_tasks.KINDS} | {"O"}
    assert {tag for sentence in sentences for tag in sentence.tags} <= known


def test_the_names_tell_nothing(monkeypatch):
    monkeypatch.setattr(made_up_tasks, "HIDDEN", 1.0)
    words = "the list holds a string and another list".split()
    shown, tags = made_up_tasks.hidden(random.Random(1), words)
    assert tags == ["O", "B-GROUP", "O", "O", "B-TEXT", "O", "O", "B-GROUP"]
    assert shown[1] == shown[7] != shown[4] and shown[1][0].isupper()
    assert made_up_tasks.hidden(random.Random(2), words)[0][1] != shown[1]


def test_half_of_the_words_are_behind_names():
    rng = random.Random(3)
    shown = [made_up_tasks.hidden(rng, ["the", "list"])[0][1] for _ in range(400)]
    assert 160 < shown.count("list") < 240


def test_it_is_always_the_same(folder):
    assert all((folder / name).read_text() == text for name, text in made_up_tasks.make((60, 20)))


def test_no_sentence_is_in_both_sets(folder):
    sentences = [
        {text for line in (folder / "QNLI" / name).read_text().splitlines()[1:] for text in line.split("\t")[:2]}
        for name in ("train.tsv", "dev.tsv")
    ]
    assert min(map(len, sentences)) > 30 and not sentences[0] & sentences[1]


def test_command_line(tmp_path, capsys, monkeypatch):
    small = list(made_up_tasks.make((4, 2)))
    monkeypatch.setattr(made_up_tasks, "make", lambda: small)
    assert made_up_tasks.main(["made_up_tasks", str(tmp_path / "data")]) == 0
    assert "holds made-up tasks: MNLI" in capsys.readouterr().out
    assert len(list((tmp_path / "data").rglob("*.*"))) == 12
    assert made_up_tasks.main(["made_up_tasks"]) == 2
    assert capsys.readouterr().err == "error: one folder is needed: python -m launch.made_up_tasks DIR\n"
