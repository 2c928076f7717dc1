"""Text -> words, by the rules of BERT's reference BasicTokenizer (google-research/bert, tokenization.py).

The reference walks over the whole text several times, character by character. Here the text is only cut at white space
and around ideographs; every other rule looks at one such raw word alone, so that what it becomes can be remembered.
"""

import re
import unicodedata

LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # has no place in UTF-8, but JSON can bring it

# The blocks that the reference calls Chinese: unified ideographs with their extensions A to E and the compatibility
# ideographs, but neither kana nor Hangul.
_IDEOGRAPH = re.compile(
    "([\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f])"
)
# Control characters, which are dropped, but at which str.split would cut.
_CONTROL_WHITESPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def split_raw_words(text: str) -> list[str]:
    """Cuts `text` at white space and around ideographs. All other characters are still there."""
    text = _CONTROL_WHITESPACE.sub("", text)
    if not text.isascii():
        text = " ".join(_IDEOGRAPH.split(text))
    return text.split()


def split_raw_word(word: str, do_lower_case: bool) -> list[str]:
    """The words in one of `split_raw_words`: lower-cased and without accents if asked for, cut around punctuation."""
    if word.isascii() and word.isalnum():  # most words: nothing below would change them
        return [word.lower() if do_lower_case else word]
    word = word.translate(_WITHOUT_CONTROLS)
    if do_lower_case:  # before the cut at punctuation: the form of a final sigma depends on what follows
        word = unicodedata.normalize("NFD", word.lower()).translate(_WITHOUT_ACCENTS)
    return word.translate(_PUNCTUATION_APART).split()


def is_punctuation(character: str) -> bool:
    """Whether the character is a word of its own: Unicode's category P, and all ASCII symbols ("$", "+", "^", ...)."""
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def is_ideograph(character: str) -> bool:
    """Whether the character is a word of its own because it lies in a block of ideographs."""
    return _IDEOGRAPH.match(character) is not None


class _Table(dict):
    """A table for str.translate that asks `rule` once for each character."""

    def __init__(self, rule):
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = replacement = self._rule(chr(code_point))
        return replacement


def _without_control(character: str) -> str:
    # U+FFFD stands for bytes that could not be decoded. Tab, newline and return are cut at before this is asked.
    return "" if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf") else character


_WITHOUT_CONTROLS = _Table(_without_control)
_WITHOUT_ACCENTS = _Table(lambda character: "" if unicodedata.category(character) == "Mn" else character)
_PUNCTUATION_APART = _Table(lambda character: f" {character} " if is_punctuation(character) else character)
