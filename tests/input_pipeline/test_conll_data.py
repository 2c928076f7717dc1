"""Sentences of words with tags: boundaries, columns, JSON lines, and mistakes in files."""

import gzip
import json
import os

import pytest

from input_pipeline import conll_data
from input_pipeline.errors import UserError


def write(folder, content: str | bytes, name: str = "train.txt") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def sentences(folder, content: str | bytes, **options) -> list[tuple]:
    options = {"needs_tags": True} | options
    return [(one.words, one.tags) for one in conll_data.read(write(folder, content), **options).examples]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n\n", [(("EU",), ("B-ORG",))]),
        ("-DOCSTART- -DOCSTART- O\nDat Pron O\nis V O", [(("Dat", "is"), ("O", "O"))]),
        ("a\tO\r\nb\tO\r\n\r\nc\tO\r\n", [(("a", "b"), ("O", "O")), (("c",), ("O",))]),
        ("\ufeffa O\n\n\n \t \nb O\n\t\nc O", [(("a",), ("O",)), (("b",), ("O",)), (("c",), ("O",))]),
        ("a\tO\n\ufeff\n", [(("a",), ("O",))]),
        ("a \tO\nb   O  \nc\tO\t\n", [(("a", "b", "c"), ("O", "O", "O"))]),
        ("a NN\tO\nb VB\tO\n", [(("a NN", "b VB"), ("O", "O"))]),
        ("New York\tB-LOC\nx\tO\n", [(("New York", "x"), ("B-LOC", "O"))]),
        ("EU NNP\tI-NP B-ORG\n", [(("EU",), ("B-ORG",))]),
    ],
)
def test_sentences(tmp_path, content, found):
    assert sentences(tmp_path, content) == found


@pytest.mark.parametrize("content", ["a O\rb O\r\rc O\r", "a O\r\r\nb O\r\r\n"])
def test_other_ends_of_lines_are_refused(tmp_path, content):
    with pytest.raises(UserError, match=r"train.txt, line 1: a carriage return within the line"):
        sentences(tmp_path, content)


def test_characters_that_are_not_seen_are_words(tmp_path):
    content = "EU B-ORG\n\x97 O\n\u200b O\n\u2028 O\n\x85 O\n\xa0 O\n\x07 O\nGermany B-LOC\n"
    [(words, tags)] = sentences(tmp_path, content)
    assert words == ("EU", "\x97", "\u200b", "\u2028", "\x85", "\xa0", "\x07", "Germany")
    assert tags == ("B-ORG", "O", "O", "O", "O", "O", "O", "B-LOC")


def test_examples(tmp_path):
    path = write(tmp_path, "a O\n\n-DOCSTART- O\n\nb O\n\nc O\n-DOCSTART- O\nd O\n")
    data = conll_data.read(path, needs_tags=True)
    assert data.source == path and data.notes == ()
    assert [(one.id, one.document, one.where) for one in data.examples] == [
        ("0", 0, f"{path}, line 1"),
        ("1", 1, f"{path}, line 5"),
        ("2", 1, f"{path}, line 7"),
        ("3", 2, f"{path}, line 9"),
    ]


def test_documents_are_counted_from_their_first_sentence(tmp_path):
    path = write(tmp_path, "-DOCSTART- O\n\n-DOCSTART- O\n\na O\n\n-DOCSTART- O\n\nb O\n")
    assert [one.document for one in conll_data.read(path, needs_tags=True).examples] == [0, 1]


@pytest.mark.parametrize("tags", [False, True])
def test_tags_that_are_not_needed(tmp_path, tags):
    content = "a O\nb O\n" if tags else "a\nb\n"
    assert sentences(tmp_path, content, needs_tags=False) == [(("a", "b"), None)]


