"""TensorFlow for input only: import `tf` from here, and it never sees an accelerator.

TensorFlow takes all memory of the GPUs (or the lock of the TPU) that it sees at its first operation, which JAX needs.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its notes on missing CUDA libraries are of no use here

import tensorflow as tf

for _kind in ("GPU", "TPU"):
    tf.config.set_visible_devices([], _kind)

__all__ = ["tf"]
