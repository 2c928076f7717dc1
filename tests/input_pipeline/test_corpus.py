import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline import corpus
from input_pipeline.errors import UserError
from input_pipeline.token_store import METADATA


def documents(spec, split=False, text_field="text", **options) -> list[list[str]]:
    """All documents of an input, put together from its blocks as a store does it."""
    found = []
    for source in corpus.find_sources(str(spec)):
        is_open = False
        for block in corpus.read_blocks(source, text_field, **options):
            first, *others = corpus.parse_block(block, text_field, split)[0] or [[]]
            found += [found.pop() + first] if is_open else [first]
            found += others
            is_open = block.continues
    return [document for document in found if document]


B055 = "a b\nc d\n\n\n \t \ne f\ng h"


@pytest.mark.parametrize(
    "content",
    [
        B055.encode(),
        B055.replace("\n", "\r\n").encode(),
        B055.encode("utf-8-sig"),
        ("\n\n" + B055 + "\n\n\n").encode(),
        B055.replace("\n\n\n", "\n\u3000\n\x85\n").encode(),
    ],
)
@pytest.mark.parametrize("block_bytes", [8, 11, 1000])
def test_lines_are_sentences_and_white_lines_end_documents(tmp_path, content, block_bytes):
    (tmp_path / "a.txt").write_bytes(content)
    found = documents(tmp_path / "a.txt", block_bytes=block_bytes)
    assert [[line.strip() for line in document] for document in found] == [["a b", "c d"], ["e f", "g h"]]


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\xef\xbb\xbf", b" \r\n\t\n"])
def test_nothing_gives_no_documents(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    assert documents(tmp_path / "a.txt") == []


def test_a_zero_width_line_ends_no_document_and_other_separators_no_line(tmp_path):
    (tmp_path / "a.txt").write_text("a\n\u200b\nb\u2028c\x0cd\re\n\nf\x00g", newline="")
    assert documents(tmp_path / "a.txt") == [["a", "\u200b", "b\u2028c\x0cd\re"], ["f\x00g"]]


def test_bad_bytes_are_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\xffb \xe4\xbd c\n\xef\xbf\xbd")
    (source,) = corpus.find_sources(str(tmp_path / "a.txt"))
    (block,) = corpus.read_blocks(source, "text")
    assert corpus.parse_block(block, "text", False) == ([["a\ufffdb \ufffd c", "\ufffd"]], 2)


@given(
    st.lists(st.text(st.sampled_from("ab今é \t\u200b"), max_size=12), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(4, 30),
)
def test_blocks_only_cut_lines_that_are_longer(tmp_path_factory, lines, ending, block_bytes):
    path = tmp_path_factory.mktemp("blocks") / "a.txt"
    path.write_bytes(ending.join(lines).encode())
    (source,) = corpus.find_sources(str(path))
    blocks = list(corpus.read_blocks(source, "text", block_bytes=block_bytes))
    assert b"".join(block.data for block in blocks) == path.read_bytes()
    assert not any("\ufffd" in block.data.decode("utf-8", "replace") for block in blocks), "cut inside a character"
    assert all(len(block.data) <= 3 * block_bytes + 3 for block in blocks)
    assert [block.continues for block in blocks] == [True] * (len(blocks) - 1) + [False]
    longest = max((len(line.encode()) for line in lines), default=0)
    if longest + 2 <= block_bytes:
        assert not any(block.cut_line for block in blocks)
        whole = list(corpus.read_blocks(source, "text"))
        assert len(whole) == 1
        assert documents(path, block_bytes=block_bytes) == documents(path)


def test_running_text_is_split(tmp_path):
    (tmp_path / "a.txt").write_text("One was here. Two was\nthere.\n\nThree. Four.")
    assert documents(tmp_path / "a.txt", split=True) == [["One was here.", "Two was there."], ["Three.", "Four."]]
    assert corpus.is_split("jsonl", "auto") and corpus.is_split("tfds", "auto") and corpus.is_split("builtin", "auto")
    assert not corpus.is_split("text", "auto") and corpus.is_split("text", "always")
    assert not corpus.is_split("jsonl", "never")


def test_gzip_is_known_by_content(tmp_path):
    for name in ("a.txt.gz", "a.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"a b\n\nc\n" * 100))
        assert documents(tmp_path / name, block_bytes=50) == [["a b"], *[["c", "a b"]] * 99, ["c"]]
    whole = (tmp_path / "a.txt").read_bytes()
    for damaged in (whole[:-9], whole[:15] + b"\0\0\0\0" + whole[19:]):
        (tmp_path / "bad.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"bad\.gz is a damaged or cut-off gzip file"):
            documents(tmp_path / "bad.gz")


def test_json_lines(tmp_path):
    lines = [{"text": "One. Two.\n\nThree.", "id": 1}, {"text": ""}, {"text": "Four \ud800."}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)).replace("\n", "\n\n"))
    assert documents(path, split=True) == [["One.", "Two.", "Three."], ["Four \ud800."]]
    assert documents(path, block_bytes=10) == [["One. Two.", "Three."], ["Four \ud800."]]
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(b'{"body": "x"}\n'))
    assert documents(tmp_path / "b.ndjson.gz", text_field="body") == [["x"]]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "a"', r"not JSON"),
        ('["a"]', r"not a JSON object with a field 'text'"),
        ('{"txt": "a", "id": 1}', r"field 'text' is missing; there are: txt, id \(--text_field\)"),
        ('{"text": null}', r"field 'text' is no string"),
        ("[" * 100_000, r"not JSON"),
    ],
)
@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_a_bad_json_line_is_named(tmp_path, line, problem, block_bytes):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n\n{"text": "good"}\n' + line + "\n")
    with pytest.raises(UserError, match=r"--input_file: .*/a\.jsonl, line 4: " + problem):
        documents(tmp_path / "a.jsonl", block_bytes=block_bytes)


