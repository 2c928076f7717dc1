"""Running text -> sentences, for text that is not written one sentence a line.

The rules look at characters, not at a language setting, so that a corpus may mix languages:

- Marks that end sentences and nothing else (the full stops of Chinese and Japanese, the danda of Indic scripts, the
  Arabic question mark, the Urdu, Ethiopic, Khmer, Burmese and Armenian full stops) always end one.
- ".", "!", "?" and "…" end one before white space, unless the next word begins in lower case, or a "." belongs to an
  abbreviation, an initial, or a short number ("3. Oktober", the number of a list).
- Thai writes no mark; its spaces separate sentences, but also clauses and names. A space between Thai letters ends a
  sentence that has `THAI_SENTENCE` characters by then.
- An empty line ends one; so does a single line break, unless the text was wrapped there.
"""

import re
from collections.abc import Iterator

THAI_SENTENCE = 40  # characters; so single names, and the items of a list, stay together
WIDEST_WRAPPED_LINE = 120  # characters; text with longer lines was not wrapped to a width

_SURE_MARKS = "。！？｡।॥۔؟።။។៕։"
_SURE = frozenset(_SURE_MARKS)
_OPENING = "([{<\"'“‘«„¿¡*_—–-"
_CLOSING = "”’」』】》〉）］｝"  # also where no space follows
_CLOSING_BEFORE_SPACE = _CLOSING + "\"')}\\]»›«“‘*_"
_END = re.compile(
    f"((?:॥[0-9०-९]+(?=॥)|[.!?…{_SURE_MARKS}])+[{_CLOSING}]*)"  # "॥१॥" numbers a verse
    f"(?:[{_CLOSING_BEFORE_SPACE}]*( |$))?"
)
_NEXT_WORD = re.compile(r"\W*(\w+)?")
_THAI = re.compile("[\u0e00-\u0e7f]")
_THAI_SPACE = re.compile("(?<=[\u0e00-\u0e45\u0e47-\u0e7f]) (?=[\u0e00-\u0e7f])")  # not after the sign of repetition
_LIST_ITEM = re.compile(r"([-*•·–]|\d{1,3}[.)])\s")
_RULE = re.compile(r"([-=*~_#+^.])\1{2,}")  # a line that is drawn, not written
_LONGEST_WRAPPED_WORD = 20  # characters; what is longer comes from a script without spaces, and can be broken anywhere


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No sentence ends after these: English; German; French, Spanish, Italian; Hindi.
_ABBREVIATIONS = _words("""
    adm approx ave brig capt cf cmdr col dr e.g ed eds esp fig figs gen gov hon hr i.e lt maj messrs mr mrs ms mt op pp
    prof pt rep rev sen sgt st viz vol vols vs
    abb bzw ca d.h dipl frl ggf hg hrsg inkl nr o.g s.o str u.a u.ä vgl z.b z.t zzgl
    mme mmes mlle mgr ej p.ej sra srta dra ud uds av avda núm sig sigg avv ing dott
    डॉ प्रो पं
""")
# A sentence ends after these, as after initials and short numbers, only before a word that often begins one.
_MAYBE = _words("""
    a.d a.m b.c co corp etc inc jr ltd no nos p.m ph.d sr u.k u.n u.s u.s.a usw
    jan feb mar apr jun jul aug sep sept oct nov dec ft kg lb lbs max min oz
""")
_STARTERS = _words("""
    a after all also although an and another as at because before both but by during each every few for from he her
    here his how however i if in it its many most my not now of on once one only or other our over several she since so
    some such that the their then there these they this those though through thus to under until we what when where
    while who why with yet you your
    das dem den der des die dies diese dieser ein eine er es im ihr nach sie und von wir zu
    au ce ces cette dans des elle elles en et il ils la le les leur nous pour sur un une vous
    al con del el ella ellos esta este las lo los para pero por se su una y os um uma
""")


def split_sentences(text: str) -> list[str]:
    """The sentences of `text` in order; white space of any kind becomes single spaces, and no sentence is empty."""
    return [sentence for line in _lines(text) for sentence in _split_line(line)]


def _lines(text: str) -> Iterator[str]:
    """The lines as they were meant: what was only wrapped to a width is put together again."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [words for line in paragraph.split("\n") if (words := " ".join(line.split()))]
        lines = [line for line in lines if not _RULE.fullmatch(line)]
        width = max(map(len, lines), default=0)
        start = 0
        for end in range(1, len(lines) + 1):
            if end == len(lines) or not _is_wrapped(lines[end - 1], lines[end], width):
                yield " ".join(lines[start:end])
                start = end


def _is_wrapped(line: str, following: str, width: int) -> bool:
    """Whether a break was forced: the next word would not have fitted into the width of the paragraph."""
    if width > WIDEST_WRAPPED_LINE or _LIST_ITEM.match(following):
        return False
    word = following.partition(" ")[0]
    return len(line) + 1 + min(len(word), _LONGEST_WRAPPED_WORD) > width


def _split_line(line: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(line):
        gap = match[2]
        if not _SURE.isdisjoint(match[1]):
            end = match.end(1) if gap is None else match.end()
        elif gap and _is_end(line, start, match):
            end = match.end()
        else:
            continue
        yield from _split_thai(line[start:end].strip())
        start = end
    if rest := line[start:].strip():
        yield from _split_thai(rest)


def _is_end(line: str, start: int, match: re.Match) -> bool:
    """Whether the sentence that began at `start` ends with the marks of `match`, which white space follows."""
    next_word = _NEXT_WORD.match(line, match.end())[1] or ""
    if next_word[:1].islower():
        return False
    if match[1][0] != "." or match[1][1:2] in (".", "!", "?", "…"):
        return True
    word_start = line.rfind(" ", start, match.start()) + 1 or start
    word = line[word_start : match.start()].lstrip(_OPENING).lower()
    if word in _ABBREVIATIONS:
        return False
    is_label = (len(word) == 1 and word.isalpha()) or (len(word) <= 2 and word.isdigit())
    if is_label and word_start == start:
        return False
    is_acronym = "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))
    if is_label or is_acronym or word in _MAYBE:
        return next_word.lower() in _STARTERS
    return True


def _split_thai(sentence: str) -> Iterator[str]:
    start = 0
    if _THAI.search(sentence):
        for match in _THAI_SPACE.finditer(sentence):
            if match.start() - start >= THAI_SENTENCE:
                yield sentence[start : match.start()]
                start = match.end()
    yield sentence[start:]
