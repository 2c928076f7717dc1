import itertools
import json

import numpy as np
import pytest

from input_pipeline.hashing import make_key
from input_pipeline.sentence_pairs import Corpus, PairSettings, cuts, make_pairs

LONG = PairSettings(max_seq_length=2000, short_seq_prob=1.0)  # draws targets of all lengths, never has to truncate


def make_corpus(lengths, chosen=None, shard_documents=None):
    """lengths: tokens of each sentence of each document."""
    per_shard = shard_documents or len(lengths)
    sentence_offsets, document_offsets, first_token = [], [], [0]
    for start in range(0, len(lengths), per_shard):
        documents = lengths[start : start + per_shard]
        sentence_offsets.append(np.cumsum([0] + [length for document in documents for length in document]))
        document_offsets.append(np.cumsum([0] + [len(document) for document in documents]))
        first_token.append(first_token[-1] + int(sentence_offsets[-1][-1]))
    documents = np.arange(len(lengths)) if chosen is None else np.array(chosen)
    return Corpus(sentence_offsets, document_offsets, first_token[:-1], documents)


def random_lengths(documents, seed=0, sentences=20, tokens=30):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, tokens, rng.integers(1, sentences)).tolist() for _ in range(documents)]


def pairs(corpus, settings, keys=None, **kwargs):
    keys = np.array([make_key(0)]) if keys is None else keys
    blocks = list(make_pairs(corpus, keys, settings, **kwargs))
    rows, passes = (np.concatenate(parts) for parts in zip(*blocks))
    return rows[np.argsort(passes, kind="stable")], np.sort(passes)


@pytest.fixture(scope="module")
def golden(data):
    return json.loads((data / "pretraining_counts.json").read_text())


def test_cuts_are_those_of_the_reference(golden):
    cases = golden["truncation"]
    len_a, len_b, limit = (np.array([case[name] for case in cases]) for name in ("len_a", "len_b", "max_num_tokens"))
    for case, a, b, most in zip(cases, len_a, len_b, limit):
        cut_a, cut_b = cuts(np.array([a]), np.array([b]), most)
        assert (a - cut_a[0], b - cut_b[0]) == (case["len_a_after"], case["len_b_after"])
        # Whose turn a coin is does not depend on the coins: heads of a side are its tokens cut at the front.
        front = {"a": 0, "b": 0}
        for coin in case["cut_front"]:
            side = "a" if a > b else "b"
            front[side] += coin == "F"
            a, b = (a - 1, b) if side == "a" else (a, b - 1)
        assert front == {"a": case["first_a"], "b": case["first_b"]}


def test_every_token_is_used_once_before_truncation():
    """A segments and true B segments tile the text: sentences thrown away with B start the next chunk."""
    lengths = random_lengths(300)
    rows, _ = pairs(make_corpus(lengths), LONG)
    used = [(start, start + length) for start, length in rows[:, :2].tolist()]
    used += [(start, start + length) for start, length in rows[rows[:, 4] == 0, 2:4].tolist()]
    used.sort()
    assert used[0][0] == 0 and used[-1][1] == sum(map(sum, lengths))
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(used))


def test_true_next_follows_and_random_next_is_of_another_document():
    lengths = random_lengths(300)
    rows, _ = pairs(make_corpus(lengths), LONG)
    document_end = np.cumsum([sum(document) for document in lengths])
    of_a, of_b = (np.searchsorted(document_end, rows[:, column], side="right") for column in (0, 2))
    end_of_b = np.searchsorted(document_end, rows[:, 2] + rows[:, 3] - 1, side="right")
    true_next = rows[:, 4] == 0
    assert 0.3 < true_next.mean() < 0.5
    assert (rows[true_next, 0] + rows[true_next, 1] == rows[true_next, 2]).all()
    assert (of_a == of_b)[true_next].all() and (of_a != of_b)[~true_next].all()
    assert (of_b == end_of_b).all()


def test_segments_are_whole_sentences_before_truncation():
    lengths = random_lengths(100)
    rows, _ = pairs(make_corpus(lengths), LONG)
    starts = {0, *np.cumsum([length for document in lengths for length in document]).tolist()}
    assert {start for start, length in rows[:, :2].tolist() for start in (start, start + length)} <= starts
    assert {start for start, length in rows[:, 2:4].tolist() for start in (start, start + length)} <= starts


def test_examples_fit_and_both_sides_have_text():
    for length in (5, 6, 8, 17, 128):
        rows, _ = pairs(make_corpus(random_lengths(200)), PairSettings(max_seq_length=length, short_seq_prob=0.1))
        assert rows[:, 1].min() >= 1 and rows[:, 3].min() >= 1
        assert (rows[:, 1] + rows[:, 3]).max() == length - 3


