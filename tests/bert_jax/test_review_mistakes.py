import re

from bert_jax.review_mistakes import MOST_CHARACTERS, marked_text, mistakes_list


def mistake(right="a", predicted="b", confidence=0.75, content="some text", marks=()):
    texts = [{"title": "text", "text": content, "marks": list(marks)}]
    facts = {"id": "7", "where": "dev.tsv:8", "right": right, "predicted": predicted, "confidence": confidence}
    return {**facts, "texts": texts}


def test_a_text_without_marks():
    assert marked_text("a <b> & c", []) == "a &lt;b&gt; &amp; c" and marked_text("", []) == ""


def test_marks_that_lie_apart():
    html = marked_text("EU rejects Bonn", [[11, 15, "predicted", "LOC"], [0, 2, "right", "ORG"]])
    assert html == (
        '<mark class="right">EU</mark><span class="tag">right ORG</span> rejects '
        '<mark class="predicted">Bonn</mark><span class="tag">predicted LOC</span>'
    )


def test_marks_that_overlap_are_split():
    html = marked_text("0123456789", [[2, 6, "right", ""], [4, 8, "predicted", ""]])
    assert html == ('01<mark class="right">23</mark><mark class="both">45</mark><mark class="predicted">67</mark>89')


def test_the_same_place_with_two_labels():
    html = marked_text("EU", [[0, 2, "right", "ORG"], [0, 2, "predicted", "LOC"]])
    assert html == '<mark class="both">EU</mark><span class="tag">right ORG, predicted LOC</span>'


def test_marks_without_room_vanish():
    assert marked_text("ab", [[1, 1, "right", "x"], [5, 9, "right", "y"], [-3, 1, "both", ""]]) == (
        '<mark class="both">a</mark>b'
    )


def test_a_long_text_is_cut():
    html = marked_text("x" * (MOST_CHARACTERS + 1234), [[MOST_CHARACTERS + 1, MOST_CHARACTERS + 9, "right", ""]])
    assert html == "x" * MOST_CHARACTERS + ' <span class="cut">… and 1,234 characters more</span>'


def test_a_list():
    html = mistakes_list([mistake(), mistake(right='"<x>', confidence=None, marks=[[0, 4, "right", ""]])])
    assert "confidence <b>75.0%</b>" in html and html.count("confidence") == 1
    assert "dev.tsv:8" in html and "id 7" in html and "&quot;&lt;x&gt;" in html and "<x>" not in html
    assert html.count("<li ") == 2 and 'class="key"' in html
    assert 'class="key"' not in mistakes_list([mistake()]) and mistakes_list([]) == ""


def menus(html):
    return {name: re.findall('value="(.*?)"', body) for name, body in re.findall('name="(.*?)">(.*?)</select>', html)}


def test_menus_are_offered_for_labels_and_not_for_answers():
    labels = mistakes_list([mistake("a", "b"), mistake("b", "a"), mistake("a", "c"), mistake("a", "b")])
    assert menus(labels) == {"right": ["a", "b"]}, "three predicted of four are no labels"
    answers = mistakes_list([mistake(str(number), "same") for number in range(10)])
    assert menus(answers) == {}
