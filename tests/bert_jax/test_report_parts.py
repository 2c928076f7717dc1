import pytest

from bert_jax.report_parts import notes, run_link, table, text, tiles, value_text


def test_everything_is_escaped():
    evil = "<b>\"&'"
    safe = "&lt;b&gt;&quot;&amp;&#x27;"
    assert text(evil) == safe and value_text("scheme", evil) == safe
    assert safe in notes([evil]) and tiles([(evil, evil, evil)]).count(safe) == 3 and safe in table([evil], [])
    assert safe in run_link(evil, None, "x")


def test_what_no_file_can_hold_is_replaced():
    assert text("a\ud800b").encode().decode().strip("\ufffd") != "" and "\ud800" not in text("a\ud800b")


def test_nothing_takes_no_room():
    assert notes([]) == "" and tiles([]) == ""


def test_a_number_that_is_not_defined():
    assert value_text("accuracy", None) == "-" and value_text("accuracy", 0.5) == "50.0%"


@pytest.mark.parametrize("folder, link", [("a b/javascript:1", "a%20b/javascript%3A1/report.html"), ("../x", None)])
def test_a_run_is_linked_where_its_report_lies_below(tmp_path, folder, link):
    page = tmp_path / "page"
    run = page / folder
    run.mkdir(parents=True)
    assert run_link("run", run, page) == "run", "no report is there"
    (run / "report.html").write_text("")
    assert run_link("run", run, page) == (f'<a href="{link}">run</a>' if link else "run")
    (page / "report.html").write_text("")
    assert run_link("run", page, page) == "run", "the page is no link to itself"
