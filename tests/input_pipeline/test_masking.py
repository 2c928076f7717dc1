import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipeline.host_tensorflow import tf
from input_pipeline.masking import Masking, _fill, example_keys, prediction_counts, random_bits

PAD, CLS, SEP, MASK = 0, 101, 102, 103


def make_masking(**changes):
    arguments = {
        "vocab_size": 30522,
        "mask_id": MASK,
        "max_seq_length": 48,
        "max_predictions_per_seq": 20,
        "masked_lm_prob": 0.15,
    }
    return Masking(**{**arguments, **changes})


def run(masking, input_ids, seed=0, epoch=0, rows=1):
    """Masks `rows` examples with the same text; [CLS], [SEP] and [PAD] are found by their ids."""
    input_ids = np.pad(np.array(input_ids, np.int32), (0, masking.length - len(input_ids)))
    batch = np.broadcast_to(input_ids, (rows, masking.length))
    keys = example_keys(seed, tf.fill([rows], np.int64(epoch)), tf.range(rows, dtype=tf.int64))
    candidates = ~np.isin(batch, [PAD, CLS, SEP])
    num_tokens = np.count_nonzero(batch, axis=1).astype(np.int32)
    masked = masking(tf.constant(batch), tf.constant(candidates), tf.constant(num_tokens), keys)
    return {name: value.numpy() for name, value in masked.items()}


def positions_of(masked):
    return [row[used > 0].tolist() for row, used in zip(masked["masked_lm_positions"], masked["masked_lm_weights"])]


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


WORDS = list(range(1000, 1040))
TEXT = [CLS, *WORDS[:20], SEP, *WORDS[20:], SEP]  # 43 tokens, then 5 of padding


def test_counts_are_those_of_the_reference(data):
    for table in json.loads((data / "pretraining_counts.json").read_text())["mask_counts"]:
        counts = prediction_counts(600, table["max_predictions_per_seq"], table["masked_lm_prob"])
        for length, count in table["counts_by_length"]:
            assert counts[length] == count, (table["masked_lm_prob"], length)


def test_ten_thousand_maskings():
    masked = run(make_masking(), TEXT, rows=10_000)
    used = masked["masked_lm_weights"] > 0
    positions, labels = masked["masked_lm_positions"], masked["masked_lm_ids"]
    assert used.sum(axis=1).tolist() == [6] * 10_000  # round(0.15 * 43)
    assert (used == (np.arange(20) < 6)).all()
    assert (np.diff(positions[:, :6], axis=1) > 0).all()
    assert not np.isin(positions[used], [0, 21, 42, 43, 44, 45, 46, 47]).any()
    assert (np.array(TEXT)[positions[used]] == labels[used]).all()
    assert (positions[~used] == 0).all() and (labels[~used] == 0).all()
    # Every position equally often, and every pair of neighbours as often as if they were independent.
    counts = np.bincount(positions[used], minlength=43)[np.isin(TEXT, WORDS)]
    assert chi_square(counts) < 72.1  # 39 degrees of freedom, p = 0.001; sampling without replacement varies less
    is_masked = np.zeros((10_000, 48), bool)
    is_masked[np.arange(10_000)[:, None].repeat(6, 1), positions[:, :6]] = True
    together = (is_masked[:, 1:20] & is_masked[:, 2:21]).mean()
    assert abs(together - 6 / 40 * 5 / 39) < 0.001
    # What is shown: 80 % [MASK], 10 % the token, 10 % random words; everything else is as it was.
    shown = np.take_along_axis(masked["input_ids"], positions, axis=1)[used]
    share_mask, share_kept = (shown == MASK).mean(), (shown == labels[used]).mean()
    assert abs(share_mask - 0.8) < 0.01 and abs(share_kept - 0.1) < 0.01
    random_words = shown[(shown != MASK) & (shown != labels[used])]
    assert random_words.min() < 10 and 30_000 < random_words.max() < 30522
    assert chi_square(np.bincount(random_words * 10 // 30522, minlength=10)) < 27.9  # 9 degrees of freedom, p = 0.001
    untouched = masked["input_ids"][~is_masked].reshape(10_000, 42)
    assert (untouched == np.broadcast_to(np.pad(TEXT, (0, 5)), (10_000, 48))[~is_masked].reshape(10_000, 42)).all()


def test_random_words_reach_the_whole_vocabulary_and_no_more():
    masked = run(make_masking(vocab_size=7, masking_split=(0.0, 0.0, 1.0), mask_id=4), TEXT, rows=2000)
    shown = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)
    counts = np.bincount(shown[masked["masked_lm_weights"] > 0])
    assert len(counts) == 7 and chi_square(counts) < 22.5  # 6 degrees of freedom, p = 0.001


@pytest.mark.parametrize("split", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.2, 0.8), (0.8, 0.2, 0.0)])
def test_any_split(split):
    masked = run(make_masking(masking_split=split), TEXT, rows=3000)
    used = masked["masked_lm_weights"] > 0
    shown = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)[used]
    labels = masked["masked_lm_ids"][used]
    shares = [(shown == MASK).mean(), (shown == labels).mean(), ((shown != MASK) & (shown != labels)).mean()]
    np.testing.assert_allclose(shares, split, atol=0.01)


