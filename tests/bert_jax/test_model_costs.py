"""The formulas against the shapes of the real model."""

import collections

import flax.linen as nn
import jax
import pytest
from flax import traverse_util

from bert_jax.config import BertConfig
from bert_jax.model_costs import inference_flops, parameter_rows, training_flops, training_state_bytes
from bert_jax.modeling import BertForPreTraining, initialize

ODD = BertConfig(
    vocab_size=130,
    hidden_size=12,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=9,
    type_vocab_size=3,
)
PARTS = {"predictions": "MLM head", "seq_relationship": "NSP head"}


def sizes_by_part(config):
    module = BertForPreTraining(config)
    shapes = nn.unbox(jax.eval_shape(lambda key: initialize(module, key), jax.random.key(0)))
    sizes = collections.Counter()
    for path, leaf in traverse_util.flatten_dict(shapes).items():
        sizes[PARTS.get(path[1], path[1])] += leaf.size
    return sizes


@pytest.mark.parametrize("config", [ODD, BertConfig.named("base")])
def test_parameters_are_those_of_the_model(config):
    expected = sizes_by_part(config)
    assert training_state_bytes(config)["parameters"] == 4 * expected.total()
    padding = config.padded_vocab_size - config.vocab_size
    expected["embeddings"] -= padding * config.hidden_size
    expected["MLM head"] -= padding
    counted = collections.Counter()
    for row in parameter_rows(config):
        counted[row.part] += row.total
    assert counted == expected


@pytest.mark.parametrize(
    ("size", "encoder", "total"), [("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108)]
)
def test_published_sizes(size, encoder, total):
    rows = parameter_rows(BertConfig.named(size))
    assert sum(row.total for row in rows) == total
    assert sum(row.total for row in rows if not row.part.endswith("head")) == encoder


def test_feed_forward_formula_fits_the_width():
    formulas = {
        row.formula for config in (ODD, BertConfig()) for row in parameter_rows(config) if row.name == "feed-forward"
    }
    assert formulas == {"2 H F", "8 H^2"}


def test_flops_are_twice_the_multiplications_of_the_matrix_products():
    """Counted from shapes: every kernel is applied to every token, scores and values are [length, length] products."""
    length, predictions = 7, 2
    kernels = sum(row.total for row in parameter_rows(ODD) if row.name in ("attention", "feed-forward"))
    flops = inference_flops(ODD, length, predictions)
    assert flops["encoder kernels"] == 2 * kernels * length
    one_head = 2 * length * length * (12 // 2)  # scores; values take as many
    assert flops["attention scores and values"] == 3 * 2 * 2 * one_head
    assert flops["masked-LM head"] == 2 * predictions * (12 * 12 + 12 * 130)
    assert training_flops(ODD, length, predictions) == 3 * sum(flops.values())


def test_optimizer_doubles_what_parameters_and_gradients_take():
    counts = training_state_bytes(ODD)
    assert counts["gradients"] == counts["parameters"]
    assert counts["optimizer moments"] == 2 * counts["parameters"]
