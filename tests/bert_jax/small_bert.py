"""A small BERT with random weights, and the folders it may lie in."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.checkpointing import Checkpointer
from bert_jax.config import BertConfig
from bert_jax.convert.weights import from_torch, weight_table
from bert_jax.loading import LoadedBert
from bert_jax.modeling import BertForPreTraining
from bert_jax.run_folder import RunFolder
from bert_jax.task_modeling import BertForTask
from input_pipeline import files
from input_pipeline.tokenization import WordPieceTokenizer

WORDS = "the a cat dog sat ran on under mat tree big small and then it was red blue here there ##s ##ing".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "[", "]", "mask", *WORDS]
CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
)


def random_params(config=CONFIG, head=None, seed=0):
    """Large enough that a wrong activation or mask shows."""
    rng = np.random.default_rng(seed)
    flat = {}
    for weight in weight_table(config, head):
        array = rng.normal(size=weight.torch_shape) * 0.3 + (weight.path[-1] == "scale")
        flat[weight.path] = from_torch(weight, array.astype(np.float32))
    return traverse_util.unflatten_dict(flat)


def tokenizer():
    return WordPieceTokenizer(VOCABULARY, do_lower_case=True)


def loaded(config=CONFIG, head=None, seed=0) -> LoadedBert:
    """What bert_jax.load gives."""
    module = BertForTask(config, head) if head else BertForPreTraining(config)
    return LoadedBert(config, tokenizer(), module, random_params(config, head, seed))


def write_run(folder, bert: LoadedBert, step=3, params=None, settings=None):
    """An output folder as a training run leaves it."""
    head = getattr(bert.module, "head", None)
    save = [lambda path: files.write_bytes_atomic(f"{path}/bert_config.json", bert.config.to_json().encode())]
    save += [bert.tokenizer.save] + ([head.save] if head else [])
    settings = {"vocabulary": bert.tokenizer.fingerprint} | (settings or {})
    with RunFolder(folder) as run:
        run.start(mode="pretrain", settings=settings, num_train_steps=step, flags={}, save=save)
        with Checkpointer(run.checkpoints, keep=1) as checkpointer:
            params = jax.tree.map(jnp.asarray, params or bert.params)
            checkpointer.save(step, {"step": jnp.int32(step), "params": params, "opt_state": params})
        run.finish(step)
    return folder