def test_fewer_candidates_than_predictions():
    masked = run(make_masking(masked_lm_prob=1.0), [CLS, 7, SEP, 8, SEP])
    assert positions_of(masked) == [[1, 3]]
    assert positions_of(run(make_masking(), [CLS, SEP])) == [[]]
    everything = make_masking(max_predictions_per_seq=60, masked_lm_prob=1.0)  # more than there are positions
    assert positions_of(run(everything, TEXT)) == [[i for i, token in enumerate(TEXT) if token in WORDS]]
    assert run(everything, TEXT)["masked_lm_ids"].shape == (1, 60)


def test_masks_depend_on_seed_epoch_and_example_alone():
    masking = make_masking()
    base = run(masking, TEXT, rows=300)
    again = run(masking, TEXT, rows=300)
    assert all((base[name] == again[name]).all() for name in base)
    fewer = run(masking, TEXT, rows=7)
    assert all((base[name][:7] == fewer[name]).all() for name in base)


def test_streams_are_independent():
    """Positions shared by two maskings of the same text: as many as between independent ones."""
    masking = make_masking()
    rows = 3000
    streams = [run(masking, TEXT, seed, epoch, rows) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1), (2**40, 0)]]
    streams = [[frozenset(row) for row in positions_of(stream)] for stream in streams]
    streams.append(streams[0][1:] + streams[0][:1])  # neighbouring examples
    for i, first in enumerate(streams):
        for second in streams[:i]:
            shared = np.mean([len(a & b) for a, b in zip(first, second)])
            assert abs(shared - 6 * 6 / 40) < 0.06  # standard error 0.016


def test_random_bits_are_uniform_and_uncorrelated():
    def bits(seed, epoch=0, first=0):
        examples = tf.range(first, first + 500, dtype=tf.int64)
        keys = example_keys(seed, tf.fill([500], np.int64(epoch)), examples)
        return random_bits(keys, tf.range(128)[None]).numpy()

    base = bits(0)
    assert chi_square(np.bincount(base.ravel() >> 24, minlength=256)) < 330.5  # 255 degrees of freedom, p = 0.001
    assert chi_square(np.bincount(base.ravel() & 255, minlength=256)) < 330.5
    unit = base / 2**32
    others = {
        "position": unit[:, 1:],
        "example": unit[1:],
        "epoch": bits(0, 1) / 2**32,
        "seed": bits(1) / 2**32,
        "far example": bits(0, 0, 2**33) / 2**32,
    }
    for name, other in others.items():
        same = unit[: other.shape[0], : other.shape[1]]
        assert abs(np.corrcoef(same.ravel(), other.ravel())[0, 1]) < 0.016, name  # 4 standard errors
    # The numbers of another seed are other numbers, not the same ones in another order.
    assert np.intersect1d(base, bits(1)).size < 10


# Whole words


def is_continuation(ids=(), vocab_size=30522):
    return np.isin(np.arange(vocab_size), list(ids))


def test_words_are_masked_whole():
    text = [CLS, 5000, 5001, 5002, 5003, SEP]  # un ##aff ##able dog
    masking = make_masking(masked_lm_prob=0.5, is_continuation=is_continuation([5001, 5002]))
    found = {tuple(row) for row in positions_of(run(masking, text, rows=1000))}
    assert found == {(1, 2, 3), (4,)}  # three may be masked: either word comes first, and then the other is too much


