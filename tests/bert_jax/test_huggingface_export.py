"""Export to Hugging Face: names, shapes and settings of each class, and the same weights back bit for bit."""

import dataclasses
import json

import numpy as np
import pytest
from flax import traverse_util
from safetensors import safe_open
from safetensors.numpy import load_file

from bert_jax.config import ACTIVATIONS, BertConfig
from bert_jax.convert.huggingface import find_head, load_huggingface
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.heads import TaskHead
from bert_jax.modeling import BertForPreTraining
from bert_jax.task_modeling import BertForTask
from input_pipeline.errors import UserError
from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer

HEADS = {
    "BertForSequenceClassification": TaskHead("classification", ("no", "maybe", "yes")),
    "BertForTokenClassification": TaskHead("tagging", ("O", "B-PER", "I-PER")),
    "BertForQuestionAnswering": TaskHead("span", ("start", "end")),
    "BertForMultipleChoice": TaskHead("multiple_choice", ("choice",)),
}
PROBLEMS = {
    "single_label_classification": TaskHead("classification", ("no", "maybe", "yes")),
    "multi_label_classification": TaskHead("multi_label", ("rude", "loud")),
    "regression": TaskHead("regression", ("value",)),
}


@pytest.fixture(scope="module")
def config(data):
    return BertConfig.from_file(data / "random_tiny_config.json")


@pytest.fixture(scope="module")
def tensors(data):
    """The tensors that BertForPreTraining has in a file: the repeated output layer and a buffer are not among them."""
    tensors = load_file(data / "random_tiny.safetensors")
    return {name: value for name, value in tensors.items() if ".decoder." not in name and "position_ids" not in name}


@pytest.fixture(scope="module")
def params(data, config):
    return load_huggingface(data / "random_tiny.safetensors", config)[1]


def without(params, *parts):
    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict({path: value for path, value in flat.items() if not {*parts} & {*path}})


def with_head(params, head):
    draw = np.random.default_rng(0)
    kernel, bias = draw.normal(size=(24, len(head.labels))), draw.normal(size=len(head.labels))
    return without(params, "cls") | {"classifier": {"kernel": np.float32(kernel), "bias": np.float32(bias)}}


def assert_same_bits(one, other):
    one, other = traverse_util.flatten_dict(one), traverse_util.flatten_dict(other)
    assert one.keys() == other.keys()
    for path, value in one.items():
        assert (value.shape, value.dtype) == (other[path].shape, other[path].dtype)
        assert value.tobytes() == other[path].tobytes(), path


def read(folder):
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


