"""Every recipe is read by the command line and names a model and a schedule that exist."""

from pathlib import Path

import pytest

from bert_jax.config import BertConfig
from bert_jax.main import parse
from bert_jax.modes.pretrain_options import apply_defaults, data_config, schedule_from

RECIPES = sorted((Path(__file__).parents[1] / "launch" / "recipes").glob("*.flags"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe(recipe):
    assert recipe.read_text().startswith("# ")
    flags, said = parse(["bert_jax", f"--flagfile={recipe}", "--input_file=store", "--output_dir=out"]), []
    apply_defaults(flags, said.append)
    assert said == []  # nothing is left to a default that may change
    assert data_config(flags).max_seq_length <= BertConfig.named(flags.model).max_position_embeddings
    steps, warmup = schedule_from(flags, examples_per_epoch=1000)
    assert 0 < warmup <= steps // 10


def test_there_are_recipes():
    assert len(RECIPES) >= 4
