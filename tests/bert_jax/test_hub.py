"""Weights named hf://...: what is asked for, the cache, and one clear line for each failure."""

import sys
import types

import pytest

from bert_jax.convert import hub
from input_pipeline.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BAD_NAMES = ["", "a/b/c", "a/", "/b", "a/b@", "a/b..c", "a/b--c", "a b", "a/b@x y", "..", "a/b.", "-a"]


class NotFound(Exception):
    pass


class Gated(NotFound):
    pass


class NoRevision(Exception):
    pass


class StatusError(Exception):
    def __init__(self, status):
        super().__init__(f"{status} error\nand more")
        self.response = types.SimpleNamespace(status_code=status)


class FakeHub(types.ModuleType):
    """huggingface_hub with one model, in `folder`, or with an error instead."""

    def __init__(self, folder):
        super().__init__("huggingface_hub")
        self.folder, self.online, self.broken = folder, None, None
        self.calls = []
        self.constants = types.SimpleNamespace(HF_HUB_OFFLINE=False)
        self.errors = types.SimpleNamespace(
            GatedRepoError=Gated, RepositoryNotFoundError=NotFound, RevisionNotFoundError=NoRevision
        )

    def HfApi(self):
        return self

    def model_info(self, name, revision, timeout):
        assert timeout <= 10
        if self.online:
            raise self.online

    def snapshot_download(self, name, revision, cache_dir, allow_patterns, local_files_only):
        self.calls.append((name, revision, cache_dir, local_files_only))
        if self.broken:
            raise self.broken
        return self.folder


@pytest.fixture
def fake(tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "model.safetensors").touch()
    module = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def test_only_the_scheme_counts():
    assert hub.is_hub("hf://org/name") and not hub.is_hub("org/name") and not hub.is_hub("gs://org/name")


@pytest.mark.parametrize(
    ("path", "name", "revision"),
    [
        ("hf://google-bert/bert-base-uncased", "google-bert/bert-base-uncased", None),
        ("hf://bert-base-uncased", "bert-base-uncased", None),
        ("hf://a/b.c_1@refs/pr/3", "a/b.c_1", "refs/pr/3"),
        (f"hf://a/b@{COMMIT}", "a/b", COMMIT),
    ],
)
def test_names_and_revisions(fake, tmp_path, monkeypatch, path, name, revision):
    assert hub.fetch(path, "--flag") == str(tmp_path)
    assert fake.calls == [(name, revision, None, False)]
    monkeypatch.setenv("HF_HOME", "/home")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.fetch(path, "--flag")
    assert fake.calls[1] == (name, revision, "/home/hub", True)
    monkeypatch.setenv("HF_HUB_CACHE", "/cache")
    hub.fetch(path, "--flag")
    assert fake.calls[2] == (name, revision, "/cache", True)


@pytest.mark.parametrize(
    "name", ["", "a/b/c", "a/", "/b", "a/b@", "a/b..c", "a/b--c", "a b", "a/b@x y", "..", "a/b.", "-a"]
)
def test_bad_names_are_refused_before_anything_is_asked(name):
    with pytest.raises(UserError, match=r"^--flag: hf://.* is no name on the Hub: write hf://ORG/NAME"):
        hub.fetch(f"hf://{name}", "--flag")


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"which is missing: pip install huggingface_hub$"):
        hub.fetch("hf://a/b", "--flag")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotFound("404"), "the Hub has no such model, or only for those who log in"),
        (Gated("403"), "access is granted on its page on the Hub"),
        (NoRevision("404"), "the Hub has no such revision of it"),
        (StatusError(401), "the Hub refuses access: check HF_TOKEN"),
        (StatusError(503), "the Hub answers with error 503"),
        (OSError("no route\nto host"), r"no answer from the Hub \(no route\)"),
        (TimeoutError(), r"no answer from the Hub \(TimeoutError\)"),
    ],
)
def test_failures_are_one_line_unless_the_cache_has_a_copy(fake, tmp_path, caplog, error, reason):
    fake.online = error
    assert hub.fetch("hf://a/b", "--flag") == str(tmp_path)
    assert "hf://a/b: " in caplog.text and "a copy in the cache is used" in caplog.text
    fake.broken = FileNotFoundError("not in the cache")
    with pytest.raises(UserError, match=f"^--flag: hf://a/b: {reason}[^\n]*, and the cache has no whole copy$"):
        hub.fetch("hf://a/b", "--flag")
    assert all(offline for *_, offline in fake.calls)


def test_a_download_that_breaks_is_not_taken_from_the_cache(fake):
    fake.broken = OSError("no space left")
    with pytest.raises(UserError, match=r"^--flag: hf://a/b: cannot be fetched: no space left$"):
        hub.fetch("hf://a/b", "--flag")


def test_pickled_weights_only_on_request(fake, tmp_path):
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model\.safetensors on the Hub; .*--allow_pickled_weights fetches that$"):
        hub.fetch("hf://a/b", "--flag")
    assert hub.fetch("hf://a/b", "--flag", allow_pickled=True) == str(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors and no pytorch_model\.bin on the Hub$"):
        hub.fetch("hf://a/b", "--flag", allow_pickled=True)


# ---- With the library itself, which has no network here


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache in the library's layout, with one model; no request leaves the machine."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = tmp_path / "hub" / "models--org--name"
    for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "model.safetensors"):
        (model / "blobs" / f"hash-of-{name}").write_text("{}")
        (model / "snapshots" / COMMIT / name).symlink_to(model / "blobs" / f"hash-of-{name}")
    return model


def test_a_cached_model_needs_no_network(cache):
    folder = str(cache / "snapshots" / COMMIT)
    assert hub.fetch("hf://org/name", "--flag") == folder
    assert hub.fetch("hf://org/name@main", "--flag") == folder
    assert hub.fetch(f"hf://org/name@{COMMIT}", "--flag") == folder
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set, and the cache has no whole copy$"):
        hub.fetch("hf://org/name@v2", "--flag")
    with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set, and the cache has no whole copy$"):
        hub.fetch("hf://org/other", "--flag")


def test_a_cached_model_without_weights_is_told(cache):
    (cache / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"hf://org/name has no model\.safetensors in the cache; if"):
        hub.fetch("hf://org/name", "--flag")


def test_a_hub_out_of_reach_is_like_none(cache, monkeypatch):
    import huggingface_hub

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: huggingface_hub.hf_api.HfApi("http://localhost:9"))
    assert hub.fetch("hf://org/name", "--flag") == str(cache / "snapshots" / COMMIT)
    with pytest.raises(UserError, match=r"no answer from the Hub \(.*\), and the cache has no whole copy$"):
        hub.fetch("hf://org/other", "--flag")
