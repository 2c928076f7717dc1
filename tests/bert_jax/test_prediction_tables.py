import numpy as np
import pytest

from bert_jax.prediction_tables import escape, probability_columns, unescape, write_table
from input_pipeline.errors import UserError


def test_a_table(tmp_path):
    columns = ["id", "prediction", *probability_columns(["no", "yes"])]
    rows = [("7", "yes", np.float32(0.1), 0.1), ("é\u2028", None, 1, np.float32(1e-9))]
    write_table(tmp_path / "new" / "p.tsv", columns, rows)
    expected = "id\tprediction\tprobability_no\tprobability_yes\n7\tyes\t0.1\t0.1\né\u2028\t\t1\t1e-09\n"
    assert (tmp_path / "new" / "p.tsv").read_bytes() == expected.encode()


def test_rows_may_come_one_by_one(tmp_path):
    write_table(tmp_path / "p.tsv", ["id"], ((str(number),) for number in range(3)))
    assert (tmp_path / "p.tsv").read_bytes() == b"id\n0\n1\n2\n"


def test_no_rows_give_a_header(tmp_path):
    write_table(tmp_path / "p.tsv", ["id", "prediction"], [])
    assert (tmp_path / "p.tsv").read_bytes() == b"id\tprediction\n"


NASTY = ["a\tb", "line\nline\r\n", "\\t is no tab", "\\", "\\\\n", "\ud800x", "", " ", "\\ud800"]


def test_nothing_in_a_field_breaks_the_table(tmp_path):
    write_table(tmp_path / "p.tsv", NASTY, [NASTY, NASTY[::-1]])
    lines = (tmp_path / "p.tsv").read_bytes().decode().split("\n")
    assert lines.pop() == "" and not any("\r" in line for line in lines)
    assert [[unescape(field) for field in line.split("\t")] for line in lines] == [NASTY, NASTY, NASTY[::-1]]


def test_how_a_field_is_escaped():
    assert escape("a\tb\nc\rd\\e") == r"a\tb\nc\rd\\e"


def test_a_row_of_another_length_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="3 fields for 2 columns"):
        write_table(tmp_path / "p.tsv", ["a", "b"], [(1, 2), (1, 2, 3)])
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output_dir: .*file"):
        write_table(tmp_path / "file" / "p.tsv", ["a"], [])


def test_what_is_no_escape_stays():
    assert unescape(r"\d \u12") == r"\d \u12"