# What is left out of the pretraining model, the class that this makes, and what this class has no place for.
CASES = {
    "both heads": ((), "BertForPreTraining", ()),
    "masked LM": (("seq_relationship", "pooler"), "BertForMaskedLM", ()),
    "masked LM and pooler": (("seq_relationship",), "BertForMaskedLM", ("pooler",)),
    "heads without pooler": (("pooler",), "BertForMaskedLM", ("seq_relationship",)),
    "next sentence": (("predictions",), "BertForNextSentencePrediction", ()),
    "encoder": (("cls",), "BertModel", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_each_class_has_its_own_tensors_and_gives_them_back(case, params, config, tensors, tmp_path):
    absent, name, left_out = CASES[case]
    params = without(params, *absent)
    notes = export_huggingface(tmp_path, config, None, params, None)
    assert notes == [f"{part} left out: {name} has none" for part in left_out]
    written, settings = read(tmp_path)
    assert settings["architectures"] == [name]
    gone = [*left_out, *("cls." if part == "cls" else part for part in absent)]
    expected = {name: value for name, value in tensors.items() if not any(part in name for part in gone)}
    if name == "BertModel":
        expected = {name.removeprefix("bert."): value for name, value in expected.items()}
    assert written.keys() == expected.keys()
    for name, value in written.items():
        assert value.dtype == np.float32
        assert value.shape == expected[name].shape
        assert value.tobytes() == expected[name].tobytes(), name
    again_config, again, report = load_huggingface(tmp_path)
    assert (again_config, report.unused) == (config, ())
    assert_same_bits(again, without(params, *left_out))


def test_an_encoder_without_pooler_is_written_and_told(params, config, tmp_path):
    params = without(params, "cls", "pooler")
    [note] = export_huggingface(tmp_path, config, None, params, None)
    assert note.startswith("no pooler in these weights: Transformers makes fresh ones up")
    assert_same_bits(load_huggingface(tmp_path)[1], params)


@pytest.mark.parametrize("name", HEADS)
def test_task_heads_with_their_labels(name, params, config, tensors, tmp_path):
    head = HEADS[name]
    params = with_head(params, head)
    if head.of_tokens:
        params = without(params, "pooler")
    assert export_huggingface(tmp_path, config, head, params, None) == []
    written, settings = read(tmp_path)
    layer = "qa_outputs" if head.kind == "span" else "classifier"
    encoder = {name for name in tensors if name.startswith("bert.") and not (head.of_tokens and "pooler" in name)}
    assert written.keys() == encoder | {f"{layer}.weight", f"{layer}.bias"}
    np.testing.assert_array_equal(written[f"{layer}.weight"], params["classifier"]["kernel"].T)
    assert settings["architectures"] == [name]
    assert settings["id2label"] == {str(i): label for i, label in enumerate(head.labels)}
    assert settings["label2id"] == {label: i for i, label in enumerate(head.labels)}
    assert find_head(tmp_path, "--flag") == head
    assert_same_bits(load_huggingface(tmp_path, head=head)[1], params)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_kinds_of_classification_differ_in_the_problem_type(problem, params, config, tmp_path):
    head = PROBLEMS[problem]
    export_huggingface(tmp_path, config, head, with_head(params, head), None)
    _, settings = read(tmp_path)
    assert settings["architectures"] == ["BertForSequenceClassification"]
    assert settings["problem_type"] == problem
    assert find_head(tmp_path, "--flag") == head


def test_a_head_without_what_it_reads(params, config, tmp_path):
    head = HEADS["BertForSequenceClassification"]
    with pytest.raises(UserError, match=r"no pooler, which BertForSequenceClassification needs"):
        export_huggingface(tmp_path, config, head, without(with_head(params, head), "pooler"), None)
    export_huggingface(tmp_path, config, head, without(params, "cls"), None)
    assert read(tmp_path)[1]["architectures"] == ["BertModel"]


def test_shards(params, config, tensors, tmp_path):
    export_huggingface(tmp_path, config, None, params, None, max_shard_bytes=20_000)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"model-{i:05d}-of-{len(names):05d}.safetensors" for i in range(1, len(names) + 1)]
    assert len(names) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors.values())
    for name in names:
        part = load_file(tmp_path / name)
        assert part.keys() == {tensor for tensor, place in index["weight_map"].items() if place == name}
        assert sum(value.nbytes for value in part.values()) <= 20_000 or len(part) == 1
    assert_same_bits(load_huggingface(tmp_path)[1], params)


def test_stacked_layers_are_taken_apart(params, config, tmp_path):
    layers = params["bert"]["encoder"]
    flat = [traverse_util.flatten_dict(layers[f"layer_{i}"]) for i in range(config.num_hidden_layers)]
    stacked = traverse_util.unflatten_dict({path: np.stack([one[path] for one in flat]) for path in flat[0]})
    scanned = params | {"bert": params["bert"] | {"encoder": {"layers": stacked}}}
    export_huggingface(tmp_path, config, None, scanned, None)
    assert_same_bits(load_huggingface(tmp_path)[1], params)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_settings_come_back(name, params, config, tmp_path):
    changed = dataclasses.replace(config, hidden_act=name, layer_norm_eps=1e-5, hidden_dropout_prob=0.0)
    notes = export_huggingface(tmp_path, changed, None, params, None)
    _, settings = read(tmp_path)
    assert settings["model_type"] == "bert"
    their_name = "gelu_new" if name == "gelu_tanh" else name  # Transformers does not know gelu_tanh
    assert settings["hidden_act"] == their_name
    renamed = "hidden_act gelu_tanh is written as gelu_new, the name of the same function there"
    assert notes == [renamed] * (name != their_name)
    messages = []
    again = BertConfig.from_file(tmp_path / "config.json", message=messages.append)
    assert again == dataclasses.replace(changed, hidden_act=their_name)


def test_left_to_right_attention_is_refused(params, config, tmp_path):
    with pytest.raises(UserError, match="has no attention left_to_right"):
        export_huggingface(tmp_path, dataclasses.replace(config, attention="left_to_right"), None, params, None)
    assert not list(tmp_path.iterdir())


