"""Folders as Hugging Face writes them, of a small BERT with random weights."""

import json

import numpy as np
from flax import traverse_util
from safetensors.numpy import save_file

FILE = "model.safetensors"


def write_folder(folder, data, tensors, **settings):
    """Writes tensors with the configuration of data/ and other settings; returns the folder."""
    values = json.loads((data / "random_tiny_config.json").read_text()) | {"model_type": "bert"} | settings
    (folder / "config.json").write_text(json.dumps(values))
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, folder / FILE)
    return folder


def assert_equal_trees(one, other):
    one, other = traverse_util.flatten_dict(one), traverse_util.flatten_dict(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path], err_msg="/".join(path))


def without(tensors, *starts):
    return {name: value for name, value in tensors.items() if not name.startswith(starts)}
