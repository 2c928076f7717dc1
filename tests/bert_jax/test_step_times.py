"""Rates and step times by a clock that is set by hand."""

import pytest

from bert_jax.step_times import StepTimes


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def end_steps(times, clock, durations):
    for seconds in durations:
        clock.now += seconds
        times.step_ended()


def test_rates_and_step_times_of_a_window(clock):
    times = StepTimes(clock, 0, batch_size=8, tokens_per_example=32)
    end_steps(times, clock, [1.0] * 8 + [2.0, 10.0])
    times.input_wait = 5.0
    assert times.metrics(10) == pytest.approx(
        {
            "examples_per_second": 10 * 8 / 20,
            "tokens_per_second": 10 * 8 * 32 / 20,
            "seconds_per_step": 2.0,
            "step_seconds_p50": 1.0,
            "step_seconds_p90": 2.0,
            "step_seconds_max": 10.0,
            "input_wait_fraction": 0.25,
        }
    )


def test_each_window_begins_where_the_one_before_ended(clock):
    times = StepTimes(clock, 0, 8, 32)
    end_steps(times, clock, [9.0])
    times.metrics(1)
    clock.now += 0.5  # logging
    end_steps(times, clock, [0.5, 2.0])
    metrics = times.metrics(3)
    assert metrics["seconds_per_step"] == 1.5
    assert (metrics["step_seconds_p50"], metrics["step_seconds_max"]) == (1.0, 2.0)
    assert metrics["input_wait_fraction"] == 0


def test_what_is_paused_belongs_to_no_step(clock):
    times = StepTimes(clock, 0, 8, 32)
    end_steps(times, clock, [1.0])
    with pytest.raises(KeyError), times.paused():
        clock.now += 50.0
        raise KeyError
    end_steps(times, clock, [3.0])
    metrics = times.metrics(2)
    assert (metrics["seconds_per_step"], metrics["step_seconds_max"]) == (2.0, 3.0)


def test_mfu_is_the_time_at_peak_to_the_time_taken(clock):
    times = StepTimes(clock, 20, 8, 32, seconds_at_peak=0.5)
    end_steps(times, clock, [0.5, 1.5])
    assert times.metrics(22)["mfu"] == 0.5
