import json
import re

import pytest
from html_page import Page

from bert_jax.json_lines import write_lines
from bert_jax.report_html import write_report
from input_pipeline.errors import UserError


def training(steps):
    return [
        {
            "step": step,
            "wall_time": 1.7e9 + step,
            "loss": 7.0 + 1 / step,
            "masked_lm_loss": 6.0 + 1 / step,
            "masked_lm_accuracy": 0.125,
            "learning_rate": 1e-4 * step,
            "examples_per_second": 400.0,
            "seconds_per_step": 0.5,
        }
        for step in steps
    ]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    return folder


def dump(folder, name, value):
    (folder / name).write_text(json.dumps(value))


def report(folder):
    path = write_report(folder)
    assert path == str(folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_a_whole_run(folder):
    write_lines(folder / "metrics.jsonl", training(range(1, 101)))
    evaluations = [{"step": 50, "masked_lm_loss": 6.5}, {"step": 100, "masked_lm_loss": 5.25}]
    write_lines(folder / "eval_metrics.jsonl", evaluations)
    write_lines(folder / "warnings.jsonl", [{"step": 0, "message": "first"}, {"step": 0, "message": "second"}])
    results = {"step": 100, "masked_lm_loss": 5.25, "unigram_loss": 6.5, "perplexity": 190.6, "examples": 1234}
    dump(folder, "eval_results.json", results)
    dump(folder, "facts.json", {"model": {"parameters": 4386178, "tied": True}, "data": {"sources": ["a", "b"]}})
    run = {"mode": "pretrain", "settings": {"seed": 0}, "num_train_steps": 100, "flags": {"mesh": None}}
    dump(folder, "run.json", run | {"versions": {"jax": "9.9.9"}})
    page = report(folder)

    assert "my run" in page.text and "pretrain" in page.text and "Finished: all 100 steps are done." in page.text
    assert "1.25 nats below the unigram loss, 6.5000" in page.text and "190.6" in page.text
    assert "first" in page.text and "second" in page.text
    assert "4,386,178" in page.text and "a, b" in page.text and "yes" in page.text and "9.9.9" in page.text
    assert "1,234" in page.text and "seed" in page.text and "mesh" in page.text
    assert "50 s" in page.text, "100 steps of half a second"

    losses = page.data[0]["series"]
    assert [one["kind"] for one in losses] == ["raw", "smoothed", "evaluation"]
    assert losses[0]["steps"] == list(range(1, 101))
    assert losses[0]["values"] == pytest.approx([line["masked_lm_loss"] for line in training(range(1, 101))], rel=1e-5)
    assert losses[2]["values"] == [6.5, 5.25]
    assert len(page.data) == 5, "a curve each for the two losses, accuracy, learning rate and speed"
    assert page.data[3]["series"][0]["values"][-1] == 0.01


def test_what_the_devices_did_is_told(folder):
    lines = [
        line
        | {"step_seconds_p50": 0.5, "step_seconds_p90": 0.6, "step_seconds_max": 1.0 + line["step"] / 10}
        | {"mfu": 0.4, "memory_peak_bytes": line["step"] * 2**30}
        for line in training(range(1, 11))
    ]
    write_lines(folder / "metrics.jsonl", lines)
    page = report(folder)
    assert "MFU 40.0%" in page.text
    assert "longest step, seconds 2" in page.text and "peak memory of a device 10.00 GiB" in page.text
    assert len(page.data) == 6, "of these, only the longest step has a curve"


def test_the_page_loads_nothing(folder):
    write_lines(folder / "metrics.jsonl", training(range(1, 101)))
    page = report(folder)
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    allowed = {"src", "href", "srcset", "data", "action", "poster"}
    assert not [tag for tag, attributes in page.tags if allowed & set(attributes)]
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "base")]


def test_an_empty_folder_still_gives_a_page(folder):
    page = report(folder)
    assert "No training step was logged yet." in page.text and page.data == []


def test_results_without_a_run_are_those_of_a_model_that_was_trained_elsewhere(folder):
    dump(folder, "eval_results.json", {"accuracy": 0.75})
    page = report(folder)
    assert "75.0%" in page.text and "training step" not in page.text


