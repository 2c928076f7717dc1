"""Counter-based random numbers for NumPy: every draw is a hash of what it is for, so no generator has a state to save.

The hash is the finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def mix(x: np.ndarray) -> np.ndarray:
    """Returns a bijection of uint64 in which every bit of `x` reaches every bit of the result."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def make_key(*parts: int) -> np.uint64:
    """Returns a uint64 key of a sequence of integers (taken modulo 2**64), for instance (seed, epoch, corpus)."""
    key = np.uint64(len(parts))
    for part in parts:
        key = draw(key, np.uint64(int(part) % 2**64))
    return key


def draw(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Returns uint64 random bits for each (key, counter); `key` and `counter` are uint64 and broadcast.

    The counter is mixed before it meets the key: the streams of two keys are not shifted copies of each other.
    """
    with np.errstate(over="ignore"):
        return mix(key ^ mix((counter + np.uint64(1)) * _GOLDEN))


def below(bits: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Turns the upper 32 of 64 random bits into int64 numbers that are uniform in [0, bound), 1 <= bound < 2**31."""
    return (((bits >> _SHIFT) * np.asarray(bound).astype(np.uint64)) >> _SHIFT).astype(np.int64)


def unit(bits: np.ndarray) -> np.ndarray:
    """Turns 64 random bits into float64 numbers in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def count_heads(key: np.ndarray, coins: np.ndarray) -> np.ndarray:
    """Throws `coins[i]` fair coins for key i and returns the int64 numbers of heads; all arrays have shape [n]."""
    heads = np.zeros(len(coins), np.int64)
    left = np.flatnonzero(coins > 0)
    word = 0
    while left.size:
        remaining = np.minimum(coins[left] - 64 * word, 64).astype(np.uint64)
        bits = draw(key[left], np.uint64(word)) >> (np.uint64(64) - remaining)
        heads[left] += np.bitwise_count(bits).astype(np.int64)
        word += 1
        left = left[coins[left] > 64 * word]
    return heads
