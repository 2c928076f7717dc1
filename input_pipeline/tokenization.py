"""Text -> token ids: WordPiece exactly as BERT's reference, or a SentencePiece model.

WordPiece follows FullTokenizer of google-research/bert (tokenization.py) for every code point. What makes it fast is
that the ids of a raw word depend on nothing around it: they are computed once and kept in a bounded cache.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from input_pipeline import files
from input_pipeline.basic_tokenization import LONE_SURROGATE, split_raw_word, split_raw_words
from input_pipeline.errors import UserError
from input_pipeline.tokenizer_json import (
    check_accents,
    check_tokenizer_config,
    parse_object,
    parse_tokenizer_json,
    true_or_false,
)
from input_pipeline.vocabulary import (
    SETTINGS_FILE,
    SPECIAL_TOKENS,
    TOKENIZER_JSON_FILE,
    VOCABULARY_FILES,
    parse_vocabulary,
    save_vocabulary,
)

MAX_CHARACTERS_PER_WORD = 200  # a longer word is one [UNK] (reference: max_input_chars_per_word)
_CACHED_WORDS = 1 << 17  # about 30 MB
_LONGEST_CACHED_WORD = 64  # longer ones (addresses, whole Thai sentences) hardly come twice, and would fill the memory

_logger = logging.getLogger(__name__)


class Tokenizer:
    """What both kinds of tokenizer have in common.

    Attributes:
      kind: "wordpiece" or "sentencepiece".
      do_lower_case: whether text is lower-cased first; None where that is left to the SentencePiece model.
      vocab_size: number of ids.
      pad_id, unk_id, cls_id, sep_id: ids of the special tokens, found by name. mask_id: the same, or None without one.
      special_ids: frozenset of these ids.
      is_continuation: bool [vocab_size], True for a piece that goes on with the word before it.
      fingerprint: hexadecimal SHA-256 that two tokenizers share only if they give the same ids.
    """

    kind: str
    vocab_size: int
    is_continuation: np.ndarray

    def __init__(self, special_ids: dict[str, int | None], do_lower_case: bool | None, content: bytes):
        missing = [name for name in SPECIAL_TOKENS if special_ids[name] is None and name != "[MASK]"]
        if missing:
            raise UserError(f"the vocabulary has no {' and no '.join(missing)}, which BERT needs")
        self.pad_id = special_ids["[PAD]"]
        self.unk_id = special_ids["[UNK]"]
        self.cls_id = special_ids["[CLS]"]
        self.sep_id = special_ids["[SEP]"]
        self.mask_id = special_ids["[MASK]"]
        self.special_ids = frozenset(special_ids.values()) - {None}
        self.do_lower_case = do_lower_case
        self.fingerprint = hashlib.sha256(f"{self.kind} {do_lower_case}\n".encode() + content).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`, without [CLS] and [SEP]. Special tokens typed in the text are text."""
        raise NotImplementedError

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text."""
        return [self.encode(text) for text in texts]

    def encode_with_masks(self, text: str) -> list[int]:
        """`encode`, except that each "[MASK]" typed in `text` becomes the mask token, to be filled in.

        Raises:
          UserError: when the vocabulary has no mask token.
        """
        if self.mask_id is None:
            raise UserError("the vocabulary has no [MASK]")
        first, *others = self.encode_batch(text.split("[MASK]"))
        return first + [i for ids in others for i in (self.mask_id, *ids)]

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text` as they stand in the vocabulary."""
        return self.convert_ids_to_tokens(self.encode(text))

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's piece for each id."""
        raise NotImplementedError

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The id of each piece. Raises: KeyError for what is not in the vocabulary."""
        raise NotImplementedError

    def save(self, folder: str) -> str:
        """Writes what `load_tokenizer(folder)` needs for the same tokenizer, and returns the vocabulary's path."""
        raise NotImplementedError


