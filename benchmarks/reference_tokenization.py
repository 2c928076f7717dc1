"""The rules of google-research/bert's FullTokenizer, followed step by step: a yardstick for exactness and for speed."""

import unicodedata

_IDEOGRAPH_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_ASCII_SYMBOL_BLOCKS = ((33, 47), (58, 64), (91, 96), (123, 126))


class ReferenceTokenizer:
    """Tokenizes text with the pieces of `vocabulary`, character by character, without remembering anything."""

    def __init__(self, vocabulary: list[str], do_lower_case: bool):
        self._ids = {piece: i for i, piece in enumerate(vocabulary)}
        self._do_lower_case = do_lower_case

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`."""
        return [self._ids[piece] for word in basic_words(text, self._do_lower_case) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> list[str]:
        if len(word) > 200:
            return ["[UNK]"]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            end = len(word)
            while start < end:
                piece = word[start:end] if start == 0 else "##" + word[start:end]
                if piece in self._ids:
                    break
                end -= 1
            if start == end:
                return ["[UNK]"]
            pieces.append(piece)
            start = end
        return pieces


def basic_words(text: str, do_lower_case: bool) -> list[str]:
    """The words of `text`, by the rules of the reference's BasicTokenizer."""
    cleaned = []
    for character in text:
        if character == "\0" or character == "\ufffd" or _is_control(character):
            continue
        if _is_whitespace(character):
            cleaned.append(" ")
        elif _lies_in(character, _IDEOGRAPH_BLOCKS):
            cleaned.extend((" ", character, " "))
        else:
            cleaned.append(character)
    words = []
    for word in "".join(cleaned).split():
        if do_lower_case:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join([character for character in decomposed if unicodedata.category(character) != "Mn"])
        apart = []
        for character in word:
            if _lies_in(character, _ASCII_SYMBOL_BLOCKS) or unicodedata.category(character).startswith("P"):
                apart.extend((" ", character, " "))
            else:
                apart.append(character)
        words.extend("".join(apart).split())
    return words


def _is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def _is_whitespace(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def _lies_in(character: str, blocks: tuple[tuple[int, int], ...]) -> bool:
    code_point = ord(character)
    return any(first <= code_point <= last for first, last in blocks)
