"""PyTorch's pickled weights (.bin), read with its loader for weights only, and never by unpickling."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.convert.weights import Tensor
from input_pipeline.errors import UserError

# Before it, weights_only could be made to run code (CVE-2025-32434).
SAFE_VERSION = (2, 6)

_DTYPES = ("float64", "float32", "float16", "bfloat16")


def open_pickled(file: str | os.PathLike, flag: str) -> dict[str, Tensor]:
    """The tensors of a pickled state dict, by name.

    Raises:
        UserError: PyTorch is missing or too old, or the file is something else than a dict of tensors.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{flag}: {file} is read with PyTorch, which is missing: "
            "pip install torch --index-url https://download.pytorch.org/whl/cpu"
        ) from None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < SAFE_VERSION:
        raise UserError(f"{flag}: pickled weights need PyTorch 2.6, whose loader is safe; this is {torch.__version__}")
    if not Path(file).is_file():
        raise UserError(f"{flag}: no such file or folder: {file}")
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{flag}: {file} holds something else than weights, or is damaged: {reason}") from None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in weights.items()
    ):
        raise UserError(f"{flag}: {file} is no dict of tensors by name")
    read = functools.partial(_read, source=f"{flag}: {file}")
    return {
        name: Tensor(name, tuple(value.shape), functools.partial(read, value, name)) for name, value in weights.items()
    }


def _read(value: Any, name: str, source: str) -> np.ndarray:
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in _DTYPES:
        raise UserError(f"{source}: {name} is of type {kind}, supported are {', '.join(_DTYPES)}")
    return value.detach().float().numpy()
