"""Import of Hugging Face weights: every naming, every gap, every refusal."""

import dataclasses
import functools
import json
import re

import jax
import ml_dtypes
import numpy as np
import pytest
from huggingface_folders import FILE, assert_equal_trees, without, write_folder
from safetensors.numpy import load_file

from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.convert.weights import ImportReport
from bert_jax.modeling import BertForPreTraining
from input_pipeline.errors import UserError

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
    """See write_folder."""
    return functools.partial(write_folder, tmp_path, data)


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
    np.testing.assert_array_equal(layer["attention"]["query"]["kernel"][:, 2 * 8 + 3], query[2 * 8 + 3])
    output = tensors["bert.encoder.layer.1.attention.output.dense.weight"]
    np.testing.assert_array_equal(layer["attention"]["output"]["kernel"][2 * 8 + 3], output[:, 2 * 8 + 3])
    np.testing.assert_array_equal(
        layer["feed_forward"]["intermediate"]["kernel"], tensors["bert.encoder.layer.1.intermediate.dense.weight"].T
    )
    assert {value.dtype for value in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    assert set(report.used) == tensors.keys() - {"bert.embeddings.position_ids"}
    assert report.unused == report.initialized == ()
    assert report.lines() == [
        "48 tensors used, 0 not used, 0 not in the file",
    ]


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
        "44 tensors used, 1 not used, 4 not in the file (pooler, next-sentence head)",
        "not used: classifier.weight",
    ]


def test_pretraining_heads_that_are_not_used_are_named_as_a_whole():
    names = ("cls.predictions.bias", "cls/predictions/transform/dense/kernel", "cls.seq_relationship.bias", "other")
    report = ImportReport((), names, (), (), ())
    assert report.lines()[1:] == ["not used: masked-LM head, next-sentence head, other"]


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
    with pytest.raises(UserError, match=rf"{re.escape(WORDS)} has values that are NaN or infinite in float32"):
        load_huggingface(save(tensors | {WORDS: words}))


def test_integer_weights_are_refused(tensors, save):
    pooler = {"bert.pooler.dense.weight": tensors["bert.pooler.dense.weight"].astype(np.int8)}
    with pytest.raises(
        UserError, match=r"bert\.pooler\.dense\.weight is of type I8, supported are F64, F32, F16, BF16"
    ):
        load_huggingface(save(tensors | pooler))


def test_longer_position_tables_are_cut_and_shorter_ones_refused_or_repeated(tensors, config, save):
    folder = save(tensors)
    _, params, report = load_huggingface(folder, dataclasses.replace(config, max_position_embeddings=16))
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, tensors[POSITIONS][:16])
    assert "the table of 20 positions is cut to 16" in report.notes
    longer = dataclasses.replace(config, max_position_embeddings=50)
    with pytest.raises(
        UserError, match=r"its table has 20 positions, max_position_embeddings is 50: give --extend_pos"
    ):
        load_huggingface(folder, longer)
    _, params, report = load_huggingface(folder, longer, extend_positions=True)
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, np.concatenate([tensors[POSITIONS]] * 3)[:50])
    assert "the table of 20 positions is repeated to 50" in report.notes


def test_extending_does_not_stretch_a_table_of_another_width(tensors, config, save):
    with pytest.raises(UserError, match=r"position_embeddings\.weight is \[20, 23\], should be \[20, 24\]"):
        load_huggingface(save(tensors | {POSITIONS: tensors[POSITIONS][:, :23]}), config, extend_positions=True)
    with pytest.raises(UserError, match=r"position_embeddings\.weight is \[0, 24\], should be \[20, 24\]"):
        load_huggingface(save(tensors | {POSITIONS: tensors[POSITIONS][:0]}), config, extend_positions=True)


