"""The model of a task out of flags, data and weights: heads that are kept, begun anew or refused."""

import numpy as np
import pytest
import small_bert
from small_bert import write_run
from small_tasks import CONFIG

from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.heads import FIXED_OUTPUTS, TaskHead
from bert_jax.main import parse
from bert_jax.task_data import TaskData
from bert_jax.task_setup import check_length, make_family, make_head_from_flags, open_model
from input_pipeline.errors import UserError
from input_pipeline.task_examples import ChoiceExample, DataSet

HEAD = TaskHead("classification", ("no", "yes", "maybe"))


def flags(init=None, **values):
    values = {"max_seq_length": 24} | ({"init_checkpoint": init} if init else {}) | values
    return parse(["bert_jax", "--mode=finetune", *(f"--{name}={value}" for name, value in values.items())])


def data(kind="classification", labels=HEAD.labels, **splits):
    return TaskData(kind, kind, FIXED_OUTPUTS.get(kind, labels), splits, {})


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("bert"), small_bert.loaded(CONFIG))


@pytest.fixture(scope="module")
def without_pooler(tmp_path_factory):
    bert = small_bert.loaded(CONFIG)
    params = {"bert": {name: part for name, part in bert.params["bert"].items() if name != "pooler"}}
    return write_run(tmp_path_factory.mktemp("bert"), bert, params=params)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights with a head, as Hugging Face has them."""
    bert = small_bert.loaded(CONFIG, HEAD)
    folder = tmp_path_factory.mktemp("trained")
    export_huggingface(folder, CONFIG, HEAD, bert.params, bert.tokenizer)
    return folder


def test_weights_of_pretraining_get_a_new_head(pretrained):
    said = []
    model = open_model(flags(pretrained), data(), said.append)
    assert model.config == CONFIG and model.task.module.head == HEAD
    assert "classifier" not in model.loaded and "pooler" in model.loaded["bert"]
    assert any("newly initialised (head of the task)" in line for line in said)
    np.testing.assert_array_equal(
        model.loaded["bert"]["pooler"]["kernel"], small_bert.random_params(CONFIG)["bert"]["pooler"]["kernel"]
    )


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "multiple_choice"])
def test_a_missing_pooler_has_to_be_allowed(without_pooler, kind):
    examples = DataSet([ChoiceExample("0", "a", "", ("b", "c"), 0, "")], "")
    with pytest.raises(UserError, match=f"there is no pooler, whose output {kind} reads: .* give --allow_new_pooler"):
        open_model(flags(without_pooler), data(kind, train=examples), print)
    model = open_model(flags(without_pooler, allow_new_pooler="true"), data(kind, train=examples), print)
    assert "pooler" not in model.loaded["bert"]


@pytest.mark.parametrize(("kind", "given"), [("tagging", {}), ("span", {}), ("classification", {"head_lstm": "4"})])
def test_what_reads_no_pooler_needs_none(without_pooler, pretrained, kind, given):
    for folder in (without_pooler, pretrained):
        assert "pooler" not in open_model(flags(folder, **given), data(kind, ("O", "X")), print).loaded["bert"]


@pytest.mark.parametrize("labels", [HEAD.labels, ("maybe", "no", "yes")])
def test_a_head_for_the_same_labels_is_kept_in_its_own_order(trained, labels):
    model = open_model(flags(trained), data(labels=labels), print)
    assert model.task.family.head == model.task.module.head == HEAD
    assert model.task.family.features_of.keywords["labels"] == HEAD.labels
    expected = small_bert.random_params(CONFIG, HEAD)["classifier"]["kernel"]
    np.testing.assert_array_equal(model.loaded["classifier"]["kernel"], expected)


@pytest.mark.parametrize(("kind", "labels"), [("classification", ("no", "yes", "other")), ("multi_label", HEAD.labels)])
def test_a_head_for_others_begins_anew_and_both_are_told(trained, kind, labels):
    said = []
    model = open_model(flags(trained), data(kind, labels), said.append)
    assert "classifier" not in model.loaded and model.task.module.head == TaskHead(kind, labels)
    told = f"its output layer is for classification of no, yes, maybe; this task has {', '.join(labels)}"
    assert any(told in line for line in said)


def test_top_layers_begin_anew(pretrained):
    loaded = open_model(flags(pretrained, reinit_layers=1), data(), print).loaded
    assert not loaded["bert"]["encoder"] and "pooler" not in loaded["bert"] and "embeddings" in loaded["bert"]
    with pytest.raises(UserError, match="--reinit_layers=2: there are 1 layers"):
        open_model(flags(pretrained, reinit_layers=2), data(), print)


def test_random_weights_need_a_model_and_a_vocabulary(pretrained):
    given = {"vocab_file": pretrained / "vocab.txt", "bert_config_file": pretrained / "bert_config.json"}
    model = open_model(flags(**given), data(), print)
    assert model.loaded is None and model.config == CONFIG
    with pytest.raises(UserError, match="--init_checkpoint is missing: the weights to fine-tune; or, to begin"):
        open_model(flags(model="tiny"), data(), print)
    with pytest.raises(UserError, match="--init_checkpoint is missing; to begin with random weights give --model"):
        open_model(flags(vocab_file=given["vocab_file"]), data(), print)


def test_lengths_that_a_model_cannot_have():
    for length in (2, 25):
        with pytest.raises(UserError, match=rf"--max_seq_length={length} must be between 5 \(.*\) and 24"):
            check_length(flags(max_seq_length=length), CONFIG)


def test_heads_of_the_ablations():
    head = make_head_from_flags(flags(head_lstm="8,4", head_features="weighted_all"), data("tagging", ("O", "X")))
    assert head == TaskHead("tagging", ("O", "X"), "weighted_all", (8, 4))
    for sizes in ("0", "-1", "x", "1.5"):
        with pytest.raises(UserError, match=f"--head_lstm={sizes}: sizes of LSTMs are whole numbers"):
            make_head_from_flags(flags(head_lstm=sizes), data())
    with pytest.raises(UserError, match="--head_features=embeddings is for tagging and squad; classification reads"):
        make_head_from_flags(flags(head_features="embeddings"), data())


def test_families_are_made_as_flags_say():
    tokenizer = small_bert.tokenizer()
    given = flags(doc_stride=5, max_query_length=4, n_best_size=3, max_answer_length=2, null_score_diff_threshold=0.5)
    span = make_family(given, data("span")._replace(version_2=True), TaskHead("span", ("start", "end")), tokenizer)
    assert (span.max_length, span.doc_stride, span.max_query_length, span.n_best_size) == (24, 5, 4, 3)
    assert (span.max_answer_length, span.null_score_diff_threshold, span.version_2) == (2, 0.5, True)
    mrpc = make_family(flags(), data()._replace(name="mrpc"), TaskHead("classification", ("0", "1")), tokenizer)
    assert mrpc.metric_names == ("accuracy", "f1") and mrpc.main_metric == "f1"
    own = make_family(flags(positive_label="no"), data(), HEAD, tokenizer)
    assert own.metric_names is None and own.positive_label == "no"
    with pytest.raises(UserError, match="--positive_label=pear must be one of no, yes, maybe"):
        make_family(flags(positive_label="pear"), data(), HEAD, tokenizer)


def test_all_examples_have_as_many_endings():
    sets = {
        split: DataSet([ChoiceExample("0", "a", "", tuple("bcde")[:count], 0, "")], split)
        for split, count in (("dev", 3), ("train", 4))
    }
    with pytest.raises(UserError, match="all examples need as many endings: dev has 3, train has 4"):
        make_family(flags(), data("multiple_choice", **sets), TaskHead("multiple_choice", ("choice",)), None)


def test_an_output_layer_for_numbers_goes_on_in_the_scale_of_the_new_ones(tmp_path):
    old = TaskHead("regression", ("value",), mean=5.0, deviation=2.0)
    bert = small_bert.loaded(CONFIG, old)
    write_run(tmp_path / "run", bert)
    said = []
    model = open_model(flags(tmp_path / "run"), data("regression")._replace(scale=(100.0, 50.0)), said.append)
    assert model.task.module.head == old._replace(mean=100.0, deviation=50.0)
    assert not any("begins with a new one" in line for line in said)
    ids = np.array([[2, 10, 11, 3]])
    inputs = ids, np.ones_like(ids), np.zeros_like(ids)
    before, after = (
        one.apply({"params": params}, *inputs)
        for one, params in ((bert.module, bert.params), (model.task.module, model.loaded))
    )
    np.testing.assert_allclose(after, before, rtol=1e-5)
    unscaled = open_model(flags(tmp_path / "run"), data("regression"), said.append)
    assert unscaled.task.module.head == old.without_scale()
    np.testing.assert_allclose(unscaled.task.module.apply({"params": unscaled.loaded}, *inputs), before, rtol=1e-5)
