import pytest

from bert_jax.metric_names import (
    METRICS,
    Metric,
    as_shares,
    format_seconds,
    format_value,
    is_number,
    metric,
    metrics_text,
    numbers_in_order,
)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("loss", 6.21349, "6.2135"),
        ("masked_lm_accuracy", 0.14149, "14.1%"),
        ("learning_rate", 0.0000833333, "8.333e-05"),
        ("examples_per_second", 1204.4, "1,204"),
        ("examples_per_second", 3.456, "3.46"),
        ("perplexity", 114.437, "114.4"),
        ("masked_positions", 12345, "12,345"),
        ("step", 100000, "100,000"),
        ("matthews_correlation", 0.51234, "0.5123"),
        ("memory_peak_bytes", 3 * 2**29, "1.50 GiB"),
        ("mfu", 0.4234, "42.3%"),
        ("step_seconds_p90", 0.012345, "0.01235"),
        ("loss", None, "not finite"),
        ("task", "MRPC", "MRPC"),
    ],
)
def test_values_are_shown_as_people_read_them(name, value, shown):
    assert format_value(name, value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(6.6, "7 s"), (59.6, "1:00"), (185, "3:05"), (3723, "1:02:03"), (176523, "2 d 01:02:03"), (-1, "0 s")],
)
def test_durations(seconds, shown):
    assert format_seconds(seconds) == shown


def test_a_task_names_its_own_metrics():
    assert metric("own_score").title == "own score"
    assert metric("f1_PER").title == "F1 PER"
    assert metric("accuracy_matched") == Metric("accuracy matched", "share")
    assert metric("loss") == METRICS["loss"]


def test_numbers_come_in_the_order_in_which_they_are_shown():
    line = {"own": 1.0, "examples": 3, "text": "x", "loss": 2.0, "unknown": None, "masked_lm_loss": 1.0}
    assert numbers_in_order(line) == ["masked_lm_loss", "loss", "examples", "own"]


def test_metrics_in_one_line():
    metrics = {"examples": 872, "accuracy": 0.8284, "loss": 0.40577, "pearson": None, "scheme": "conlleval"}
    shown = "loss 0.4058, accuracy 82.8%, examples 872, Pearson's correlation is not defined"
    assert metrics_text(metrics) == shown


def test_percentages_of_squad_are_shares():
    metrics = {"exact": 50.0, "f1": 0.5, "best_f1": 75.0, "best_f1_thresh": -2.5, "NoAns_f1": None, "examples": 3}
    shares = {"exact": 0.5, "f1": 0.005, "best_f1": 0.75, "best_f1_thresh": -2.5, "NoAns_f1": None, "examples": 3}
    assert as_shares(metrics) == shares
    assert as_shares({"f1": 0.5, "precision": 0.4}) == {"f1": 0.5, "precision": 0.4}


def test_what_is_a_number():
    assert is_number(1) and is_number(0.5)
    assert not any(map(is_number, (True, None, "1", [1])))
