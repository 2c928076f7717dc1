"""Vocabulary files, and the training of new vocabularies from text.

The merges of a WordPiece vocabulary are found by the sentencepiece library's byte-pair-encoding trainer, from counted
words that were split as the tokenizer will split them. (Google never published the trainer of BERT's own vocabularies.)
"""

import io
import logging
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from input_pipeline import files
from input_pipeline.basic_tokenization import (
    LONE_SURROGATE,
    is_ideograph,
    is_punctuation,
    split_raw_word,
    split_raw_words,
)
from input_pipeline.errors import UserError

WORDPIECE_FILE = "vocab.txt"
SENTENCEPIECE_FILE = "sentencepiece.model"
TOKENIZER_JSON_FILE = "tokenizer.json"  # Hugging Face's, with a WordPiece vocabulary
VOCABULARY_FILES = (WORDPIECE_FILE, SENTENCEPIECE_FILE, TOKENIZER_JSON_FILE)  # in a folder the first one counts
SETTINGS_FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTER_COVERAGE = 0.9995  # a trained vocabulary knows the characters that make up this share of the text
_MOST_COUNTED_WORDS = 1_000_000  # about 400 MB, before and after the cut at punctuation
_MOST_SAMPLED_CHARACTERS = 30_000_000  # SentencePiece's trainer takes about 20 bytes for each
_LONGEST_WORD = 200
_LONGEST_SENTENCE = 2000
_PRIVATE_USE = range(0xF0000, 0x10FFFE)
LARGEST_SIZE = 2**20  # several times the vocabularies of a hundred languages
_NO_TEXT = "--vocab_size: the input has no words to train a vocabulary on"

_logger = logging.getLogger(__name__)


def read_vocabulary(path: str) -> list[str]:
    """The pieces of a vocab.txt, in the order of their ids. Raises: UserError, as `parse_vocabulary` does."""
    return parse_vocabulary(files.read_bytes(path, "--vocab_file"), str(path))


def parse_vocabulary(content: bytes, name: str) -> list[str]:
    """The pieces in `content`, one a line: the id of a piece is its line number, counted from 0.

    Lines end in "\\n" or "\\r\\n" and nowhere else: a piece may itself be U+2028 or another separator, or empty. White
    space around a piece is not part of it (as in the reference). Of equal pieces the last one counts, which is logged.

    Args:
      content: UTF-8, with or without a byte order mark.
      name: where it came from, for messages.

    Raises:
      UserError: when the content is not UTF-8.
    """
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}, line {line}: not UTF-8; a vocabulary has one piece a line, in UTF-8") from None
    if not lines[-1]:
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    vocabulary = [line.strip() or line for line in lines]
    repeated = [piece for piece, count in Counter(vocabulary).items() if count > 1 and piece]
    if repeated:
        _logger.warning(
            "%s: %d pieces stand on several lines (the last one counts), such as %r", name, len(repeated), repeated[0]
        )
    return vocabulary


def save_vocabulary(folder: str, kind: str, content: bytes, do_lower_case: bool | None) -> str:
    """Writes a vocabulary of `kind` ("wordpiece", "sentencepiece") with its settings; returns the vocabulary's path."""
    path = files.as_path(folder) / (WORDPIECE_FILE if kind == "wordpiece" else SENTENCEPIECE_FILE)
    files.write_json_atomic(path.parent / SETTINGS_FILE, {"kind": kind, "do_lower_case": do_lower_case})
    files.write_bytes_atomic(path, content)
    return os.fspath(path)


def train_vocabulary(kind: str, texts: Iterable[str], vocab_size: int, do_lower_case: bool, output_folder: str) -> str:
    """Trains a vocabulary and writes it with its settings, so that `load_tokenizer(output_folder)` finds both.

    The result depends on nothing but the arguments. Memory stays bounded, however long `texts` is.

    Args:
      kind: "wordpiece" or "sentencepiece" (a unigram model).
      texts: sentences, paragraphs or whole documents.
      vocab_size: number of pieces, with the five special tokens, which come first.
      do_lower_case: make an uncased vocabulary (SentencePiece: by case folding, a rule inside the model).

    Returns:
      The path of the vocabulary.

    Raises:
      UserError: when `texts` is too small for so many pieces, or has too many different characters for so few; and
        when `vocab_size` is above `LARGEST_SIZE`.
    """
    if vocab_size > LARGEST_SIZE:
        raise UserError(f"--vocab_size={vocab_size} is too large: at most {LARGEST_SIZE}; about 30000 is usual")
    if kind == "wordpiece":
        pieces = _train_wordpiece(_count_words(texts, do_lower_case), vocab_size)
        content = "".join(f"{piece}\n" for piece in pieces).encode()
        return save_vocabulary(output_folder, kind, content, do_lower_case)
    if kind == "sentencepiece":
        return save_vocabulary(output_folder, kind, _train_sentencepiece(texts, vocab_size, do_lower_case), None)
    raise UserError(f"a vocabulary is of kind wordpiece or sentencepiece, not {kind!r}")


def _count_words(texts: Iterable[str], do_lower_case: bool) -> Counter[str]:
    """How often each word comes; of more words than fit into memory, the rarest are forgotten."""
    raw_words: Counter[str] = Counter()
    for text in texts:
        raw_words.update(split_raw_words(text))
        if len(raw_words) > _MOST_COUNTED_WORDS:
            raw_words = _most_frequent_half(raw_words)
    words: Counter[str] = Counter()
    for raw_word, count in raw_words.items():
        for word in split_raw_word(raw_word, do_lower_case):
            if len(word) <= _LONGEST_WORD and not LONE_SURROGATE.search(word):
                words[word] += count
    return words


