"""Google's TF1 variables of a small BERT with random weights: what its graphs make, and folders of checkpoints."""

import os
import shutil

import numpy as np
from flax import traverse_util
from safetensors.numpy import load_file

from bert_jax.heads import TaskHead
from input_pipeline.host_tensorflow import tf

WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"
DATA_FILE = "bert_model.ckpt.data-00000-of-00001"
HEADS = [
    TaskHead("classification", ("no", "yes", "maybe")),
    TaskHead("multi_label", ("rude", "loud")),
    TaskHead("regression", ("value",)),
    TaskHead("multiple_choice", ("choice",)),
    TaskHead("tagging", ("O", "B-PER")),
    TaskHead("span", ("start", "end")),
]


def google_shapes(config, head=None):
    """Every variable that Google's graphs make, written down from modeling.py and run_*.py."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        WORDS: (config.vocab_size, hidden),
        "bert/embeddings/token_type_embeddings": (config.type_vocab_size, hidden),
        POSITIONS: (config.max_position_embeddings, hidden),
    }
    dense = {"bert/pooler/dense": (hidden, hidden)}
    norms = ["bert/embeddings/LayerNorm"]
    for i in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{i}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            dense[f"{layer}/attention/{name}"] = (hidden, hidden)
        dense[f"{layer}/intermediate/dense"] = (hidden, inner)
        dense[f"{layer}/output/dense"] = (inner, hidden)
        norms += [f"{layer}/attention/output/LayerNorm", f"{layer}/output/LayerNorm"]
    if head is None:
        dense["cls/predictions/transform/dense"] = (hidden, hidden)
        norms.append("cls/predictions/transform/LayerNorm")
        shapes["cls/predictions/output_bias"] = (config.vocab_size,)
        shapes |= {"cls/seq_relationship/output_weights": (2, hidden), "cls/seq_relationship/output_bias": (2,)}
    else:
        scope = "cls/squad/" if head.kind == "span" else ""
        outputs = len(head.labels)
        shapes |= {f"{scope}output_weights": (outputs, hidden), f"{scope}output_bias": (outputs,)}
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/gamma": (hidden,), f"{name}/beta": (hidden,)}
    return shapes


def random_variables(data, config):
    """The weights of data/ with both pretraining heads by Google's names; kernels are [in, out]."""
    tensors = load_file(data / "random_tiny.safetensors")
    found = {}
    for name in google_shapes(config):
        scope, _, leaf = name.rpartition("/")
        leaf = {"gamma": "weight", "beta": "bias", "kernel": "weight", "output_weights": "weight"}.get(leaf, leaf)
        scope = scope.replace("/", ".").replace("layer_", "layer.")
        if leaf.endswith("_embeddings"):
            leaf += ".weight"
        array = tensors[f"{scope}.{'bias' if leaf == 'output_bias' else leaf}"]
        found[name] = array.T if name.endswith("/kernel") else array
    return found


def write_checkpoint(folder, data, variables, name="bert_model.ckpt"):
    """Writes variables, of any dtype, as a checkpoint with its bert_config.json; returns the prefix."""
    arrays = [np.ascontiguousarray(value) for value in variables.values()]
    prefix = os.fspath(folder / name)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(variables), shape_and_slices=[""] * len(arrays), tensors=arrays)
    shutil.copy(data / "random_tiny_config.json", folder / "bert_config.json")
    return prefix


def assert_equal_trees(one, other):
    one, other = traverse_util.flatten_dict(one), traverse_util.flatten_dict(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        assert value.dtype == other[path].dtype == np.float32
        np.testing.assert_array_equal(value, other[path], err_msg="/".join(path))
