"""BERT in JAX: pretraining, fine-tuning and everything around it.

    import bert_jax

    bert = bert_jax.load("runs/pretrain")  # config, tokenizer, module, params
    vectors = bert_jax.encode(bert, ["One sentence.", "Another."])  # float32 [2, hidden]
    bert_jax.fill_mask(bert, "Paris is the [MASK] of France.")

Importing the package touches no device and starts no TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "load": "bert_jax.loading",
    "LoadedBert": "bert_jax.loading",
    "encode": "bert_jax.features",
    "fill_mask": "bert_jax.mask_filling",
    "next_sentence_probability": "bert_jax.mask_filling",
    "UserError": "input_pipeline.errors",
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    """Imports a function of _PLACES, and JAX with it, at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
