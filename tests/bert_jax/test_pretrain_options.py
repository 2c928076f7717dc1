"""Defaults of pretraining, and what the flags mean together."""

import pytest

from bert_jax.main import parse
from bert_jax.modes.pretrain_options import apply_defaults, data_config
from bert_jax.run_folder import later_settings
from bert_jax.schedule import Schedule, schedule_from
from input_pipeline.errors import UserError


def filled(*arguments):
    flags, said = parse(["bert_jax", "--mode=pretrain", *arguments]), []
    apply_defaults(flags, said.append)
    return flags, said


def test_no_flags_are_the_quick_start():
    flags, said = filled()
    assert (flags.input_file, flags.model, flags.vocab_size) == (["builtin"], "tiny", 4096)
    assert (flags.max_seq_length, flags.max_predictions_per_seq) == (64, 10)
    assert "quick start" in said[0] and "--learning_rate=0.001" in said[0]


def test_own_text_has_the_papers_defaults():
    flags, said = filled("--input_file=a.txt", "--vocab_file=v.txt", "--learning_rate=0")
    assert (flags.model, flags.train_batch_size, flags.num_train_steps) == ("base", 256, 1_000_000)
    assert (flags.max_seq_length, flags.max_predictions_per_seq) == (128, 20)
    assert flags.learning_rate == 0.0
    assert flags.hidden_dropout_prob is None
    assert "learning_rate" not in said[0] and "vocab_size" not in said[0]


def test_a_file_of_the_model_replaces_its_name():
    assert filled("--input_file=a.txt", "--bert_config_file=c.json")[0].model is None


def test_predictions_have_room_for_the_longest_sequence():
    assert filled("--max_seq_length=512")[0].max_predictions_per_seq == 77


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num_train_steps=3", "--num_train_epochs=1"], "--num_train_steps and --num_train_epochs exclude"),
        (["--num_warmup_steps=3", "--warmup_proportion=0.1"], "exclude each other"),
        (["--num_train_epochs=0"], "--num_train_epochs=0.0 must be above 0"),
        (["--input_file=a.txt,,b.txt"], "--input_file has an empty entry"),
        (["--trust_ratio=decayed"], "--trust_ratio=decayed is for --optimizer=lamb, not bert_adam"),
    ],
)
def test_mistakes(arguments, words):
    with pytest.raises(UserError, match=words):
        filled(*arguments)


def test_epochs_beyond_all_measure():
    with pytest.raises(UserError, match=r"--num_train_epochs=1000000\.0 are"):
        schedule_from(filled("--num_train_epochs=1e6", "--train_batch_size=1")[0], examples_per_epoch=10**6)


def test_masking_split_is_read():
    assert data_config(filled("--masking_split=0,0.2,0.8")[0]).masking_split == (0.0, 0.2, 0.8)
    with pytest.raises(UserError, match="--masking_split=a,b,c"):
        data_config(filled("--masking_split=a,b,c")[0])


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        (["--num_train_steps=1000"], Schedule(1000, 100)),
        (["--num_train_steps=1000000"], Schedule(1_000_000, 10_000)),
        (["--num_train_steps=1000", "--num_warmup_steps=0"], Schedule(1000, 0)),
        (["--num_train_steps=1000", "--warmup_proportion=0.25"], Schedule(1000, 250)),
        (["--num_train_steps=1000", "--lr_decay_power=0.5"], Schedule(1000, 100, 0.5)),
        (["--num_train_epochs=3", "--train_batch_size=32"], Schedule(1, 0)),
        (["--num_train_epochs=30", "--train_batch_size=4"], Schedule(38, 3)),
    ],
)
def test_schedule(arguments, schedule):
    assert schedule_from(filled(*arguments)[0], examples_per_epoch=5) == schedule


@pytest.mark.parametrize(
    ("arguments", "warmup"),
    [([], 156), (["--warmup_proportion=0.128"], 200), (["--num_warmup_steps=7"], 7)],
)
def test_a_schedule_that_begins_anew_has_a_warmup_of_its_own_steps(arguments, warmup):
    flags, _ = filled("--num_train_steps=8601", *arguments)
    assert schedule_from(flags, 5, first_step=7038) == Schedule(8601, warmup, 1.0, 7038)


def test_lamb_may_have_a_trust_ratio_of_what_decays():
    assert filled("--optimizer=lamb", "--trust_ratio=decayed")[0].trust_ratio == "decayed"


def test_a_run_records_of_later_flags_what_is_changed():
    assert later_settings(filled()[0]) == {}
    flags, _ = filled("--optimizer=lamb", "--trust_ratio=decayed", "--restart_schedule", "--lr_decay_power=0.5")
    assert later_settings(flags) == {"lr_decay_power": 0.5, "trust_ratio": "decayed", "restart_schedule": True}
    assert later_settings(filled("--gradient_reduction=bf16")[0]) == {"gradient_reduction": "bf16"}
