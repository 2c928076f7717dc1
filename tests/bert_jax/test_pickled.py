"""Pickled weights: refused unless asked for, and never unpickled."""

import json
import os
import pickle
import sys
import types

import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from bert_jax.convert.huggingface import find_head, load_huggingface
from bert_jax.convert.pickled import open_pickled
from input_pipeline.errors import UserError

FILE = "pytorch_model.bin"
POOLER = "bert.pooler.dense.weight"


class Harmful:
    """Makes the folder `path` when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def folder(data, tmp_path):
    """A folder with the configuration of the weights."""
    settings = json.loads((data / "random_tiny_config.json").read_text()) | {"model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.fixture
def expected(data, folder):
    config, params, _ = load_huggingface(folder_with_safetensors(data, folder))
    return config, params


def folder_with_safetensors(data, folder):
    other = folder / "safetensors"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    (other / "model.safetensors").write_bytes((data / "random_tiny.safetensors").read_bytes())
    return other


@pytest.fixture
def weights(data):
    """The tensors as PyTorch's."""
    torch = pytest.importorskip("torch")
    return {name: torch.tensor(value) for name, value in load_file(data / "random_tiny.safetensors").items()}


@pytest.mark.parametrize("path", ["", FILE])
def test_refused_with_advice_that_is_right(folder, path, weights, expected):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors.torch")
    torch.save(weights, folder / FILE)
    with pytest.raises(
        UserError, match=r"only pickled weights, .*give --allow_pickled_weights .*convert them"
    ) as error:
        load_huggingface(folder / path if path else folder)
    command = str(error.value).partition('python -c "')[2].removesuffix('"')
    exec(command, {})  # what the user is told to run
    _, params, _ = load_huggingface(folder)
    assert_equal(params, expected[1])


def assert_equal(params, expected):
    params, expected = traverse_util.flatten_dict(params), traverse_util.flatten_dict(expected)
    assert params.keys() == expected.keys()
    for path, value in params.items():
        assert value.tobytes() == expected[path].tobytes(), path


@pytest.mark.parametrize("zipped", [True, False])
def test_the_same_values_as_from_safetensors(folder, weights, expected, zipped):
    torch = pytest.importorskip("torch")
    torch.save(weights, folder / FILE, _use_new_zipfile_serialization=zipped)
    for path in (folder, folder / FILE):
        config, params, _ = load_huggingface(path, allow_pickled=True)
        assert config == expected[0]
        assert_equal(params, expected[1])
    assert find_head(folder, "--flag", allow_pickled=True) is None


def test_shards(folder, weights, expected):
    torch = pytest.importorskip("torch")
    names = sorted(weights)
    places = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(names)}
    for place in set(places.values()):
        torch.save({name: weights[name] for name in names if places[name] == place}, folder / place)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert_equal(load_huggingface(folder, allow_pickled=True)[1], expected[1])
    with pytest.raises(UserError, match="only pickled weights") as error:
        load_huggingface(folder)
    pytest.importorskip("safetensors.torch")
    exec(str(error.value).partition('python -c "')[2].removesuffix('"'), {})  # what the user is told to run
    assert_equal(load_huggingface(folder)[1], expected[1])


def test_half_precision_and_transposed_views(folder, weights):
    torch = pytest.importorskip("torch")
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in weights.items()}
    half[POOLER] = half[POOLER].t().contiguous().t()
    half = {name: torch.nn.Parameter(value) if value.is_floating_point() else value for name, value in half.items()}
    torch.save(half, folder / FILE)
    _, params, _ = load_huggingface(folder, allow_pickled=True)
    kernel = params["bert"]["pooler"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, half[POOLER].detach().float().numpy().T)


def test_integer_weights_are_refused(folder, weights):
    torch = pytest.importorskip("torch")
    torch.save(weights | {POOLER: weights[POOLER].to(torch.int8)}, folder / FILE)
    with pytest.raises(UserError, match=r"bert\.pooler\.dense\.weight is of type int8, supported are float64, float32"):
        load_huggingface(folder, allow_pickled=True)


def test_weights_that_are_not_dense_are_refused(folder, weights):
    torch = pytest.importorskip("torch")
    meta = torch.empty_like(weights[POOLER], device="meta")
    for value, complaint in ((weights[POOLER].to_sparse(), "is sparse_coo, not dense"), (meta, "has no values")):
        torch.save(weights | {POOLER: value}, folder / FILE)
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: bert\.pooler\.dense\.weight {complaint}$"):
            load_huggingface(folder, allow_pickled=True)


def test_what_a_file_asks_for_is_named(folder):
    torch = pytest.importorskip("torch")
    torch.save({"x": Harmful("x")}, folder / FILE)
    with pytest.raises(UserError, match=r"it holds more than tensors \((posix|nt)\.mkdir\)$"):
        open_pickled(folder / FILE, "--flag")
    (folder / FILE).write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged: it is empty$"):
        open_pickled(folder / FILE, "--flag")


def test_code_in_a_file_is_never_run(folder):
    torch = pytest.importorskip("torch")
    made = folder / "made by the file"
    for write in (
        lambda: torch.save({"x": Harmful(made)}, folder / FILE),
        lambda: torch.save({"x": Harmful(made)}, folder / FILE, _use_new_zipfile_serialization=False),
        lambda: (folder / FILE).write_bytes(pickle.dumps({"x": Harmful(made)})),
    ):
        write()
        with pytest.raises(
            UserError, match=r"^[^\n]*pytorch_model\.bin holds something else than weights, or is damaged: [^\n]+$"
        ) as error:
            load_huggingface(folder, allow_pickled=True)
        assert "weights_only" not in str(error.value)  # whose advice is to let the file run its code
        with pytest.raises(UserError, match="only pickled weights"):
            load_huggingface(folder)
        assert not made.exists()


def test_files_that_are_no_weights(folder, weights):
    torch = pytest.importorskip("torch")
    torch.save(weights, folder / FILE)
    whole = (folder / FILE).read_bytes()
    for content in (b"", b"no pickle", whole[: len(whole) // 2]):
        (folder / FILE).write_bytes(content)
        with pytest.raises(
            UserError, match=r"^--flag: [^\n]*holds something else than weights, or is damaged: [^\n]+$"
        ) as error:
            open_pickled(folder / FILE, "--flag")
        assert "weights_only" not in str(error.value)
    for value in ([1], {"state_dict": weights}, {1: weights[POOLER]}, weights[POOLER]):
        torch.save(value, folder / FILE)
        with pytest.raises(UserError, match="is no dict of tensors by name"):
            open_pickled(folder / FILE, "--flag")
    with pytest.raises(UserError, match="no such file or folder"):
        open_pickled(folder / "none.bin", "--flag")


# ---- Without PyTorch, or with another


def test_advice_where_pytorch_is_missing(folder, monkeypatch):
    (folder / FILE).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"is read with PyTorch, which is missing: pip install torch"):
        load_huggingface(folder, allow_pickled=True)
    with pytest.raises(UserError, match="only pickled weights"):
        load_huggingface(folder)


@pytest.mark.parametrize("version", ["2.5.1+cpu", "1.13.0"])
def test_loaders_that_are_not_safe_are_refused(folder, monkeypatch, version):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    with pytest.raises(UserError, match=f"need PyTorch 2.6, whose loader is safe; this is {version[:3]}"):
        open_pickled(folder / FILE, "--flag")
