"""Products with parameters: their values and gradients are those of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_formulas import assert_close, value_and_gradients

from bert_jax import products

BATCH, LENGTH, HEADS, HEAD_DIM, OUT = 2, 5, 3, 4, 7
SHAPES = {  # of the inputs, and what is computed
    "product": (((BATCH, LENGTH, OUT), (OUT, 12)), products.product, lambda x, kernel: x @ kernel),
    "to_heads": (
        ((BATCH, LENGTH, OUT), (OUT, HEADS * HEAD_DIM)),
        lambda x, kernel: products.to_heads(x, kernel, HEADS),
        lambda x, kernel: (x @ kernel).reshape(BATCH, LENGTH, HEADS, HEAD_DIM),
    ),
    "from_heads": (
        ((BATCH, LENGTH, HEADS, HEAD_DIM), (HEADS * HEAD_DIM, OUT)),
        products.from_heads,
        lambda x, kernel: x.reshape(BATCH, LENGTH, -1) @ kernel,
    ),
    "logits": (((6, 8), (5, 8), (5,)), products.logits, lambda x, table, bias: x @ table.T + bias),
}


def normal(*shapes, seed=0):
    """Random arrays, f32, that bfloat16 holds exactly."""
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [jax.random.normal(key, shape).astype(jnp.bfloat16).astype(jnp.float32) for key, shape in zip(keys, shapes)]


@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_the_formula(name):
    shapes, ours, plain = SHAPES[name]
    inputs = normal(*shapes)
    assert_close(value_and_gradients(ours, *inputs), value_and_gradients(plain, *inputs), 1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_in_bf16_the_gradients_of_parameters_are_f32(name):
    shapes, ours, plain = SHAPES[name]
    x, *parameters = normal(*shapes)
    expected = value_and_gradients(plain, x, *parameters)
    value, x_gradient, *gradients = value_and_gradients(ours, x.astype(jnp.bfloat16), *parameters)
    assert value.dtype == (jnp.float32 if name == "logits" else jnp.bfloat16)
    assert x_gradient.dtype == jnp.bfloat16
    assert_close((value, x_gradient), expected[:2], 2**-7)
    assert [gradient.dtype for gradient in gradients] == [jnp.float32] * len(parameters)
    # All that goes into these products is exact in bfloat16; what comes out is not rounded to it.
    assert_close(gradients, expected[2:], 1e-5)


def test_the_forms_for_tpu_equal_the_others(monkeypatch):
    hidden, heads, kernel, back = normal(
        (BATCH, LENGTH, OUT), (BATCH, LENGTH, HEADS, HEAD_DIM), (OUT, HEADS * HEAD_DIM), (HEADS * HEAD_DIM, OUT)
    )

    def all_of(hidden, heads):
        return [
            *value_and_gradients(products.product, hidden, kernel),
            *value_and_gradients(lambda x, kernel: products.to_heads(x, kernel, HEADS), hidden, kernel),
            *value_and_gradients(products.from_heads, heads, back),
        ]

    narrow = [x.astype(jnp.bfloat16) for x in (hidden, heads)]
    elsewhere, shapes = all_of(hidden, heads), jax.eval_shape(all_of, *narrow)
    chosen = []
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, tpu, default: chosen.append(tpu) or tpu(*args))
    assert_close(all_of(hidden, heads), elsewhere, 1e-6)
    # XLA on CPU does not compute these.
    assert jax.eval_shape(lambda *inputs: all_of(*inputs), *narrow) == shapes
    assert len(chosen) == 6


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [6, 60])  # in bf16 the small table is looked up by a product
def test_rows_looked_up(dtype, rows):
    (table,) = normal((rows, 4))
    last = rows - 1
    ids = jnp.array([[0, 3, 3], [last, rows + 3, 0]])  # one past the end is the last
    value, gradient = value_and_gradients(lambda table: products.lookup(table, ids, dtype), table)
    assert (value.dtype, gradient.dtype) == (dtype, jnp.float32)
    plain = value_and_gradients(lambda table: jnp.eye(rows)[jnp.minimum(ids, last)] @ table, table)
    assert_close((value, gradient), plain, 1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_of_kernels_for_tpu_equal_the_others(dtype, monkeypatch):
    shapes = (BATCH, LENGTH, OUT), (BATCH, LENGTH, HEADS, HEAD_DIM), (BATCH, LENGTH, 4)
    hidden, heads, other = (x.astype(dtype) for x in normal(*shapes))
    kernel, back = normal((OUT, HEADS * HEAD_DIM), (HEADS * HEAD_DIM, OUT))

    def of_heads():
        return [
            products._to_heads_backward(HEADS, (hidden, kernel), heads)[1],
            products._from_heads_backward((heads, back), hidden)[1],
        ]

    elsewhere = [*of_heads(), products._sum_over_rows(hidden, other)]
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, tpu, default: tpu(*args))
    on_tpu = [*of_heads(), products._sum_over_batch(hidden, other)]
    assert {x.dtype for x in (*on_tpu, *elsewhere)} == {jnp.dtype(jnp.float32)}
    assert [x.shape for x in on_tpu] == [(OUT, HEADS * HEAD_DIM), (HEADS * HEAD_DIM, OUT), (OUT, 4)]
    assert_close(on_tpu, elsewhere, 1e-6)


@pytest.mark.parametrize("rows", [2, 20])
def test_the_gradient_of_a_frequent_word_adds_up_in_f32(rows):
    ids = jnp.zeros((1000,), jnp.int32)
    gradient = jax.grad(lambda table: jnp.sum(products.lookup(table, ids, jnp.bfloat16)))(jnp.ones((rows, 3)))
    np.testing.assert_array_equal(gradient, [[1000.0] * 3] + [[0.0] * 3] * (rows - 1))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_hidden_states_at_positions(dtype):
    (hidden,) = normal((2, 5, 4))
    positions = jnp.array([[4, 1, 1], [0, 2, 3]])
    value, gradient = value_and_gradients(lambda x: products.at_positions(x, positions), hidden.astype(dtype))
    assert value.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(value, np.asarray(hidden)[[[0], [1]], positions])
    plain = value_and_gradients(lambda x: jnp.stack([x[i][positions[i]] for i in range(2)]), hidden)
    assert_close([gradient], plain[1:], 1e-6 if dtype == jnp.float32 else 2**-8)
