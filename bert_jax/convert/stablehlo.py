"""A model as one serialized StableHLO program for serving: parameters inside, any batch size, none of this code."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from bert_jax.loading import LoadedBert
from input_pipeline import files
from input_pipeline.errors import UserError

PROGRAM_FILE = "model.stablehlo"
SIGNATURE_FILE = "signature.json"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

_MEANINGS = {
    "input_ids": "ids of the vocabulary, from [CLS] to [SEP], then padding",
    "input_mask": "1 on tokens, 0 on padding",
    "segment_ids": "0 on the first text, 1 on the second of a pair",
    "masked_lm_positions": "where in the sequence words are predicted; [CLS] is 0",
    "logits": "of the labels: for the sequence, or for each token",
    "hidden": "the last layer's vector of each token",
    "pooled": "the pooler's vector of the sequence",
    "masked_lm_logits": "of each piece of the vocabulary, at masked_lm_positions",
    "next_sentence_logits": "0: the second text follows the first, 1: it does not",
}

# The serialized form is a flatbuffer, whose offsets end at 2 GiB.
_MOST_BYTES = 2**31 - 2**20


def check_platforms(platforms: Sequence[str]) -> None:
    """Raises UserError unless a program can be made for `platforms`."""
    if unknown := [name for name in platforms if name not in PLATFORMS]:
        raise UserError(f"--platforms: {unknown[0]!r} is not one of {', '.join(PLATFORMS)}")


def export_stablehlo(folder: str | os.PathLike, bert: LoadedBert, platforms: Sequence[str]) -> list[str]:
    """Writes the program (jax.export), its signature, the configuration and the vocabulary.

    The program takes a dict of int32 arrays [batch, length] named input_ids, input_mask and segment_ids, of any batch
    size and any length up to max_position_embeddings; for a model with a masked-LM head masked_lm_positions
    [batch, predictions] too. It gives a dict of float32 arrays: "logits" of the head of a task; else hidden
    [batch, length, hidden] (the last layer) and those of pooled [batch, hidden], masked_lm_logits
    [batch, predictions, vocab_size] and next_sentence_logits [batch, 2] that the parameters allow.

    Args:
        folder: an existing folder.
        platforms: of PLATFORMS; those that the program can run on.

    Returns:
        Lines for the user.

    Raises:
        UserError: an unknown platform, or more parameters than a program can hold.
    """
    check_platforms(platforms)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(bert.params))
    if size > _MOST_BYTES:
        raise UserError(f"--format=stablehlo: {size / 2**30:.1f} GiB of parameters; a program holds 2 GiB at most")
    function = serving_function(bert)
    batch, length, predictions = export.symbolic_shape(
        "batch, length, predictions", constraints=[f"length <= {bert.config.max_position_embeddings}"]
    )
    inputs = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (batch, length))
    if "predictions" in bert.params.get("cls", {}):
        inputs["masked_lm_positions"] = (batch, predictions)
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in inputs.items()}
    exported = export.export(jax.jit(function), platforms=tuple(platforms))(shapes)
    path = files.as_path(folder)
    files.write_bytes_atomic(path / PROGRAM_FILE, bytes(exported.serialize()))
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    describe = lambda arrays: {
        name: {
            "shape": [size if isinstance(size, int) else str(size) for size in x.shape],
            "dtype": str(x.dtype),
            "meaning": _MEANINGS[name],
        }
        for name, x in arrays.items()
    }
    head = getattr(bert.module, "head", None)
    signature = {
        "program": PROGRAM_FILE,
        "inputs": describe(shapes),
        "outputs": describe(outputs),
        "max_length": bert.config.max_position_embeddings,
        "labels": list(head.labels) if head else None,
        "platforms": list(platforms),
        "calling_convention_version": exported.calling_convention_version,
        "jax": jax.__version__,
    }
    files.write_json_atomic(path / SIGNATURE_FILE, signature)
    files.write_bytes_atomic(path / "bert_config.json", bert.config.to_json().encode())
    if bert.tokenizer:
        bert.tokenizer.save(os.fspath(folder))
    batch = ", ".join(f"{name!r}: np.ones((1, 2), 'int32')" for name in inputs)
    program = f"jax.export.deserialize(open({PROGRAM_FILE!r}, 'rb').read())"
    return [
        f"use it in its folder (pip install jax flatbuffers; {SIGNATURE_FILE} tells what the arrays mean) with:",
        f"import jax, numpy as np; print({program}.call({{{batch}}}))",
    ]


def serving_function(bert: LoadedBert) -> Callable[[dict[str, Any]], dict[str, jax.Array]]:
    """What the program computes: a function of the batch alone; see export_stablehlo."""
    variables, module = {"params": bert.params}, bert.module
    heads = bert.params.get("cls", {})

    def serve(batch):
        features = (batch["input_ids"], batch["input_mask"], batch["segment_ids"])
        if hasattr(module, "head"):
            return {"logits": module.apply(variables, *features)}
        hidden = module.apply(variables, *features, method="encode")[-1]
        outputs = {"hidden": hidden.astype(jnp.float32)}
        if "pooler" in bert.params["bert"]:
            pooled = module.apply(variables, hidden, method="pool")
            outputs["pooled"] = pooled.astype(jnp.float32)
            if "seq_relationship" in heads:
                outputs["next_sentence_logits"] = module.apply(variables, pooled, method="next_sentence")
        if "predictions" in heads:
            logits = module.apply(variables, hidden, batch["masked_lm_positions"], method="masked_lm")
            outputs["masked_lm_logits"] = logits[..., : bert.config.vocab_size]
        return outputs

    return serve
