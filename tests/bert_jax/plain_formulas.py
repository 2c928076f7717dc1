"""A function of the model beside the plain formula of it: values, and gradients by automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np


def random_gradient(shape):
    """What gradients go back from: f32 that bfloat16 holds exactly."""
    return jax.random.normal(jax.random.key(9), shape).astype(jnp.bfloat16).astype(jnp.float32)


def value_and_gradients(function, *inputs):
    """The value of a function, and the gradients of all inputs for random_gradient of the value."""

    def evaluate(*inputs):
        value, transposed = jax.vjp(function, *inputs)
        return value, *transposed(random_gradient(value.shape).astype(value.dtype))

    return jax.jit(evaluate)(*inputs)


def assert_close(ours, theirs, tolerance):
    """Compares with the largest element of each array, as the error of a sum goes with its largest terms."""
    assert len(ours) == len(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs)):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1.0), err_msg=f"array {number}")
