"""Packaging of bert_jax; bounds are the versions the test suite was run with."""

from pathlib import Path

from setuptools import find_packages, setup

REQUIREMENTS = [
    "absl-py>=2.3,<3",
    "etils[epath]>=1.13,<2",
    "flax>=0.12.5,<0.13",
    "importlib_resources>=6",  # tensorflow-datasets needs it for downloads and does not say so
    "jax>=0.10.0,<0.11",
    "numpy>=2.1,<3",
    "optax>=0.2.6,<0.3",
    "orbax-checkpoint>=0.12.4,<0.13",
    "rich>=14,<16",
    "safetensors>=0.6,<1",
    "sentencepiece>=0.2.1,<0.3",
    "tensorflow>=2.21,<2.22",
    "tensorflow-datasets>=4.9.9,<5",
]

CLUSTER = ["scikit-learn>=1.9,<2"]
TEST = ["hypothesis>=6.140", "pytest>=9,<10", "pytest-xdist>=3.8,<4", *CLUSTER]

setup(
    name="bert_jax",
    version="0.1.0",
    description="BERT in JAX and Flax: pretraining from text to checkpoint on CPUs, GPUs and TPU pods",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["bert_jax", "bert_jax.*", "input_pipeline", "input_pipeline.*"]),
    python_requires=">=3.11",
    install_requires=REQUIREMENTS,
    extras_require={
        "tpu": ["jax[tpu]>=0.10.0,<0.11"],
        "plan": ["libtpu>=0.0.42,<0.0.43"],
        "gpu": ["jax[cuda12]>=0.10.0,<0.11"],
        "beam": ["apache-beam>=2.77,<3"],
        "cluster": CLUSTER,
        "hub": ["huggingface_hub>=1.0,<3"],
        "test": TEST,
        "dev": [*TEST, "ruff>=0.14"],
    },
)