def test_columns_by_number(tmp_path):
    content = "1 Wien B-LOC O\n2 liegt O O\n"
    assert sentences(tmp_path, content, word_column=2, tag_column=3) == [(("Wien", "liegt"), ("B-LOC", "O"))]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a O\nb\n", {}, "line 2: only 1 column ('b'); a line is a word and its tag"),
        ("a O\n\n\tO\n", {}, r"line 3: no word ('\tO')"),
        ("a O\n O\n", {}, "line 2: only 1 column (' O')"),
        ("a N O\nb O\n", {}, "line 2: 2 columns ('b O'), but 3 in line 1"),
        ("a N O\nb N\n", {"tag_column": 3}, "line 2: only 2 columns ('b N'); column 3 is needed"),
        ("a\t\tx\n", {"tag_column": 2}, r"line 1: no tag ('a\t\tx')"),
        ("A sentence .\nAnother\n", {"needs_tags": False}, "line 2: 1 column ('Another'), but 3 in line 1"),
        ("\n \n", {}, "holds no sentence"),
        ("", {}, "holds no sentence"),
        ("-DOCSTART- O\n", {}, "holds no sentence"),
    ],
)
def test_mistakes(tmp_path, content, options, message):
    with pytest.raises(UserError) as error:
        sentences(tmp_path, content, **options)
    assert message in str(error.value)
    assert str(error.value).startswith("--data_dir: ")
    assert str(tmp_path / "train.txt") in str(error.value)


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="--eval_file: no such file"):
        conll_data.read(str(tmp_path / "none.txt"), needs_tags=True, flag="--eval_file")


def test_notes(tmp_path):
    data = conll_data.read(write(tmp_path, "a I-LOC\n"), needs_tags=True)
    assert len(data.notes) == 1 and "the tags are IOB1" in data.notes[0]
    data = conll_data.read(write(tmp_path, "ok O\nni\xf1o O\n".encode("latin-1")), needs_tags=True)
    assert data.examples[0].words == ("ok", "ni\ufffdo")
    assert len(data.notes) == 1 and "no UTF-8: 1, the first is 2; convert" in data.notes[0]


def test_gzip(tmp_path):
    path = write(tmp_path, gzip.compress(b"a O\n"), "train.txt.gz")
    assert conll_data.read(path, needs_tags=True).examples[0].words == ("a",)


def test_json_lines(tmp_path):
    rows = [
        {"words": ["New York", ""], "tags": ["B-LOC", "O"]},
        {"words": [], "tags": [], "id": "x", "document": "d"},
        {"words": ["c"], "tags": ["O"], "id": 7, "document": "d"},
    ]
    path = write(tmp_path, "\ufeff" + "\n\n".join(map(json.dumps, rows)), "train.jsonl")
    assert conll_data.read(path, needs_tags=True).examples == [
        ("0", ("New York", ""), ("B-LOC", "O"), 0, f"{path}, line 1", ()),
        ("x", (), (), 1, f"{path}, line 3", ()),
        ("7", ("c",), ("O",), 1, f"{path}, line 5", ()),
    ]
    assert conll_data.read(path, needs_tags=False).examples[0].tags is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"words": ["a"]}', "line 1: field 'tags' is missing; there are: words"),
        ('{"words": "a", "tags": ["O"]}', "line 1: field 'words' is no list of strings"),
        ('{"words": ["a"], "tags": [0]}', "line 1: field 'tags' is no list of strings"),
        ('{"words": ["a", "b"], "tags": ["O"]}', "line 1: 2 words, but 1 tags"),
        ('["a"]', "line 1: not a JSON object with the list 'words'; an array of objects has to become JSON lines"),
        ("{", "line 1: not JSON"),
        ('{"tokens": ["a"], "ner_tags": [0]}', "'tokens', as Hugging Face's data sets have it, is called 'words' here"),
        (
            '{"words": ["a"], "ner_tags": [0]}',
            "'ner_tags', as Hugging Face's data sets have it, is called 'tags' here, and its numbers are names of tags",
        ),
        ("a O", "line 1: not JSON"),
    ],
)
def test_mistakes_of_json_lines(tmp_path, line, message):
    with pytest.raises(UserError) as error:
        conll_data.read(write(tmp_path, line, "train.jsonl"), needs_tags=True)
    assert message in str(error.value)


def test_tagged_lines_are_those_of_the_file(tmp_path):
    content = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nsays VBZ O\n \t\n\nx\tNN\tO\n\n-DOCSTART- -X- O\n\n"
    examples = conll_data.read(write(tmp_path, content), needs_tags=True).examples
    assert list(conll_data.tagged_lines(examples, [("B-LOC", "O"), ("O",)])) == [
        "-DOCSTART- -X- O O",
        "",
        "EU NNP B-ORG B-LOC",
        "says VBZ O O",
        "",
        "",
        "x\tNN\tO\tO",
        "",
        "-DOCSTART- -X- O O",
        "",
    ]


