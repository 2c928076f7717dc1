"""Traces of some updates: what is asked for, and what becomes of it."""

import gzip
import json

import jax
import pytest

from bert_jax import profiling
from bert_jax.profiling import Profile, parse_steps
from input_pipeline.errors import UserError


def test_both_ends_are_traced():
    assert list(parse_steps("100:102")) == [100, 101, 102]
    assert list(parse_steps("1:1")) == [1]
    assert parse_steps(None) is None


@pytest.mark.parametrize("text", ["10", "0:3", "5:4", "a:b", "-1:3", "1:2:3", "1 : 2", "1.0:2"])
def test_mistakes(text):
    with pytest.raises(UserError, match=f"--profile_steps={text} must be FIRST:LAST, .* such as 100:110"):
        parse_steps(text)


def run(tmp_path, steps, first=1, last=5):
    """Makes updates `first` to `last`, and returns the lines that were said and warned of."""
    said, warned = [], []
    with Profile(parse_steps(steps), tmp_path, said.append, warned.append) as profile:
        for step in range(first, last + 1):
            if profile.begins_with(step):
                profile.start()
            with profile.step(step):
                jax.block_until_ready(jax.numpy.arange(3) + step)
            if profile.ends_with(step):
                profile.stop()
    return said, warned


def traced_steps(folder):
    (path,) = folder.glob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if event.get("name") == "train")


@pytest.mark.parametrize(
    ("first", "last", "traced"),
    [(1, 5, [2, 3, 4]), (3, 5, [3, 4]), (1, 3, [2, 3])],
)
def test_the_updates_that_are_made_are_traced(tmp_path, first, last, traced):
    said, warned = run(tmp_path, "2:4", first, last)
    folder = tmp_path / "tensorboard" / "plugins" / "profile" / "steps_2_4"
    assert traced_steps(folder) == traced
    assert len(list(folder.glob("*.xplane.pb"))) == 1
    assert warned == []
    assert len(said) == 1 and f"updates {traced[0]} to {traced[-1]} is in {folder}" in said[0]
    assert f"xprof --logdir={tmp_path / 'tensorboard'} " in said[0]


def test_updates_that_are_not_made_are_a_warning(tmp_path):
    said, warned = run(tmp_path, "8:9")
    assert said == [] and not list(tmp_path.iterdir())
    assert warned == ["--profile_steps=8:9: none of these updates was made, and none is traced; the last one was 5"]


def test_nothing_is_said_without_the_flag(tmp_path):
    assert run(tmp_path, None) == ([], [])


def test_what_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    said, warned = run(tmp_path, "2:4")
    assert said == []
    assert len(warned) == 1 and warned[0].startswith("--profile_steps: there is no trace: ") and "\n" not in warned[0]


def test_a_profiler_that_is_taken_is_a_warning(tmp_path):
    with jax.profiler.trace(tmp_path / "other"):
        said, warned = run(tmp_path / "run", "2:4")
    assert said == [] and len(warned) == 1 and "Only one profile" in warned[0]


def test_processes_of_a_host_write_files_of_their_own(tmp_path, monkeypatch):
    for index in (0, 1):
        monkeypatch.setattr(profiling.jax, "process_count", lambda: 2)
        monkeypatch.setattr(profiling.jax, "process_index", lambda index=index: index)
        run(tmp_path, "2:4")
    names = [path.name for path in (tmp_path / "tensorboard").rglob("*.xplane.pb")]
    assert sorted(name.partition("_process")[2] for name in names) == ["0.xplane.pb", "1.xplane.pb"]


def test_updates_after_the_last_one_are_refused():
    assert profiling.parse_steps("5:9", 5) == range(5, 10)
    with pytest.raises(UserError, match="--profile_steps=6:9 begins after the last update, --num_train_steps=5"):
        profiling.parse_steps("6:9", 5)
