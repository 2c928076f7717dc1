"""TensorFlow for input only: import `tf` from here, and it never sees an accelerator.

TensorFlow takes all memory of the GPUs (or the lock of the TPU) that it sees at its first operation, which JAX needs.
"""

import contextlib
import os


@contextlib.contextmanager
def _without_stderr():
    """Drops what is written to file descriptor 2."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# While it is imported it logs that it found no CUDA and that oneDNN is on, whatever TF_CPP_MIN_LOG_LEVEL says.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with _without_stderr():
    import tensorflow as tf

for _kind in ("GPU", "TPU"):
    tf.config.set_visible_devices([], _kind)

__all__ = ["tf"]
