"""Google's TF1 checkpoints in: names, shapes, forward pass, and what cannot be read."""

import dataclasses
import functools
import json
import os

import jax
import numpy as np
import pytest
from flax import traverse_util
from google_checkpoints import (
    DATA_FILE,
    HEADS,
    POSITIONS,
    QUERY,
    WORDS,
    assert_equal_trees,
    google_shapes,
    random_variables,
    write_checkpoint,
)

from bert_jax.config import BertConfig
from bert_jax.convert import tf1
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.convert.weights import weight_table
from bert_jax.heads import TaskHead
from bert_jax.modeling import BertForPreTraining
from input_pipeline.errors import UserError
from input_pipeline.host_tensorflow import tf


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
def save(data, tmp_path):
    """See write_checkpoint."""
    return functools.partial(write_checkpoint, tmp_path, data)


def test_all_names_of_base():
    """197 variables of the encoder and 2 of the pooler, as in the released BERT-Base."""
    config = BertConfig()
    table = {w.google_name: w.torch_shape[:: -1 if w.google_transposes else 1] for w in weight_table(config)}
    assert table == google_shapes(config)
    assert len([name for name in table if name.startswith("bert/")]) == 199
    for head in HEADS:
        names = {weight.google_name for weight in weight_table(config, head)}
        assert names == google_shapes(config, head).keys()


