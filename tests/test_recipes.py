"""Every recipe is read by the command line, and leaves no setting to a default that may change."""

from pathlib import Path

import pytest

from bert_jax import finetuning_options, several_runs, task_data
from bert_jax.config import BertConfig
from bert_jax.main import parse
from bert_jax.modes.pretrain_options import apply_defaults, data_config
from bert_jax.schedule import schedule_from

RECIPES = sorted((Path(__file__).parents[1] / "launch" / "recipes").glob("*.flags"))
PATHS = {
    "pretrain": ["--input_file=store", "--output_dir=out"],
    "finetune": ["--data_dir=data", "--init_checkpoint=bert", "--output_dir=out"],
}


def parsed(recipe):
    mode = next(mode for mode in PATHS if f"--mode={mode}" in recipe.read_text().splitlines())
    return mode, parse(["bert_jax", f"--flagfile={recipe}", *PATHS[mode]])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe):
    assert recipe.read_text().startswith("# ")
    assert max(map(len, recipe.read_text().splitlines())) <= 120
    mode, flags = parsed(recipe)
    said = []
    if mode == "pretrain":
        apply_defaults(flags, said.append)
        assert data_config(flags).max_seq_length <= BertConfig.named(flags.model).max_position_embeddings
    else:
        finetuning_options.check(flags)
        searched = several_runs.searched(flags)
        name = task_data.task_name(flags) if flags.task_name else "mrpc"
        kind = "classification" if name == "glue" else task_data.kind_of(name)
        finetuning_options.apply_defaults(flags, kind, bool(flags.version_2_with_negative), said.append, searched)
        for setting in searched:
            setattr(flags, setting, several_runs.GRID[setting][0])
        assert flags.optimizer == "adamw"
        assert flags.max_seq_length <= BertConfig.named("base").max_position_embeddings
    assert said == []
    steps, warmup = schedule_from(flags, examples_per_epoch=5000)
    assert 0 < warmup <= steps // 10


def test_the_features_are_those_of_a_frozen_encoder():
    _, flags = parsed(next(path for path in RECIPES if path.stem == "conll2003_features"))
    assert flags.freeze_encoder and flags.head_features == "concat_last_4" and flags.head_lstm == ["768", "768"]


@pytest.mark.parametrize(
    "name", ["bert_base_phase1", "bert_large_phase2", "glue", "squad1", "squad2", "swag", "conll2003"]
)
def test_there_is_a_recipe(name):
    assert name in [path.stem for path in RECIPES]