def test_tagged_lines_without_a_file_of_columns(tmp_path):
    path = write(tmp_path, '{"words": ["New\\nYork", ""], "tags": ["B-LOC", "O"]}', "train.jsonl")
    tagged = conll_data.read(path, needs_tags=True).examples
    assert list(conll_data.tagged_lines(tagged, [("O", "O")])) == ["New_York B-LOC O", "_ O O", ""]
    untagged = conll_data.read(path, needs_tags=False).examples
    assert list(conll_data.tagged_lines(untagged, [("B-X", "O")])) == ["New_York B-X", "_ O", ""]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("eng.train eng.testa eng.testb eng.raw", "eng.train eng.testa eng.testb"),
        ("train.txt valid.txt test.txt readme.txt", "train.txt valid.txt test.txt"),
        ("ned.train ned.testa ned.testb", "ned.train ned.testa ned.testb"),
        ("wnut17train.conll emerging.dev.conll emerging.test.annotated", None),
        ("train.jsonl dev.jsonl", "train.jsonl dev.jsonl"),
        ("test.txt", "test.txt"),
        ("train.txt old_train.txt", "train.txt"),
    ],
)
def test_find(tmp_path, names, found):
    for name in names.split():
        write(tmp_path, "a O\n", name)
    (tmp_path / "training.conll").mkdir()
    chosen = conll_data.find(str(tmp_path))
    assert list(chosen) == [split for split in ("train", "dev", "test") if split in chosen]
    assert [os.path.basename(path) for path in chosen.values()] == (found or names).split()


def test_find_does_not_choose_between_files(tmp_path):
    for name in ("eng.train", "deu.train"):
        write(tmp_path, "a O\n", name)
    with pytest.raises(UserError, match=r"several train files \(deu.train, eng.train\): name yours with --train_file"):
        conll_data.find(str(tmp_path))


def test_find_without_files(tmp_path):
    write(tmp_path, "", "notes.md")
    with pytest.raises(UserError, match=r"no files such as eng.train.*there are: notes.md"):
        conll_data.find(str(tmp_path))
    with pytest.raises(UserError, match="no such file or folder"):
        conll_data.find(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        ("conll2003", [(14041, 203621), (3250, 51362), (3453, 46435)]),
        ("wnut17", [(3394, 62730), (1009, 15733), (1287, 23394)]),
    ],
)
def test_real_files(shared, folder, counts):
    paths = conll_data.find(str(shared / "data/ner" / folder))
    found = [conll_data.read(path, needs_tags=True) for path in paths.values()]
    assert [(len(data.examples), sum(len(one.words) for one in data.examples)) for data in found] == counts
    assert [len(data.notes) for data in found] == [1 if folder == "conll2003" else 0] * 3
    assert not any(word.startswith("-DOCSTART-") for data in found for one in data.examples for word in one.words)


def test_comments_before_a_sentence_are_no_words_and_stay_in_the_tagged_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("#\tsource\n1\tDie\tO\tO\n2\t#\tO\tO\n\n#\tsource\n1\tBonn\tB-LOC\tO\n")
    data = conll_data.read(str(path), needs_tags=True, word_column=2, tag_column=3)
    assert [example.words for example in data.examples] == [("Die", "#"), ("Bonn",)]
    assert [example.tags for example in data.examples] == [("O", "O"), ("B-LOC",)]
    assert data.notes == (f"{path}: lines before a sentence that begin with #: 2, the first is 1; they are comments",)
    lines = list(conll_data.tagged_lines(data.examples, [("O", "O"), ("B-LOC",)]))
    assert lines == ["#\tsource", "1\tDie\tO\tO\tO", "2\t#\tO\tO\tO", "", "#\tsource", "1\tBonn\tB-LOC\tO\tB-LOC"]


def test_a_number_sign_with_as_many_columns_is_a_word(tmp_path):
    path = tmp_path / "dev.txt"
    path.write_text("# O\n1 O\n\nBonn B-LOC\n")
    data = conll_data.read(str(path), needs_tags=True)
    assert data.examples[0].words == ("#", "1")
    assert not data.notes