def _most_frequent_half(words: Counter[str]) -> Counter[str]:
    limit = 1
    while len(words) > _MOST_COUNTED_WORDS // 2:
        words = Counter({word: count for word, count in words.items() if count > limit})
        limit *= 2
    return words


def _train_wordpiece(words: Counter[str], vocab_size: int) -> list[str]:
    """Special tokens, then characters, the most frequent first, then merged pieces in the order of merging."""
    if not words:
        raise UserError(_NO_TEXT)
    forms, needed = _character_forms(words)
    smallest = len(SPECIAL_TOKENS) + needed
    if vocab_size < smallest:
        raise UserError(f"--vocab_size={vocab_size} is too small for the characters of this text: at least {smallest}")
    room = vocab_size - len(SPECIAL_TOKENS)
    # Beyond the characters that are needed, the rare ones share an eighth of the room, a little more than in BERT's own
    # vocabularies, and have what the merges leave (Chinese words, of one character, leave most).
    merges = _byte_pair_merges(words, forms, room)
    forms = forms[: max(needed, room // 8, room - len(merges))]
    pieces = SPECIAL_TOKENS + forms + merges[: room - len(forms)]
    if len(pieces) < vocab_size:
        raise UserError(f"--vocab_size={vocab_size} is too large for this text: at most {len(pieces)}")
    return pieces


def _character_forms(words: Counter[str]) -> tuple[list[str], int]:
    """The pieces of one character, those of the most frequent first, and how many of them CHARACTER_COVERAGE needs."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    forms: list[str] = []
    needed = covered = 0
    goal = CHARACTER_COVERAGE * characters.total()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        forms.append(character)
        if not (is_punctuation(character) or is_ideograph(character)):  # these are words and continue none
            forms.append(f"##{character}")
        if covered < goal:
            needed = len(forms)
        covered += count
    return forms, needed


def _byte_pair_merges(words: Counter[str], forms: list[str], most: int) -> list[str]:
    """Up to `most` pieces of several characters, in the order of merging.

    To the trainer each form is a private-use character of its own: so "t" at the start of a word and "##t" are two
    symbols from the beginning, and no character has a meaning of the trainer's.
    """
    symbols = {form: chr(code) for form, code in zip(forms, _PRIVATE_USE)}
    rows = []
    for word, count in sorted(words.items()):
        spelling = [word[0], *(f"##{character}" for character in word[1:])]
        if len(word) > 1 and symbols.keys() >= set(spelling):
            rows.append("".join(symbols[form] for form in spelling) + f"\t{count}")
    if not rows:
        return []
    model = _sentencepiece_train(
        iter(rows),
        input_format="tsv",
        model_type="bpe",
        vocab_size=most + len(forms) + 1,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        split_by_unicode_script=False,
        split_by_number=False,
        unk_id=0,
        pad_id=-1,
    )
    characters = {symbol: form for form, symbol in symbols.items()}
    merges = []
    for piece in _pieces(model)[1:]:
        if len(piece) > 1:
            first, *others = (characters[symbol] for symbol in piece)
            merges.append(first + "".join(form[2:] for form in others))
    return merges[:most]


def _train_sentencepiece(texts: Iterable[str], vocab_size: int, do_lower_case: bool) -> bytes:
    sentences = (
        LONE_SURROGATE.sub("", text[start : start + _LONGEST_SENTENCE])
        for text in texts
        for start in range(0, len(text), _LONGEST_SENTENCE)
    )
    pad, unknown, *controls = SPECIAL_TOKENS
    try:
        return _sentencepiece_train(
            _sample(sentences),
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=CHARACTER_COVERAGE,
            normalization_rule_name="nmt_nfkc_cf" if do_lower_case else "nmt_nfkc",
            pad_id=0,
            pad_piece=pad,
            unk_id=1,
            unk_piece=unknown,
            control_symbols=controls,
        )
    except RuntimeError as error:
        if largest := re.search(r"value <= (\d+)", str(error)):
            problem = f"large for this text: at most {largest[1]}"
        elif smallest := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            problem = f"small for the characters of this text: at least {smallest[1]}"
        elif "sentences_.empty()" in str(error) or "all_chars_count" in str(error):
            raise UserError(_NO_TEXT) from None
        else:
            raise
        raise UserError(f"--vocab_size={vocab_size} is too {problem}") from None


def _sample(sentences: Iterable[str]) -> Iterator[str]:
    """All sentences, or of a long text as large a share as fits into memory, drawn without regard to their place."""
    draw = random.Random(0)
    share, size = 1.0, 0
    kept: list[tuple[float, str]] = []
    for sentence in sentences:
        number = draw.random()
        if number < share:
            kept.append((number, sentence))
            size += len(sentence)
        while size > _MOST_SAMPLED_CHARACTERS:
            share /= 2
            kept = [(number, sentence) for number, sentence in kept if number < share]
            size = sum(len(sentence) for _, sentence in kept)
    return (sentence for _, sentence in kept)


def _sentencepiece_train(sentences: Iterator[str], **options) -> bytes:
    import sentencepiece  # not needed, so not loaded, to read a vocab.txt

    failures = []

    def watched_sentences() -> Iterator[str]:
        try:
            yield from sentences
        except BaseException as error:  # the library would pass on no more than its text
            failures.append(error)
            raise

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=watched_sentences(),
            model_writer=model,
            max_sentence_length=4 * _LONGEST_SENTENCE,
            bos_id=-1,
            eos_id=-1,
            num_threads=4,  # the order of floating-point sums depends on it
            minloglevel=2,
            **options,
        )
    except RuntimeError:
        if failures:
            raise failures[0] from None
        raise
    return model.getvalue()


def _pieces(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
