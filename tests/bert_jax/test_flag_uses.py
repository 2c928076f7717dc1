"""Flags that a mode does not read: they are told and set back, and nothing else is."""

from pathlib import Path

import pytest

from bert_jax import flag_uses
from bert_jax.flags import MODES
from bert_jax.main import main, parse

RECIPES = sorted((Path(__file__).resolve().parents[2] / "launch" / "recipes").glob("*.flags"))


def test_every_flag_is_in_the_table_once_and_no_other():
    flags = [flag for _, group in flag_uses._TABLE for flag in group.split()]
    assert sorted([*flags, *flag_uses.ALWAYS]) == sorted(parse(["bert_jax"]))


def test_the_modes_of_the_table_are_those_there_are():
    used = {mode for modes in flag_uses.MODES_OF.values() for mode in modes}
    assert used == set(MODES)


def test_a_flag_without_effect_is_told_and_set_back():
    values = parse(["bert_jax", "--mode=tokenize", "--top_k=3", "--noshuffle", "--text_field=x", "--seed=1"])
    assert flag_uses.drop_unused(values) == [
        f"--{name} has no effect in --mode=tokenize" for name in ("top_k", "shuffle", "seed")
    ]
    assert (values.top_k, values.shuffle, values.seed, values.text_field) == (5, True, 12345, "x")
    assert not values["top_k"].present
    assert flag_uses.drop_unused(values) == []


def test_a_flagfile_is_held_to_the_same_rule(tmp_path, capsys):
    (tmp_path / "x.flags").write_text("--mode=describe\n--model=tiny\n--train_batch_size=8\n")
    assert main(["bert_jax", f"--flagfile={tmp_path}/x.flags"]) == 0
    assert capsys.readouterr().err == "warning: --train_batch_size has no effect in --mode=describe\n"


def test_one_of_several_processes_tells(capsys):
    words = ["bert_jax", "--mode=describe", "--model=tiny", "--train_batch_size=8"]
    assert main([*words, "--process_id=1"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_have_no_flag_without_effect(recipe):
    assert flag_uses.drop_unused(parse(["bert_jax", f"--flagfile={recipe}"])) == []


@pytest.mark.parametrize(
    ("mode", "read", "unread"),
    [
        ("predict", "predict_file", "eval_file"),
        ("evaluate", "eval_file", "predict_file"),
        ("evaluate", "masked_lm_prob", "seed"),
        ("cluster", "seed", "shuffle"),
        ("finetune", "shuffle", "vocab_size"),
        ("pretrain", "vocab_size", "num_runs"),
        ("prepare", "init_checkpoint", "max_seq_length"),
        ("export", "num_processes", "mesh"),
        ("describe", "attention", "precision"),
        ("fill_mask", "eval_batch_size", "model"),
    ],
)
def test_examples_of_the_table(mode, read, unread):
    assert mode in flag_uses.MODES_OF[read] and mode not in flag_uses.MODES_OF[unread]
