import numpy as np

from input_pipeline.hashing import below, count_heads, draw, make_key, mix, unit


def test_mix_is_splitmix64():
    # The first outputs of splitmix64 with seed 0 are known: mix of 1, 2, ... times the golden gamma.
    with np.errstate(over="ignore"):
        states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [f"{x:016x}" for x in mix(states)] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_each_input_bit_changes_half_of_the_output_bits():
    base = draw(np.uint64(7), np.arange(2000, dtype=np.uint64))
    for bit in range(64):
        other = draw(np.uint64(7) ^ np.uint64(1 << bit), np.arange(2000, dtype=np.uint64))
        assert abs(np.bitwise_count(base ^ other).mean() - 32) < 0.5


def test_keys_differ_by_value_and_by_length():
    keys = {int(make_key(*parts)) for parts in [(), (0,), (0, 0), (0, 1), (1, 0), (1,), (-1,), (2**64,)]}
    assert len(keys) == 7  # 2**64 is 0


def test_numbers_below_a_bound_are_uniform():
    values = below(draw(make_key(1), np.arange(70_000, dtype=np.uint64)), 7)
    counts = np.bincount(values, minlength=7)
    assert values.min() == 0 and values.max() == 6
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-square, 6 degrees of freedom, p = 0.001


def test_unit_is_uniform_and_below_one():
    values = unit(draw(make_key(2), np.arange(100_000, dtype=np.uint64)))
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.004
    assert unit(np.array([2**64 - 1], np.uint64))[0] < 1


def test_heads_are_binomial_for_any_number_of_coins():
    keys = draw(make_key(3), np.arange(20_000, dtype=np.uint64))
    for coins in (0, 1, 5, 63, 64, 65, 200):
        heads = count_heads(keys, np.full(len(keys), coins))
        assert heads.min() >= 0 and heads.max() <= coins
        assert abs(heads.mean() - coins / 2) <= 4 * np.sqrt(coins / 4 / len(keys))
        assert abs(heads.var() - coins / 4) <= 0.04 * coins / 4


def test_heads_do_not_depend_on_the_other_keys():
    keys = draw(make_key(4), np.arange(50, dtype=np.uint64))
    coins = np.arange(50) * 7
    together = count_heads(keys, coins)
    alone = [count_heads(keys[i : i + 1], coins[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone
