import io
import itertools
import re
import sys

import pytest

from bert_jax.progress import BarDisplay, LineDisplay, Pace, describe, make_display


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def run(display, clock, steps, seconds):
    for step in steps:
        clock.now += seconds
        display.update(step, {"loss": 10.0 / step})


def test_lines_come_a_few_seconds_apart_with_the_first_and_the_last(clock):
    stream = io.StringIO()
    display = LineDisplay(24, 0, stream, clock)
    run(display, clock, range(1, 25), 1.0)
    display.close()
    assert stream.getvalue().splitlines() == [
        "step 1/24 (4%)  loss 10.0000  ETA -",
        "step 6/24 (25%)  loss 1.6667  ETA 18 s",
        "step 11/24 (45%)  loss 0.9091  ETA 13 s",
        "step 16/24 (66%)  loss 0.6250  ETA 8 s",
        "step 21/24 (87%)  loss 0.4762  ETA 3 s",
        "step 24/24 (100%)  loss 0.4167",
    ]


def test_lines_get_rarer_in_a_long_run_but_never_rarer_than_a_minute(clock):
    stream = io.StringIO()
    display = LineDisplay(10**9, 0, stream, clock)
    run(display, clock, range(1, 10801), 1.0)
    steps = [int(re.match(r"step ([\d,]+)/", line)[1].replace(",", "")) for line in stream.getvalue().splitlines()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert gaps[0] == 5 and gaps[-1] == 60 and max(gaps) == 60


def test_an_interrupted_run_shows_its_last_step_once(clock):
    stream = io.StringIO()
    display = LineDisplay(100, 0, stream, clock)
    run(display, clock, range(1, 4), 1.0)
    display.close()
    display.close()
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/100", "3/100"]


def test_status_is_only_for_a_bar(clock):
    stream = io.StringIO()
    LineDisplay(10, 0, stream, clock).status("evaluating 3/40")
    assert stream.getvalue() == ""


def test_time_left_follows_the_recent_pace():
    pace = Pace(1000)
    for step in range(100):
        pace.mark(step, step * 7.0)
    for step in range(100, 200):
        pace.mark(step, 700.0 + step)
    assert pace.time_left() == "ETA 13:21"
    pace.mark(1000, 5000.0)
    assert pace.time_left() == ""


def test_waiting_for_input_is_shown_when_it_matters():
    assert describe({"loss": 1.0, "input_wait_fraction": 0.09}, ("loss",)) == ["loss 1.0000"]
    assert describe({"input_wait_fraction": 0.25}, ("loss",)) == ["waiting for input 25%"]
    assert describe({"examples_per_second": 1234.0}, ("examples_per_second",)) == ["1,234 examples/s"]


def test_a_loss_that_is_not_finite_is_said_to_be_so():
    assert describe({"loss": None, "input_wait_fraction": None}, ("loss",)) == ["loss not finite"]


def test_a_terminal_gets_a_bar_and_messages_stay_whole(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    display = make_display(300, 100, terminal, clock)
    assert isinstance(display, BarDisplay)
    clock.now += 1
    display.update(101, {"loss": 6.5, "masked_lm_accuracy": 0.125})
    clock.now += 1
    display.update(102, {"loss": 6.25, "masked_lm_accuracy": 0.25})
    display.message("[red]evaluation[/red] at step 102: " + "x" * 150)
    display.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "[red]evaluation[/red] at step 102: " + "x" * 150 in shown
    assert re.search(r"step 102/300 .*34% 0:00:02 ETA 3:18", shown)
    assert "loss 6.2500  masked-LM accuracy 25.0%" in shown
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_bar_leaves_output_that_goes_elsewhere_alone(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", piped := io.StringIO())
    display = make_display(10, 0, Terminal(), clock)
    print("a result")
    display.close()
    assert piped.getvalue() == "a result\n"


@pytest.mark.parametrize(("stream", "term"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_anything_else_gets_lines(clock, monkeypatch, stream, term):
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_display(10, 0, stream, clock), LineDisplay)


def test_a_lost_terminal_does_not_end_the_run(clock):
    class Lost(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    display = LineDisplay(10, 0, Lost(), clock)
    display.update(1, {"loss": 1.0})
    display.message("hello")
    display.close()
