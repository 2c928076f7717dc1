"""Lines of progress for logs and pipes."""

import io

from bert_jax.rate_display import RateDisplay


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(total, seconds, **options):
    """What is written when a thing gets done at each of `seconds`."""
    now, stream = [0.0], options.pop("stream", io.StringIO())
    with RateDisplay("lines", total, stream, lambda: now[0], **options) as display:
        for now[0] in seconds:
            display.advance()
        summary = display.summary()
    return stream.getvalue().splitlines(), summary


def test_a_line_now_and_then_with_pace_and_rest():
    lines, summary = shown(100, [10.0, *(10 + 0.5 * n for n in range(1, 20))])
    assert lines == ["11/100 lines (11%)  2.0 lines/s  ETA 44 s"]
    assert summary == "20 lines in 20 s"


def test_an_unknown_total():
    assert shown(None, [6.0, 12.0]) == (["2 lines  0.2 lines/s"], "2 lines in 12 s")


def test_one_is_no_plural():
    assert shown(None, [2.0])[1] == "1 line in 2 s"


def test_quick_work_and_other_processes_are_silent():
    assert shown(3, [0.1, 0.2, 0.3])[0] == []
    assert shown(3, [10, 20, 30], shown=False)[0] == []


def test_a_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    lines, _ = shown(1234, [0.1, 0.2], stream=Terminal())
    assert any("2/1,234 lines" in line and "10 lines/s" in line for line in lines)