class WordPieceTokenizer(Tokenizer):
    """Words by the rules of the reference, each cut into the longest pieces of the vocabulary from left to right.

    Args:
      vocabulary: the piece of each id; pieces that continue a word begin with "##". Of equal pieces the last counts.
      do_lower_case: lower-case and strip accents first (an "uncased" vocabulary).

    Raises:
      UserError: when [PAD], [UNK], [CLS] or [SEP] is missing.
    """

    kind = "wordpiece"

    def __init__(self, vocabulary: list[str], do_lower_case: bool = True):
        self._vocabulary = vocabulary
        self._ids = {piece: i for i, piece in enumerate(vocabulary)}
        special_ids = {name: self._ids.get(name) for name in SPECIAL_TOKENS}
        super().__init__(special_ids, bool(do_lower_case), self._content())
        self.vocab_size = len(vocabulary)
        self.is_continuation = np.array([piece.startswith("##") for piece in vocabulary])
        continuations = {piece[2:]: i for piece, i in self._ids.items() if piece.startswith("##")}
        self._initial = self._ids, _longest_by_first_character(self._ids)
        self._continuation = continuations, _longest_by_first_character(continuations)
        self._ids_of_word = _WordCache(self._encode_raw_word)

    def encode(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._ids_of_word.__getitem__, split_raw_words(text))))

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return list(map(self._vocabulary.__getitem__, ids))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        return list(map(self._ids.__getitem__, tokens))

    def save(self, folder: str) -> str:
        return save_vocabulary(folder, self.kind, self._content(), self.do_lower_case)

    def __reduce__(self):
        return WordPieceTokenizer, (self._vocabulary, self.do_lower_case)

    def _content(self) -> bytes:
        return "".join(f"{piece}\n" for piece in self._vocabulary).encode()

    def _encode_raw_word(self, raw_word: str) -> tuple[int, ...]:
        return tuple(chain.from_iterable(map(self._encode_word, split_raw_word(raw_word, self.do_lower_case))))

    def _encode_word(self, word: str) -> list[int]:
        end_of_word = len(word)
        if end_of_word > MAX_CHARACTERS_PER_WORD:
            return [self.unk_id]
        pieces = []
        ids, longest = self._initial
        start = 0
        while start < end_of_word:
            for end in range(min(end_of_word, start + longest.get(word[start], 0)), start, -1):
                piece = ids.get(word[start:end])
                if piece is not None:
                    break
            else:
                return [self.unk_id]
            pieces.append(piece)
            start = end
            ids, longest = self._continuation
        return pieces


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model; its own rules decide about case, white space and compatible characters.

    Args:
      model: the content of the model file.
      do_lower_case: True to lower-case the text before the model sees it; None and False leave it alone.

    Raises:
      UserError: when `model` is none, or lacks a padding, unknown, [CLS] or [SEP] piece (other usual names are known).
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes, do_lower_case: bool | None = None):
        import sentencepiece  # not needed, so not loaded, for WordPiece

        self._model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(num_threads=1)
            self._processor.load_from_serialized_proto(model)
        except RuntimeError:
            raise UserError("the file holds no SentencePiece model") from None
        self.vocab_size = self._processor.get_piece_size()
        names = [self._processor.id_to_piece(i) for i in range(self.vocab_size)]
        self._ids = {name: i for i, name in enumerate(names)}
        special_ids = {
            "[PAD]": self._special_id(self._processor.pad_id(), "[PAD]", "<pad>"),
            "[UNK]": self._special_id(self._processor.unk_id()),
            "[CLS]": self._special_id(self._processor.bos_id(), "[CLS]", "<cls>", "<s>"),
            "[SEP]": self._special_id(self._processor.eos_id(), "[SEP]", "<sep>", "</s>"),
            "[MASK]": self._special_id(-1, "[MASK]", "<mask>"),
        }
        super().__init__(special_ids, do_lower_case, model)
        self.is_continuation = np.array([not name.startswith("▁") for name in names])
        self.is_continuation[list(self.special_ids)] = False
        typeable = [i for i in self.special_ids if not (self._processor.is_control(i) or self._processor.is_unknown(i))]
        if typeable:
            self._processor = sentencepiece.SentencePieceProcessor(
                model_proto=_as_control_pieces(model, typeable), num_threads=1
            )

    def encode(self, text: str) -> list[int]:
        if self.do_lower_case:
            text = text.lower()
        return self._processor.encode(LONE_SURROGATE.sub("\ufffd", text))

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return list(map(self._processor.id_to_piece, ids))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        return list(map(self._ids.__getitem__, tokens))

    def save(self, folder: str) -> str:
        return save_vocabulary(folder, self.kind, self._model, self.do_lower_case)

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model, self.do_lower_case)

    def _special_id(self, declared: int, *names: str) -> int | None:
        by_name = (self._ids[name] for name in names if name in self._ids)
        return next(by_name, declared if declared >= 0 else None)


