"""Time of encoding sentences on CPU here, in Hugging Face's PyTorch and in KerasHub, in one process, taking turns.

    python benchmarks/encoding.py --model=FOLDER --input_file=TEXT [--output_file=results.jsonl]

A result is the mean of a sentence's last hidden states in float32, and the time goes from the lines of the text to the
vectors, tokenizing included. Hugging Face pads each batch to its longest sentence; sentences are taken as they come,
sorted by their characters (as sentence-transformers does), or sorted by their tokens, which are then counted in a first
pass that is timed too. KerasHub on JAX pads all to --max_seq_length; sorted by tokens, it pads as keras_bert.py says;
its GELU is the tanh form, so that its vectors differ. Here and in KerasHub the first round also compiles and is
reported apart. What is not installed is left out. Other work on the machine slows all: trust the ratios.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import keras_bert
import numpy as np
import results
from absl import app, flags

from bert_jax.host_memory import keep_freed_memory

_MODEL = flags.DEFINE_string("model", None, "Folder of a BERT of Hugging Face, with its vocab.txt.", required=True)
_INPUT_FILE = flags.DEFINE_string("input_file", None, "Text in UTF-8, a sentence a line.", required=True)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sentences are cut.", lower_bound=2)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Sentences of a batch of the others.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Timed rounds after the first.", lower_bound=1)
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "A file to which the results are added as one line of JSON.")

COLUMNS = ("seconds", "cpu_seconds", "ratio", "cpu_ratio", "first_seconds", "difference")


def our_encoder(folder: str, max_length: int) -> Callable[[list[str]], np.ndarray]:
    """A function from sentences to vectors, float32 [sentences, hidden]."""
    import jax

    import bert_jax

    jax.config.update("jax_platforms", "cpu")
    bert = bert_jax.load(folder)
    return lambda sentences: bert_jax.encode(bert, sentences, max_seq_length=max_length)


def torch_encoder(folder: str, max_length: int, batch_size: int, threads: int):
    """The same in PyTorch, as it comes and after sorting by what `lengths` counts: (sentences, lengths) -> vectors."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()

    def tokens(sentences):
        return list(map(len, tokenizer(sentences, truncation=True, max_length=max_length)["input_ids"]))

    @torch.inference_mode()
    def encode(sentences, lengths=None):
        order = range(len(sentences)) if lengths is None else np.argsort(lengths(sentences), kind="stable")
        vectors = np.empty((len(sentences), model.config.hidden_size), np.float32)
        for start in range(0, len(sentences), batch_size):
            numbers = order[start : start + batch_size]
            inputs = tokenizer(
                [sentences[number] for number in numbers],
                padding=True,
                truncation=True,
                max_length=max_length,
                return_tensors="pt",
            )
            hidden = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][:, :, None].float()
            vectors[numbers] = (hidden * mask).sum(1) / mask.sum(1)
        return vectors

    return {
        "Hugging Face": encode,
        "Hugging Face, sorted by characters": lambda sentences: encode(sentences, lambda x: list(map(len, x))),
        "Hugging Face, sorted by tokens": lambda sentences: encode(sentences, tokens),
    }


def main(_):
    keep_freed_memory()
    with open(_INPUT_FILE.value, encoding="utf-8", newline="\n") as file:
        sentences = [line for line in file.read().split("\n") if line.strip()]
    length = _MAX_SEQ_LENGTH.value
    threads = results.threads()

    contestants = {"bert_jax": our_encoder(_MODEL.value, length)}
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        contestants |= torch_encoder(_MODEL.value, length, _BATCH_SIZE.value, threads)
    else:
        print("without Hugging Face: `pip install torch transformers` for it")
    if keras_bert.is_installed():
        contestants |= keras_bert.encoders(_MODEL.value, length, _BATCH_SIZE.value)
    else:
        print("without KerasHub: `pip install keras-hub` for it")

    times = {name: [] for name in contestants}
    vectors = {}
    for number, (name, encode) in itertools.product(range(1 + _ROUNDS.value), contestants.items()):
        start = time.perf_counter(), time.process_time()
        vectors[name] = encode(sentences)
        times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        print(f"round {number}: {name} {times[name][-1][0]:.2f} s, CPU {times[name][-1][1]:.2f} s", flush=True)

    print(f"{len(sentences)} sentences, at most {length} tokens, float32, {threads} threads")
    print(f"{'medians of a round':36}" + "".join(f"{column.replace('_', ' '):>16}" for column in COLUMNS))
    ours = np.array(times["bert_jax"])
    found = {}
    for name, rounds in times.items():
        first, others = rounds[0], np.array(rounds[1:])
        # Contestants of one round met the same load of the machine.
        ratio = np.median(others / ours[1:], axis=0)
        difference = np.abs(vectors[name] - vectors["bert_jax"]).max()
        values = [*np.median(others, axis=0).tolist(), *ratio.tolist(), first[0], float(difference)]
        found[name] = dict(zip(COLUMNS, values, strict=True))
        print(f"{name:36}" + "".join(f"{found[name][column]:>16.3g}" for column in COLUMNS))
    results.add(
        _OUTPUT_FILE.value,
        {
            "model": Path(_MODEL.value).name,
            "sentences": len(sentences),
            "max_seq_length": length,
            "batch_size": _BATCH_SIZE.value,
            "threads": threads,
            "rounds": _ROUNDS.value,
            "results": found,
        },
    )


if __name__ == "__main__":
    app.run(main)