def test_what_shapes_cannot_tell_is_compared(tensors, config, save):
    folder = save(tensors)
    with pytest.raises(UserError, match=r"num_attention_heads 3, the configuration of this run 4"):
        load_huggingface(folder, dataclasses.replace(config, num_attention_heads=4))
    _, _, report = load_huggingface(folder, dataclasses.replace(config, hidden_act="relu"))
    assert f"{folder / 'config.json'} has hidden_act gelu, this run uses relu" in report.notes


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
            r"roberta\.bert\.\S+ belongs to another model than BERT \(roberta\)$",
        ),
        (
            lambda t: t | {"lm_head.dense.weight": t[WORDS]},
            r"lm_head\.dense\.weight is part of another model than BERT$",
        ),
        (
            lambda t: t | {"bert.embeddings.LayerNorm.gamma": t["bert.embeddings.LayerNorm.weight"]},
            r": bert\.embeddings\.LayerNorm\.(gamma|weight) and bert\.\S+\.(gamma|weight) are names of one tensor$",
        ),
        (
            lambda t: {"model.layers.0.mlp.weight": t[WORDS]},
            r"is not a BERT model: nothing of its encoder is among model\.layers\.0\.mlp\.weight$",
        ),
    ],
)
def test_wrong_tensors_are_listed(tensors, save, change, complaint):
    with pytest.raises(UserError, match=r"^--init_checkpoint: .*" + complaint):
        load_huggingface(save(change(tensors)))


def test_other_models_are_refused(tensors, config, save):
    with pytest.raises(UserError, match=r"config\.json: model_type 'roberta' is not supported"):
        load_huggingface(save(tensors, model_type="roberta"))
    # Its encoder on its own has BERT's names: only the configuration beside it can tell, whichever is wanted.
    bare = {name.removeprefix("bert."): value for name, value in tensors.items() if name.startswith("bert.")}
    folder = save(bare, model_type="roberta")
    for path in (folder, folder / FILE):
        with pytest.raises(UserError, match=r"model_type 'roberta' is not supported"):
            load_huggingface(path, config)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
        ({"hidden_size": 10}, "hidden_size 10 must be a multiple of num_attention_heads 3"),
    ],
)
def test_settings_that_cannot_be_honoured(tensors, save, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        load_huggingface(save(tensors, **settings))


def test_unknown_settings_are_ignored_and_defaults_are_told(tensors, config, data, save):
    folder = save(tensors, pooler_fc_size=768, transformers_version="9")
    values = json.loads((folder / "config.json").read_text())
    del values["type_vocab_size"]
    (folder / "config.json").write_text(json.dumps(values))
    found, _, report = load_huggingface(folder)
    assert found == config
    assert any(note.endswith("ignored keys pooler_fc_size") for note in report.notes)
    assert any("no type_vocab_size, 2 is the default of Hugging Face" in note for note in report.notes)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "tanh"])
def test_the_activation_of_the_configuration_counts(tensors, data, save, hidden_act):
    config, params, _ = load_huggingface(save(tensors, hidden_act=hidden_act))
    golden = np.load(data / "random_tiny_forward.npz")
    inputs = [golden[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")]
    with jax.default_matmul_precision("highest"):
        output = BertForPreTraining(config).apply({"params": params}, *inputs)
    suffix = "" if hidden_act == "gelu" else f"__{hidden_act}"
    np.testing.assert_allclose(output.next_sentence_logits, golden[f"nsp_logits{suffix}"], rtol=0, atol=1e-4)


def test_a_file_without_the_tied_layer_gives_the_same_words(tensors, config, data, save):
    _, params, _ = load_huggingface(save(without(tensors, "cls.predictions.decoder")))
    golden = np.load(data / "random_tiny_forward.npz")
    inputs = [golden[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")]
    with jax.default_matmul_precision("highest"):
        output = BertForPreTraining(config).apply({"params": params}, *inputs)
    np.testing.assert_allclose(output.masked_lm_logits[..., :97], golden["mlm_logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_names_of_wrapped_models(tensors, save, prefix):
    _, expected, _ = load_huggingface(save(tensors))
    wrapped = {prefix + name: value for name, value in tensors.items()}
    assert_equal_trees(load_huggingface(save(wrapped))[1], expected)