def test_broken_files_still_give_a_page(folder):
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "lo')
    (folder / "run.json").write_text("{")
    (folder / "facts.json").write_text("[1]")
    page = report(folder)
    assert "Step 1." in page.text and page.data[0]["series"][0]["values"] == [5.0]


def test_an_interrupted_run_says_how_far_it_got(folder):
    write_lines(folder / "metrics.jsonl", training(range(1, 41)))
    dump(folder, "run.json", {"num_train_steps": 100})
    assert "Not finished: step 40 of 100." in report(folder).text


def test_a_loss_that_was_not_finite_is_said(folder):
    write_lines(folder / "metrics.jsonl", [*training(range(1, 4)), {"step": 4, "loss": None, "masked_lm_loss": None}])
    page = report(folder)
    assert "The loss was not finite at step 4." in page.text
    assert page.data[0]["series"][0]["steps"] == [1, 2, 3]


def test_an_evaluation_alone(folder):
    dump(folder, "eval_results.json", {"step": 7, "accuracy": 0.875, "matthews_correlation": 0.75, "labels": {"a": 1}})
    page = report(folder)
    assert "87.5%" in page.text and "Matthews' correlation" in page.text and "a=1" in page.text
    assert [one["series"][0]["values"] for one in page.data] == [[0.75], [0.875]]


def test_beside_a_table_of_metrics_one_evaluation_makes_no_curve(folder):
    dump(folder, "review.json", {"dev": {"metrics": {"accuracy": 0.875}, "review": {"examples": 8, "wrong": 1}}})
    write_lines(folder / "eval_metrics.jsonl", [{"step": 7, "accuracy": 0.875, "total": 8}])
    assert report(folder).data == []
    write_lines(folder / "eval_metrics.jsonl", [{"step": step, "accuracy": step / 8, "total": 8} for step in (6, 7)])
    assert [one["series"][0]["values"] for one in report(folder).data] == [[0.75, 0.875]]


def test_metrics_of_a_task_have_curves_after_the_known_ones(folder):
    write_lines(folder / "metrics.jsonl", [{"step": 1, "my_metric": 3.0, "loss": 2.0}])
    assert [one["series"][0]["values"] for one in report(folder).data] == [[2.0], [3.0]]


def test_a_step_reported_twice_counts_once(folder):
    write_lines(
        folder / "metrics.jsonl", [{"step": 1, "loss": 9.0}, {"step": 2, "loss": 2.0}, {"step": 1, "loss": 1.0}]
    )
    assert report(folder).data[0]["series"][0]["values"] == [1.0, 2.0]


def test_nothing_in_a_file_can_break_out_of_its_place(tmp_path):
    evil = "</script></title><script>alert('&\"')</script>"
    folder = tmp_path / "a<b>&'\"c"
    folder.mkdir()
    write_lines(folder / "metrics.jsonl", [{"step": 1, evil: 1.0, "loss": 1.0}])
    write_lines(folder / "warnings.jsonl", [{"step": 0, "message": evil}])
    dump(folder, "facts.json", {evil: {evil: evil, "nested": [{evil: evil}]}})
    dump(folder, "eval_results.json", {"step": 1, evil: evil, "text": evil})
    for_all = {"mode": evil, "task": evil, "created": evil, "num_train_steps": evil}
    dump(folder, "run.json", for_all | {name: {evil: evil} for name in ("settings", "flags", "versions")})
    page = report(folder)
    assert "alert(" not in "".join(re.findall(r"<script>(.*?)</script>", (folder / "report.html").read_text(), re.S))
    assert sum(tag == "script" for tag, _ in page.tags) == len(page.data) + 1
    assert evil in page.text and "a<b>&'\"c" in page.text


def test_the_page_of_a_long_run_is_small(folder):
    names = [f"metric_{index}" for index in range(20)]
    lines = [
        {"step": step, "loss": step % 17 / 7} | dict.fromkeys(names, step * 7919 % 1009 / 1009)
        for step in range(1, 8001)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    report(folder)
    assert (folder / "report.html").stat().st_size < 500_000


def test_a_folder_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        write_report(tmp_path / "file")
