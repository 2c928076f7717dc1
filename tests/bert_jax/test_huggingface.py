"""Import of Hugging Face weights: every naming, every gap, every refusal."""

import dataclasses
import json
import re
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import find_head, has_safetensors, is_huggingface, load_huggingface
from bert_jax.convert.weights import ImportReport
from bert_jax.heads import TaskHead
from bert_jax.modeling import BertForPreTraining
from input_pipeline import files
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


# ---- Heads of tasks

HEAD = {"classifier.weight": np.ones((3, 24), np.float32), "classifier.bias": np.arange(3, dtype=np.float32)}
SPAN = {"qa_outputs.weight": np.ones((2, 24), np.float32), "qa_outputs.bias": np.zeros(2, np.float32)}
ONE = {"classifier.weight": np.ones((1, 24), np.float32), "classifier.bias": np.zeros(1, np.float32)}
NAMES = {"id2label": {"0": "O", "1": "B", "2": "I"}}
MULTI = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("more", "absent", "settings", "expected"),
    [
        ({}, (), {}, None),
        (HEAD, (), {}, TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))),
        (HEAD, (), NAMES, TaskHead("classification", ("O", "B", "I"))),
        (HEAD, (), {"id2label": {"0": "no", "1": "yes"}}, TaskHead("classification", ("no", "yes", "LABEL_2"))),
        (HEAD, (), {"id2label": ["a", "b"]}, TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))),
        (HEAD, ("bert.pooler",), NAMES, TaskHead("tagging", ("O", "B", "I"))),
        (HEAD, (), NAMES | {"architectures": ["BertForTokenClassification"]}, TaskHead("tagging", ("O", "B", "I"))),
        (ONE, (), {}, TaskHead("regression", ("value",))),
        (ONE, (), {"id2label": {"0": "LABEL_0"}}, TaskHead("regression", ("value",))),
        (ONE, (), {"id2label": {"0": "toxicity"}}, TaskHead("regression", ("toxicity",))),
        (ONE, (), MULTI | {"id2label": {"0": "toxicity"}}, TaskHead("multi_label", ("toxicity",))),
        (HEAD, (), NAMES | MULTI, TaskHead("multi_label", ("O", "B", "I"))),
        (HEAD, (), NAMES | {"architectures": 3}, TaskHead("classification", ("O", "B", "I"))),
        (
            HEAD,
            (),
            NAMES | MULTI | {"architectures": ["BertForTokenClassification"]},
            TaskHead("tagging", tuple("OBI")),
        ),
        (ONE, (), {"architectures": ["BertForMultipleChoice"]}, TaskHead("multiple_choice", ("choice",))),
        (SPAN, (), {}, TaskHead("span", ("start", "end"))),
        (SPAN, ("bert.pooler",), {"architectures": ["BertForQuestionAnswering"]}, TaskHead("span", ("start", "end"))),
        ({"classifier.weight": np.ones((3, 96), np.float32)}, (), {}, None),  # reads something else than one vector
    ],
)
def test_heads_are_found_with_their_labels(tensors, save, more, absent, settings, expected):
    folder = save(without(tensors, "cls.", *absent) | more, **settings)
    assert find_head(folder, "--flag") == expected


def test_heads_of_damaged_or_absent_configurations(tensors, save):
    folder = save(tensors | HEAD)
    expected = TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))
    for content in ("[]", "{", "[" * 100_000):
        (folder / "config.json").write_text(content)
        assert find_head(folder, "--flag") == expected
    (folder / "config.json").unlink()
    assert find_head(folder / FILE, "--flag") == expected


@pytest.mark.parametrize(
    ("names", "labels"),
    [("O O I", "O O_1 I"), ("a a a_1", "a a_2 a_1"), ("a_1 a a", "a_1 a a_2"), ("a a a", "a a_1 a_2")],
)
def test_labels_of_the_same_name_are_told_apart(tensors, save, names, labels):
    names = {str(i): name for i, name in enumerate(names.split())}
    folder = save(tensors | HEAD, id2label=names, problem_type="regression")
    assert find_head(folder, "--flag") == TaskHead("classification", tuple(labels.split()))


def test_a_head_is_read_in_place_of_those_of_pretraining(tensors, save):
    folder = save(tensors | HEAD, **NAMES)
    head = find_head(folder, "--flag")
    _, params, report = load_huggingface(folder, head=head)
    assert params.keys() == {"bert", "classifier"}
    np.testing.assert_array_equal(params["classifier"]["kernel"], HEAD["classifier.weight"].T)
    np.testing.assert_array_equal(params["classifier"]["bias"], HEAD["classifier.bias"])
    assert set(report.unused) == {name for name in tensors if name.startswith("cls.")}
    _, params, report = load_huggingface(folder)
    assert params.keys() == {"bert", "cls"}
    assert set(report.unused) == HEAD.keys()


def test_a_head_of_another_size_is_skipped_and_told(tensors, save):
    head = TaskHead("classification", ("no", "yes"))
    _, params, report = load_huggingface(save(without(tensors, "cls.") | HEAD), head=head)
    assert "classifier" not in params
    assert "classifier.weight [3, 24] skipped: this task has 2 outputs" in report.notes
    assert set(report.unused) == HEAD.keys()
    assert report.initialized == ("classifier.weight", "classifier.bias")


def test_a_head_without_its_bias_is_an_error(tensors, save):
    head = TaskHead("classification", ("a", "b", "c"))
    with pytest.raises(UserError, match=r"tensors are missing: classifier\.bias$"):
        load_huggingface(save(tensors | {"classifier.weight": HEAD["classifier.weight"]}), head=head)


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
