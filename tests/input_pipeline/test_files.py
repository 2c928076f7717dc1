import json
import os
import time
from pathlib import Path

import pytest

from input_pipeline import files
from input_pipeline.errors import UserError


def test_reading_names_flag_and_path(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert files.read_text(tmp_path / "a.txt", "--input_file") == "one\r\ntwo"
    with pytest.raises(UserError, match=r"--vocab_file: no such file or folder: .*/missing"):
        files.read_bytes(tmp_path / "missing", "--vocab_file")
    with pytest.raises(UserError, match=r"--vocab_file: .* is a folder"):
        files.read_bytes(tmp_path, "--vocab_file")
    with pytest.raises(UserError, match="is a folder"):
        files.open_binary(tmp_path, "--vocab_file")
    (tmp_path / "bad").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match=r"not UTF-8 text \(byte 0xff at 2\)"):
        files.read_text(tmp_path / "bad", "--vocab_file")
    with pytest.raises(UserError, match=r"lies below one"):
        files.read_bytes(tmp_path / "bad" / "x", "--vocab_file")


def test_expand_sorts_within_a_pattern_and_refuses_nothing(tmp_path):
    for name in ("b.txt", "a.txt", "[x].txt", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    def names(*patterns):
        return [
            os.path.relpath(f, tmp_path) for f in files.expand([f"{tmp_path}/{p}" for p in patterns], "--input_file")
        ]

    assert names("b.txt", "*.txt") == ["b.txt", "[x].txt", "a.txt", "b.txt"]
    assert names("[x].txt") == ["[x].txt"]
    assert names("**/c.txt") == ["sub/c.txt"]
    assert names("sub/") == ["sub"]
    with pytest.raises(UserError, match=r"--input_file: no file matches .*/\*\.md"):
        names("*.md")
    with pytest.raises(UserError, match=r"--input_file: no such file or folder: .*/no"):
        names("no")


def test_atomic_writes_replace_and_leave_nothing_behind(tmp_path):
    target = tmp_path / "new" / "run.json"
    files.write_json_atomic(target, {"a": 1})
    files.write_json_atomic(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 2}
    assert os.listdir(target.parent) == ["run.json"]
    with pytest.raises(ValueError):
        files.write_json_atomic(target, float("nan"))
    with pytest.raises(UserError, match=r"lies below one|cannot access"):
        files.write_bytes_atomic(target / "below", b"")


@pytest.mark.parametrize("name", ["http://host/x", "gs:/bucket/x", "hdfs://x", ""])
def test_unknown_schemes_never_become_local_folders(name):
    with pytest.raises(UserError):
        files.as_path(name)
    with pytest.raises(UserError, match=r"^--input_file: .*(is not a known kind of path|an empty path)"):
        files.expand([name], "--input_file")


def test_remote_path_without_access_is_a_quick_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 3.0)
    name = "gs://bert-jax-no-such-bucket/x"
    start = time.monotonic()
    for call in (
        lambda: files.read_bytes(name, "--vocab_file"),
        lambda: files.expand([f"{name}/*.txt"], "--vocab_file"),
        lambda: files.local_folder(name, "--vocab_file"),
    ):
        with pytest.raises(UserError, match=r"--vocab_file: .*gs://bert-jax-no-such-bucket/x"):
            call()
    with pytest.raises(UserError, match="gs://bert-jax-no-such-bucket"):
        files.write_bytes_atomic(name, b"")
    assert time.monotonic() - start < 30
    assert os.listdir(tmp_path) == []


def test_silent_remote_is_given_up(monkeypatch):
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.05)
    with pytest.raises(UserError, match="no answer; check the network"):
        files._within_patience(lambda: time.sleep(1), "no answer; ")
    with pytest.raises(ZeroDivisionError):
        files._within_patience(lambda: 1 / 0, "no answer; ")


def test_remote_folder_is_copied_once(tmp_path, monkeypatch):
    """A local folder stands for the remote one: what is tested is the cache."""
    remote = tmp_path / "remote"
    (remote / "sub").mkdir(parents=True)
    (remote / "a").write_text("1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "is_remote", lambda path: os.fspath(path).startswith(str(remote)))
    copy = Path(files.local_folder(remote))
    assert copy.parent == tmp_path / "cache" / "bert_jax"
    assert (copy / "a").read_text() == "1" and os.listdir(copy) == ["a"]
    (copy / "mark").touch()
    assert Path(files.local_folder(remote), "mark").exists()
    (remote / "a").write_text("22")
    assert Path(files.local_folder(remote), "a").read_text() == "22"
    assert files.local_folder(tmp_path) == str(tmp_path)
    with pytest.raises(UserError, match=r"--input_file: no such file or folder: .*/none"):
        files.local_folder(tmp_path / "none", "--input_file")
