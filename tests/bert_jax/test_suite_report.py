import json
import re

import pytest
from html_page import Page

from bert_jax.suite_report import SCORES, average, paper_average, write_suite
from input_pipeline.errors import UserError

VALUES = {
    "mnli": {"accuracy": 0.9, "accuracy_matched": 0.84, "accuracy_mismatched": 0.82},
    "qqp": {"accuracy": 0.9, "f1": 0.86},
    "qnli": {"accuracy": 0.91},
    "sst2": {"accuracy": 0.93},
    "cola": {"matthews_correlation": 0.59, "accuracy": 0.8},
    "stsb": {"pearson": 0.88, "spearman": 0.86},
    "mrpc": {"accuracy": 0.84, "f1": 0.88},
    "rte": {"accuracy": 0.65},
    "wnli": {"accuracy": 0.1},
}


@pytest.fixture
def results():
    return {task: {"metrics": dict(metrics), "folder": f"runs/{task}"} for task, metrics in VALUES.items()}


def rows(text):
    table = [line.strip("|").split("|") for line in text.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table]


def test_averages(results):
    tasks = [0.83, 0.88, 0.91, 0.93, 0.59, 0.87, 0.86, 0.65]
    assert average(results) == pytest.approx(sum(tasks) / 8)
    columns = [0.84, 0.82, 0.86, 0.91, 0.93, 0.59, 0.86, 0.88, 0.65]
    assert paper_average(results) == pytest.approx(sum(columns) / 9)
    del results["wnli"]
    assert average(results) == pytest.approx(sum(tasks) / 8)


def test_the_paper_averages_as_paper_average_does():
    for column, said in (("base", 79.6), ("large", 82.1)):
        figures = [getattr(score, column) for score in SCORES if getattr(score, column) is not None]
        assert round(sum(figures) / len(figures), 1) == said


@pytest.mark.parametrize("metrics", [{}, {"f1": 0.5, "accuracy": None}, None])
def test_no_average_without_all_tasks(results, metrics):
    results["qqp"] = {"metrics": metrics, "folder": None}
    assert average(results) is None


def test_files(tmp_path, results):
    assert write_suite(tmp_path, results, "a|b") == ["glue_results.json", "glue_results.md", "glue_results.html"]
    written = json.loads((tmp_path / "glue_results.json").read_text())
    assert written["average"] == average(results) and written["paper_average"] == paper_average(results)
    assert written["tasks"] == results and written["split"] == "dev" and written["missing"] == []

    text = (tmp_path / "glue_results.md").read_text()
    assert "| task | metric | a\\|b, dev | BERT base cased, dev (Hugging Face) | BERT base, test (paper) |" in text
    found = {(row[0], row[1]): row[2:] for row in rows(text)[2:]}
    assert found["MNLI matched", "accuracy"] == ["84.0", "83.8", "84.6", "86.7"]
    assert found["MNLI mismatched", "accuracy"] == ["82.0", "-", "83.4", "85.9"]
    assert found["CoLA", "Matthews correlation"] == ["59.0", "59.0", "52.1", "60.5"]
    assert found["QQP", "accuracy"] == ["90.0", "90.8", "-", "-"]
    assert found["Average", "as GLUE"] == ["81.5", "-", "-", "-"]
    assert found["Average", "as the paper"] == ["81.6", "-", "79.6", "82.1"]
    assert len(found) == 15 and "no average" not in text


def test_tasks_may_be_missing(tmp_path, results):
    few = {"rte": results["rte"], "mnli": {"metrics": {"accuracy": 0.8}, "folder": None}}
    write_suite(tmp_path, few)
    text = (tmp_path / "glue_results.md").read_text()
    missing = ["MNLI mismatched", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC"]
    assert f"There is no average without {', '.join(missing)}." in text
    assert ["MNLI matched", "accuracy", "80.0", "83.8", "84.6", "86.7"] in rows(text), "of the only set there is"
    assert ["Average", "as GLUE", "-", "-", "-", "-"] in rows(text)
    assert json.loads((tmp_path / "glue_results.json").read_text())["missing"] == missing


def test_a_page(tmp_path, results):
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "report.html").write_text("")
    results["rte"]["folder"] = str(tmp_path / "rte")
    evil = "</title><script>alert(1)</script>{}"
    write_suite(tmp_path, results, evil)
    content = (tmp_path / "glue_results.html").read_text()
    page = Page(content)
    assert page.links == ["rte/report.html"] and f"{evil}, dev" in page.words and "<script" not in content
    assert "81.5" in page.words and not re.search(r"https?:|@import|url\(", content)


def test_a_place_that_cannot_be_written_is_named(tmp_path, results):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_suite(tmp_path / "file", results)