def test_one_endless_sentence():
    """One sentence of 1000 tokens in each document, then one of two tokens."""
    for length in (128, 8, 5):
        rows, _ = pairs(make_corpus([[1000, 2], [1000, 2]]), PairSettings(max_seq_length=length, short_seq_prob=0.0))
        assert rows[:, [1, 3]].min() >= 1
        assert (rows[:, 1] + rows[:, 3]).max() == length - 3


def test_fill_of_the_usual_text():
    rng = np.random.default_rng(0)
    rows, _ = pairs(make_corpus(rng.integers(1, 50, (1000, 200)).tolist()), PairSettings())
    assert (rows[:, 1] + rows[:, 3] + 3).mean() / 128 > 0.9


def test_short_targets_are_drawn_once_a_document():
    lengths = [[1] * 400] * 4000
    settings = PairSettings(max_seq_length=103, short_seq_prob=0.1, next_sentence_prediction=False)
    rows, _ = pairs(make_corpus(lengths), settings)
    document = rows[:, 0] // 400
    last = np.append(document[1:] != document[:-1], True)
    targets = [set(rows[(document == d) & ~last, 1].tolist()) for d in range(4000)]
    assert all(len(target) <= 1 for target in targets)  # all but the last chunk of a document have its length
    drawn = np.array([next(iter(target)) for target in targets if target])
    assert abs((drawn < 101).mean() - 0.1 * 99 / 100) < 0.02
    assert drawn.min() <= 5 and abs(drawn[drawn < 101].mean() - 51) < 6


