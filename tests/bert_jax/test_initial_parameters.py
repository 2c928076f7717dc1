"""What lies beside a checkpoint is found, whichever way the checkpoint is named."""

import pytest

from bert_jax.initial_parameters import files_beside
from input_pipeline.errors import UserError


def test_files_of_a_run_and_of_one_of_its_steps(tmp_path):
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    for name in ("bert_config.json", "vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    expected = {"bert_config_file": f"{tmp_path}/bert_config.json", "vocab_file": str(tmp_path)}
    assert files_beside(str(tmp_path), "--init_checkpoint") == expected
    assert files_beside(f"{tmp_path}/checkpoints/10", "--init_checkpoint") == expected


def test_files_beside_a_single_file(tmp_path):
    for name in ("model.safetensors", "config.json", "vocab.txt"):
        (tmp_path / name).write_text("{}")
    assert files_beside(f"{tmp_path}/model.safetensors", "--init_checkpoint") == {
        "bert_config_file": f"{tmp_path}/config.json",
        "vocab_file": f"{tmp_path}/vocab.txt",
    }


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"--restore_from.*nowhere"):
        files_beside(f"{tmp_path}/nowhere", "--restore_from")
