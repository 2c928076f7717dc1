import pytest

from bert_jax.json_lines import drop_after, encode, read_lines, write_lines
from input_pipeline.errors import UserError


def test_lines_come_back_as_they_were(tmp_path):
    lines = [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": None, "text": "ä\u2028\n"}]
    write_lines(tmp_path / "f.jsonl", lines)
    assert read_lines(tmp_path / "f.jsonl", "--output_dir") == lines
    assert (tmp_path / "f.jsonl").read_bytes().count(b"\n") == 2


def test_no_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "absent.jsonl", "--output_dir") == []
    assert drop_after(tmp_path / "absent.jsonl", 5, "--output_dir") == []
    assert not (tmp_path / "absent.jsonl").exists()


def test_json_has_no_nan():
    with pytest.raises(ValueError, match="JSON"):
        encode({"step": 1, "loss": float("nan")})


def test_later_and_broken_lines_are_dropped(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"step": 1}\nnull\n{"loss": 1}\n\xff\n{"step": 3}\n{"step": 2}\n{"step": 2, "lo')
    assert drop_after(path, 2, "--output_dir") == [{"step": 1}, {"step": 2}]
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_complete_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert drop_after(path, 2, "--output_dir") == [{"step": 1}, {"step": 2}]
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_file_with_nothing_to_drop_is_not_touched(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    before = path.stat().st_ino
    drop_after(path, 1, "--output_dir")
    assert path.stat().st_ino == before


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "f.jsonl").mkdir()
    with pytest.raises(UserError, match=r"--output_dir: .*f\.jsonl is a folder"):
        read_lines(tmp_path / "f.jsonl", "--output_dir")