def test_a_json_line_has_a_greatest_length(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST_JSON_LINE", 100)
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + json.dumps({"text": "long " * 100}))
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: longer than"):
        documents(tmp_path / "a.jsonl", block_bytes=20)


def test_folders_and_globs(tmp_path):
    for name in ("b.txt", "a.txt", ".hidden", "_SUCCESS", "sub/c.jsonl", "sub/.git/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "c"}' if name.endswith("jsonl") else name[0])
    assert documents(tmp_path) == [["a"], ["b"], ["c"]]
    assert documents(tmp_path / "*.txt") == [["a"], ["b"]]
    assert [source.kind for source in corpus.find_sources(str(tmp_path))] == ["text", "text", "jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"the folder .*empty holds no files"):
        corpus.find_sources(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="--eval_input_file: no such file or folder"):
        corpus.find_sources(str(tmp_path / "none"), "--eval_input_file")


def test_kinds(tmp_path):
    record = (20).to_bytes(8, "little") + b"\1\2\3\4" + b"\n" + bytes(19) + b"\1\2\3\4"
    for name, content in {
        "text/a.txt": b"a",
        "text/b.jsonl": b"{}",
        "plain": b"a b c d e f g h i j k l m n",
        "lines.JSON.gz": b"",
        "records/part-00000": record,
        "records/x.tfrecord-00001-of-00002": b"",
        "mixed/a.txt": b"a",
        "mixed/a.tfrecord": b"",
        f"store/{METADATA}": b"{}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def kind(name):
        return corpus.kind_of(f"{tmp_path}/{name}")

    assert corpus.kind_of("builtin") == "builtin" and corpus.kind_of("tfds:any/thing:test") == "tfds"
    assert kind("text") == kind("plain") == "text"
    assert kind("lines.JSON.gz") == kind("text/*l") == "jsonl"
    assert kind("records") == kind("records/*") == kind("records/part-00000") == "tfrecord"
    assert kind("store") == "store"
    with pytest.raises(UserError, match="mixes TFRecords of masked examples with text"):
        kind("mixed")
    with pytest.raises(UserError, match="is TFRecords of masked examples, which needs no preparing"):
        corpus.find_sources(f"{tmp_path}/records")
    with pytest.raises(UserError, match="is a prepared token store, which needs no preparing"):
        corpus.find_sources(f"{tmp_path}/store")
    with pytest.raises(UserError, match="store is a token store; name it by itself"):
        corpus.find_sources(f"{tmp_path}/s*")


@pytest.mark.parametrize(("start", "name"), [(b"\xff\xfea\0", "UTF-16 text"), (b"PK\3\4", "a zip archive")])
def test_other_formats_are_named(tmp_path, start, name):
    (tmp_path / "a.txt").write_bytes(start + bytes(100))
    with pytest.raises(UserError, match=rf"--input_file: .*a\.txt is {name}; input is UTF-8 text"):
        documents(tmp_path / "a.txt")


def test_a_tenth_of_bad_characters_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff" * 10 + b"a" * 90)
    assert documents(tmp_path / "a.txt") == [["\ufffd" * 10 + "a" * 90]]
    (tmp_path / "a.txt").write_bytes(b"\xff" * 10 + b"a" * 89)
    with pytest.raises(UserError, match=r"--eval_input_file: .*a\.txt: is this a text file\?"):
        list(corpus.read_blocks(*corpus.find_sources(str(tmp_path / "a.txt")), "text", "--eval_input_file"))


def test_builtin_and_texts_for_a_vocabulary(tmp_path):
    (source,) = corpus.find_sources("builtin")
    assert len(source.facts["checksum"]) == 64
    blocks = list(corpus.read_blocks(source, "text"))
    assert len(blocks) > 1 and blocks[-1].position == source.size
    assert len(documents("builtin", split=True)) > 500
    (tmp_path / "a.txt").write_text("a b\n\nc\n")
    assert list(corpus.read_texts(corpus.find_sources(str(tmp_path / "a.txt")), "text")) == ["a b", "c"]
