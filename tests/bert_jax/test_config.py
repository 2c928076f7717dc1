"""Configuration files of both worlds, named sizes, activations."""

import json
import types

import jax
import pytest

from bert_jax.config import ACTIVATIONS, SIZES, BertConfig, activation, config_from_flags
from input_pipeline.errors import UserError

GOOGLE = {
    "attention_probs_dropout_prob": 0.2,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 12,
    "initializer_range": 0.05,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pooler_fc_size": 768,
    "type_vocab_size": 3,
    "vocab_size": 130,
}
HUGGING_FACE = {"model_type": "bert", "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "is_decoder": False}


def read(values, messages=None):
    return BertConfig.from_json(json.dumps(values), "c.json", (messages if messages is not None else []).append)


def test_google_file_round_trip():
    messages = []
    config = read(GOOGLE, messages)
    assert messages == ["c.json: ignored keys pooler_fc_size"]
    written = json.loads(config.to_json())
    assert written == {key: value for key, value in GOOGLE.items() if key not in ("directionality", "pooler_fc_size")}
    assert list(written) == sorted(written)
    assert (config.padded_vocab_size, config.head_dim) == (256, 4)


def test_values_that_google_has_no_key_for_survive():
    config = BertConfig(layer_norm_eps=1e-5, attention="left_to_right")
    assert BertConfig.from_json(config.to_json(), "c.json") == config


def test_hugging_face_file_and_its_defaults():
    messages = []
    config = read(HUGGING_FACE, messages)
    assert config == BertConfig(hidden_act="gelu_new", layer_norm_eps=1e-5)
    assert messages == ["c.json: no type_vocab_size, 2 is the default of Hugging Face's BertConfig"]


def test_google_defaults_type_vocab_size_to_16():
    messages = []
    assert read({"vocab_size": 10}, messages) == BertConfig(vocab_size=10, type_vocab_size=16)
    assert messages == ["c.json: no type_vocab_size, 16 is the default of Google's BertConfig"]
    with pytest.raises(UserError, match=r"c\.json: the key vocab_size is missing"):
        read({"hidden_size": 12})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"model_type": "roberta"}, "model_type 'roberta' is not supported, only 'bert'"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
        ({"add_cross_attention": True}, "add_cross_attention True is not supported"),
        ({"embedding_size": 6}, "embedding_size 6 must be equal to hidden_size"),
        ({"hidden_size": 10}, "hidden_size 10 must be a multiple of num_attention_heads 3"),
        ({"hidden_act": "mish"}, "hidden_act must be one of gelu, gelu_new, .*, not 'mish'"),
        ({"hidden_act": ""}, "hidden_act must be one of .*, not ''"),
        ({"architectures": ["RobertaModel"]}, "architectures RobertaModel is not supported, only those of BERT"),
        ({"architectures": ["ElectraModel", "X"]}, "architectures ElectraModel, X is not supported"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob must be a number in \[0, 1\), not 1.0"),
        ({"attention_probs_dropout_prob": -0.1}, r"attention_probs_dropout_prob must be .*, not -0.1"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob must be a number .*, not nan"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive whole number, not -1"),
        ({"vocab_size": "130"}, "vocab_size must be a positive whole number, not '130'"),
        ({"vocab_size": True}, "vocab_size must be a positive whole number, not True"),
        ({"hidden_size": 10**9}, "hidden_size must be at most 16777216, not 1000000000"),
        ({"num_hidden_layers": 4097}, "num_hidden_layers must be at most 4096, not 4097"),
        ({"hidden_size": 12.0}, "hidden_size must be a positive whole number, not 12.0"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps must be a number between 0 and 1, not '1e-12'"),
        ({"attention": "causal"}, "attention must be one of bidirectional, left_to_right, not 'causal'"),
    ],
)
def test_bad_settings_are_named(change, complaint):
    with pytest.raises(UserError, match=r"^c\.json: " + complaint):
        read(GOOGLE | change)


def test_null_stands_for_not_set():
    assert read(GOOGLE | {"hidden_act": None, "is_decoder": None, "embedding_size": None}) == read(GOOGLE)
    with pytest.raises(UserError, match=r"^c\.json: the key vocab_size is missing"):
        read(GOOGLE | {"vocab_size": None})


@pytest.mark.parametrize("classes", [3, "RobertaModel", [], [5], [None, "RobertaModel"], {}, ["BertModel", "X"]])
def test_architectures_that_say_nothing_against_bert(classes):
    assert read(GOOGLE | {"architectures": classes}) == read(GOOGLE)


def test_a_model_type_says_more_than_architectures():
    assert read(HUGGING_FACE | {"architectures": ["MyClassifier"]}) == read(HUGGING_FACE)


