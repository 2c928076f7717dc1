"""Import of Hugging Face weights: every naming, every gap, every refusal."""

import dataclasses
import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from bert_jax import modeling
from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import is_huggingface, load_huggingface, merge_into, weight_table
from input_pipeline.errors import UserError

FILE = "model.safetensors"
WORDS = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"


@pytest.fixture(scope="module")
def tensors(data):
    """49 tensors of both heads, with the prefix, a repeated decoder and position_ids."""
    return load_file(data / "random_tiny.safetensors")


@pytest.fixture(scope="module")
def config(data):
    return BertConfig.from_file(data / "random_tiny_config.json")


@pytest.fixture
def save(data, tmp_path):
    """Writes tensors as a folder that Hugging Face could have written."""

    def save(tensors, **settings):
        values = json.loads((data / "random_tiny_config.json").read_text()) | {"model_type": "bert"} | settings
        (tmp_path / "config.json").write_text(json.dumps(values))
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, tmp_path / FILE)
        return tmp_path

    return save


def assert_equal_trees(one, other):
    one, other = traverse_util.flatten_dict(one), traverse_util.flatten_dict(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path], err_msg="/".join(path))


def without(tensors, *starts):
    return {name: value for name, value in tensors.items() if not name.startswith(starts)}


def parameter_shapes(config, scan_layers=False):
    module = modeling.BertForPreTraining(config, scan_layers=scan_layers)
    return nn.unbox(jax.eval_shape(lambda key: modeling.initialize(module, key), jax.random.key(0)))


def test_table_is_the_model(config):
    """Every parameter of the model once, with the shape that the model gives it."""
    shapes = parameter_shapes(config)
    flat = {path: leaf.shape for path, leaf in traverse_util.flatten_dict(shapes).items()}
    table = weight_table(config)
    assert {weight.path: weight.shape for weight in table} == flat
    assert len({weight.name for weight in table}) == len(table) == 46


def test_values_land_where_they_belong(tensors, config, save):
    loaded_config, params, report = load_huggingface(save(tensors))
    assert loaded_config == config
    words = params["bert"]["embeddings"]["word_embeddings"]["embedding"]
    assert words.shape == (128, 24)
    np.testing.assert_array_equal(words[:97], tensors[WORDS])
    assert not words[97:].any()
    assert not params["cls"]["predictions"]["output_bias"]["bias"][97:].any()
    layer = params["bert"]["encoder"]["layer_1"]
    query = tensors["bert.encoder.layer.1.attention.self.query.weight"]
    np.testing.assert_array_equal(layer["attention"]["query"]["kernel"][:, 2, 3], query[2 * 8 + 3])
    output = tensors["bert.encoder.layer.1.attention.output.dense.weight"]
    np.testing.assert_array_equal(layer["attention"]["output"]["kernel"][2, 3], output[:, 2 * 8 + 3])
    np.testing.assert_array_equal(
        layer["feed_forward"]["intermediate"]["kernel"], tensors["bert.encoder.layer.1.intermediate.dense.weight"].T
    )
    assert {value.dtype for value in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    assert set(report.used) == tensors.keys() - {"bert.embeddings.position_ids"}
    assert report.unused == report.initialized == ()
    assert report.lines() == ["48 tensors used"]


def test_names_of_any_age_give_the_same(tensors, save):
    _, expected, _ = load_huggingface(save(tensors))
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in without(tensors, "cls.predictions.decoder").items()
    }
    assert_equal_trees(load_huggingface(save(old))[1], expected)
    bare = {name.removeprefix("bert."): value for name, value in old.items() if name.startswith("bert.")}
    assert_equal_trees(load_huggingface(save(bare))[1], {"bert": expected["bert"]})
    moved = {
        "cls.predictions.decoder.bias" if name == "cls.predictions.bias" else name: value for name, value in old.items()
    }
    assert_equal_trees(load_huggingface(save(moved))[1], expected)


def test_absent_parts_are_reported(tensors, save):
    head = {"classifier.weight": np.zeros((3, 24), np.float32)}
    _, params, report = load_huggingface(save(without(tensors, "bert.pooler", "cls.seq_relationship") | head))
    assert params["bert"].keys() == {"embeddings", "encoder"}
    assert params["cls"].keys() == {"predictions"}
    assert report.lines() == [
        "44 tensors used",
        "not used: classifier.weight",
        "not in the file, newly initialised: bert.pooler.dense.weight, bert.pooler.dense.bias, "
        "cls.seq_relationship.weight, cls.seq_relationship.bias",
    ]


