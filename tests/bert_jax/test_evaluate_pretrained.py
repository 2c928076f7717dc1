import json

import pytest
from small_bert import loaded, write_run

from bert_jax.main import main


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "the cat sat on the mat.\nthe dog ran under the tree.\n\nit was small and red.\nthere it sat.\n" * 5
    )
    return str(path)


def test_a_pretrained_run_is_evaluated_on_new_text(tmp_path, text, capsys):
    run = write_run(tmp_path / "run", loaded(), settings={"max_seq_length": 16})
    arguments = ["bert_jax", "--mode=evaluate", f"--output_dir={run}", f"--eval_input_file={text}"]
    assert main([*arguments, "--eval_batch_size=8"]) == 0
    results = json.loads((run / "evaluate" / "eval_results.json").read_text())
    assert results["examples"] > 1
    assert results["masked_lm_loss"] > 0
    assert 0 <= results["next_sentence_accuracy"] <= 1
    assert main([*arguments, "--eval_batch_size=16"]) == 0  # masks do not depend on the batch
    again = json.loads((run / "evaluate" / "eval_results.json").read_text())
    assert again["masked_lm_loss"] == pytest.approx(results["masked_lm_loss"], abs=1e-5)
    assert again["masked_positions"] == results["masked_positions"]


def test_the_text_is_asked_for(tmp_path, capsys):
    run = write_run(tmp_path / "run", loaded())
    assert main(["bert_jax", "--mode=evaluate", f"--init_checkpoint={run}"]) == 2
    assert "--eval_input_file is missing" in capsys.readouterr().err