def load_tokenizer(vocab_file: str, do_lower_case: bool | None = None) -> Tokenizer:
    """The tokenizer of a vocab.txt, of a SentencePiece model, of a tokenizer.json, or of a folder that holds one.

    Args:
      vocab_file: path of the file or folder. A name in .json means a tokenizer.json; one in .model, or binary content,
        means SentencePiece.
      do_lower_case: None for what tokenizer_config.json beside the file says, else the model's own rules for
        SentencePiece; for WordPiece else what a tokenizer.json there says, else True.

    Raises:
      UserError: when there is no such file, it is no vocabulary for BERT, or a file beside it asks for rules that
        WordPiece does not have here.
    """
    path = _find_vocabulary(vocab_file)
    content = files.read_bytes(path, "--vocab_file")
    settings_content, json_content = (_content_beside(path, name) for name in (SETTINGS_FILE, TOKENIZER_JSON_FILE))
    if path.suffix == ".json":
        json_content = content
    try:
        settings = parse_object(settings_content, f"{SETTINGS_FILE} beside it") if settings_content is not None else {}
        if do_lower_case is None:
            do_lower_case = true_or_false(settings.get("do_lower_case"), "do_lower_case", SETTINGS_FILE)
        if path.suffix == ".model" or b"\0" in content[:1024]:
            return SentencePieceTokenizer(content, do_lower_case)
        check_tokenizer_config(settings, SETTINGS_FILE)
        strip_accents = {SETTINGS_FILE: settings.get("strip_accents")}
        vocabulary = None if path.suffix == ".json" else parse_vocabulary(content, str(path))
        if json_content is not None:
            described = parse_tokenizer_json(json_content, TOKENIZER_JSON_FILE)
            vocabulary = described.vocabulary if vocabulary is None else vocabulary
            do_lower_case = described.do_lower_case if do_lower_case is None else do_lower_case
            strip_accents[TOKENIZER_JSON_FILE] = described.strip_accents
        if do_lower_case is None:
            _hint_at_cased_vocabulary(vocabulary, str(path))
            do_lower_case = True
        for name, setting in strip_accents.items():
            check_accents(setting, do_lower_case, name)
        return WordPieceTokenizer(vocabulary, do_lower_case)
    except UserError as error:
        raise UserError(f"--vocab_file={path}: {error}") from None


def _find_vocabulary(vocab_file: str) -> Path:
    path = files.reach(vocab_file, "--vocab_file")
    with files.user_errors(path, "--vocab_file"):
        if not path.is_dir():
            return path
        found = [path / name for name in VOCABULARY_FILES if (path / name).exists()]
    if not found:
        raise UserError(f"--vocab_file: the folder {path} holds no {' or '.join(VOCABULARY_FILES)}")
    return found[0]


def _content_beside(path: Path, name: str) -> bytes | None:
    """The content of the file `name` in the folder of `path`; None without one."""
    with files.user_errors(path, "--vocab_file"):
        if not (path.parent / name).exists():
            return None
    return files.read_bytes(path.parent / name, "--vocab_file")


def _hint_at_cased_vocabulary(vocabulary: list[str], name: str) -> None:
    capitalised = sum(piece != piece.lower() and not piece.startswith("[") for piece in vocabulary)
    if capitalised > len(vocabulary) / 10:  # BERT's cased vocabularies: 29% and 16%, the others: 0.01% at most
        _logger.warning(
            "%s: %d of %d pieces hold capital letters, but text is lower-cased unless --do_lower_case=false is given",
            name,
            capitalised,
            len(vocabulary),
        )


class _WordCache(dict):
    """Raw word -> ids, asked from `encode` at the first look-up; emptied when full."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]]):
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._encode(word)
        if len(word) <= _LONGEST_CACHED_WORD:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[word] = ids
        return ids


def _longest_by_first_character(pieces: Iterable[str]) -> dict[str, int]:
    """Bounds the search for the longest match: no piece that begins with the character is longer."""
    longest: dict[str, int] = {}
    for piece in pieces:
        if len(piece) > longest.get(piece[:1], 0):
            longest[piece[:1]] = len(piece)
    return longest


def _as_control_pieces(model: bytes, ids: Iterable[int]) -> bytes:
    """The model with pieces `ids` made control pieces, which no text can produce, however it is typed."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for i in ids:
        proto.pieces[i].type = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
    return proto.SerializeToString()
