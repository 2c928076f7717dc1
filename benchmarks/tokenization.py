"""Tokenizing speed on one core, as MB of UTF-8 a second and as a multiple of the reference's rules followed literally.

    python benchmarks/tokenization.py --vocab_file=vocab.txt --input_file=text.txt [--do_lower_case=false]

Without files: the topics of Python's own documentation, and a vocabulary trained on them. `tokenizers` is measured too
when it is installed.
"""

import os
import tempfile
import time
from pydoc_data.topics import topics

from absl import app, flags
from reference_tokenization import ReferenceTokenizer

from input_pipeline.tokenization import WordPieceTokenizer, load_tokenizer
from input_pipeline.vocabulary import train_vocabulary

_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "A vocab.txt.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "Text in UTF-8.")
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "Whether the vocabulary is uncased.")


def main(_):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if _INPUT_FILE.value:
        with open(_INPUT_FILE.value, encoding="utf-8", newline="\n") as file:
            texts = file.read().split("\n")
    else:
        texts = "\n".join(topics.values()).split("\n")
    megabytes = sum(len(text.encode()) + 1 for text in texts) / 1e6

    with tempfile.TemporaryDirectory() as folder:
        vocab_file = _VOCAB_FILE.value
        if not vocab_file:
            vocab_file = train_vocabulary("wordpiece", texts, 4000, _DO_LOWER_CASE.value, folder)
        tokenizer = load_tokenizer(vocab_file, _DO_LOWER_CASE.value)
    vocabulary = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))

    def first_time():
        WordPieceTokenizer(vocabulary, _DO_LOWER_CASE.value).encode_batch(texts)

    reference = ReferenceTokenizer(vocabulary, _DO_LOWER_CASE.value)
    contestants = {
        "reference rules, step by step": lambda: [reference.encode(text) for text in texts],
        "encode_batch, no word seen before": first_time,
        "encode_batch, words seen before": lambda: tokenizer.encode_batch(texts),
        "tokenize, words seen before": lambda: [tokenizer.tokenize(text) for text in texts],
    }
    try:
        from tokenizers.implementations import BertWordPieceTokenizer
    except ImportError:
        print("(tokenizers is not installed)")
    else:
        rust = BertWordPieceTokenizer({piece: i for i, piece in enumerate(vocabulary)}, lowercase=_DO_LOWER_CASE.value)
        contestants["tokenizers, encode_batch"] = lambda: rust.encode_batch(texts, add_special_tokens=False)

    assert tokenizer.encode_batch(texts) == [reference.encode(text) for text in texts]
    baseline = None
    print(f"{megabytes:.2f} MB of text, {tokenizer.vocab_size} pieces")
    for name, contestant in contestants.items():
        speed = megabytes / _best_seconds(contestant)
        baseline = baseline or speed
        print(f"{name:36}{speed:8.2f} MB/s{speed / baseline:8.1f} x")


def _best_seconds(call) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


if __name__ == "__main__":
    app.run(main)
