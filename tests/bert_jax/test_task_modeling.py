import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.linen import unbox
from small_bert import CONFIG, random_params

from bert_jax.heads import FEATURES, TaskHead
from bert_jax.task_modeling import BertForTask, BidirectionalLSTM, initialize

CLASSES = TaskHead("classification", ("x", "y", "z"))
TAGS = TaskHead("tagging", ("O", "B", "I", "E"))
LENGTHS = (5, 7, 3)


def sequences():
    rng = np.random.default_rng(0)
    return [rng.integers(5, CONFIG.vocab_size, length) for length in LENGTHS]


def padded_batch(ids, width=10):
    input_ids, mask = (np.zeros((len(ids), width), np.int32) for _ in range(2))
    for row, tokens in enumerate(ids):
        input_ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    return input_ids, mask, np.zeros_like(mask)


def packed_batch(ids):
    """All in one row."""
    input_ids = np.concatenate(ids)[None].astype(np.int32)
    numbers = np.concatenate([np.full(len(tokens), number + 1) for number, tokens in enumerate(ids)])[None]
    positions = np.concatenate([np.arange(len(tokens)) for tokens in ids])[None]
    starts = np.cumsum([0, *LENGTHS[:-1]])[None].astype(np.int32)
    lengths = np.array([LENGTHS], np.int32)
    return input_ids, numbers.astype(np.int32), np.zeros_like(input_ids), positions.astype(np.int32), starts, lengths


def packed_logits(module, params, ids):
    input_ids, numbers, segments, positions, starts, lengths = packed_batch(ids)
    arrays = (input_ids, numbers, segments, positions, starts, lengths)
    states = module.apply({"params": params}, *arrays, method="encode_for_head")
    return np.asarray(module.apply({"params": params}, states, numbers, starts, lengths, method="score"))


def variants():
    for attention in ("bidirectional", "left_to_right"):
        for lstm in ((), (6, 4)):
            yield attention, CLASSES._replace(lstm=lstm)
            yield attention, TAGS._replace(lstm=lstm)
    for features in FEATURES[1:]:
        yield "bidirectional", TAGS._replace(features=features)


@pytest.mark.parametrize(("attention", "head"), list(variants()))
def test_packed_rows_give_what_rows_of_their_own_give(attention, head):
    module = BertForTask(dataclasses.replace(CONFIG, attention=attention, num_hidden_layers=4), head)
    params = unbox(initialize(module, jax.random.key(0)))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    ids = sequences()
    alone = np.asarray(module.apply({"params": params}, *padded_batch(ids)))
    packed = packed_logits(module, params, ids)
    if head.of_tokens:
        alone = np.concatenate([alone[row, :length] for row, length in enumerate(LENGTHS)])[None]
    np.testing.assert_allclose(packed, alone, atol=2e-5)


def test_a_left_to_right_model_is_read_at_its_last_token():
    module = BertForTask(dataclasses.replace(CONFIG, attention="left_to_right"), CLASSES)
    params = {**random_params(CONFIG, CLASSES)}
    one, other = sequences()[0].copy(), sequences()[0].copy()
    other[-1] = (other[-1] - 4) % (CONFIG.vocab_size - 5) + 5
    logits = [np.asarray(module.apply({"params": params}, *padded_batch([ids]))) for ids in (one, other)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3


def test_features_are_the_layers_they_are_named_after():
    tags = {name: BertForTask(CONFIG, TAGS._replace(features=name)) for name in FEATURES}
    rng = np.random.default_rng(0)
    states = tuple(jnp.asarray(rng.normal(size=(1, 2, 16)).astype(np.float32)) for _ in range(5))
    config = dataclasses.replace(CONFIG, num_hidden_layers=4)

    def features_of(name):
        module = tags[name].clone(config=config)
        params = unbox(initialize(module, jax.random.key(1)))
        return np.asarray(module.apply({"params": params}, states, method="_features"))

    np.testing.assert_array_equal(features_of("embeddings"), states[0])
    np.testing.assert_array_equal(features_of("second_to_last"), states[3])
    np.testing.assert_array_equal(features_of("last"), states[4])
    np.testing.assert_array_equal(features_of("concat_last_4"), np.concatenate(states[1:], axis=-1))
    np.testing.assert_allclose(features_of("weighted_last_4"), np.mean(states[1:], axis=0), atol=1e-6)
    np.testing.assert_allclose(features_of("weighted_all"), np.mean(states[1:], axis=0), atol=1e-6)


def test_an_lstm_is_the_textbook_one():
    head = TAGS._replace(lstm=(3,))
    module = BertForTask(CONFIG, head)
    params = unbox(initialize(module, jax.random.key(0)))["lstm_0"]
    params = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape), params)
    x = np.random.default_rng(0).normal(size=(1, 4, 16)).astype(np.float32)
    lstm = BidirectionalLSTM(CONFIG, 16, 3, jnp.float32)
    result = np.asarray(lstm.apply({"params": params}, x, np.ones((1, 4), np.int32)))[0]
    sigmoid = lambda value: 1 / (1 + np.exp(-value))

    def run(inputs, weights):
        hidden = cell = np.zeros(3)
        outputs = []
        for token in inputs:
            gates = token @ weights["input"]["kernel"] + weights["input"]["bias"]
            take, forget, new, give = np.split(gates + hidden @ weights["recurrent"]["kernel"], 4)
            cell = sigmoid(forget + 1) * cell + sigmoid(take) * np.tanh(new)
            hidden = sigmoid(give) * np.tanh(cell)
            outputs.append(hidden)
        return np.stack(outputs)

    params = jax.tree.map(np.asarray, params)
    np.testing.assert_allclose(result[:, :3], run(x[0], params["forward"]), atol=1e-5)
    np.testing.assert_allclose(result[:, 3:], run(x[0][::-1], params["backward"])[::-1], atol=1e-5)


def test_the_output_of_a_regression_has_the_scale_of_its_head():
    plain = TaskHead("regression", ("value",))
    params = random_params(CONFIG, plain)
    batch = padded_batch(sequences())
    inputs = batch[0], batch[1], batch[2]
    logits = BertForTask(CONFIG, plain).apply({"params": params}, *inputs)
    scaled = BertForTask(CONFIG, plain._replace(mean=7.0, deviation=3.0)).apply({"params": params}, *inputs)
    np.testing.assert_allclose(scaled, 3 * logits + 7, rtol=1e-6)
