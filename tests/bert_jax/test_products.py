"""Products with parameters: their values and gradients are those of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import products


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gradient_of_the_tied_table_is_f32_whatever_is_computed_in(dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (6, 8)).astype(dtype)
    table = jax.random.normal(keys[1], (5, 8))
    bias = jnp.zeros(5)
    weights = jax.random.normal(keys[2], (6, 5)).astype(dtype).astype(jnp.float32)

    x_gradient, table_gradient = jax.grad(lambda *inputs: jnp.sum(weights * products.logits(*inputs, bias)), (0, 1))(
        x, table
    )
    assert (x_gradient.dtype, table_gradient.dtype) == (dtype, jnp.float32)
    exact = [np.asarray(array, np.float64) for array in (x, table.astype(dtype), weights)]
    np.testing.assert_allclose(table_gradient, exact[2].T @ exact[0], rtol=1e-5, atol=1e-6)
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(np.asarray(x_gradient, np.float64), exact[2] @ exact[1], rtol=tolerance, atol=tolerance)
