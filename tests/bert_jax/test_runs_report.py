import re

import pytest
from html_page import Page

from bert_jax.runs_report import write_page
from input_pipeline.errors import UserError

EVIL = "</script><script>alert('&\"')</script>"


def run(name, value, folder=None, **settings):
    metrics = {"accuracy": value, "loss": 0.5}
    return {"name": name, "settings": settings, "metrics": metrics, "main_metric": "accuracy", "folder": folder}


def report(folder, runs):
    path = write_page(folder, runs)
    assert path == str(folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_a_page(tmp_path):
    folder = tmp_path / "grid"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "report.html").write_text("")
    runs = [
        run("a", 0.5, folder / "a", learning_rate=1e-5, seed=1),
        run("b", 0.75, folder / "b", learning_rate=2e-5, seed=1) | {"warning": "one class"},
        run("c", None, learning_rate=2e-5, seed=2),
    ]
    page = report(folder, runs)
    assert page.rows == [
        ["learning rate", "runs", "failed", "mean", "std", "best", "worst"],
        ["1e-05", "1", "0", "50.0%", "-", "50.0%", "50.0%"],
        ["2e-05", "2", "1", "75.0%", "-", "75.0%", "75.0%"],
        ["run", "learning rate", "seed", "accuracy", "loss", "warning"],
        ["a", "1e-05", "1", "50.0%", "0.5000", ""],
        ["b", "2e-05", "1", "75.0%", "0.5000", "one class"],
        ["c", "2e-05", "2", "-", "0.5000", ""],
    ]
    assert page.links == ["a/report.html"]
    words = " ".join(page.words)
    assert "c failed and counts in no mean" in words and "b: one class" in words and "grid" in words
    assert (folder / "runs.tsv").read_text().count("\n") == 4


def test_seeds_alone_have_no_table_of_settings(tmp_path):
    page = report(tmp_path, [run("a", 0.5, seed=1), run("b", 0.5, seed=2)])
    assert [row[0] for row in page.rows] == ["run", "a", "b"]


@pytest.mark.parametrize("runs, said", [([], "0 runs"), ([run("a", None, seed=1)], "1 run")])
def test_nothing_to_compare_still_gives_a_page(tmp_path, runs, said):
    assert said in report(tmp_path, runs).words


def test_nothing_can_break_out_of_its_place(tmp_path):
    odd = {
        **run(EVIL, 0.5, EVIL),
        "settings": {EVIL: EVIL},
        "warning": EVIL,
        "metrics": {EVIL: 1.0},
        "main_metric": EVIL,
    }
    page = report(tmp_path, [odd, {**odd, "settings": {EVIL: "b"}}])
    assert page.count("script") == 1 and EVIL in " ".join(page.words)
    content = (tmp_path / "report.html").read_text()
    assert "alert(" not in "".join(re.findall(r"<script>(.*?)</script>", content, re.S))
    assert not re.search(r"https?:|@import|url\((?!#)", content)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_page(tmp_path / "file", [run("a", 0.5)])
