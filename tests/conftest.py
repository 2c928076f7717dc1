"""What all tests share: one CPU backend, no TensorFlow chatter, and the optional folder of real data."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    """Small golden values that belong to the tests."""
    return DATA


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real corpora, vocabularies and checkpoints, which are not part of the project."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("BERT_JAX_SHARED", default))
    if not folder.is_dir():
        pytest.skip(f"no folder of real data at {folder} (set BERT_JAX_SHARED)")
    return folder
