"""A run in its folder: begun, gone on with, finished, and reported whatever happens."""

import json

import jax.numpy as jnp
import pytest

from bert_jax.run_folder import RunFolder, read_run
from bert_jax.training_run import training_run
from input_pipeline.errors import UserError


class Flags:
    mode, keep_checkpoints = "finetune", 2

    def flag_values_dict(self):
        return {"mode": self.mode, "keep_checkpoints": self.keep_checkpoints}


def begin(folder, total=3, rate=0.1, **options):
    settings = {"task": "x", "settings": {"learning_rate": rate}, "num_train_steps": total, "save": []}
    return training_run(folder, Flags(), **settings, **options)


def state(step):
    return {"step": jnp.int32(step), "params": {"kernel": jnp.zeros(2)}}


def test_a_run_is_finished_when_nothing_went_wrong(tmp_path, capfd):
    with RunFolder(tmp_path) as folder:
        with begin(folder) as run:
            assert (run.start_step, run.resumed) == (0, False)
            run.reporter.log(1, {"loss": 2.0})
            run.checkpointer.save(3, state(3))
            run.checkpointer.wait()
        assert read_run(tmp_path, "--output_dir")["finished_at_step"] == 3
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 2.0
        assert "<html" in (tmp_path / "report.html").read_text()
        with begin(folder) as run:
            assert run is None
        assert "already at step 3 of 3, nothing to do" in capfd.readouterr().err
        with pytest.raises(UserError, match=r"learning_rate is 0.1 there and 0.2 now"), begin(folder, rate=0.2):
            pass
        with begin(folder, total=5) as run:
            assert (run.start_step, run.resumed) == (3, True)


def test_a_run_that_fails_has_its_report_and_is_not_finished(tmp_path):
    with RunFolder(tmp_path) as folder:
        with pytest.raises(ValueError, match="broken"), begin(folder) as run:
            run.checkpointer.save(2, state(2))
            run.checkpointer.wait()
            raise ValueError("broken")
        assert read_run(tmp_path, "--output_dir")["finished_at_step"] is None
        assert (tmp_path / "report.html").exists()
        with begin(folder) as run:
            assert (run.start_step, run.resumed) == (2, True)


def test_a_run_may_continue_another_one(tmp_path):
    with RunFolder(tmp_path) as folder, begin(folder, total=9, first_step=7) as run:
        assert (run.start_step, run.resumed) == (7, False)
