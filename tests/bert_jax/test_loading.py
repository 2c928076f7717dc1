"""bert_jax.load: whatever lies at a path becomes configuration, tokenizer, module and parameters that fit together."""

import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from small_bert import CONFIG, VOCABULARY, loaded, random_params, write_run

import bert_jax
from bert_jax.convert.huggingface_export import export_huggingface
from bert_jax.convert.tf1_export import export_tf1
from bert_jax.heads import TaskHead
from bert_jax.modeling import BertForPreTraining
from bert_jax.task_modeling import BertForTask
from input_pipeline.errors import UserError


@pytest.fixture
def huggingface(tmp_path):
    bert = loaded()
    export_huggingface(tmp_path, CONFIG, None, bert.params, bert.tokenizer)
    return tmp_path


def test_four_plain_values(huggingface):
    lines = []
    config, tokenizer, module, params = bert_jax.load(huggingface, message=lines.append)
    assert config == CONFIG
    assert tokenizer.tokenize("The cats") == ["the", "cat", "##s"]
    assert module == BertForPreTraining(CONFIG)
    jax.tree.map(np.testing.assert_array_equal, params, random_params())
    ids = np.array([[2, 9, 3, 0]], np.int32)
    hidden_states = module.apply({"params": params}, ids, np.int32(ids > 0), 0 * ids, method="encode")
    assert [x.shape for x in hidden_states] == [(1, 4, 16)] * 3
    assert any("46 tensors used, 0 not used, 0 not in the file" in line for line in lines)


@pytest.mark.parametrize("kind", ["run", "huggingface", "tf1"])
def test_a_task_keeps_its_labels(tmp_path, kind):
    head = TaskHead("tagging", ("O", "B-PER", "I-PER"))
    bert = loaded(head=head)
    if kind == "run":
        write_run(tmp_path, bert)
    else:
        export = export_huggingface if kind == "huggingface" else export_tf1
        export(tmp_path, CONFIG, head, bert.params, bert.tokenizer)
    again = bert_jax.load(tmp_path)
    assert again.module == BertForTask(again.config, head)
    jax.tree.map(np.testing.assert_array_equal, again.params["classifier"], bert.params["classifier"])
    ids = np.array([[2, 9, 3]], np.int32)
    logits = again.module.apply({"params": again.params}, ids, ids * 0 + 1, ids * 0)
    assert (logits.shape, logits.dtype) == ((1, 3, 3), np.float32)


@pytest.mark.parametrize("path", [None, b"folder", 3, ["folder"]])
def test_a_path_is_needed(path):
    with pytest.raises(UserError, match="a checkpoint is named by a path"):
        bert_jax.load(path)


def test_messages_can_be_dropped(huggingface):
    assert bert_jax.load(huggingface, message=None).config == CONFIG


def test_arguments_count_more_than_what_lies_there(huggingface, tmp_path_factory):
    cased = tmp_path_factory.mktemp("cased") / "vocab.txt"
    cased.write_text("\n".join([*VOCABULARY[:-1], "The"]) + "\n")
    bert = bert_jax.load(
        huggingface, vocab_file=str(cased), do_lower_case=False, hidden_act="relu", max_position_embeddings=8
    )
    assert bert.tokenizer.tokenize("The cat") == ["The", "cat"]
    assert (bert.config.hidden_act, bert.config.max_position_embeddings) == ("relu", 8)
    bf16 = bert_jax.load(huggingface, precision="bf16")
    assert bf16.module.dtype == jax.numpy.bfloat16
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(bf16.params))


def test_what_does_not_fit_together(huggingface):
    with pytest.raises(UserError, match="precision must be one of f32, bf16"):
        bert_jax.load(huggingface, precision="f16")
    (huggingface / "vocab.txt").write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    with pytest.raises(UserError, match=rf"has {len(VOCABULARY) + 1} entries, more than the vocab_size"):
        bert_jax.load(huggingface)
    (huggingface / "config.json").unlink()
    with pytest.raises(UserError, match="no configuration lies beside the weights: give --bert_config_file"):
        bert_jax.load(huggingface, vocab_file=None)


def test_parts_that_are_missing_are_not_made_up(tmp_path):
    bert = loaded()
    params = {"bert": {name: part for name, part in bert.params["bert"].items() if name != "pooler"}}
    params["cls"] = {"predictions": bert.params["cls"]["predictions"]}
    export_huggingface(tmp_path, CONFIG, None, params, bert.tokenizer)
    lines = []
    again = bert_jax.load(tmp_path, message=lines.append)
    assert set(again.params["cls"]) == {"predictions"} and "pooler" not in again.params["bert"]
    assert any("4 not in the file (pooler, next-sentence head)" in line for line in lines)
    again.needs("predictions", "fill_mask")
    with pytest.raises(UserError, match="these weights have no pooler, which pooled vectors needs"):
        again.needs("pooler", "pooled vectors")


def test_a_config_without_vocabulary(huggingface):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (huggingface / name).unlink(missing_ok=True)
    assert bert_jax.load(huggingface).tokenizer is None
    values = json.loads((huggingface / "config.json").read_text())
    (huggingface / "config.json").write_text(json.dumps(values | {"model_type": "roberta"}))
    with pytest.raises(UserError, match="model_type 'roberta' is not supported"):
        bert_jax.load(huggingface)


def test_importing_the_package_loads_nothing():
    code = "import sys, bert_jax; assert not {'jax', 'flax', 'tensorflow'} & set(sys.modules); bert_jax.load"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"load", "encode", "fill_mask"} <= set(dir(bert_jax))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = bert_jax.lode


def test_what_is_shown_of_a_model_is_short():
    shown = repr(loaded())
    assert re.fullmatch(r"<BertForPreTraining of [\d,]+ parameters: config, tokenizer, module, params>", shown)


def test_mistakes_have_a_name_and_lines_go_to_standard_error(huggingface, capsys):
    with pytest.raises(bert_jax.UserError, match=r"^path: no such file or folder: nowhere"):
        bert_jax.load("nowhere")
    bert_jax.load(huggingface)
    assert f"path: {huggingface}: 46 tensors used" in capsys.readouterr().err
    bert_jax.load(huggingface, message=None)
    assert capsys.readouterr().err == ""
