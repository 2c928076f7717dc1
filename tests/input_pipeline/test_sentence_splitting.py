import pytest
from hypothesis import given
from hypothesis import strategies as st

from input_pipeline.sentence_splitting import split_sentences

# "|" stands where a sentence ends.
LATIN = [
    "It rained.| We stayed in.",
    "Is it?| Yes!| It is.",
    "Dr. Lee met Mrs. Poe at 5 p.m. on Monday.| She left.",
    "He came at 5 p.m.| The door was shut.",
    "See e.g. Figure 2 and i.e. Table 3, cf. Smith vs. Jones.| Next.",
    "J. R. R. Tolkien wrote it.| J. S. Bach did not.",
    "Pi is 3.14, not 3.| It is irrational.",
    "Pi is 3.14159.| Remember that.",
    "The U.S. Army moved.| It left the U.S.| The rest stayed.",
    "Acme Inc. Chairman Poe spoke.| He works at Acme Inc.| He is rich.",
    'She said "Stop!"| He did.',
    '"Stop!" she said.| He did.',
    "He wondered (not for long.)| Then he left.",
    "Wait... what?| Never mind...| Go.",
    "What?!| Really?!",
    "1. The first item of it.| More.",
    "Answer No. 5 was no.| The end.",
    "Visit www.example.com for more.| Write to a.b@c.org.| Thanks.",
    "Use foo.bar() here.| Then call it.",
    "We ship version 2.0.| Released today.",
    "Am 3. Oktober kam er.| Er blieb z.B. Montag und d.h. Dienstag.| Schluss.",
    "Elle est là.| «Bonjour.»| M. Dupont arrive.",
    "¿Qué hora es?| ¡Son las dos!| El Sr. Paz duerme.",
    "No space after the stop.Then it is one.",
    "Ünlü bir kent.| Şehir büyüktür.",
]
OTHERS = [
    "今天下雨。|我们在家。|你呢？|好！",
    "他说：「走吧。」|我们走了。",
    "他说“走吧！”|然后笑了……不停。",
    "圆周率是3.14。|完。",
    "彼は来た。|（本当に？）|はい。",
    "비가 왔다.| 우리는 집에 있었다.| 왜?| 몰라.",
    "यह घर है।| वह पेड़ है।| क्या?| हाँ।",
    "डॉ. शर्मा आए।| वे गए॥१॥| अंत।",
    "هذا بيت.| هل هذا بيت؟| نعم!| انتهى.",
    "یہ گھر ہے۔| وہ درخت ہے۔",
    "Это дом.| А. С. Пушкин писал.| Да!",
    "Αυτό είναι σπίτι.| Ναι.",
    "这是BERT。|It is a model.| 完。",
]


@pytest.mark.parametrize("marked", LATIN + OTHERS)
def test_sentences(marked):
    wanted = [sentence.strip() for sentence in marked.split("|")]
    assert split_sentences(marked.replace("|", "")) == wanted


def test_thai_splits_at_spaces_of_long_enough_text():
    clause = "ประเทศไทยเป็นประเทศที่ตั้งอยู่ในเอเชียตะวันออก"
    assert split_sentences(f"{clause} {clause} นาย ก {clause}") == [clause, clause, f"นาย ก {clause}"]
    assert split_sentences(f"{clause}ๆ {clause}") == [f"{clause}ๆ {clause}"]
    assert split_sentences(f"{clause} 2024 {clause}") == [f"{clause} 2024 {clause}"]


def test_wrapped_lines_are_joined():
    text = (
        "This paragraph was wrapped to a width by\nits author. It goes on here and ends\nsoon.\n\nA new one\nwas begun."
    )
    assert split_sentences(text) == [
        "This paragraph was wrapped to a width by its author.",
        "It goes on here and ends soon.",
        "A new one was begun.",
    ]


def test_breaks_on_purpose_are_kept():
    assert split_sentences("History\nThe town was founded long ago.") == ["History", "The town was founded long ago."]
    assert split_sentences("Title\n=====\n- one thing\n- another thing") == ["Title", "- one thing", "- another thing"]
    long = "word " * 30 + "end"
    assert split_sentences(f"{long}\n{long}") == [long, long]
    assert split_sentences("a\u3000 b\t\tc\r\n\r\nd \n \n") == ["a b c", "d"]
    assert split_sentences(" \n\t\n") == []


@given(st.text(st.sampled_from("aB1 .!?…。।॥؟ก\n\"')」ज\u200b-")))
def test_no_character_is_lost(text):
    sentences = split_sentences(text)
    assert all(sentence == " ".join(sentence.split()) and sentence for sentence in sentences)
    drawn = set("-.")  # lines of these alone may be dropped
    kept = [c for c in "".join(sentences) if not c.isspace() and c not in drawn]
    assert kept == [c for c in text if not c.isspace() and c not in drawn]
