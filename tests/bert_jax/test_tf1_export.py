"""Google's TF1 checkpoints out: what tf.train.Saver restores, the same weights back, and what Google cannot compute."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
from google_checkpoints import DATA_FILE, HEADS, assert_equal_trees, google_shapes, random_variables

from bert_jax.config import BertConfig
from bert_jax.convert import tf1
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.convert.tf1_export import export_tf1
from bert_jax.task_modeling import BertForTask
from input_pipeline.errors import UserError
from input_pipeline.host_tensorflow import tf
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer


@pytest.fixture(scope="module")
def config(data):
    return BertConfig.from_file(data / "random_tiny_config.json")


@pytest.fixture(scope="module")
def params(data, config):
    return load_huggingface(data / "random_tiny.safetensors", config)[1]


@pytest.fixture(scope="module")
def variables(data, config):
    return random_variables(data, config)


@pytest.fixture
def export(tmp_path):
    """Exports into a folder of its own."""

    def export(config, head, params, tokenizer=None):
        folder = tmp_path / "export"
        folder.mkdir()
        return folder, export_tf1(folder, config, head, params, tokenizer)

    return export


def restored(folder, shapes):
    """The variables of a TF1 graph after tf.train.Saver has restored them, by name."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {name: v1.get_variable(name, shape, use_resource=False) for name, shape in shapes.items()}
        v1.train.Saver().restore(session, os.fspath(folder / "bert_model.ckpt"))
        return session.run(variables)


def task_parameters(params, head):
    """Parameters with a random head, and with a pooler only if the head needs one."""
    rng = np.random.default_rng(0)
    bert = {name: part for name, part in params["bert"].items() if name != "pooler" or not head.of_tokens}
    outputs = len(head.labels)
    kernel, bias = rng.normal(size=(24, outputs)), rng.normal(size=outputs)
    return {"bert": bert, "classifier": {"kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}}


@pytest.mark.parametrize("name", ["a[1]", "*", "?", "back\\slash"])
def test_nothing_is_exported_to_where_tensorflow_cannot_read_it(params, config, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"^--output_dir: TensorFlow reads no checkpoint from a path with .* in it"):
        export_tf1(tmp_path / name, config, None, params)
    assert not list((tmp_path / name).iterdir())


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "gelu_tanh", "relu"])
def test_there_and_back(config, params, variables, data, export, hidden_act):
    config = dataclasses.replace(config, hidden_act=hidden_act)
    tokenizer = load_tokenizer(os.fspath(data / "made_up_vocab.txt"), False)
    folder, notes = export(config, None, params, tokenizer)
    assert {file.name for file in folder.iterdir()} == {
        *("bert_config.json", "bert_model.ckpt.index", DATA_FILE, "vocab.txt", "tokenizer_config.json")
    }
    assert [note for note in notes if "--do_lower_case=False" in note] == notes[-1:]
    assert len(notes) == (2 if hidden_act == "gelu" else 1) and all("erf form" in note for note in notes[:-1])
    for name, value in restored(folder, google_shapes(config)).items():
        np.testing.assert_array_equal(value, variables[name], err_msg=name)

    written = json.loads((folder / "bert_config.json").read_text())
    assert written["hidden_act"] == ("relu" if hidden_act == "relu" else "gelu")
    loaded_config = BertConfig.from_file(folder / "bert_config.json")
    if hidden_act != "relu":
        loaded_config, _ = tf1.google_activation(loaded_config, folder)
    assert loaded_config == config
    prefix = tf1.find_prefix(folder)
    assert tf1.find_head(prefix) is None
    loaded, report = tf1.load_tf1(prefix, loaded_config)
    assert_equal_trees(loaded, params)
    assert report.lines() == ["46 tensors used, 0 not used, 0 not in the file"]
    assert load_tokenizer(os.fspath(folder)).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_heads_there_and_back(config, params, export, head):
    config = dataclasses.replace(config, hidden_act="gelu_new")
    params = task_parameters(params, head)
    folder, notes = export(config, head, params)
    shapes = google_shapes(config, head)
    found = restored(folder, shapes)
    scope = "cls/squad/" if head.kind == "span" else ""
    np.testing.assert_array_equal(found[f"{scope}output_weights"], params["classifier"]["kernel"].T)
    np.testing.assert_array_equal(found[f"{scope}output_bias"], params["classifier"]["bias"])
    assert {name for name, value in found.items() if not value.any()} == (
        {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"} if head.of_tokens else set()
    )
    assert any("are zeros: this model has no pooler" in note for note in notes) == head.of_tokens
    assert any("Google has no program for" in note for note in notes) == (head.kind not in ("classification", "span"))
    assert "no vocabulary is known" in notes[-1]

    prefix = tf1.find_prefix(folder)
    assert {name: tuple(shape) for name, shape in tf.train.list_variables(prefix)} == shapes
    assert tf1.find_head(prefix) == head
    loaded, report = tf1.load_tf1(prefix, config, head=head)
    assert_equal_trees(loaded, params)
    assert report.unused == ()
    module = BertForTask(config, head)
    inputs = (np.ones((2, 8), np.int32),) * 3
    jax.eval_shape(lambda: module.apply({"params": loaded}, *inputs))


def test_layers_that_are_stacked(config, params, export):
    layers = [params["bert"]["encoder"][f"layer_{i}"] for i in range(2)]
    stacked = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
    folder, _ = export(config, None, params | {"bert": params["bert"] | {"encoder": stacked}})
    assert_equal_trees(tf1.load_tf1(tf1.find_prefix(folder), config)[0], params)


def test_parts_that_a_model_lacks(config, params, export):
    encoder = {"bert": {name: part for name, part in params["bert"].items() if name != "pooler"}}
    folder, notes = export(config, None, encoder)
    assert any(
        note.startswith("not in the model, so not in the checkpoint: bert/pooler/dense/kernel, ") for note in notes
    )
    loaded, _ = tf1.load_tf1(tf1.find_prefix(folder), config)
    assert_equal_trees(loaded, encoder)


def test_what_google_cannot_compute(config, params, export, tmp_path):
    for change, complaint in (
        ({"layer_norm_eps": 1e-5}, r"layer_norm_eps 1e-12 and no setting for it; with the 1e-05 of this model"),
        ({"attention": "left_to_right"}, r"no attention left_to_right, only bidirectional"),
        ({"hidden_act": "silu"}, r"no hidden_act silu, only gelu \(in the tanh form\), relu, tanh and linear"),
    ):
        with pytest.raises(UserError, match=r"^--format=tf1: Google's code has " + complaint):
            export_tf1(tmp_path, dataclasses.replace(config, **change), None, params)
    head = HEADS[0]
    with pytest.raises(UserError, match=r"without bert/pooler/dense/kernel, bert/pooler/dense/bias, output_weights, "):
        export_tf1(tmp_path, config, head, task_parameters(params, HEADS[-1]) | {"classifier": {}})
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"^cannot write .*bert_model\.ckpt: "):
        export_tf1("/proc/nothing", config, None, params)


def test_uncased_vocabulary_needs_no_word(config, params, export):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    folder, notes = export(dataclasses.replace(config, hidden_act="tanh"), None, params, tokenizer)
    assert notes == []
    assert (folder / "vocab.txt").read_text().split() == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