def test_values_land_where_they_belong(variables, params, config, save):
    prefix = save(variables)
    loaded, report = tf1.load_tf1(prefix, config)
    assert_equal_trees(loaded, params)
    words = loaded["bert"]["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(words[:97], variables[WORDS])
    assert not words[97:].any()
    kernel = loaded["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(kernel.reshape(24, 24), variables[QUERY])
    assert set(report.used) == variables.keys()
    assert report.unused == report.initialized == report.notes == ()
    assert tf1.find_head(prefix) is None


def test_variables_of_training_are_ignored(variables, params, config, tmp_path):
    """A checkpoint that tf.train.Saver wrote while Google's optimizer, or another one, was at work."""
    v1 = tf.compat.v1
    others = ("Adam", "Adam_1", "LAMB", "LAMB_1", "Momentum")
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in variables.items():
            v1.get_variable(name, initializer=value)
            for slot in ("adam_m", "adam_v", *(others if name == QUERY else ())):
                v1.get_variable(f"{name}/{slot}", initializer=np.full_like(value, np.nan))
        v1.train.create_global_step()
        for name in ("beta1_power", "beta2_power", "current_loss_scale", "good_steps", "learning_rate"):
            v1.get_variable(name, initializer=1.0)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, os.fspath(tmp_path / "bert_model.ckpt"), global_step=12)
    prefix = tf1.find_prefix(tmp_path)
    assert prefix == os.fspath(tmp_path / "bert_model.ckpt-12")
    loaded, report = tf1.load_tf1(prefix, config)
    assert_equal_trees(loaded, params)
    assert len(report.used) == 46 and report.unused == ()
    assert report.notes == (
        f"{46 * 2 + 5 + 6} variables of training ignored: Adam, Adam_1, LAMB, LAMB_1, Momentum, adam_m, adam_v, "
        "beta1_power and 5 more",
    )


@pytest.mark.parametrize(
    ("start", "parts"),
    [
        ("cls/seq_relationship", "next-sentence head"),
        ("cls/", "masked-LM head, next-sentence head"),
        ("bert/pooler", "pooler"),
    ],
)
def test_absent_parts_are_reported(variables, params, config, save, start, parts):
    kept = {name: value for name, value in variables.items() if not name.startswith(start)}
    loaded, report = tf1.load_tf1(save(kept), config)
    absent = tuple(start.strip("/").split("/"))
    flat = traverse_util.flatten_dict(params)
    assert_equal_trees(
        loaded, traverse_util.unflatten_dict({path: v for path, v in flat.items() if path[: len(absent)] != absent})
    )
    assert set(report.used) == kept.keys() and len(report.initialized) == 46 - len(kept)
    assert report.lines() == [f"{len(kept)} tensors used, 0 not used, {46 - len(kept)} not in the file ({parts})"]


def test_task_heads(variables, config, save):
    bert = {name: value for name, value in variables.items() if name.startswith("bert/")}
    weights, bias = np.arange(72, dtype=np.float32).reshape(3, 24), np.arange(3, dtype=np.float32)
    prefix = save(bert | {"output_weights": weights, "output_bias": bias})
    head = tf1.find_head(prefix)
    assert head == TaskHead("classification", ("LABEL_0", "LABEL_1", "LABEL_2"))
    loaded, report = tf1.load_tf1(prefix, config, head=head)
    np.testing.assert_array_equal(loaded["classifier"]["kernel"], weights.T)
    np.testing.assert_array_equal(loaded["classifier"]["bias"], bias)
    assert len(report.used) == 41 and report.unused == report.initialized == ()

    _, report = tf1.load_tf1(prefix, config)
    assert report.unused == ("output_bias", "output_weights") and len(report.initialized) == 7

    loaded, report = tf1.load_tf1(prefix, config, head=TaskHead("classification", ("no", "yes")))
    assert "classifier" not in loaded
    assert report.notes[0] == "output_weights [3, 24] skipped: this task has 2 outputs"

    named = TaskHead("tagging", ("O", "B", "I"))
    named.save(os.path.dirname(prefix))
    assert tf1.find_head(prefix) == named
    TaskHead("tagging", ("O", "B")).save(os.path.dirname(prefix))
    with pytest.raises(
        UserError, match=r"output_weights has 3 outputs, but task_head\.json .* tagging with 2 outputs$"
    ):
        tf1.find_head(prefix)
    os.remove(os.path.join(os.path.dirname(prefix), "task_head.json"))

    one = save(bert | {"output_weights": weights[:1], "output_bias": bias[:1]})
    assert tf1.find_head(one) == TaskHead("regression", ("value",))
    squad = {"cls/squad/output_weights": weights[:2], "cls/squad/output_bias": bias[:2]}
    assert tf1.find_head(save(bert | squad)) == TaskHead("span", ("start", "end"))
    with pytest.raises(
        UserError, match=r"cls/squad/output_weights has 3 outputs, but this task has span with 2 outputs$"
    ):
        tf1.find_head(save(bert | {"cls/squad/output_weights": weights}))


def test_paths(variables, save, tmp_path):
    prefix = save(variables)
    (tmp_path / "bert_model.ckpt.meta").touch()
    for path in (tmp_path, prefix, f"{prefix}.index", f"{prefix}.meta", tmp_path / DATA_FILE, f"{tmp_path}/"):
        assert tf1.find_prefix(path) == prefix
    for path in (tmp_path / "nothing", tmp_path / "no/thing", tmp_path / "bert_config.json", "nothing"):
        assert tf1.find_prefix(path) is None
    (tmp_path / "empty").mkdir()
    assert tf1.find_prefix(tmp_path / "empty") is None

    save(variables, "model.ckpt-9")
    with pytest.raises(
        UserError, match=r"^--x: .* several TF1 checkpoints, name one of them: bert_model\.ckpt, model\.ckpt-9$"
    ):
        tf1.find_prefix(tmp_path, "--x")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
    assert tf1.find_prefix(tmp_path) == os.fspath(tmp_path / "model.ckpt-9")
    (tmp_path / "checkpoint").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"several TF1 checkpoints"):
        tf1.find_prefix(tmp_path)
    (tmp_path / "bert_model.ckpt.index").unlink()
    for path in (prefix, tmp_path / DATA_FILE):
        with pytest.raises(UserError, match=r"bert_model\.ckpt\.index is missing; a TF1 checkpoint is .*\.data-\*$"):
            tf1.find_prefix(path)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.float64])
