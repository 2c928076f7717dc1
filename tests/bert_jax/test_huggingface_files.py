"""Files and folders of Hugging Face's weights: one file, shards, and what is none of them."""

import functools
import json
import re
import shutil

import pytest
from huggingface_folders import FILE, assert_equal_trees, write_folder
from safetensors.numpy import load_file, save_file

from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import has_safetensors, is_huggingface, load_huggingface
from input_pipeline import files
from input_pipeline.errors import UserError


@pytest.fixture(scope="module")
def tensors(data):
    """49 tensors of both heads, with the prefix, a repeated decoder and position_ids."""
    return load_file(data / "random_tiny.safetensors")


@pytest.fixture(scope="module")
def config(data):
    return BertConfig.from_file(data / "random_tiny_config.json")


@pytest.fixture
def save(data, tmp_path):
    """See write_folder."""
    return functools.partial(write_folder, tmp_path, data)


def test_one_file_needs_a_configuration(data, tensors, config, save):
    file = data / "random_tiny.safetensors"
    with pytest.raises(UserError, match=r"--init_checkpoint: no config\.json in .*give --bert_config_file, or --model"):
        load_huggingface(file)
    assert_equal_trees(load_huggingface(file, config)[1], load_huggingface(save(tensors))[1])


def test_shards(tensors, save):
    folder = save(tensors)
    _, expected, _ = load_huggingface(folder)
    (folder / FILE).unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    with pytest.raises(UserError, match=r"has several safetensors files and no model\.safetensors\.index\.json"):
        load_huggingface(folder)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_equal_trees(load_huggingface(folder)[1], expected)
    second = folder / "model-00002-of-00002.safetensors"
    save_file({name: tensors[name] for name in names[1:2] + names[1::2] + names[:1]}, second)
    with pytest.raises(
        UserError, match=rf"{re.escape(names[0])} is both in model-00001\S+ and in model-00002-of-00002\.safetensors$"
    ):
        load_huggingface(folder)
    second.unlink()
    with pytest.raises(UserError, match=r"no such file or folder: .*model-00002-of-00002\.safetensors"):
        load_huggingface(folder)
    for damaged in ("[]", '{"weight_map": {"x": 5}}', '{"weight_map": {"x": []}}', "[" * 100_000):
        index.write_text(damaged)
        with pytest.raises(UserError, match=r"index\.json is not the index of a model"):
            load_huggingface(folder)
    index.write_text("[]")
    with pytest.raises(UserError, match=r"index\.json is not the index of a model"):
        load_huggingface(folder)


@pytest.mark.parametrize("name", ["bert.safetensors", "bert.bin"])
def test_a_folder_is_a_folder_whatever_its_name(tensors, save, name):
    _, expected, _ = load_huggingface(folder := save(tensors))
    (folder / name).mkdir()
    assert not is_huggingface(folder / name)
    assert_equal_trees(load_huggingface(folder)[1], expected)  # the other one is no file of weights
    for file in ("config.json", FILE):
        (folder / file).rename(folder / name / file)
    assert has_safetensors(folder / name) and not is_huggingface(folder)
    assert_equal_trees(load_huggingface(folder / name)[1], expected)
    (folder / name / FILE).unlink()
    (folder / name / FILE).mkdir()
    (folder / name / "pytorch_model.bin").mkdir()
    assert not is_huggingface(folder / name)
    with pytest.raises(UserError, match=r"no model\.safetensors and no model\.safetensors\.index\.json in"):
        load_huggingface(folder / name)


def test_a_folder_that_is_closed(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(files.as_path(tmp_path)), "iterdir", refuse)
    with pytest.raises(UserError, match=r"^--flag: cannot access .*: Permission denied$"):
        is_huggingface(tmp_path, "--flag")


def test_unreadable_places(tensors, save, tmp_path):
    folder = save(tensors)
    assert is_huggingface(folder) and is_huggingface(folder / FILE) and not is_huggingface(folder / "config.json")
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[:-10])
    with pytest.raises(UserError, match=r"model\.safetensors is not a whole safetensors file"):
        load_huggingface(folder)
    (folder / FILE).unlink()
    assert not is_huggingface(folder)
    with pytest.raises(UserError, match=r"no model\.safetensors and no model\.safetensors\.index\.json in"):
        load_huggingface(folder)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert is_huggingface(folder) and not has_safetensors(folder)
    with pytest.raises(
        UserError, match=r"only pickled weights, .*--allow_pickled_weights .* convert them once: python -c "
    ):
        load_huggingface(folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"--init_checkpoint: no such file or folder"):
        load_huggingface(folder)
