"""README's performance part is what the benchmarks left."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("table")


def test_readme_shows_the_last_results(table):
    text = table.markdown(ROOT / "benchmarks" / "results")
    assert text and table.readme_part((ROOT / "README.md").read_text(encoding="utf-8"))[0] == text


def test_the_last_line_of_a_file_counts(table, tmp_path):
    result = {"date": "2026-01-02", "machine": "A processor, 2 cores", "versions": {"jax": "0.10.2"}, "threads": 2}
    lines = [json.dumps(result | {"seconds": seconds}) + "\n" for seconds in (20.0, 12.25)]
    (tmp_path / "quick_start.jsonl").write_text("".join(lines))
    assert table.markdown(tmp_path) == (
        "From the command of the quick start to its first step: 12.2 s (`benchmarks/quick_start.py`; 2 of the cores of "
        "A processor, 2 cores, JAX 0.10.2, 2026-01-02).\n"
    )


def test_contestants_are_rows_with_their_ratios(table):
    found = {
        "bert_jax": {"seconds": 2.0, "ratio": 1.0, "cpu_ratio": 1.0},
        "Hugging Face": {"seconds": 3.0, "ratio": 1.5, "cpu_ratio": 1.4},
    }
    assert table.in_turns(found) == (
        "| | seconds | times bert_jax | the same of CPU time |\n"
        "| --- | --- | --- | --- |\n"
        "| bert_jax | 2.00 | 1.00 | 1.00 |\n"
        "| Hugging Face | 3.00 | 1.50 | 1.40 |\n"
    )