def test_other_precisions_become_float32(variables, config, save, dtype):
    dtype = tf.bfloat16.as_numpy_dtype if dtype == "bfloat16" else dtype
    loaded, _ = tf1.load_tf1(save({name: value.astype(dtype) for name, value in variables.items()}), config)
    table = loaded["bert"]["embeddings"]["position_embeddings"]["embedding"]
    np.testing.assert_array_equal(table, variables[POSITIONS].astype(dtype).astype(np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


def test_position_tables(variables, config, save):
    prefix = save(variables)
    for rows, given in ((16, {}), (30, {"extend_positions": True})):
        loaded, _ = tf1.load_tf1(prefix, dataclasses.replace(config, max_position_embeddings=rows), **given)
        table = loaded["bert"]["embeddings"]["position_embeddings"]["embedding"]
        np.testing.assert_array_equal(table, np.concatenate([variables[POSITIONS]] * 2)[:rows])
    with pytest.raises(UserError, match=r"has 20 positions, max_position_embeddings is 30: give --extend_positions"):
        tf1.load_tf1(prefix, dataclasses.replace(config, max_position_embeddings=30))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda v: v | {"bert/encoder/layer_0/adapter/kernel": v[QUERY], "bert/extra": v[QUERY]},
            r"no place in 2 layers of BERT for bert/encoder/layer_0/adapter/kernel, bert/extra$",
        ),
        (
            lambda v: v | {QUERY.replace("layer_1", "layer_2"): v[QUERY]},
            r"no place in 2 layers of BERT for bert/encoder/layer_2/attention/self/query/kernel$",
        ),
        (
            lambda v: {n: x for n, x in v.items() if n != QUERY},
            r"tensors are missing: bert/encoder/layer_1/attention/self/query/kernel$",
        ),
        (lambda v: v | {QUERY: v[QUERY][:, :8]}, r"shapes do not fit the configuration: .*query/kernel is \[8, 24\]"),
        (lambda v: v | {WORDS: v[WORDS][:90]}, r"word_embeddings is \[90, 24\], should be \[97, 24\]$"),
        (lambda v: v | {WORDS: v[WORDS].T}, r"word_embeddings is \[24, 97\], should be \[97, 24\]$"),
        (lambda v: v | {WORDS: v[WORDS] * np.nan}, r"word_embeddings has values that are NaN or infinite"),
        (lambda v: v | {WORDS: v[WORDS].astype(np.int32)}, r"word_embeddings is of type int32, a floating-point type"),
        (
            lambda v: {WORDS: v[WORDS], "bert/encoder/transformer/group_0/inner_group_0/ffn_1/kernel": v[QUERY]},
            r"is an ALBERT, whose layers share their weights, not a BERT$",
        ),
        (
            lambda v: {name.replace("bert/", "electra/"): value for name, value in v.items()},
            r"is not a BERT: there is no bert/embeddings/word_embeddings among cls/predictions/output_bias, .* more$",
        ),
        (
            lambda v: {"_CHECKPOINTABLE_OBJECT_GRAPH": v[WORDS], "model/.ATTRIBUTES/VARIABLE_VALUE": v[WORDS]},
            r"was written by TensorFlow 2 \(tf\.train\.Checkpoint\): a TF1 checkpoint of BERT is needed$",
        ),
    ],
)
def test_wrong_variables_are_listed(variables, config, save, change, complaint):
    with pytest.raises(UserError, match=r"^--x: .*bert_model\.ckpt.*" + complaint):
        tf1.load_tf1(save(change(variables)), config, "--x")


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (DATA_FILE, lambda content: content[: len(content) // 2]),
        (DATA_FILE, lambda content: b""),
        (DATA_FILE, lambda content: content[:5000] + b"?" + content[5001:]),
        (DATA_FILE, lambda content: None),
        ("bert_model.ckpt.index", lambda content: content[: len(content) // 2]),
        ("bert_model.ckpt.index", lambda content: b""),
        ("bert_model.ckpt.index", lambda content: b"x" * len(content)),
    ],
)
def test_damaged_files(variables, config, save, tmp_path, file, change):
    prefix = save(variables)
    content = change((tmp_path / file).read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    assert tf1.find_prefix(tmp_path) == prefix
    with pytest.raises(
        UserError, match=r"^--x: the TF1 checkpoint .*bert_model\.ckpt.* is damaged or not whole: "
    ) as info:
        tf1.load_tf1(prefix, config, "--x")
    assert "\n" not in str(info.value)


def test_names_that_tensorflow_takes_for_patterns(variables, config, save, tmp_path):
    (tmp_path / "a[1]").mkdir()
    with pytest.raises(UserError, match=r"reads no checkpoint at .*, because of the \[ in its name$"):
        tf1.load_tf1(save(variables, "a[1]/bert_model.ckpt"), config)


def test_gelu_of_google(config, tmp_path):
    """Its code computes the tanh form under that name; a file that was exported from here may say otherwise."""
    expected = dataclasses.replace(config, hidden_act="gelu_new")
    changed, notes = tf1.google_activation(config)
    assert changed == expected
    assert len(notes) == 1 and "tanh form" in notes[0] and "--hidden_act=gelu" in notes[0]
    file = tmp_path / "bert_config.json"
    for content in (config.to_json(), "[]", "not JSON", "[" * 100_000):
        file.write_text(content)
        assert tf1.google_activation(config, tmp_path) == (expected, notes)
    values = json.loads(config.to_json())
    file.write_text(json.dumps(values | {"bert_jax_hidden_act": "gelu"}))
    assert tf1.google_activation(config, tmp_path) == (config, [])
    for wrong in ("gelu_2", "relu", 5):
        file.write_text(json.dumps(values | {"bert_jax_hidden_act": wrong}))
        with pytest.raises(UserError, match=r"bert_config\.json: bert_jax_hidden_act.*must be"):
            tf1.google_activation(config, tmp_path)


def forward(config, params, golden):
    """All hidden states, pooled vectors, logits of the masked words and of the next sentence."""
    inputs = [golden[name] for name in ("input_ids", "input_mask", "segment_ids")]

    def run(module):
        hidden_states = module.encode(*inputs)
        pooled = module.pool(hidden_states[-1])
        words = module.masked_lm(hidden_states[-1], jax.numpy.asarray(golden["masked_lm_positions"]))
        return hidden_states, pooled, words, module.next_sentence(pooled)

    with jax.default_matmul_precision("highest"):
        return jax.jit(lambda: BertForPreTraining(config).apply({"params": params}, method=run))()


def assert_near(value, expected, tolerance):
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def test_forward_pass_of_an_import(variables, config, data, save):
    """Google's code on these weights gives what the tanh form gives."""
    config, _ = tf1.google_activation(config)
    params, _ = tf1.load_tf1(save(variables), config)
    with np.load(data / "random_tiny_forward.npz") as golden:
        _, pooled, words, next_sentence = forward(config, params, golden)
        assert_near(pooled, golden["pooled__gelu_new"], 2e-5)
        assert_near(jax.nn.logsumexp(words, axis=-1), golden["mlm_logsumexp__gelu_new"], 1e-4)
        assert_near(next_sentence, golden["nsp_logits__gelu_new"], 1e-4)


@pytest.mark.parametrize("prefix", ["", "tiny__"])
def test_forward_pass_of_google(shared, prefix):
    """A real pretraining checkpoint with its optimizer's slots, and random weights, both run by Google's code."""
    folder = shared / ("golden/tf1_random_tiny" if prefix else "data/weights/tf1-keras-bert-test")
    config, _ = tf1.google_activation(BertConfig.from_file(folder / "bert_config.json"))
    params, report = tf1.load_tf1(tf1.find_prefix(folder), config)
    assert len(report.used) == 46 and report.unused == report.initialized == ()
    assert report.notes == ("93 variables of training ignored: adam_m, adam_v, global_step",)
    with np.load(shared / "golden/forward_tf1.npz") as arrays:
        golden = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    if prefix:  # on the inputs of another file
        with np.load(shared / "golden/forward_random_tiny.npz") as arrays:
            golden = dict(arrays) | golden
    hidden_states, pooled, words, next_sentence = forward(config, params, golden)
    for layer, expected in zip(hidden_states, golden["all_layers_first_last_position"], strict=True):
        assert_near(layer[:, 0], expected[:, 0], 2e-5)
    real = golden["input_mask"] == 1
    assert_near(hidden_states[0][real], golden["hidden_first"][real], 2e-5)
    assert_near(hidden_states[-1][real], golden["hidden_last"][real], 2e-5)
    assert_near(pooled, golden["pooled"], 2e-5)
    log_probs = jax.nn.log_softmax(words, axis=-1)[..., : config.vocab_size]
    assert_near(log_probs, golden["mlm_log_probs"], 1e-4)
    assert_near(jax.nn.log_softmax(next_sentence, axis=-1), golden["nsp_log_probs"], 1e-4)