def test_cut_and_label_are_fair():
    # Chunks of exactly 4 sentences: A has 1, 2 or 3 of them; B is random in half of the cases.
    lengths = [[25] * 4] * 12_000
    rows, _ = pairs(make_corpus(lengths), PairSettings(max_seq_length=103, short_seq_prob=0.0))
    first = rows[rows[:, 0] % 100 == 0]  # the first chunk of each document
    counts = np.bincount(first[:, 1] // 25, minlength=4)
    assert counts[0] == 0 and ((counts[1:] - 4000) ** 2 / 4000).sum() < 13.8  # 2 degrees of freedom, p = 0.001
    assert abs(first[:, 4].mean() - 0.5) < 0.015
    for sentences in (1, 2, 3):
        assert abs(first[first[:, 1] == 25 * sentences, 4].mean() - 0.5) < 0.03


def test_random_next_takes_each_document_and_each_sentence():
    lengths = [[40, 40, 40]] * 5
    keys = np.array([make_key(1, epoch) for epoch in range(4000)])
    rows, _ = pairs(make_corpus(lengths), PairSettings(max_seq_length=43, short_seq_prob=0.0), keys)
    rows = rows[(rows[:, 4] == 1) & (rows[:, 0] < 120)]  # A from the first document
    document, sentence = rows[:, 2] // 120, rows[:, 2] % 120 // 40
    for counts in (np.bincount(document, minlength=5)[1:], np.bincount(sentence, minlength=3)):
        expected = len(rows) / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # p = 0.001 for 3 degrees of freedom
    assert 0 not in document


def test_truncation_takes_from_both_ends():
    rows, _ = pairs(make_corpus([[99, 101]] * 3000), PairSettings(max_seq_length=103, short_seq_prob=0.0))
    rows = rows[rows[:, 4] == 0]
    assert len(rows) > 1000 and (rows[:, [1, 3]] == 50).all()
    for front, cut in ((rows[:, 0] % 200, 49), (rows[:, 2] % 200 - 99, 51)):
        assert abs(front.mean() - cut / 2) < 0.5 and abs(front.var() - cut / 4) < 2


def test_single_document_never_has_a_random_next():
    rows, _ = pairs(make_corpus(random_lengths(1, sentences=40)), LONG)
    assert (rows[:, 4] == 0).all() and (rows[:, 0] + rows[:, 1] == rows[:, 2]).all()
    # A sentence that reaches the target alone is cut inside; one token cannot be cut.
    rows, _ = pairs(make_corpus([[50, 1, 60]]), PairSettings(max_seq_length=13, short_seq_prob=0.0))
    assert (rows[:, 4] == 0).all() and rows[:, [1, 3]].min() >= 1
    assert len(pairs(make_corpus([[1]]), PairSettings())[0]) == 0
    assert pairs(make_corpus([[2]]), PairSettings())[0].tolist() == [[0, 1, 1, 1, 0]]


def test_only_chosen_documents_are_used():
    lengths = random_lengths(50)
    chosen = [3, 4, 20, 49]
    rows, _ = pairs(make_corpus(lengths, chosen), LONG, np.array([make_key(2, epoch) for epoch in range(50)]))
    document_end = np.cumsum([sum(document) for document in lengths])
    for column in (0, 2):
        assert set(np.searchsorted(document_end, rows[:, column], side="right")) == set(chosen)


def test_without_pairs_there_is_one_segment():
    lengths = random_lengths(100)
    settings = PairSettings(max_seq_length=64, short_seq_prob=0.0, next_sentence_prediction=False)
    rows, _ = pairs(make_corpus(lengths), settings)
    assert (rows[:, 3] == 0).all() and (rows[:, 4] == 0).all() and rows[:, 1].max() == 62
    one_document, _ = pairs(make_corpus([[20, 1, 20]]), settings)
    assert one_document.tolist() == [[0, 41, 41, 0, 0]]


@pytest.mark.parametrize("settings", [PairSettings(64), PairSettings(64, 0.5, False)])
def test_blocks_and_passes_change_nothing(settings):
    corpus = make_corpus(random_lengths(60), chosen=[*range(0, 60, 2), 59])
    keys = np.array([make_key(3, epoch) for epoch in range(5)])
    rows, passes = pairs(corpus, settings, keys)
    for block_size in (1, 7, 100):
        other_rows, other_passes = pairs(corpus, settings, keys, block_size=block_size)
        np.testing.assert_array_equal(rows, other_rows)
        np.testing.assert_array_equal(passes, other_passes)
    for index in range(5):
        np.testing.assert_array_equal(rows[passes == index], pairs(corpus, settings, keys[index : index + 1])[0])


def test_shards_change_nothing():
    lengths = random_lengths(61)
    rows, _ = pairs(make_corpus(lengths), PairSettings(64))
    for per_shard in (1, 20):
        other, _ = pairs(make_corpus(lengths, shard_documents=per_shard), PairSettings(64))
        np.testing.assert_array_equal(rows, other)


def test_keys_give_other_pairs():
    corpus = make_corpus(random_lengths(100))
    first, second = (pairs(corpus, PairSettings(64), np.array([make_key(seed)]))[0] for seed in (0, 1))
    common = len({tuple(row) for row in first.tolist()} & {tuple(row) for row in second.tolist()})
    assert common < 0.25 * len(first)


def test_statistics_are_those_of_the_reference(shared):
    """Means over 16 runs against those of the reference, for all its settings and corpora."""
    from input_pipeline.tokenization import load_tokenizer

    golden = json.loads((shared / "golden" / "pretraining_counts.json").read_text())["statistics"]
    for case in golden:
        name = "data/sample_text/sample_text.txt" if case["corpus"] == "sample_text" else f"golden/{case['corpus']}"
        vocabulary = shared / "data" / "vocab" / case["vocab"] / "vocab.txt"
        tokenizer = load_tokenizer(str(vocabulary), do_lower_case=case["do_lower_case"])
        lengths = [[]]
        for line in (shared / name).read_text().split("\n"):
            if not line.strip():
                lengths.append([])
            elif tokens := tokenizer.encode(line.strip()):
                lengths[-1].append(len(tokens))
        runs, epochs, length = 16, case["dupe_factor"], case["max_seq_length"]
        keys = np.array([make_key(seed, epoch) for seed in range(runs) for epoch in range(epochs)])
        corpus = make_corpus([document for document in lengths if document])
        rows, passes = pairs(corpus, PairSettings(length, case["short_seq_prob"]), keys)
        by_run = [rows[passes // epochs == run] for run in range(runs)]
        tokens = [run[:, 1] + run[:, 3] + 3 for run in by_run]
        found = {
            "n_instances": np.mean([len(run) for run in by_run]),
            "share_random_next": np.mean([run[:, 4].mean() for run in by_run]),
            "mean_tokens": np.mean([count.mean() for count in tokens]),
            "mean_fill": np.mean([count.mean() / length for count in tokens]),
            "share_full_length": np.mean([(count == length).mean() for count in tokens]),
            "mean_segment_a_tokens": np.mean([run[:, 1].mean() + 2 for run in by_run]),
        }
        for statistic, value in found.items():
            expected = case["statistics"][statistic]
            tolerance = expected["tolerance_mean_of_16_runs"] + (0.002 if statistic.startswith("share") else 0)
            assert abs(value - expected["mean"]) <= tolerance, (case["corpus"], length, statistic, value)
