import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import reporting
from bert_jax.reporting import RunReporter
from input_pipeline.errors import UserError
from input_pipeline.host_tensorflow import tf


class Clock:
    """Every look at it takes a quarter of a second; `now` may be moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 0.25
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(tmp_path, clock):
    def make(start_step=0, total_steps=100, **arguments):
        stream = arguments.pop("stream", io.StringIO())
        return RunReporter(tmp_path / "run", total_steps, start_step, stream=stream, clock=clock, **arguments)

    return make


def lines(tmp_path, name="metrics.jsonl"):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(text, parse_constant=refuse) for text in (tmp_path / "run" / name).read_text().splitlines()]


def events(tmp_path, run):
    paths = sorted((tmp_path / "run" / "tensorboard" / run).iterdir())
    assert all("tfevents" in path.name for path in paths)
    return [
        [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
        for path in paths
    ]


def test_numbers_are_written_unrounded_and_at_once(make, tmp_path):
    with make() as reporter:
        reporter.log(1, {"loss": np.float32(0.1), "learning_rate": jnp.float32(1e-4), "ratio": 1 / 3, "count": 7})
        (line,) = lines(tmp_path)
    assert list(line) == ["step", "wall_time", "loss", "learning_rate", "ratio", "count"]
    assert line["step"] == 1 and 1000 < line["wall_time"] < 1010
    assert line["loss"] == float(np.float32(0.1)) and line["learning_rate"] == float(np.float32(1e-4))
    assert line["ratio"] == 1 / 3 and line["count"] == 7


def test_what_is_not_finite_becomes_null(make, tmp_path):
    with make() as reporter:
        reporter.log(1, {"loss": float("nan"), "gradient_norm": np.float32("inf"), "learning_rate": 0.5})
        reporter.evaluation(1, {"masked_lm_loss": -np.inf, "by_label": {"a": float("nan")}, "curve": np.arange(2)})
    assert lines(tmp_path)[0]["loss"] is None and lines(tmp_path)[0]["gradient_norm"] is None
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert results == {"step": 1, "masked_lm_loss": None, "by_label": {"a": None}, "curve": [0, 1]}
    (written,) = events(tmp_path, "train")
    assert [value.tag for value in written[-1].summary.value] == ["learning_rate"]


def test_a_resumed_run_has_every_step_once(make, tmp_path):
    with make() as reporter:
        for step in range(1, 8):
            reporter.log(step, {"loss": 1 / step})
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "los')
    before = lines_before = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:5]
    with make(start_step=5) as reporter:
        assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == b"".join(before)
        for step in range(6, 11):
            reporter.log(step, {"loss": -1 / step})
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [
        (step, 1 / step if step <= 5 else -1 / step) for step in range(1, 11)
    ]
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:5] == lines_before


def test_the_last_evaluation_is_the_result(make, tmp_path):
    stream = io.StringIO()
    with make(stream=stream) as reporter:
        reporter.evaluation(50, {"masked_lm_loss": 6.0})
        reporter.evaluation(100, {"masked_lm_loss": 5.5, "examples": 80})
        reporter.evaluation(
            100, {"examples": 80, "masked_lm_accuracy": 0.25, "masked_lm_loss": 5.25, "task": "x", "mcc": 0.5}
        )
    assert [(line["step"], line["masked_lm_loss"]) for line in lines(tmp_path, "eval_metrics.jsonl")] == [
        (50, 6.0),
        (100, 5.25),
    ]
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert results == {
        "step": 100,
        "examples": 80,
        "masked_lm_accuracy": 0.25,
        "masked_lm_loss": 5.25,
        "task": "x",
        "mcc": 0.5,
    }
    assert stream.getvalue().splitlines()[-1] == (
        "evaluation at step 100: masked-LM loss 5.2500, masked-LM accuracy 25.0%, examples 80, mcc 0.5"
    )


def test_results_of_a_future_that_is_trained_anew_are_gone(make, tmp_path):
    with make() as reporter:
        reporter.evaluation(40, {"masked_lm_loss": 6.0})
        reporter.evaluation(80, {"masked_lm_loss": 5.0})
    with make(start_step=80):
        assert json.loads((tmp_path / "run" / "eval_results.json").read_text())["masked_lm_loss"] == 5.0
    with make(start_step=60):
        assert not (tmp_path / "run" / "eval_results.json").exists()
        assert [line["step"] for line in lines(tmp_path, "eval_metrics.jsonl")] == [40]


def test_results_are_read_without_their_step(make, tmp_path):
    assert reporting.read_results(tmp_path / "run") == {}
    with make() as reporter:
        reporter.evaluation(5, {"accuracy": 0.5, "pearson": float("nan")})
    assert reporting.read_results(tmp_path / "run") == {"accuracy": 0.5, "pearson": None}


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b'{"step": 1', b"[" * 100_000], ids=range(5))
def test_damaged_results_are_named(tmp_path, content):
    path = tmp_path / "eval_results.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^--output_dir: {path} is damaged"):
        reporting.read_results(tmp_path)


def test_tensorboard_events_hold_the_points_and_the_mark_of_a_restart(make, tmp_path):
    with make() as reporter:
        reporter.log(1, {"loss": 6.5, "learning_rate": 0.25})
        reporter.log(2, {"loss": 6.0, "note": "text has no curve"})
        reporter.evaluation(2, {"masked_lm_loss": 5.5})
    with make(start_step=1) as reporter:
        reporter.log(2, {"loss": 6.25})
    first, second = events(tmp_path, "train")
    assert first[0].file_version == "brain.Event:2"
    assert [(event.step, {v.tag: v.simple_value for v in event.summary.value}) for event in first[2:]] == [
        (1, {"loss": 6.5, "learning_rate": 0.25}),
        (2, {"loss": 6.0}),
    ]
    restart = tf.compat.v1.SessionLog.START
    assert (first[1].step, first[1].session_log.status) == (1, restart)
    assert (second[1].step, second[1].session_log.status) == (2, restart)
    (evaluation,) = events(tmp_path, "eval")
    assert [(event.step, event.summary.value[0].tag) for event in evaluation[2:]] == [(2, "masked_lm_loss")]


def test_only_the_main_process_reports(make, tmp_path):
    stream = io.StringIO()
    with make(is_main_process=False, stream=stream) as reporter:
        reporter.log(1, {"loss": 1.0})
        reporter.evaluation(1, {"loss": 1.0})
        reporter.facts(model={"layers": 2})
        reporter.message("hello")
        reporter.warning("hello")
        reporter.status("hello")
    assert stream.getvalue() == "" and not list(tmp_path.iterdir())


def test_facts_are_kept_by_section(make, tmp_path):
    with make() as reporter:
        reporter.facts(model={"parameters": np.int64(4386178)})
        reporter.facts(device={"kind": "cpu"}, model={"parameters": 5})
    assert json.loads((tmp_path / "run" / "facts.json").read_text()) == {
        "model": {"parameters": 5},
        "device": {"kind": "cpu"},
    }


def log_waits(reporter, clock, fractions):
    for step, fraction in enumerate(fractions, 1):
        clock.now += 9
        reporter.log(step, {"loss": 1.0, "input_wait_fraction": fraction})


def test_an_input_bound_run_is_told_so_once(make, tmp_path, clock):
    stream = io.StringIO()
    with make(stream=stream) as reporter:
        log_waits(reporter, clock, [0.9, *[0.25] * 20])
    (warning,) = (line for line in stream.getvalue().splitlines() if line.startswith("warning"))
    assert "waits for data 25% of the time" in warning
    (kept,) = lines(tmp_path, "warnings.jsonl")
    assert f"warning: {kept['message']}" == warning and kept["step"] == 4


@pytest.mark.parametrize("fractions", [[0.9, *[0.15] * 20], [0.1, 0.3, *[0.1] * 20], [None] * 20])
def test_a_passing_wait_is_no_reason_to_warn(make, tmp_path, clock, fractions):
    with make() as reporter:
        log_waits(reporter, clock, fractions)
    assert not (tmp_path / "run" / "warnings.jsonl").exists()


def test_a_warning_is_kept_once_over_restarts(make, tmp_path):
    for start_step in (0, 10):
        with make(start_step=start_step) as reporter:
            reporter.warning("documents of one sentence")
            reporter.warning("another")
    assert [(line["step"], line["message"]) for line in lines(tmp_path, "warnings.jsonl")] == [
        (0, "documents of one sentence"),
        (0, "another"),
    ]


def test_a_remote_file_is_written_anew_from_time_to_time(make, tmp_path, clock, monkeypatch):
    make(start_step=0).close()
    with make() as reporter:
        reporter.log(1, {"loss": 1.0})
    monkeypatch.setattr(reporting, "is_remote", lambda path: True)
    with make(start_step=1) as reporter:
        reporter.log(2, {"loss": 2.0})
        assert len(lines(tmp_path)) == 1
        clock.now += reporting.REMOTE_FLUSH_SECONDS
        reporter.log(3, {"loss": 3.0})
        assert len(lines(tmp_path)) == 3
        reporter.log(4, {"loss": 4.0})
        assert len(lines(tmp_path)) == 3
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_a_folder_that_cannot_be_written_is_named(make, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match=r"--output_dir: .*/run"):
        make()


def test_closing_twice_is_harmless(make):
    reporter = make()
    reporter.log(1, {"loss": 1.0})
    reporter.close()
    reporter.close()
    reporter.log(2, {"loss": 1.0})
