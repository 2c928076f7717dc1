"""What is said about the inputs of a run."""

from bert_jax.modes.pretrain_inputs import few_held_out


def test_one_is_no_plural():
    assert few_held_out(1).startswith("only 1 example is held out, whose evaluation says little")
    assert few_held_out(2).startswith("only 2 examples are held out, whose")
