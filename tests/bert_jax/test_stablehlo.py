"""The exported program, read back by JAX alone, gives what the model gives, at every size of batch."""

import contextlib
import json

import numpy as np
import pytest
from jax import export
from small_bert import CONFIG, VOCABULARY, loaded

from bert_jax.convert.stablehlo import export_stablehlo
from bert_jax.heads import TaskHead
from input_pipeline.errors import UserError


def batch(rows, length, predictions=None, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {
        "input_ids": rng.integers(0, len(VOCABULARY), (rows, length)),
        "input_mask": np.arange(length) < rng.integers(1, length + 1, (rows, 1)),
        "segment_ids": rng.integers(0, 2, (rows, length)),
    }
    if predictions:
        arrays["masked_lm_positions"] = rng.integers(0, length, (rows, predictions))
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def program(folder):
    return export.deserialize((folder / "model.stablehlo").read_bytes())


def test_any_batch_and_length(tmp_path, capsys):
    bert = loaded()
    notes = export_stablehlo(tmp_path, bert, ["cpu"])
    with contextlib.chdir(tmp_path):
        exec(notes[-1], {})  # what the user is told to run
    assert capsys.readouterr().out.startswith("{'hidden': Array(")
    serve = program(tmp_path)
    for rows, length, predictions in ((1, 3, 1), (3, 24, 2), (8, 10, 5)):
        inputs = batch(rows, length, predictions)
        outputs = serve.call(inputs)
        features = [inputs[name] for name in ("input_ids", "input_mask", "segment_ids")]
        variables = {"params": bert.params}
        hidden_states = bert.module.apply(variables, *features, method="encode")
        expected = bert.module.apply(variables, *features, inputs["masked_lm_positions"])
        pooled = bert.module.apply(variables, hidden_states[-1], method="pool")
        assert outputs["masked_lm_logits"].shape == (rows, predictions, CONFIG.vocab_size)
        logits = expected.masked_lm_logits[..., : CONFIG.vocab_size]
        np.testing.assert_allclose(outputs["masked_lm_logits"], logits, atol=1e-5)
        np.testing.assert_allclose(outputs["next_sentence_logits"], expected.next_sentence_logits, atol=1e-5)
        np.testing.assert_allclose(outputs["hidden"], hidden_states[-1], atol=1e-5)
        np.testing.assert_allclose(outputs["pooled"], pooled, atol=1e-5)
    with pytest.raises(ValueError, match="refining shapes"):  # longer than the table of positions
        serve.call(batch(1, 25, 1))


def test_what_lies_beside_the_program(tmp_path):
    head = TaskHead("classification", ("ham", "spam"))
    bert = loaded(head=head)
    notes = export_stablehlo(tmp_path, bert, ["cpu", "cuda", "tpu"])
    signature = json.loads((tmp_path / "signature.json").read_text())
    assert signature["labels"] == ["ham", "spam"] and signature["platforms"] == ["cpu", "cuda", "tpu"]
    meaning = "ids of the vocabulary, from [CLS] to [SEP], then padding"
    assert signature["inputs"]["input_ids"] == {"shape": ["batch", "length"], "dtype": "int32", "meaning": meaning}
    meaning = "of the labels: for the sequence, or for each token"
    assert signature["outputs"] == {"logits": {"shape": ["batch", 2], "dtype": "float32", "meaning": meaning}}
    assert signature["max_length"] == 24
    assert "pip install jax flatbuffers" in notes[0] and "jax.export.deserialize" in notes[1]
    assert (tmp_path / "vocab.txt").read_text().split("\n")[:-1] == VOCABULARY
    inputs = batch(2, 5)
    expected = bert.module.apply({"params": bert.params}, *inputs.values())
    np.testing.assert_allclose(program(tmp_path).call(inputs)["logits"], expected, atol=1e-5)


def test_parts_that_are_missing_give_no_outputs(tmp_path):
    bert = loaded()
    encoder = {name: part for name, part in bert.params["bert"].items() if name != "pooler"}
    export_stablehlo(tmp_path, bert._replace(params={"bert": encoder}), ["cpu"])
    assert set(program(tmp_path).call(batch(2, 5))) == {"hidden"}


def test_unknown_platform(tmp_path):
    with pytest.raises(UserError, match=r"--platforms: 'gpu' is not one of cpu, cuda, rocm, tpu"):
        export_stablehlo(tmp_path, loaded(), ["cpu", "gpu"])