def test_tokenizer(params, config, tmp_path):
    pieces = ["a", "[MASK]", "[UNK]", "[CLS]", "[SEP]", "The", "[PAD]", "\u2028", "##s"]
    tokenizer = WordPieceTokenizer(pieces, do_lower_case=False)
    assert export_huggingface(tmp_path, config, None, params, tokenizer) == []
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings == {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": False,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 20,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    assert read(tmp_path)[1]["pad_token_id"] == 6
    export_huggingface(tmp_path, config, None, params, WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["mask_token"] is None


def test_a_sentencepiece_model_is_written_and_told(params, config, tmp_path):
    from input_pipeline.vocabulary import train_vocabulary

    texts = [f"{a}{b} {b}{a}" for a in "kaminoter" for b in "salulipow"]
    tokenizer = load_tokenizer(train_vocabulary("sentencepiece", texts, 40, True, tmp_path / "trained"))
    [note] = export_huggingface(tmp_path, config, None, params, tokenizer)
    assert "BertTokenizer cannot use sentencepiece.model" in note
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


# ---- With Transformers itself, where it is installed


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


@pytest.fixture(scope="module")
def batch(data):
    golden = np.load(data / "random_tiny_forward.npz")
    return [golden[name].astype(np.int32) for name in ("input_ids", "input_mask", "segment_ids")]


def load_there(transformers, folder, config, batch, reshape=lambda x: x):
    """The model's outputs as NumPy arrays, after a check that no tensor is missing and none too many."""
    import torch

    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    ids, mask, segments = (reshape(torch.tensor(array).long()) for array in batch)
    with torch.no_grad():
        outputs = model.eval()(ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
    return {name: value.numpy() for name, value in outputs.items() if name != "hidden_states"} | {
        "hidden": outputs.hidden_states[-1].numpy().reshape(*batch[0].shape, -1)
    }


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "gelu_tanh"])
def test_transformers_computes_the_same(transformers, hidden_act, params, config, batch, tmp_path):
    config = dataclasses.replace(config, hidden_act=hidden_act)
    export_huggingface(tmp_path, config, None, params, None)
    theirs = load_there(transformers, tmp_path, config, batch)
    variables, real = {"params": params}, batch[1] == 1
    positions = np.broadcast_to(np.arange(batch[0].shape[1]), batch[0].shape)
    module = BertForPreTraining(config)
    hidden = module.apply(variables, *batch, method="encode")[-1]
    np.testing.assert_allclose(hidden[real], theirs["hidden"][real], rtol=0, atol=2e-5)
    ours = module.apply(variables, *batch, positions)
    words = np.asarray(ours.masked_lm_logits)[..., : config.vocab_size]
    np.testing.assert_allclose(words[real], theirs["prediction_logits"][real], rtol=0, atol=1e-4)
    np.testing.assert_allclose(ours.next_sentence_logits, theirs["seq_relationship_logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_transformers_computes_the_same_for_tasks(transformers, name, params, config, batch, tmp_path):
    head = HEADS[name]
    params = with_head(params, head)
    export_huggingface(tmp_path, config, head, params, None)
    choices = name == "BertForMultipleChoice"
    theirs = load_there(transformers, tmp_path, config, batch, lambda x: x[None] if choices else x)
    ours = np.asarray(BertForTask(config, head).apply({"params": params}, *batch))
    if head.kind == "span":
        logits = np.stack([theirs["start_logits"], theirs["end_logits"]], axis=-1)
    else:
        logits = theirs["logits"].T if choices else theirs["logits"]
    real = batch[1] == 1 if head.of_tokens else slice(None)
    np.testing.assert_allclose(ours[real], logits[real], rtol=0, atol=1e-4)


def test_transformers_cuts_text_into_the_same_ids(transformers, params, config, tmp_path):
    pieces = ["a", "[MASK]", "[UNK]", "[CLS]", "[SEP]", "the", "[PAD]", "cat", "##s", "cafe", "北"]
    tokenizer = WordPieceTokenizer(pieces)
    export_huggingface(tmp_path, config, None, params, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The Cats, a CAFÉ 北北 dog"
    assert theirs(text)["input_ids"] == [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    assert (theirs.pad_token_id, theirs.mask_token_id, theirs.model_max_length) == (6, 1, 20)
