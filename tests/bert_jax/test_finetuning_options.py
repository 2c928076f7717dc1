import pytest

from bert_jax import finetuning_options
from bert_jax.main import parse
from input_pipeline.errors import UserError


def flags(*words):
    return parse(["bert_jax", "--mode=finetune", *words])


@pytest.mark.parametrize(
    ("kind", "version_2", "expected"),
    [
        ("classification", False, (128, 32, 2e-5, 3.0)),
        ("multi_label", False, (128, 32, 2e-5, 3.0)),
        ("regression", False, (128, 32, 2e-5, 3.0)),
        ("multiple_choice", False, (128, 16, 2e-5, 3.0)),
        ("span", False, (384, 32, 5e-5, 3.0)),
        ("span", True, (384, 48, 5e-5, 2.0)),
        ("tagging", False, (128, 32, 5e-5, 3.0)),
    ],
)
def test_defaults_of_the_paper(kind, version_2, expected):
    values, said = flags(), []
    finetuning_options.apply_defaults(values, kind, version_2, said.append)
    names = ("max_seq_length", "train_batch_size", "learning_rate", "num_train_epochs")
    assert tuple(getattr(values, name) for name in names) == expected
    assert said == ["defaults (the paper's): " + " ".join(f"--{n}={v}" for n, v in zip(names, expected))]
    assert values.optimizer == "adamw" and values.save_checkpoints_steps == 500


def test_positions_that_were_not_trained():
    said = []
    given = flags()
    finetuning_options.apply_defaults(given, "span", False, said.append, trained_length=64)
    assert given.max_seq_length == 64 and "--max_seq_length=64, as in the training" in said[0]
    given = flags("--max_seq_length=100")
    finetuning_options.apply_defaults(given, "span", False, said.append, trained_length=64)
    assert given.max_seq_length == 100 and "was trained on 64 tokens" in said[2]
    given = flags()
    finetuning_options.apply_defaults(given, "span", False, said.append, trained_length=512)
    assert given.max_seq_length == 384


def test_what_is_given_or_searched_has_no_default():
    values, said = flags("--num_train_steps=7", "--max_seq_length=20", "--optimizer=bert_adam"), []
    finetuning_options.apply_defaults(values, "span", True, said.append, ["learning_rate"])
    assert (values.num_train_steps, values.num_train_epochs, values.max_seq_length) == (7, None, 20)
    assert values.learning_rate is None
    assert said[0] == "defaults (the paper's): --train_batch_size=48"
    assert said[1].startswith("--optimizer=bert_adam has no bias correction")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--num_train_steps=1", "--num_train_epochs=1"],
            "--num_train_steps and --num_train_epochs exclude each other",
        ),
        (["--num_warmup_steps=1", "--warmup_proportion=0.1"], "--num_warmup_steps and --warmup_proportion exclude"),
        (["--model=tiny", "--bert_config_file=a"], "--model and --bert_config_file exclude each other"),
        (["--restore_from=a"], "--restore_from continues pretraining"),
        (["--num_train_epochs=0"], "--num_train_epochs=0.0 must be above 0"),
        (["--grid_search", "--num_train_steps=3"], "--grid_search searches over epochs"),
        (["--freeze_encoder", "--layer_lr_decay=0.9"], "--freeze_encoder and --layer_lr_decay exclude each other"),
        (["--freeze_encoder", "--reinit_layers=1"], "--freeze_encoder and --reinit_layers exclude each other"),
        (["--input_file=a"], "--input_file is text to pretrain on"),
        (["--noevaluate_at_end"], "--noevaluate_at_end is for pretrain"),
        (["--max_eval_steps=3"], "--max_eval_steps is for pretrain"),
        (["--eval_fraction=0.1", "--eval_file=a"], "--eval_fraction and --eval_file exclude each other"),
    ],
)
def test_flags_that_exclude_each_other(words, message):
    finetuning_options.check(flags(*words[:1]) if len(words) == 2 else flags())
    with pytest.raises(UserError, match=message):
        finetuning_options.check(flags(*words))