@pytest.mark.parametrize("scan_layers", [False, True])
def test_merge_fills_fresh_parameters(tensors, config, save, scan_layers):
    fresh = jax.tree.map(lambda leaf: np.ones(leaf.shape), parameter_shapes(config, scan_layers))
    _, loaded, _ = load_huggingface(save(without(tensors, "cls.seq_relationship")))
    merged = merge_into(fresh, loaded)
    assert jax.tree.map(np.shape, merged) == jax.tree.map(np.shape, fresh)
    assert merged["cls"]["seq_relationship"]["kernel"] is fresh["cls"]["seq_relationship"]["kernel"]
    encoder = merged["bert"]["encoder"]
    kernel = loaded["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"]
    if scan_layers:
        np.testing.assert_array_equal(encoder["layers"]["attention"]["query"]["kernel"][1], kernel)
    else:
        np.testing.assert_array_equal(encoder["layer_1"]["attention"]["query"]["kernel"], kernel)
    loaded["bert"]["embeddings"]["layer_norm"]["bias"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"no place for bert/embeddings/layer_norm/bias \[3\]"):
        merge_into(fresh, loaded)


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
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"no such file or folder: .*model-00002-of-00002\.safetensors"):
        load_huggingface(folder)
    for damaged in ("[]", '{"weight_map": {"x": 5}}', '{"weight_map": {"x": []}}', "[" * 100_000):
        index.write_text(damaged)
        with pytest.raises(UserError, match=r"index\.json is not the index of a model"):
            load_huggingface(folder)
    index.write_text("[]")
    with pytest.raises(UserError, match=r"index\.json is not the index of a model"):
        load_huggingface(folder)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_become_float32(tensors, save, dtype):
    cast = {name: value.astype(dtype) for name, value in tensors.items() if name != "bert.embeddings.position_ids"}
    _, params, _ = load_huggingface(save(cast))
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table, tensors[POSITIONS].astype(dtype).astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_values_that_are_not_finite_are_refused(tensors, save, value):
    words = tensors[WORDS].astype(np.float64)
    words[3, 1] = value
    with pytest.raises(UserError, match=f"{WORDS} in {FILE} has values that are NaN or infinite"):
        load_huggingface(save(tensors | {WORDS: words}))


def test_integer_weights_are_refused(tensors, save):
    pooler = {"bert.pooler.dense.weight": tensors["bert.pooler.dense.weight"].astype(np.int8)}
    with pytest.raises(
        UserError, match=r"bert\.pooler\.dense\.weight is of type I8, supported are F64, F32, F16, BF16"
    ):
        load_huggingface(save(tensors | pooler))


def test_longer_position_tables_are_cut_and_shorter_ones_refused(tensors, config, save):
    folder = save(tensors)
    _, params, _ = load_huggingface(folder, dataclasses.replace(config, max_position_embeddings=16))
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, tensors[POSITIONS][:16])
    with pytest.raises(UserError, match=r"position_embeddings\.weight is \[20, 24\], should be \[21, 24\]"):
        load_huggingface(folder, dataclasses.replace(config, max_position_embeddings=21))


def test_what_shapes_cannot_tell_is_compared(tensors, config, save):
    folder = save(tensors)
    with pytest.raises(UserError, match=r"num_attention_heads 3, the configuration of this run 4"):
        load_huggingface(folder, dataclasses.replace(config, num_attention_heads=4))
    _, _, report = load_huggingface(folder, dataclasses.replace(config, hidden_act="relu"))
    assert report.notes == (f"{folder / 'config.json'} has hidden_act gelu, this run uses relu",)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda t: without(t, "bert.encoder.layer.1.output", "bert.encoder.layer.1.intermediate"),
            r"tensors are missing: bert\.encoder\.layer\.1\.intermediate\.dense\.weight, .*LayerNorm\.bias$",
        ),
        (lambda t: without(t, "bert.encoder.layer.1"), r"tensors are missing: .*, .* and 8 more$"),
        (lambda t: without(t, "bert.pooler.dense.bias"), r"tensors are missing: bert\.pooler\.dense\.bias$"),
        (
            lambda t: t | {WORDS: t[WORDS][:90], "cls.predictions.decoder.weight": t[WORDS][:90]},
            r"shapes do not fit the configuration: .*word_embeddings\.weight is \[90, 24\], should be \[97, 24\]$",
        ),
        (
            lambda t: t | {"bert.encoder.layer.0.attention.self.distance_embedding.weight": t[WORDS]},
            r"no place in 2 layers of BERT for bert\.encoder\.layer\.0\.attention\.self\.distance_embedding\.weight$",
        ),
        (
            lambda t: t | {"cls.predictions.decoder.weight": t[WORDS] + 1},
            r"decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight: an untied output layer",
        ),
        (
            lambda t: {"roberta." + name: value for name, value in t.items()},
            r"is not a BERT model: no bert\.embeddings\.word_embeddings\.weight among roberta\.bert\.",
        ),
    ],
)
def test_wrong_tensors_are_listed(tensors, save, change, complaint):
    with pytest.raises(UserError, match=r"^--init_checkpoint: .*" + complaint):
        load_huggingface(save(change(tensors)))


def test_other_models_are_refused(tensors, save):
    with pytest.raises(UserError, match=r"config\.json: model_type 'roberta' is not supported"):
        load_huggingface(save(tensors, model_type="roberta"))


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
    assert is_huggingface(folder)
    with pytest.raises(UserError, match=r"only pickled weights, .* convert them once .*save_pretrained"):
        load_huggingface(folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"--init_checkpoint: no such file or folder"):
        load_huggingface(folder)