def test_config_json_is_of_hugging_face(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": 768}')
    assert BertConfig.from_file(file) == BertConfig()


def test_bad_json_is_located():
    with pytest.raises(UserError, match=r"^c\.json: not JSON: .* at line 2, column 3"):
        BertConfig.from_json('{"vocab_size": 3,\n  oops}', "c.json")
    with pytest.raises(UserError, match=r"^c\.json: not JSON: nested too deeply$"):
        BertConfig.from_json("[" * 100_000, "c.json")
    with pytest.raises(UserError, match=r"^c\.json: not JSON: a number has too many digits$"):
        BertConfig.from_json("9" * 5000, "c.json")
    with pytest.raises(UserError, match="a JSON object of settings is needed, not a list"):
        BertConfig.from_json("[]", "c.json")


def test_named_sizes():
    base = BertConfig.named("base", vocab_size=28996)
    assert base == BertConfig(vocab_size=28996)
    for size, (layers, hidden) in SIZES.items():
        config = BertConfig.named(size)
        assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (layers, hidden, 4 * hidden)
        assert config.head_dim == 64
    assert BertConfig.named("large").num_attention_heads == 16
    with pytest.raises(UserError, match=r"--model must be one of tiny, .*, large, not 'huge'"):
        BertConfig.named("huge")


def test_vocabulary_is_padded_to_a_multiple_of_128():
    sizes = {1: 128, 128: 128, 129: 256, 30522: 30592}
    assert {size: BertConfig(vocab_size=size).padded_vocab_size for size in sizes} == sizes


def flags(**given):
    names = ("model", "max_position_embeddings", "bert_config_file", "hidden_act", "hidden_dropout_prob")
    return types.SimpleNamespace(**dict.fromkeys((*names, "attention", "attention_probs_dropout_prob")) | given)


def test_flags_choose_a_size_and_change_single_settings():
    assert config_from_flags(flags(), "mini") == BertConfig.named("mini")
    chosen = config_from_flags(flags(model="tiny", hidden_act="relu", hidden_dropout_prob=0.0), "mini", vocab_size=99)
    assert chosen == BertConfig.named("tiny", vocab_size=99, hidden_act="relu", hidden_dropout_prob=0.0)
    with pytest.raises(UserError, match=r"^--hidden_act must be one of .*, not 'mish'"):
        config_from_flags(flags(hidden_act="mish"), "mini")


def test_flags_name_a_file(tmp_path):
    file = tmp_path / "bert_config.json"
    file.write_text(json.dumps(GOOGLE))
    given = flags(bert_config_file=str(file), attention="left_to_right")
    config = config_from_flags(given, "mini", vocab_size=130)
    assert (config.vocab_size, config.attention) == (130, "left_to_right")
    messages = []
    assert config_from_flags(given, "mini", 100, "vocab.txt", messages.append).vocab_size == 130
    assert messages[-1] == "vocab.txt has 100 entries, vocab_size is 130: the rest stays unused"
    with pytest.raises(UserError, match=r"^vocab\.txt has 131 entries, more than the vocab_size 130 of .*bert_config"):
        config_from_flags(given, "mini", 131, "vocab.txt")
    with pytest.raises(UserError, match=r"--bert_config_file and --model=tiny exclude each other"):
        config_from_flags(flags(bert_config_file=str(file), model="tiny"), "mini")
    with pytest.raises(UserError, match=r"^--bert_config_file: no such file or folder: .*absent\.json"):
        config_from_flags(flags(bert_config_file=str(tmp_path / "absent.json")), "mini")


# erf and tanh forms of GELU differ in the third digit at -3.
@pytest.mark.parametrize(
    ("name", "at_one", "at_minus_three"),
    [
        ("gelu", 0.8413447, -0.0040497),
        ("gelu_new", 0.8411920, -0.0036374),
        ("gelu_tanh", 0.8411920, -0.0036374),
        ("gelu_pytorch_tanh", 0.8411920, -0.0036374),
        ("relu", 1.0, 0.0),
        ("silu", 0.7310586, -0.1422776),
        ("swish", 0.7310586, -0.1422776),
        ("tanh", 0.7615942, -0.9950548),
        ("linear", 1.0, -3.0),
    ],
)
def test_activation(name, at_one, at_minus_three):
    values = activation(name)(jax.numpy.array([1.0, -3.0]))
    assert values.tolist() == pytest.approx([at_one, at_minus_three], abs=1e-7)


def test_every_activation_exists():
    for name in ACTIVATIONS:
        assert activation(name)(jax.numpy.ones(2)).shape == (2,)
    with pytest.raises(UserError, match=r"hidden_act must be one of .*, not 'mish'"):
        activation("mish")