def test_each_piece_of_a_word_is_replaced_on_its_own():
    masking = make_masking(masked_lm_prob=0.5, is_continuation=is_continuation([5001, 5002]))
    masked = run(masking, [CLS, 5000, 5001, 5002, SEP], rows=4000)
    chosen = masked["masked_lm_weights"].sum(axis=1) == 2
    assert not chosen.any()  # round(5 / 2) = 2 pieces do not hold the word
    masked = run(
        make_masking(masked_lm_prob=0.6, is_continuation=is_continuation([5001, 5002])),
        [CLS, 5000, 5001, 5002, SEP],
        rows=4000,
    )
    is_mask = masked["input_ids"][:, 1:4] == MASK
    assert abs(is_mask.mean() - 0.8) < 0.015
    assert abs(is_mask.all(axis=1).mean() - 0.8**3) < 0.03


def test_long_word_is_left_out():
    long_word = list(range(5000, 5030))
    masking = make_masking(is_continuation=is_continuation(long_word[1:]), masked_lm_prob=0.5)
    assert positions_of(run(masking, [CLS, *long_word, SEP], rows=50)) == [[]] * 50
    with_dog = [CLS, *long_word, SEP, 6000, SEP]
    assert positions_of(run(masking, with_dog, rows=50)) == [[32]] * 50


def test_without_continuations_it_is_plain_masking():
    plain = run(make_masking(), TEXT, rows=4000)
    words = run(make_masking(is_continuation=is_continuation()), TEXT, rows=4000)
    assert (plain["masked_lm_weights"] == words["masked_lm_weights"]).all()
    counts = np.bincount(words["masked_lm_positions"][words["masked_lm_weights"] > 0], minlength=43)
    assert chi_square(counts[np.isin(TEXT, WORDS)]) < 72.1  # 39 degrees of freedom, p = 0.001


def test_first_piece_of_the_text_starts_a_word_and_words_reach_over_sep():
    text = [CLS, 5001, 5002, SEP, 5001, 6000, SEP]  # ##aff ##able [SEP] ##aff dog
    masking = make_masking(masked_lm_prob=0.6, is_continuation=is_continuation([5001, 5002]))
    found = {tuple(row) for row in positions_of(run(masking, text, rows=300))}
    assert found == {(1, 2, 4, 5)}  # a word of three pieces and one of one; four may be masked
    masking = make_masking(masked_lm_prob=0.45, is_continuation=is_continuation([5001, 5002]))
    assert {tuple(row) for row in positions_of(run(masking, text, rows=300))} == {(1, 2, 4), (5,)}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 8), min_size=12, max_size=12), min_size=1, max_size=6), st.data())
def test_budget_is_filled_as_one_by_one(sizes, draws):
    budgets = draws.draw(st.lists(st.integers(0, 25), min_size=len(sizes), max_size=len(sizes)))
    expected = []
    for row, left in zip(sizes, budgets):
        expected.append([])
        for size in row:
            fits = 0 < size <= left
            left -= size * fits
            expected[-1].append(fits)
    taken = _fill(tf.constant(sizes), tf.constant(budgets))
    assert taken.numpy().tolist() == expected


def test_word_groups_are_those_of_the_reference(shared):
    golden = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["whole_word_groups"]["cases"]
    for case in golden:
        tokens = case["tokens"]
        special = {"[CLS]": CLS, "[SEP]": SEP}
        ids = [special.get(token, 200 + place) for place, token in enumerate(tokens)]
        continues = is_continuation(200 + place for place, token in enumerate(tokens) if token.startswith("##"))
        masking = make_masking(is_continuation=continues, masked_lm_prob=0.15)
        found = positions_of(run(masking, ids, rows=300))
        group_of = {place: index for index, group in enumerate(case["groups"]) for place in group}
        for row in found:
            for place in row:
                assert set(case["groups"][group_of[place]] if place in group_of else [place]) <= set(row)
        # With a budget of a single word, each word that fits comes alone.
        budget = int(masking.counts[len(tokens)])
        if budget == 1:
            singles = {place for place in range(len(tokens)) if place not in group_of and ids[place] not in (CLS, SEP)}
            assert {place for row in found for place in row} <= singles
            assert len(singles) + len(case["groups"]) == case["n_groups"]
