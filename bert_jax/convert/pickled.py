"""PyTorch's pickled weights (.bin), read with its loader for weights only, and never by unpickling."""

import functools
import os
import re
import warnings
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
        raise UserError(f"{flag}: {'no file' if Path(file).exists() else 'no such file or folder'}: {file}")
    if not os.path.getsize(file):
        raise UserError(f"{flag}: {file} holds something else than weights, or is damaged: it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about how the file was written
            weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{flag}: {file} holds something else than weights, or is damaged: {_reason(error)}") from None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in weights.items()
    ):
        raise UserError(f"{flag}: {file} is no dict of tensors by name")
    read = functools.partial(_read, source=f"{flag}: {file}")
    return {
        name: Tensor(name, tuple(value.shape), functools.partial(read, value, name)) for name, value in weights.items()
    }


def _reason(error: Exception) -> str:
    """What the loader objects to, without its advice to let the file run code."""
    text = str(error).strip()
    if named := re.search(r"GLOBAL ([\w.]+)", text):
        return f"it holds more than tensors ({named[1]})"
    if operand := re.search(r"Unsupported operand \d+", text):
        return f"no pickle of tensors ({operand[0]})"
    if "weights_only" in text:
        return "no pickle of tensors"
    return text.partition("\n")[0] or type(error).__name__


def _read(value: Any, name: str, source: str) -> np.ndarray:
    kind = str(value.dtype).removeprefix("torch.")
    layout = str(value.layout).removeprefix("torch.")
    if kind not in _DTYPES:
        raise UserError(f"{source}: {name} is of type {kind}, supported are {', '.join(_DTYPES)}")
    if value.is_meta or layout != "strided":
        raise UserError(f"{source}: {name} {'has no values' if value.is_meta else f'is {layout}, not dense'}")
    return value.detach().float().numpy()
