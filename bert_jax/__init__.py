"""BERT in JAX: pretraining, fine-tuning and everything around it.

Importing the package touches no device and starts no TensorFlow.
"""

__version__ = "0.1.0"
