"""KerasHub's BERT on JAX for comparisons: its masked-LM train step and its encoder, as pure functions.

KerasHub has no next-sentence prediction, and computes GELU by tanh within its layers.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax.config import BertConfig

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # KerasHub brings TensorFlow for its tokenizers


def is_installed() -> bool:
    return importlib.util.find_spec("keras_hub") is not None


def train_step(
    config: BertConfig, learning_rate: float, weight_decay: float, clip_norm: float, precision: str = "float32"
) -> tuple[Callable[[Any, dict[str, Any]], tuple[Any, Any]], Any]:
    """The stateless train step that Keras documents for JAX, and the state to begin with.

    Args:
        precision: the name of a policy of Keras, such as mixed_bfloat16.

    Returns:
        (state, batch of pretraining) -> (state, loss), not compiled; and the state, a tree of arrays.
    """
    import jax
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size,
        intermediate_dim=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings,
        dtype=precision,
    )
    model = keras_hub.models.BertMaskedLM(backbone)
    optimizer = keras.optimizers.AdamW(
        learning_rate, weight_decay=weight_decay, global_clipnorm=clip_norm, epsilon=1e-6
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(trainable, others, batch):
        inputs = {
            "token_ids": batch["input_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": batch["input_mask"],
            "mask_positions": batch["masked_lm_positions"],
        }
        logits, others = model.stateless_call(trainable, others, inputs, training=True)
        return cross_entropy(batch["masked_lm_ids"], logits), others

    def step(state, batch):
        trainable, others, moments = state
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trainable, others, batch)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return (trainable, others, moments), value

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    # Copies, since a compiled step may reuse the memory of its state.
    return step, jax.tree.map(lambda variable: jax.numpy.array(variable.value), variables)


def encoders(folder: str, max_length: int, batch_size: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Functions from sentences to the means of their last hidden states, float32 [sentences, hidden].

    The first is KerasHub's own, which pads each sentence to the greatest length. The second sorts sentences by their
    tokens and pads each batch to its longest, rounded up to a multiple of 16, since each width is compiled.
    """
    import jax
    import keras_hub

    tokenizer = keras_hub.models.BertTokenizer.from_preset(folder, strip_accents=True)  # its default gives [UNK] for é
    preprocessor = keras_hub.models.BertTextEmbedderPreprocessor(tokenizer, sequence_length=max_length)
    embedder = keras_hub.models.BertTextEmbedder.from_preset(
        folder, preprocessor=preprocessor, pooling_mode="mean", normalize=False
    )
    compiled = jax.jit(lambda variables, inputs: embedder.stateless_call(*variables, inputs, training=False)[0])

    def sorted_by_tokens(sentences):
        # Read anew, since predict() gives the arrays away and gets others back.
        variables = [
            [v.value for v in them] for them in (embedder.trainable_variables, embedder.non_trainable_variables)
        ]
        tokens = [ids[: max_length - 2] for ids in tokenizer(sentences)]
        order = np.argsort([len(ids) for ids in tokens], kind="stable")
        vectors = np.empty((len(sentences), embedder.backbone.hidden_dim), np.float32)
        for start in range(0, len(sentences), batch_size):
            numbers = order[start : start + batch_size]
            width = min(-(-(len(tokens[numbers[-1]]) + 2) // 16) * 16, max_length)
            inputs = {name: np.zeros((batch_size, width), np.int32) for name in ("token_ids", "segment_ids")}
            for row, number in enumerate(numbers):
                ids = [tokenizer.cls_token_id, *tokens[number], tokenizer.sep_token_id]
                inputs["token_ids"][row, : len(ids)] = ids
            inputs["padding_mask"] = (inputs["token_ids"] != tokenizer.pad_token_id).astype(np.int32)
            vectors[numbers] = compiled(variables, inputs)[: len(numbers)]
        return vectors

    return {
        "KerasHub": lambda sentences: embedder.predict(sentences, batch_size=batch_size, verbose=0),
        "KerasHub, sorted by tokens": sorted_by_tokens,
    }
