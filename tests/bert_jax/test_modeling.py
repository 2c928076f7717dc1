"""Shapes, sizes, padding of the vocabulary, scanned layers and recomputation."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations

from bert_jax import layers, modeling
from bert_jax.config import BertConfig

CONFIG = BertConfig.named("tiny", vocab_size=300, max_position_embeddings=32)


def fresh(config=CONFIG, **options):
    module = modeling.BertForPreTraining(config, **options)
    return module, nn.unbox(modeling.initialize(module, jax.random.key(0)))


def batch(config=CONFIG, rows=4, length=16):
    key = jax.random.key(1)
    ids = jax.random.randint(key, (rows, length), 0, config.vocab_size)
    mask = (jnp.arange(length) < jnp.array([16, 9, 3, 12])[:rows, None]).astype(jnp.int32)
    segments = (jnp.arange(length) > 5).astype(jnp.int32) * jnp.ones((rows, 1), jnp.int32)
    return ids, mask, segments, jnp.array([[1, 2, 0]] * rows)


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(("name", "millions", "encoder"), [("base", 110.1, 109.5), ("large", 336.2, 335.1)])
def test_published_sizes(name, millions, encoder):
    config = BertConfig.named(name)
    module = modeling.BertForPreTraining(config)
    shapes = nn.unbox(jax.eval_shape(lambda key: modeling.initialize(module, key), jax.random.key(0)))
    padding = (config.padded_vocab_size - config.vocab_size) * (config.hidden_size + 1)
    bert_padding = (config.padded_vocab_size - config.vocab_size) * config.hidden_size
    assert round((size(shapes) - padding) / 1e6, 1) == millions
    assert round((size(shapes["bert"]) - bert_padding) / 1e6, 1) == encoder


def test_initial_values():
    _, params = fresh()
    table = np.asarray(params["bert"]["embeddings"]["word_embeddings"]["embedding"])
    assert table.shape == (384, 128)
    assert not table[300:].any()
    kernel = np.asarray(params["bert"]["encoder"]["layer_1"]["feed_forward"]["intermediate"]["kernel"])
    assert np.abs(kernel).max() <= 0.04
    assert abs(kernel.std() - 0.02 * 0.8796) < 2e-4  # a normal cut at two standard deviations
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        assert name in ("kernel", "embedding", "bias", "scale")
        if name in ("bias", "scale"):
            np.testing.assert_array_equal(leaf, float(name == "scale"))


def test_padded_vocabulary_changes_nothing():
    module, params = fresh()
    logits = module.apply({"params": params}, *batch()).masked_lm_logits
    assert logits.shape == (4, 3, 384)
    assert (np.asarray(logits[..., 300:]) < -1e8).all()
    total = jax.nn.logsumexp(logits, -1)
    np.testing.assert_allclose(total, jax.nn.logsumexp(logits[..., :300], -1), rtol=2e-7)
    loud = jax.tree.map(lambda x: x, params)
    loud["cls"]["predictions"]["output_bias"]["bias"] = jnp.zeros(384).at[300:].set(1e6)
    assert int(module.apply({"params": loud}, *batch()).masked_lm_logits.argmax(-1).max()) < 300

    def loss(params):
        return jax.nn.logsumexp(module.apply({"params": params}, *batch()).masked_lm_logits, -1).sum()

    gradient = jax.grad(loss)(params)["bert"]["embeddings"]["word_embeddings"]["embedding"]
    assert not np.asarray(gradient[300:]).any()


def test_padding_tokens_do_not_reach_real_ones():
    module, params = fresh()
    ids, mask, segments, positions = batch()
    other = jnp.where(mask == 1, ids, 7)
    a = module.apply({"params": params}, ids, mask, segments, positions)
    b = module.apply({"params": params}, other, mask, segments, positions)
    np.testing.assert_array_equal(a.masked_lm_logits, b.masked_lm_logits)
    np.testing.assert_array_equal(a.next_sentence_logits, b.next_sentence_logits)


def stacked(params):
    encoder = params["bert"]["encoder"]
    layers = [encoder[f"layer_{i}"] for i in range(len(encoder))]
    return params | {"bert": params["bert"] | {"encoder": {"layers": jax.tree.map(lambda *x: jnp.stack(x), *layers)}}}


def test_scanned_layers_compute_the_same():
    module, params = fresh()
    scanned, scanned_params = fresh(scan_layers=True)
    same = stacked(params)
    assert jax.tree.map(jnp.shape, same) == jax.tree.map(jnp.shape, scanned_params)
    a = module.apply({"params": params}, *batch())
    b = scanned.apply({"params": same}, *batch())
    np.testing.assert_allclose(a.masked_lm_logits, b.masked_lm_logits, atol=1e-5)


@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
@pytest.mark.parametrize("options", [{}, {"scan_layers": True}, {"remat": "dots"}])
def test_last_hidden_states_at_positions_are_those_of_all(attention, options):
    module, params = fresh(dataclasses.replace(CONFIG, attention=attention), **options)
    ids, mask, segments, _ = batch(rows=3)
    positions = jnp.array([[0, 15, 3, 3], [8, 1, 0, 0], [2, 2, 1, 0]])
    weights = jax.random.normal(jax.random.key(2), (3, 4, CONFIG.hidden_size))

    def of_all(params):
        states = module.apply({"params": params}, ids, mask, segments, method="encode")
        return (*states[:-1], jnp.stack([row[places] for row, places in zip(states[-1], positions)]))

    def there(params):
        return module.apply({"params": params}, ids, mask, segments, positions=positions, method="encode")

    for expected, state in zip(of_all(params), there(params), strict=True):
        np.testing.assert_allclose(state, expected, atol=2e-6)

    def gradients(function):
        return jax.tree.leaves(jax.grad(lambda params: (function(params)[-1] * weights).sum())(params))

    for a, b in zip(gradients(of_all), gradients(there), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-6 * max(1.0, float(jnp.abs(a).max())))


def test_pretraining_computes_the_last_layer_where_it_is_read_only():
    """At [CLS] and the 3 masked positions, but for the keys and values of all 16 tokens."""
    module, params = fresh()
    outputs = [
        equation.outvars[0].aval.shape
        for equation in equations(
            lambda params: module.apply({"params": params}, *batch()), params, names=["dot_general"]
        )
    ]
    inner, hidden, heads = CONFIG.intermediate_size, CONFIG.hidden_size, CONFIG.num_attention_heads
    of_heads = (heads, hidden // heads)
    below = [(4, 16, *of_heads)] * 3 + [(4, heads, 16, 16), (4, heads, 16, hidden // heads)]
    last = [(4, 4, *of_heads), *below[:2], (4, heads, 4, 16), (4, heads, 4, hidden // heads)]
    dense = lambda count: [(4, count, hidden), (4, count, inner), (4, count, hidden)]
    head = [(4, hidden), (12, hidden), (12, CONFIG.padded_vocab_size), (4, 2)]
    canonical = lambda shapes: sorted(tuple(sorted(shape)) for shape in shapes)
    assert canonical(outputs) == canonical([*below, *dense(16), *last, *dense(4), *head])


def test_scanned_layers_start_differently():
    _, params = fresh(scan_layers=True)
    kernel = params["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_recomputation_changes_no_gradient(scan_layers, remat):
    def gradient(remat):
        module, params = fresh(scan_layers=scan_layers, remat=remat)
        rngs = {"dropout": jax.random.key(5)}

        def loss(params):
            return module.apply({"params": params}, *batch(), rngs=rngs).next_sentence_logits.sum()

        return jax.jit(jax.grad(loss))(params)

    for a, b in zip(jax.tree.leaves(gradient("none")), jax.tree.leaves(gradient(remat))):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_recomputing_dots_saves_the_dense_products():
    def count(remat):
        module, params = fresh(remat=remat)
        gradient = jax.grad(lambda params: module.apply({"params": params}, *batch()).masked_lm_logits.sum())
        return str(jax.make_jaxpr(gradient)(params)).count("dot_general[")

    products, all_products = 6, 8  # a layer: four of attention's weights, two of the feed-forward part; scores, context
    layers = CONFIG.num_hidden_layers
    assert count("full") - count("none") == layers * all_products
    assert count("full") - count("dots") == layers * products


def test_dropout_is_on_exactly_with_a_key():
    module, params = fresh()
    apply = lambda **options: module.apply({"params": params}, *batch(), **options).masked_lm_logits
    np.testing.assert_array_equal(apply(), apply())
    one = apply(rngs={"dropout": jax.random.key(1)})
    np.testing.assert_array_equal(one, apply(rngs={"dropout": jax.random.key(1)}))
    assert not np.allclose(one, apply(rngs={"dropout": jax.random.key(2)}))
    assert not np.allclose(one, apply())


def test_bf16_stays_close_with_f32_logits():
    module, params = fresh()
    half, _ = fresh(dtype=jnp.bfloat16)
    a = module.apply({"params": params}, *batch())
    b = half.apply({"params": params}, *batch())
    assert b.masked_lm_logits.dtype == b.next_sentence_logits.dtype == jnp.float32
    np.testing.assert_allclose(a.masked_lm_logits[..., :300], b.masked_lm_logits[..., :300], atol=0.03)


def test_layer_norm_keeps_its_digits_far_from_zero():
    module = layers.LayerNorm(CONFIG)
    x = jax.random.normal(jax.random.key(0), (3, 128)) + 1000.0
    params = module.init(jax.random.key(0), x)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(module.apply(nn.unbox(params), x), exact, atol=2e-4)
