import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from bert_jax.runs_picture import MOST_ROWS, heat_maps, strips
from bert_jax.runs_table import summary, varied


def run(value, warning=None, name="run", **settings):
    found = {"name": name, "settings": settings, "metrics": {"accuracy": value}, "main_metric": "accuracy"}
    return found | ({"warning": warning} if warning else {})


def draw(picture, runs):
    html = picture(runs) if picture is not strips else strips(runs, summary(runs), varied(runs))
    return html, ElementTree.fromstring(html) if html else None


def heats(runs):
    return heat_maps(summary(runs), varied(runs))


def test_every_run_is_a_dot():
    runs = [run(0.5, seed=1), run(0.75, "one class", seed=2, name="<odd>"), run(1.0, seed=3), run(None, seed=4)]
    html, figure = draw(strips, runs)
    circles = list(figure.iter("circle"))
    assert [float(one.get("cx")) for one in circles] == sorted(float(one.get("cx")) for one in circles)
    assert [one.get("class") for one in circles] == ["fine", "warned", "fine"] and "A ring is" in html
    assert circles[1].find("title").text == "<odd> 75.0%: one class"
    x = [float(one.get("cx")) for one in circles]
    assert x[1] == pytest.approx((x[0] + x[2]) / 2, abs=0.1)


def test_the_best_mean_comes_first():
    runs = [run(value, learning_rate=rate, seed=seed) for rate, value in ((1e-5, 0.5), (2e-5, 0.75)) for seed in (1, 2)]
    _, figure = draw(strips, runs)
    names = [one.text for one in figure.iter("text") if one.get("class") == "name"]
    assert names == ["learning rate 2e-05", "learning rate 1e-05"]


def test_equal_scores_and_none():
    assert draw(strips, [run(0.0, seed=1), run(0.0, seed=2)])[0].count("<circle") == 2
    assert strips([run(None)], summary([run(None)]), []) == ""


def test_many_settings():
    html, _ = draw(strips, [run(number / 100, number=number) for number in range(MOST_ROWS + 5)])
    assert html.count("<circle") == MOST_ROWS and f"The best {MOST_ROWS} of {MOST_ROWS + 5} settings are shown." in html


def test_a_grid_is_a_heat_map_for_each_number_of_epochs():
    runs = [
        run(0.5 + rate * 1e4 + batch / 1000 + epochs / 100, learning_rate=rate, train_batch_size=batch,
            num_train_epochs=epochs, seed=seed)
        for rate, batch, epochs, seed in itertools.product((2e-5, 3e-5), (16, 32), (3, 4), (0, 1))
    ]  # fmt: skip
    html, figure = draw(heats, runs)
    assert html.count("<svg") == 2 and "epochs 3" in html and "epochs 4" in html
    rects = list(figure.iter("rect"))
    assert len(rects) == 8 and [one.get("class") for one in rects].count("best") == 1
    best = max(rects, key=lambda one: float(one.get("fill-opacity")))
    assert best.get("class") == "best" and best.find("title").text.startswith("87.2% ± 0.0")


def test_failed_cells_and_grids_of_something_else():
    runs = [
        run(None if rate == 1 else 0.0, learning_rate=rate, train_batch_size=size) for rate in (1, 2) for size in (1, 2)
    ]
    assert heats(runs).count(">failed<") == 2
    assert heats([run(0.5, learning_rate=1), run(0.5, learning_rate=2)]) == ""
    assert heats([one | {"settings": {**one["settings"], "x": place}} for place, one in enumerate(runs)]) == ""
