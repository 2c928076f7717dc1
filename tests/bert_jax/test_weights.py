"""The table of names and shapes: it is the model, it is Google's and PyTorch's, and both ways are exact."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from bert_jax import modeling
from bert_jax.config import BertConfig
from bert_jax.convert.weights import (
    OUTPUT_BIAS,
    WORD_EMBEDDINGS,
    ImportReport,
    Tensor,
    assemble,
    disassemble,
    from_torch,
    listed,
    merge_into,
    to_torch,
    unstack_layers,
    weight_table,
)
from bert_jax.heads import FIXED_OUTPUTS, KINDS, TaskHead
from bert_jax.task_modeling import BertForTask
from input_pipeline.errors import UserError

# Sizes that all differ, so that no transposed array has the right shape by chance.
CONFIG = BertConfig(
    vocab_size=97,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=52,
    max_position_embeddings=20,
)
LABELS = {kind: FIXED_OUTPUTS.get(kind, ("a", "b", "c")) for kind in KINDS}


def shapes_of_model(head=None, scan_layers=False):
    ids = jnp.zeros((1, 8), jnp.int32)
    if head:
        module = BertForTask(CONFIG, head, scan_layers=scan_layers)
        init = lambda key: module.init(key, ids, ids, ids)["params"]
    else:
        module = modeling.BertForPreTraining(CONFIG, scan_layers=scan_layers)
        init = lambda key: modeling.initialize(module, key)
    return nn.unbox(jax.eval_shape(init, jax.random.key(0)))


def torch_arrays(head=None):
    """Different numbers everywhere, by names."""
    draw = np.random.default_rng(0)
    return {
        weight.name: draw.normal(size=weight.torch_shape).astype(np.float32) for weight in weight_table(CONFIG, head)
    }


def as_tensors(arrays):
    return {name: Tensor(f"file's {name}", array.shape, lambda array=array: array) for name, array in arrays.items()}


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_table_is_the_model(kind):
    """Every parameter of the model once, with the shape that the model gives it."""
    head = TaskHead(kind, LABELS[kind]) if kind else None
    shapes = {path: leaf.shape for path, leaf in traverse_util.flatten_dict(shapes_of_model(head)).items()}
    table = weight_table(CONFIG, head)
    if head and head.of_tokens:  # which never calls the pooler
        table = [weight for weight in table if weight.part != "pooler"]
    assert {weight.path: weight.shape for weight in table} == shapes
    for names in ([weight.name for weight in table], [weight.google_name for weight in table]):
        assert len(set(names)) == len(table)


def test_parts():
    parts = [weight.part for weight in weight_table(CONFIG)]
    assert {part: parts.count(part) for part in parts} == {
        "encoder": 5 + 2 * 16,
        "pooler": 2,
        "predictions": 5,
        "seq_relationship": 2,
    }
    assert weight_table(CONFIG, TaskHead("span", LABELS["span"]))[-1].part == "classifier"


def test_base_has_199_arrays_of_the_encoder_with_its_pooler():
    table = weight_table(BertConfig.named("base"))
    assert sum(weight.part in ("encoder", "pooler") for weight in table) == 199


def test_names_of_google():
    names = {weight.name: (weight.google_name, weight.google_transposes) for weight in weight_table(CONFIG)}
    layer = "bert/encoder/layer_1"
    assert names[WORD_EMBEDDINGS] == ("bert/embeddings/word_embeddings", False)
    assert names["bert.embeddings.LayerNorm.weight"] == ("bert/embeddings/LayerNorm/gamma", False)
    query = "bert.encoder.layer.1.attention.self.query"
    assert names[f"{query}.weight"] == (f"{layer}/attention/self/query/kernel", True)
    assert names[f"{query}.bias"] == (f"{layer}/attention/self/query/bias", False)
    norm = "bert.encoder.layer.1.attention.output.LayerNorm.bias"
    assert names[norm] == (f"{layer}/attention/output/LayerNorm/beta", False)
    assert names["bert.pooler.dense.weight"] == ("bert/pooler/dense/kernel", True)
    assert names[OUTPUT_BIAS] == ("cls/predictions/output_bias", False)
    assert names["cls.predictions.transform.dense.weight"] == ("cls/predictions/transform/dense/kernel", True)
    assert names["cls.seq_relationship.weight"] == ("cls/seq_relationship/output_weights", False)
    for kind, scope in (("classification", ""), ("span", "cls/squad/")):
        *_, kernel, bias = weight_table(CONFIG, TaskHead(kind, LABELS[kind]))
        assert (kernel.google_name, kernel.google_transposes) == (f"{scope}output_weights", False)
        assert bias.google_name == f"{scope}output_bias"


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_both_ways_are_exact(kind):
    head = TaskHead(kind, LABELS[kind]) if kind else None
    arrays = torch_arrays(head)
    params, report = assemble(CONFIG, head, as_tensors(arrays), "source")
    assert report == ImportReport(tuple(f"file's {name}" for name in arrays), (), (), (), ())
    back = {weight.name: array for weight, array in disassemble(CONFIG, head, params)}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].shape == array.shape
        assert back[name].flags.c_contiguous
        assert back[name].tobytes() == array.tobytes(), name


def test_layouts():
    weights = {weight.name: weight for weight in weight_table(CONFIG)}
    arrays = torch_arrays()
    name = "bert.encoder.layer.0.attention.self.key.weight"
    kernel = from_torch(weights[name], arrays[name])
    assert kernel.shape == (24, 24)
    assert kernel[5, 2 * 8 + 7] == arrays[name][2 * 8 + 7, 5]
    name = "bert.encoder.layer.0.attention.output.dense.weight"
    kernel = from_torch(weights[name], arrays[name])
    assert kernel.shape == (24, 24)
    assert kernel[2 * 8 + 7, 5] == arrays[name][5, 2 * 8 + 7]
    table = from_torch(weights[WORD_EMBEDDINGS], arrays[WORD_EMBEDDINGS])
    assert table.shape == (128, 24) and not table[97:].any()
    dirty = table.copy()
    dirty[97:] = 5  # rows that only pad the table are no part of any file
    np.testing.assert_array_equal(to_torch(weights[WORD_EMBEDDINGS], dirty), arrays[WORD_EMBEDDINGS])


def test_only_parts_that_are_there_are_made_and_given_back():
    arrays = {name: value for name, value in torch_arrays().items() if "pooler" not in name and "cls." not in name}
    params, report = assemble(CONFIG, None, as_tensors(arrays), "source")
    assert params.keys() == {"bert"} and params["bert"].keys() == {"embeddings", "encoder"}
    assert len(report.initialized) == 2 + 7
    assert {weight.name for weight, _ in disassemble(CONFIG, None, params)} == arrays.keys()


@pytest.mark.parametrize("part", ["bert.pooler.dense", "cls.predictions.transform.dense", "cls.seq_relationship"])
def test_half_a_part_is_an_error(part):
    arrays = torch_arrays()
    del arrays[f"{part}.bias"]
    with pytest.raises(UserError, match=rf"^source: tensors are missing: {re.escape(part)}\.bias$"):
        assemble(CONFIG, None, as_tensors(arrays), "source")


def test_tensors_are_read_only_when_all_fit():
    tensors = as_tensors(torch_arrays())
    tensors = {name: tensor._replace(read=lambda: pytest.fail("read too early")) for name, tensor in tensors.items()}
    tensors[WORD_EMBEDDINGS] = tensors[WORD_EMBEDDINGS]._replace(shape=(96, 24))
    with pytest.raises(UserError, match=r"file's bert\.\S+ is \[96, 24\], should be \[97, 24\]$"):
        assemble(CONFIG, None, tensors, "source")


@pytest.mark.parametrize("scan_layers", [False, True])
def test_merge_fills_fresh_parameters(scan_layers):
    fresh = jax.tree.map(lambda leaf: np.ones(leaf.shape), shapes_of_model(scan_layers=scan_layers))
    arrays = {name: value for name, value in torch_arrays().items() if "seq_relationship" not in name}
    loaded, _ = assemble(CONFIG, None, as_tensors(arrays), "source")
    merged = merge_into(fresh, loaded)
    assert jax.tree.map(np.shape, merged) == jax.tree.map(np.shape, fresh)
    assert merged["cls"]["seq_relationship"]["kernel"] is fresh["cls"]["seq_relationship"]["kernel"]
    encoder = merged["bert"]["encoder"]
    kernel = loaded["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"]
    layer = jax.tree.map(lambda x: x[1], encoder["layers"]) if scan_layers else encoder["layer_1"]
    np.testing.assert_array_equal(layer["attention"]["query"]["kernel"], kernel)
    again = unstack_layers(merged)
    jax.tree.map(np.testing.assert_array_equal, again["bert"], loaded["bert"])
    assert unstack_layers(again) is again
    loaded["bert"]["embeddings"]["layer_norm"]["bias"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"no place for bert/embeddings/layer_norm/bias \[3\]"):
        merge_into(fresh, loaded)


def test_lists_are_short():
    assert listed(iter("abc")) == "a, b, c"
    assert listed(map(str, range(20)), 3) == "0, 1, 2 and 17 more"
