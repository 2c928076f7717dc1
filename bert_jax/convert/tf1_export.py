"""Writing a TensorFlow 1 checkpoint that Google's BERT programs read."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config import BertConfig
from bert_jax.convert.tf1 import ACTIVATION_KEY, CONFIG_FILE, GLOB_CHARACTERS
from bert_jax.convert.weights import disassemble, listed, unstack_layers, weight_table
from bert_jax.heads import TaskHead
from input_pipeline import files
from input_pipeline.errors import UserError
from input_pipeline.tokenization import Tokenizer

PREFIX = "bert_model.ckpt"

# What modeling.py of Google has besides gelu, and the constant of its LayerNorms.
_SAME_ACTIVATIONS = ("relu", "tanh", "linear")
_EPSILON = 1e-12

_GOOGLE_HEADS = ("classification", "span")  # of run_classifier.py and run_squad.py


def export_tf1(
    folder: str | os.PathLike,
    config: BertConfig,
    head: TaskHead | None,
    params: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
) -> list[str]:
    """Writes bert_model.ckpt, bert_config.json, the vocabulary and the head's description for Google's programs.

    Variables have the names and shapes of Google's graphs, float32, without the padding rows of the vocabulary.

    Args:
        folder: an empty local folder.
        config, head, params: the model; params a nested dict of arrays, layers stacked or not. Parts that it lacks are
            not written, except for zeros as the pooler below a head that needs none: Google's graphs always have one.
        tokenizer: saved with the weights; None leaves it out.

    Returns:
        Lines for the user: what Google's programs do differently, or have to be told.

    Raises:
        UserError: Google's code cannot compute such a model, or the folder cannot be written, or not read afterwards.
    """
    if special := GLOB_CHARACTERS.search(os.fspath(folder)):
        raise UserError(
            f"--output_dir: TensorFlow reads no checkpoint from a path with {special[0]} in it: choose another folder"
        )
    values, notes = _google_config(config)
    arrays = {}
    for weight, array in disassemble(config, head, unstack_layers(params)):
        array = np.asarray(array, np.float32)
        arrays[weight.google_name] = array.T if weight.google_transposes else array
    missing = [weight for weight in weight_table(config, head) if weight.google_name not in arrays]
    optional = ("pooler",) if head and head.of_tokens else () if head else ("pooler", "predictions", "seq_relationship")
    if needed := [weight.google_name for weight in missing if weight.part not in optional]:
        raise UserError(f"no TF1 checkpoint can be made of a model without {listed(needed)}")
    names = listed(weight.google_name for weight in missing)
    if missing and head:
        arrays |= {weight.google_name: np.zeros(weight.torch_shape, np.float32) for weight in missing}
        notes.append(f"{names} are zeros: this model has no pooler, but every graph of Google's has one")
    elif missing:
        notes.append(f"not in the model, so not in the checkpoint: {names}")
    _save(os.path.join(folder, PREFIX), arrays)
    files.write_json_atomic(os.path.join(folder, CONFIG_FILE), values)
    if head:
        head.save(folder)
        if head.kind not in _GOOGLE_HEADS:
            notes.append(
                f"Google has no program for {head.kind}: its outputs are output_weights, as in run_classifier.py"
            )
    return notes + _save_vocabulary(folder, tokenizer)


def _google_config(config: BertConfig) -> tuple[dict[str, Any], list[str]]:
    """The content of bert_config.json, and what to know about it."""
    if config.layer_norm_eps != _EPSILON:
        raise UserError(
            f"--format=tf1: Google's code has layer_norm_eps {_EPSILON:g} and no setting for it; with the "
            f"{config.layer_norm_eps:g} of this model its results would be wrong there"
        )
    if config.attention != "bidirectional":
        raise UserError(f"--format=tf1: Google's code has no attention {config.attention}, only bidirectional")
    act = config.hidden_act
    if act in _SAME_ACTIVATIONS:
        return json.loads(config.to_json()), []
    if not act.startswith("gelu"):
        raise UserError(
            f"--format=tf1: Google's code has no hidden_act {act}, only gelu (in the tanh form), relu, tanh and linear"
        )
    values = json.loads(dataclasses.replace(config, hidden_act="gelu").to_json())
    if act != "gelu_new":
        values[ACTIVATION_KEY] = act
    if act != "gelu":
        return values, []
    return values, [
        "Google's code computes gelu by the tanh form, this model by the erf form: hidden states differ by about 1e-3 "
        f"there; the key {ACTIVATION_KEY} in {CONFIG_FILE} keeps the erf form for an import here"
    ]


def _save(prefix: str, arrays: Mapping[str, np.ndarray]) -> None:
    from input_pipeline.host_tensorflow import tf

    try:
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=[np.ascontiguousarray(array) for array in arrays.values()],
        )
    except tf.errors.OpError as error:
        raise UserError(f"cannot write {prefix}: {error.message.partition(chr(10))[0]}") from None


def _save_vocabulary(folder: str | os.PathLike, tokenizer: Tokenizer | None) -> list[str]:
    if tokenizer is None:
        return ["no vocabulary is known for this model: Google's programs need its vocab.txt"]
    tokenizer.save(folder)
    if tokenizer.kind != "wordpiece":
        return ["Google's programs read no SentencePiece vocabulary, only a vocab.txt"]
    return [] if tokenizer.do_lower_case else ["the vocabulary is cased: give Google's programs --do_lower_case=False"]
