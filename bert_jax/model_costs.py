"""What a model costs, by formula: parameters by part, floating-point operations and memory. Needs no JAX."""

from typing import NamedTuple

from bert_jax.config import BertConfig


class ParameterRow(NamedTuple):
    """Parameters of one kind."""

    part: str  # "embeddings", "encoder", "pooler", "MLM head" or "NSP head"
    name: str
    formula: str  # in V, P, S (vocabulary, positions, segments), H (hidden) and F (feed-forward)
    count: int  # of one copy
    copies: int = 1  # one for each layer in the encoder

    @property
    def total(self) -> int:
        return self.count * self.copies


def parameter_rows(config: BertConfig) -> list[ParameterRow]:
    """All parameters of BERT with both pretraining heads, without the padding rows of the vocabulary."""
    vocab, positions, segments = config.vocab_size, config.max_position_embeddings, config.type_vocab_size
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    feed_forward = "8 H^2" if inner == 4 * hidden else "2 H F"
    return [
        ParameterRow("embeddings", "words", "V H", vocab * hidden),
        ParameterRow("embeddings", "positions", "P H", positions * hidden),
        ParameterRow("embeddings", "segments", "S H", segments * hidden),
        ParameterRow("embeddings", "LayerNorm", "2 H", 2 * hidden),
        ParameterRow("encoder", "attention", "4 H^2", 4 * hidden**2, layers),
        ParameterRow("encoder", "attention biases", "4 H", 4 * hidden, layers),
        ParameterRow("encoder", "feed-forward", feed_forward, 2 * hidden * inner, layers),
        ParameterRow("encoder", "feed-forward biases", "F + H", inner + hidden, layers),
        ParameterRow("encoder", "LayerNorms", "4 H", 4 * hidden, layers),
        ParameterRow("pooler", "dense", "H^2 + H", hidden**2 + hidden),
        ParameterRow("MLM head", "dense", "H^2 + H", hidden**2 + hidden),
        ParameterRow("MLM head", "LayerNorm", "2 H", 2 * hidden),
        ParameterRow("MLM head", "output bias", "V", vocab),
        ParameterRow("NSP head", "dense", "2 H + 2", 2 * hidden + 2),
    ]


def inference_flops(config: BertConfig, length: int, predictions: int) -> dict[str, int]:
    """Floating-point operations of the forward pass of one sequence, by what they are spent on.

    A multiplication with its addition counts 2. Left out, as usual, is what is not a large matrix product: embedding
    lookups, softmax, LayerNorms, activations, and the heads that see one position.

    Args:
        length: tokens in the sequence, padding included; or an array of lengths, for as many sequences.
        predictions: positions at which the masked-LM head runs.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return {
        "encoder kernels": 2 * layers * (4 * hidden**2 + 2 * hidden * inner) * length,
        "attention scores and values": 4 * layers * length**2 * hidden,
        "masked-LM head": 2 * predictions * (hidden**2 + hidden * config.vocab_size),
    }


def training_flops(config: BertConfig, length: int, predictions: int) -> int:
    """Operations of one sequence in training: the backward pass takes twice those of the forward pass."""
    return 3 * sum(inference_flops(config, length, predictions).values())


def training_state_bytes(config: BertConfig) -> dict[str, int]:
    """Bytes that live through a training step, all in float32, over all devices; activations come on top.

    The vocabulary is counted with its padding rows, which exist in memory.
    """
    padding = (config.padded_vocab_size - config.vocab_size) * (config.hidden_size + 1)
    parameters = 4 * (sum(row.total for row in parameter_rows(config)) + padding)
    return {"parameters": parameters, "gradients": parameters, "optimizer moments": 2 * parameters}
