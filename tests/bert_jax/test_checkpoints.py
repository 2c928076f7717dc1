"""What lies at a path is found, whichever way it is named, and every kind of checkpoint gives the same parameters."""

import dataclasses
import os
import shutil

import jax
import numpy as np
import pytest
from small_bert import CONFIG, VOCABULARY, loaded, random_params, write_run

from bert_jax.convert import checkpoints
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.convert.tf1_export import export_tf1
from bert_jax.heads import TaskHead
from input_pipeline.errors import UserError
from input_pipeline.tokenization import WordPieceTokenizer

BERT = loaded()


def assert_equal_trees(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The same weights in all forms, by the kind that `find` gives."""
    folder = tmp_path_factory.mktemp("places")
    write_run(folder / "run", BERT)
    for name, export in (("huggingface", export_huggingface), ("tf1", export_tf1)):
        (folder / name).mkdir()
        export(folder / name, BERT.config, None, BERT.params, BERT.tokenizer)
    return folder


@pytest.mark.parametrize(
    ("path", "kind", "found"),
    [
        ("run", "run", "run"),
        ("run/checkpoints/3", "run", "run/checkpoints/3"),
        ("r?n", "run", "run"),
        ("huggingface", "huggingface", "huggingface"),
        ("huggingface/", "huggingface", "huggingface"),
        ("huggingface/model.safetensors", "huggingface", "huggingface/model.safetensors"),
        ("tf1", "tf1", "tf1/bert_model.ckpt"),
        ("tf1/bert_model.ckpt", "tf1", "tf1/bert_model.ckpt"),
        ("tf1/bert_model.ckpt.index", "tf1", "tf1/bert_model.ckpt"),
    ],
)
def test_every_kind_is_found_and_reads_the_same(places, path, kind, found):
    source = checkpoints.find(f"{places}/{path}")
    assert (source.kind, source.path) == (kind, f"{places}/{found}")
    assert source.folder == f"{places}/{path.partition('/')[0].replace('?', 'u')}"
    params, report = checkpoints.read(source, CONFIG)
    assert_equal_trees(params, BERT.params)
    assert not report.unused and not report.initialized
    beside = checkpoints.flags_beside(source)
    assert os.path.dirname(beside["bert_config_file"]) == beside["vocab_file"] == source.folder
    assert checkpoints.head_of(source) is None


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "holds no weights that are known here"),
        (lambda path: path.write_text("text"), "holds no weights that are known here"),
        (lambda path: (path / "checkpoints").mkdir(parents=True), "no complete checkpoint"),
    ],
)
def test_what_is_no_checkpoint(tmp_path, make, complaint):
    make(tmp_path / "x")
    with pytest.raises(UserError, match=f"--init_checkpoint: .*{complaint}"):
        checkpoints.read(checkpoints.find(f"{tmp_path}/x"), CONFIG)


def test_a_pattern_has_to_name_one(places):
    with pytest.raises(UserError, match=r"names 3 files, but one checkpoint is needed"):
        checkpoints.find(f"{places}/*")


def test_a_run_with_stacked_layers(tmp_path):
    layers = [BERT.params["bert"]["encoder"][f"layer_{i}"] for i in range(2)]
    stacked = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
    params = BERT.params | {"bert": BERT.params["bert"] | {"encoder": stacked}}
    source = checkpoints.find(str(write_run(tmp_path / "run", BERT, params=params)))
    assert_equal_trees(checkpoints.read(source, CONFIG)[0], BERT.params)


def test_a_run_with_a_head_serves_another_task(tmp_path):
    head = TaskHead("classification", ("good", "bad", "neither"))
    source = checkpoints.find(str(write_run(tmp_path / "run", loaded(head=head))))
    assert checkpoints.head_of(source) == head
    assert_equal_trees(checkpoints.read(source, CONFIG, head)[0], random_params(head=head))
    params, report = checkpoints.read(source, CONFIG, TaskHead("classification", ("yes", "no")))
    assert set(params) == {"bert"}
    assert "classifier/kernel [3, 16] skipped: this task has 2 outputs" in report.notes
    params, report = checkpoints.read(source, CONFIG)
    assert set(params) == {"bert"} and "cls.predictions.bias" in report.initialized


def test_positions_are_cut_and_extended_only_when_asked(places):
    source = checkpoints.find(f"{places}/run")
    table = lambda params: params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    params, report = checkpoints.read(source, dataclasses.replace(CONFIG, max_position_embeddings=10))
    np.testing.assert_array_equal(table(params), table(BERT.params)[:10])
    assert "the table of 24 positions is cut to 10" in report.notes
    longer = dataclasses.replace(CONFIG, max_position_embeddings=30)
    with pytest.raises(UserError, match=r"24 positions, max_position_embeddings is 30: give --extend_positions"):
        checkpoints.read(source, longer)
    params, _ = checkpoints.read(source, longer, extend_positions=True)
    np.testing.assert_array_equal(table(params), np.vstack([table(BERT.params), table(BERT.params)[:6]]))


def test_another_size_is_refused(places):
    with pytest.raises(UserError, match=r"tensors are missing: bert\.encoder\.layer\.2\."):
        checkpoints.read(checkpoints.find(f"{places}/run"), dataclasses.replace(CONFIG, num_hidden_layers=3))
    with pytest.raises(UserError, match=r"intermediate/kernel is \[32, 16\], should be \[48, 16\]"):
        checkpoints.read(checkpoints.find(f"{places}/run"), dataclasses.replace(CONFIG, intermediate_size=48))


@pytest.mark.parametrize(
    ("name", "do_lower_case"),
    [
        ("uncased_L-12_H-768_A-12", True),
        ("cased_L-12_H-768_A-12", False),
        ("multi_cased_L-12", False),
        ("wwm_uncased_L-24", True),
        ("chinese_L-12", None),
        ("showcased", None),
    ],
)
def test_casing_by_the_name_of_a_folder_of_google(tmp_path, name, do_lower_case):
    folder = tmp_path / name
    folder.mkdir()
    for file in ("bert_model.ckpt.index", "vocab.txt", "bert_config.json"):
        (folder / file).write_text("{}")
    source = checkpoints.find(str(folder))
    assert source.kind == "tf1"
    assert checkpoints.flags_beside(source).get("do_lower_case") is do_lower_case


def test_casing_by_a_folder_that_is_not_named(tmp_path, monkeypatch):
    folder = tmp_path / "cased_L-2"
    folder.mkdir()
    for file in ("bert_model.ckpt.index", "vocab.txt", "bert_config.json"):
        (folder / file).write_text("{}")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "uncased_link").symlink_to(folder)
    casing = lambda path: checkpoints.flags_beside(checkpoints.find(path)).get("do_lower_case")
    assert casing(f"{tmp_path}/link") is False
    assert casing(f"{tmp_path}/uncased_link") is True  # the name that was given counts more
    monkeypatch.chdir(folder)
    assert casing(".") is casing("bert_model.ckpt") is casing("../cased_L-2/") is False


def test_folders_named_checkpoints_are_known_by_their_content(places, tmp_path):
    """Only a number below one is a step of a run."""
    mine = tmp_path / "checkpoints"
    shutil.copytree(places / "huggingface", mine / "minilm")
    shutil.copytree(places / "huggingface", mine / "7")
    shutil.copytree(places / "tf1", mine / "google")
    for name in ("model.safetensors", "config.json"):
        shutil.copy(places / "huggingface" / name, mine)
    shutil.copytree(mine, tmp_path / "nested" / "checkpoints")
    for name in ("model.safetensors", "config.json"):
        shutil.copy(places / "huggingface" / name, tmp_path / "nested")
    for path in ("minilm", "7", "", "model.safetensors", "../nested"):
        source = checkpoints.find(os.path.normpath(mine / path))
        assert source.kind == "huggingface"
        assert_equal_trees(checkpoints.read(source, CONFIG)[0], BERT.params)
    assert checkpoints.find(f"{mine}/google").kind == "tf1"
    shutil.copy(places / "huggingface/model.safetensors", shutil.copytree(places / "run", tmp_path / "run"))
    assert checkpoints.find(f"{tmp_path}/run").kind == "run"
    (mine / "empty").mkdir()
    with pytest.raises(UserError, match="holds no weights that are known here"):
        checkpoints.find(f"{mine}/empty")


def test_the_gelu_of_google_is_the_tanh_form():
    source = checkpoints.Source("tf1", "/x/bert_model.ckpt", "/x", "/x", "--init_checkpoint")
    config, notes = checkpoints.config_of(source, CONFIG)
    assert config.hidden_act == "gelu_new" and "tanh form" in notes[0]
    assert checkpoints.config_of(source, CONFIG, hidden_act="gelu") == (CONFIG, [])
    assert checkpoints.config_of(source._replace(kind="run"), CONFIG) == (CONFIG, [])


def test_another_vocabulary_is_refused(places):
    source = checkpoints.find(f"{places}/run")
    checkpoints.check_vocabulary(source, BERT.tokenizer)
    other = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], do_lower_case=True)
    with pytest.raises(UserError, match="another vocabulary or casing"):
        checkpoints.check_vocabulary(source, other)


def test_another_vocabulary_than_the_one_beside_the_weights_is_refused(places):
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    others = WordPieceTokenizer([*specials, *"abcdefghi"])
    extended = WordPieceTokenizer([*VOCABULARY[:-2], "new", "newer", "newest"])
    for kind in ("huggingface", "tf1"):
        source = checkpoints.find(f"{places}/{kind}")
        checkpoints.check_vocabulary(source, BERT.tokenizer)
        checkpoints.check_vocabulary(source, extended)
        with pytest.raises(UserError, match=r"only 5 of the 14 pieces used here have the same place there"):
            checkpoints.check_vocabulary(source, others)


def test_a_name_on_the_hub_is_recognised():
    with pytest.raises(UserError, match=r"no such file or folder: org/name; a model .* is named hf://org/name"):
        checkpoints.find("org/name")
