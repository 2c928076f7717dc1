"""Dropout is a fair, independent coin for every element, whatever the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bert_jax.dropout import dropout, keep_threshold, random_bits, row_keys


def bits(seed, shape):
    return np.asarray(random_bits(jax.random.key_data(jax.random.key(seed)), shape))


def test_share_and_scale():
    x = jnp.ones((64, 512))
    y = np.asarray(dropout(x, 0.1, jax.random.key(0)))
    kept = (y != 0).sum()
    assert abs(kept - 0.9 * y.size) < 5 * np.sqrt(y.size * 0.09)
    assert np.allclose(y[y != 0], 1 / 0.9)


def test_rate_zero_is_the_identity():
    x = jnp.arange(6.0).reshape(2, 3)
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_gradient_uses_the_same_mask():
    x = jnp.linspace(1.0, 2.0, 400).reshape(4, 100)
    key = jax.random.key(3)
    gradient = jax.grad(lambda x: dropout(x, 0.3, key).sum())(x)
    np.testing.assert_allclose(gradient, dropout(jnp.ones_like(x), 0.3, key))


def test_every_bit_is_fair():
    words = bits(0, (256, 4096))
    ones = np.array([(words >> np.uint32(i) & 1).sum() for i in range(32)])
    assert np.abs(ones - words.size / 2).max() < 5 * np.sqrt(words.size / 4)


def test_top_bytes_are_uniform():
    counts = np.bincount((bits(7, (128, 8192)) >> np.uint32(24)).ravel(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("other", ["next row", "next column", "next seed", "low bits of the seed"])
def test_neighbours_are_independent(other):
    a = bits(11, (256, 1024)) < np.uint32(2**31)
    b = {
        "next row": np.roll(a, 1, axis=0),
        "next column": np.roll(a, 1, axis=1),
        "next seed": bits(12, (256, 1024)) < np.uint32(2**31),
        "low bits of the seed": bits(11 + 2**16, (256, 1024)) < np.uint32(2**31),
    }[other]
    assert abs((a == b).mean() - 0.5) < 5 * 0.5 / np.sqrt(a.size)


def test_streams_of_two_rows_are_no_permutations_of_each_other():
    words = bits(5, (64, 4096))
    shared = {
        (i, j): len(np.intersect1d(words[i], words[j])) for i in range(0, 64, 7) for j in range(1, 64, 11) if i != j
    }
    assert max(shared.values()) < 4


def test_rows_do_not_depend_on_the_number_of_rows():
    np.testing.assert_array_equal(bits(2, (8, 16))[:4], bits(2, (4, 16)))


def keys_of_rows(seed, rows):
    return np.asarray(row_keys(jax.random.key_data(jax.random.key(seed)), rows))


def test_keys_of_rows_are_fair_and_differ():
    keys = keys_of_rows(0, 2**16)
    assert (keys.dtype, keys.shape) == (np.uint32, (2**16, 2))
    for column in keys.T:
        assert len(np.unique(column)) == len(column)
        ones = np.array([(column >> np.uint32(i) & 1).sum(dtype=int) for i in range(32)])
        assert np.abs(ones - 2**15).max() < 5 * np.sqrt(2**16 / 4)
        assert stats.chisquare(np.bincount(column >> np.uint32(24), minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("other", ["the other key", "next row", "next seed"])
def test_keys_of_rows_are_independent(other):
    first, second = keys_of_rows(0, 2**14).T
    b = {"the other key": second, "next row": np.roll(first, 1), "next seed": keys_of_rows(1, 2**14)[:, 1]}[other]
    differing = np.bitwise_count((second if other == "next seed" else first) ^ b).sum(dtype=int)
    assert abs(differing - 2**14 * 16) < 5 * np.sqrt(2**14 * 8)


def test_the_bits_of_a_row_come_of_its_keys():
    """What the kernel of attention counts on: mix is a bijection, so no two elements of a row have the same bits."""
    words = bits(3, (2, 2**16))
    assert all(len(np.unique(row)) == 2**16 for row in words)
    np.testing.assert_array_equal(words[:, :5], bits(3, (2, 5)))


@pytest.mark.parametrize("rate", [1e-10, 0.1, 0.5, 0.999])
def test_the_threshold_keeps_the_share(rate):
    assert abs(int(keep_threshold(rate)) / 2**32 - (1 - rate)) < 2**-31
