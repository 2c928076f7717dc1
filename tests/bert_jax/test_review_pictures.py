import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from bert_jax.review_pictures import MOST_LABELS, OTHERS, confusion_table, scatter


def cells(html):
    """Texts of the rows of a table, which is well-formed."""
    table = ElementTree.fromstring(html)
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def test_a_table_of_two():
    html = confusion_table(["no", "yes"], [[1500, 500], [0, 3]])
    assert cells(html) == [
        ["right \\ predicted", "no", "yes", "sum", "found"],
        ["no", "1,500", "500", "2,000", "75.0%"],
        ["yes", "0", "3", "3", "100.0%"],
    ]
    assert "no predicted as yes: 500 of 2,000 (25.0%)" in html
    shades = re.findall(r"var\(--(\w+)\) (\d+)%", html)
    assert shades == [("train", "48"), ("evaluation", "28"), ("train", "55")], "by the share of the row; none for 0"


def test_a_label_that_does_not_occur():
    assert cells(confusion_table(["a", "b"], [[1, 0], [0, 0]]))[2] == ["b", "0", "0", "0", "-"]


def test_labels_are_escaped():
    html = confusion_table(['<i>"', "&"], [[1, 0], [0, 0]])
    assert cells(html)[1][0] == '<i>"' and "<i>" not in html


def test_of_many_labels_those_confused_most_are_shown():
    names = [f"l{number}" for number in range(MOST_LABELS + 10)]
    counts = 5 * np.eye(len(names), dtype=int)
    counts[np.arange(10, 39), np.arange(11, 40)] = 2  # the first ten have no mistake
    rows = cells(confusion_table(names, counts.tolist()))
    assert [row[0] for row in rows[1:]] == [*names[10:], OTHERS]
    assert rows[-1][-3:] == ["50", "50", "-"]
    total = sum(int(cell) for row in rows[1:] for cell in row[1:-2])
    assert total == counts.sum(), "no example is lost"


def test_points():
    figure = ElementTree.fromstring(scatter([[0, 0.5], [5, 5], [float("nan"), 1]]))
    circles = [(float(one.get("cx")), float(one.get("cy"))) for one in figure.iter("circle")]
    assert len(circles) == 2 and circles[0][0] < circles[1][0] and circles[0][1] > circles[1][1]
    assert circles[1][0] - 50 == pytest.approx(12 + 356 - circles[1][1], abs=0.2), "5, 5 lies on the diagonal"
    assert "differ by 0.25 on average" in figure.find("svg").get("aria-label")


@pytest.mark.parametrize("points, circles", [([], 0), ([[2, 2]], 1), ([[1e9, 1e9 + 1]], 1), ([[0, float("inf")]], 0)])
def test_few_points(points, circles):
    assert scatter(points).count("<circle") == circles
