"""--mode=cluster: three files that fit together, the same each time, and mistakes that are named."""

import json
import os

import numpy as np
import pytest

from bert_jax.main import main

pytest.importorskip("sklearn")

KINDS = {"animals": "the cat dog sat ran", "places": "tree mat under on here there", "colours": "red blue big small"}


@pytest.fixture
def run(tiny_bert_folder, tmp_path, capsys):
    """Runs the mode; returns the exit code and what it said on both streams."""

    def run_mode(**flags):
        flags = {"init_checkpoint": tiny_bert_folder, "output_dir": tmp_path / "out", **flags}
        code = main(["main", "--mode=cluster", *(f"--{name}={value}" for name, value in flags.items())])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run_mode


@pytest.fixture
def documents(tmp_path):
    """36 documents of three classes, and one without text."""
    rng = np.random.default_rng(0)
    rows = [
        {"id": f"{kind}-{n}", "text": " ".join(rng.choice(words.split(), rng.integers(5, 60))), "kind": kind}
        for n in range(12)
        for kind, words in KINDS.items()
    ]
    rows.insert(5, {"id": "empty", "text": " \n", "kind": "places"})
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(folder):
    lines = [json.loads(line) for line in (folder / "clusters.jsonl").read_text().splitlines()]
    return json.loads((folder / "clusters.json").read_text()), lines


def test_classes_are_found_again(run, documents, tmp_path):
    code, out, err = run(input_file=documents, num_clusters=3, label_field="kind", seed=3)
    assert code == 0, err
    assert sorted(os.listdir(tmp_path)) == ["documents.jsonl", "out"]
    assert sorted(os.listdir(tmp_path / "out")) == ["clusters.html", "clusters.json", "clusters.jsonl"]
    summary, lines = read(tmp_path / "out")
    assert [line["id"] for line in lines] == [json.loads(row)["id"] for row in documents.read_text().splitlines()]
    assert summary["agreement"]["adjusted_rand_index"] > 0.6
    assert summary["documents"] == 36 and summary["documents_without_text"] == 1 and summary["num_clusters"] == 3
    assert summary["settings"]["max_seq_length"] == 20  # the positions of the model, fewer than 128
    assert summary["settings"]["pooling"] == "mean" and summary["seed"] == 3 and "silhouettes" not in summary
    sizes = np.bincount([line["cluster"] for line in lines if line["id"] != "empty"])
    assert sizes.tolist() == [entry["size"] for entry in summary["clusters"]] == sorted(sizes, reverse=True)
    for entry in summary["clusters"]:
        [most, *_] = entry["labels"]
        assert set(entry["words"][:3]) <= set(KINDS[most].split())
        members = [line for line in lines if line["cluster"] == entry["cluster"]]
        nearest = min(members, key=lambda line: line["distance"])
        assert entry["representatives"][0]["id"] == nearest["id"]
    assert lines[5] == {"id": "empty", "cluster": None, "distance": None, "label": "places", "x": None, "y": None}
    assert "warning: 1 of 37 documents have no text and belong to no cluster, the first is empty" in err
    assert "silhouette" in out and "adjusted Rand index" in out and len(out.splitlines()) == 5
    assert (tmp_path / "out" / "clusters.html").read_text().count("<circle") == 36


def test_the_number_is_chosen_and_the_result_is_the_same_each_time(run, documents, tmp_path):
    contents = []
    for _ in range(2):
        code, out, err = run(input_file=documents, overwrite="true")
        assert code == 0, err
        contents.append([(tmp_path / "out" / f"clusters.{ending}").read_bytes() for ending in ("json", "jsonl")])
    assert contents[0] == contents[1]
    summary, _ = read(tmp_path / "out")
    assert list(summary["silhouettes"]) == [str(number) for number in range(2, 21)]
    assert summary["silhouette"] == pytest.approx(max(summary["silhouettes"].values()))
    assert out.startswith("silhouette by number of clusters: 2: ")


def test_files_and_paragraphs(run, tmp_path):
    (tmp_path / "texts").mkdir()
    for number, words in enumerate(KINDS.values()):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"{words}\n\n{words} {words}\n")
    assert run(input_file=tmp_path / "texts", num_clusters=3)[0] == 0
    assert [line["id"][-5:] for line in read(tmp_path / "out")[1]] == ["0.txt", "1.txt", "2.txt"]
    flags = {"documents": "paragraph", "overwrite": "true", "pooling": "max", "layers": "0,-1", "max_seq_length": 8}
    code, _, err = run(input_file=tmp_path / "texts", num_clusters=3, **flags)
    assert code == 0, err
    assert [line["id"][-7:] for line in read(tmp_path / "out")[1]][:2] == ["0.txt:1", "0.txt:3"]


def test_fewer_clusters_than_asked_for(run, tmp_path):
    (tmp_path / "same.txt").write_text("the cat\n" * 4)
    code, _, err = run(input_file=tmp_path / "same.txt", num_clusters=2)
    assert code == 0 and "warning: only 1 clusters: no more documents differ from each other" in err


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("cat\ndog\n", {"num_clusters": 3}, "--num_clusters=3 is more than the 2 documents with a text"),
        ("cat\n", {}, "holds one document only; for files of text --documents=line or paragraph"),
        ("\n \n", {}, "there is no document with a text"),
        ("", {}, "there is no document with a text"),
        ("cat\ndog\n", {"pooling": "none"}, "--pooling=none makes vectors of tokens"),
        ("cat\ndog\n", {"layers": "9"}, "--layers: there is no layer 9"),
        ("cat\ndog\n", {"label_field": "kind"}, "--label_field=kind: no document has this field"),
        ("cat\ndog\n", {"num_clusters": 1}, "--num_clusters"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(run, tmp_path, content, flags, message):
    (tmp_path / "a.txt").write_text(content)
    code, _, err = run(input_file=tmp_path / "a.txt", **flags)
    assert code == 2 and err.splitlines()[-1].startswith("error: --") and message in err
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_empty_folder_is_filled_where_it_is(run, documents, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, _, _ = run(input_file=documents, num_clusters=3, output_dir=".")
    assert code == 0 and sorted(os.listdir(".")) == ["clusters.html", "clusters.json", "clusters.jsonl"]
    assert sorted(os.listdir(tmp_path)) == ["documents.jsonl", "here"]


def test_folders_that_cannot_be_used(run, documents, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "own.txt").write_text("")
    code, _, err = run(input_file=documents)
    assert code == 2 and "is not empty: give --overwrite, or another folder" in err
    code, _, err = run(input_file=documents, output_dir=documents)
    assert code == 2 and "documents.jsonl is a file, or lies below one: a folder is needed" in err
    code = main(["main", "--mode=cluster", f"--input_file={documents}"])
    assert code == 2
    code, _, err = run(input_file=documents, num_clusters=3, overwrite="true")
    assert code == 0 and sorted(os.listdir(tmp_path / "out"))[-1] == "own.txt"
