import json
import re
from pathlib import Path

import pytest
from html_page import Page

from bert_jax.report_html import write_report
from bert_jax.task_report import sections

EVIL = "</script></style><script>alert('&\"')</script>"


def review(word="x", confidence=0.5):
    texts = [{"title": word, "text": word, "marks": [[0, 3, "right", word]]}]
    mistake = {"id": word, "where": word, "right": word, "predicted": word, "confidence": confidence, "texts": texts}
    confusion = {"labels": [word, "b"], "counts": [[3, 1], [2, 4]]}
    return {"confusion": confusion, "examples": 1000, "wrong": 30, "mistakes": [mistake, mistake]}


def report(folder, reviews):
    (folder / "review.json").write_text(json.dumps(reviews))
    return Page(Path(write_report(folder)).read_text(encoding="utf-8"))


def test_a_page_has_metrics_by_split_and_what_is_wrong(tmp_path):
    splits = {
        "dev_matched": {"metrics": {"accuracy": 0.84, "scheme": "strict", "mcc": None}, "review": review()},
        "dev_mismatched": {"metrics": {"accuracy": 0.83, "examples": 1000}, "review": review()},
    }
    page = report(tmp_path, splits)
    assert (
        "Metrics metric dev_matched dev_mismatched accuracy 84.0% 83.0% examples - 1,000 scheme strict - mcc - -"
        in page.text
    )
    assert "Right and wrong in dev_matched Wrong: 30 of 1,000 examples (3.0%)." in page.text
    assert page.text.count("2 of 30 mistakes, the most confident first") == 2
    assert sum(tag == "script" for tag, _ in page.tags) == 1


def test_numbers_are_drawn(tmp_path):
    page = report(tmp_path, {"dev": {"metrics": {"pearson": 0.5}, "review": {"points": [[1, 2]], "examples": 1}}})
    assert sum(tag == "circle" for tag, _ in page.tags) == 1 and "Wrong:" not in page.text


def test_the_order_is_said_only_where_it_is_so(tmp_path):
    for confidence, said in ((None, False), (0.5, True)):
        page = report(tmp_path, {"dev": {"metrics": {}, "review": review(confidence=confidence)}})
        assert ("most confident" in page.text) is said


def test_without_a_review_the_page_is_as_it_was(tmp_path):
    before = Path(write_report(tmp_path)).read_text(encoding="utf-8")
    (tmp_path / "review.json").write_text("{}")
    after = Path(write_report(tmp_path)).read_text(encoding="utf-8")
    assert re.sub("at .*? from", "", after) == re.sub("at .*? from", "", before)
    assert sections({}) == ("", "", "") and "mistakes" not in before and "filters" not in before


@pytest.mark.parametrize("value", [{"dev": 1}, {"dev": {"metrics": 5}}, {"dev": {"review": {"mistakes": [{}]}}}])
def test_a_damaged_review_is_said(tmp_path, value):
    assert "review.json is damaged" in report(tmp_path, value).text


def test_nothing_can_break_out_of_its_place(tmp_path):
    splits = {EVIL: {"metrics": {EVIL: EVIL, "accuracy": 0.5}, "review": review(EVIL)}}
    page = report(tmp_path, splits)
    content = (tmp_path / "report.html").read_text()
    assert "alert(" not in "".join(re.findall(r"<script>(.*?)</script>", content, re.S))
    assert sum(tag == "script" for tag, _ in page.tags) == 1 and EVIL in page.text
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", content)
    attributes = {name for _, found in page.tags for name in found}
    assert not attributes & {"src", "href", "srcset", "data", "action", "onclick", "onload"}


def test_half_of_a_surrogate_pair_is_no_obstacle(tmp_path):
    page = report(tmp_path, {"dev": {"metrics": {}, "review": review("a\ud800b")}})
    assert "\ufffd" in page.text
