from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from input_pipeline.errors import UserError
from input_pipeline.pair_source import PairSource
from input_pipeline.pretraining_data import PretrainingDataConfig
from input_pipeline.token_store import TokenStore, TokenStoreWriter
from input_pipeline.tokenization import WordPieceTokenizer

CONFIG = PretrainingDataConfig(max_seq_length=32)


@pytest.fixture
def make_source(tmp_path):
    def make(stores, split="train", **changes):
        stores = stores if isinstance(stores, list) else [stores]
        return PairSource(stores, split, replace(CONFIG, **changes), tmp_path / "cache")

    return make


def test_a_single_document_is_worth_a_warning(make_source, make_store):
    source = make_source(make_store([[[5, 6], [7], [8, 9]]]))
    assert source.num_examples(0) > 0 and source.num_random_next(0) == 0
    (warning,) = source.warnings
    assert "single document" in warning and "label 0" in warning
    assert make_source(source.stores, next_sentence_prediction=False).warnings == []


def test_a_single_label_is_worth_a_warning(make_source, make_store):
    source = make_source(make_store([[[5, 6]], [[7, 8]], [[9]]]))  # documents of one sentence
    assert source.num_random_next(0) == source.num_examples(0)
    assert ["label 1" in warning for warning in source.warnings] == [True]


def test_an_empty_part_is_worth_a_warning(make_source, make_store):
    source = make_source(make_store([[[5, 6], [7]]]), "eval")
    assert source.num_eval_examples() == 0 and len(source.warnings) == 1


def test_whole_words_without_pieces_are_worth_a_warning(make_source, make_store):
    characters = make_store([[[5, 6, 7], [9, 10]], [[11], [13, 14, 15]]], name="characters")
    assert "whole-word" in make_source(characters, "all", whole_word_masking=True).warnings[0]
    assert make_source(characters, "all").warnings == []
    words = make_store([[[5, 8, 7], [9, 12]], [[16], [13, 14, 15]]], name="words")  # ids divisible by 4 continue
    assert make_source(words, "all", whole_word_masking=True).warnings == []


def test_damaged_counts_are_made_again(make_source, make_store, tmp_path, caplog):
    store = make_store([[[5, 6], [7]]])
    counts = make_source(store, "all").unigram_counts()
    (path,) = tmp_path.glob("cache/*/unigram_counts.npy")
    path.write_bytes(path.read_bytes()[:-8])
    np.testing.assert_array_equal(make_source(store, "all").unigram_counts(), counts)
    assert [record.getMessage() for record in caplog.records] == [f"{path} is damaged and is made again"]


def test_tokens_beyond_the_vocabulary_are_damage(make_source, make_store):
    store = make_store([[[5, 6], [7]]], vocab_size=10)
    store.tokens[0] = np.array([5, 10, 7], np.uint16)
    with pytest.raises(UserError, match=r"damaged \(tokens-00000\.npy holds 10, the vocabulary has 10 entries\)"):
        make_source(store, "all").unigram_counts()


@pytest.mark.parametrize("split", ["train", "eval", "all"])
def test_tokens_are_counted_in_the_documents_of_the_split(make_source, make_store, make_documents, split):
    documents = make_documents(40)
    documents += [[[5, 5, 5]], [[6], [5]]]
    source = make_source(make_store(documents, vocab_size=5000, shard_tokens=700), split, eval_fraction=0.3)
    (corpus,) = source.corpora
    expected = np.zeros(5000, int)
    for document in corpus.documents:
        for sentence in documents[document]:
            np.add.at(expected, sentence, 1)
    assert source.unigram_counts().tolist() == expected.tolist()
    again = make_source(source.stores, split, eval_fraction=0.3)  # from the cache
    assert again.unigram_counts().tolist() == expected.tolist()


def test_splits_share_no_document(make_source, make_store, make_documents):
    store = make_store(make_documents(40), vocab_size=5000)
    train, held_out = (make_source(store, split, eval_fraction=0.3).corpora[0].documents for split in ("train", "eval"))
    assert len(held_out) > 4 and sorted([*train, *held_out]) == list(range(40))


def test_random_next_comes_from_the_same_store(make_source, make_store, make_documents):
    stores = [make_store(make_documents(8, seed), vocab_size=1500, name=f"store{seed}") for seed in range(2)]
    source = make_source(stores, eval_fraction=0.0)
    rows = np.load(source._plans.window(0).path)
    border = stores[0].num_tokens
    np.testing.assert_array_equal(rows[:, 0] < border, rows[:, 2] < border)
    assert rows[:, [0, 2]].max() < border + stores[1].num_tokens
    assert 0.2 < (rows[:, 0] < border).mean() < 0.8


def test_shares_of_stores(make_source, make_store, make_documents):
    stores = [make_store(make_documents(n), vocab_size=15_000, name=f"store{n}") for n in (10, 90)]
    sizes = np.array([store.num_tokens for store in stores])
    source = make_source(stores, eval_fraction=0.0)
    np.testing.assert_allclose(list(source.sampling_shares().values()), sizes / sizes.sum())
    smoothed = make_source(stores, eval_fraction=0.0, sampling_exponent=0.3)
    shares = smoothed.sampling_shares()
    assert list(shares) == [store.folder for store in stores]
    np.testing.assert_allclose(list(shares.values()), sizes**0.3 / (sizes**0.3).sum())
    rows = np.load(smoothed._plans.window(0).path)
    tokens = rows[:, 1] + rows[:, 3]
    share = tokens[rows[:, 0] < sizes[0]].sum() / tokens.sum()
    assert abs(share - shares[stores[0].folder]) < 0.02


def test_stores_of_other_vocabularies_do_not_mix(make_source, make_store):
    stores = [make_store([[[5], [6]]], vocab_size=size, name=f"store{size}") for size in (50, 51)]
    with pytest.raises(UserError, match=r"store51 was made with another vocabulary or casing than .*store50"):
        make_source(stores)


def test_a_vocabulary_without_mask(make_source, tmp_path):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"])
    with TokenStoreWriter(tmp_path / "store", tokenizer, [{"path": "a"}]) as writer:
        writer.add([[4, 4], [4]])
        writer.close()
    with pytest.raises(UserError, match=r"has no \[MASK\]"):
        make_source(TokenStore.open(tmp_path / "store"))


def test_cached_files_do_not_mix(make_source, make_store, make_documents, tmp_path):
    store = make_store(make_documents(8), vocab_size=1500)
    variants = [{}, {"seed": 1}, {"max_seq_length": 16}, {"short_seq_prob": 0.5}, {"next_sentence_prediction": False}]
    for changes in variants:
        make_source(store, **changes).num_examples(0)
    assert len(list(Path(tmp_path, "cache").iterdir())) == len(variants)
    make_source(store, masked_lm_prob=0.3).num_examples(0)  # masks are not part of a plan
    assert len(list(Path(tmp_path, "cache").iterdir())) == len(variants)
