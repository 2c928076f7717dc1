import json
import re

import numpy as np
import pytest

from bert_jax.report_chart import (
    BOTTOM,
    FULL_CURVE_POINTS,
    LEFT,
    RIGHT,
    TOP,
    draw,
    evaluation_series,
    logarithmic_ticks,
    nice_ticks,
    smooth,
    thin_out,
    training_series,
)


def points(figure):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure)[1])


def test_a_short_curve_is_drawn_in_full():
    kept, edges = thin_out(np.zeros(FULL_CURVE_POINTS))
    assert list(kept) == list(edges) == list(range(FULL_CURVE_POINTS))


def test_a_long_curve_keeps_its_ends_and_every_spike():
    values = np.random.default_rng(0).normal(size=100_000)
    spikes = [5, 777, 31_313, 99_998]
    values[spikes] = [50, -50, 60, -60]
    kept, edges = thin_out(values)
    assert {0, 99_999, *spikes} <= set(kept.tolist())
    assert len(kept) < 700 and np.all(np.diff(kept) > 0)
    assert len(edges) < 350 and np.all(np.diff(edges) > 0) and edges[-1] == 99_999


def test_smoothing_takes_the_mean_of_neighbours_without_the_extremes():
    values = np.random.default_rng(0).normal(size=200)
    at_start, early, late, at_end = smooth(values, 20, np.array([0, 20, 100, 199]))
    assert at_start == pytest.approx(np.mean(sorted(values[:6])[1:-1]))
    assert early == pytest.approx(np.mean(sorted(values[10:31])[2:-2]))
    assert late == pytest.approx(np.mean(sorted(values[80:121])[3:-3]))
    assert at_end == pytest.approx(np.mean(sorted(values[179:])[2:-2]))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (4.25, 9.5, [5, 6, 7, 8, 9]), (1, 3000, [500, 1000, 1500, 2000, 2500, 3000])],
)
def test_ticks_are_round(low, high, ticks):
    assert nice_ticks(low, high) == ticks


@pytest.mark.parametrize(("low", "high"), [(0.01, 0.013), (1e-9, 3e-7), (-5.0, 17.0), (0.0, 1e9)])
def test_there_are_neither_too_few_nor_too_many_ticks(low, high):
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 8 and all(low <= tick <= high for tick in ticks)


def test_logarithmic_ticks():
    assert logarithmic_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert logarithmic_ticks(10, 1_000_000) == [10, 100, 1000, 10_000, 100_000, 1_000_000]


def test_the_figure_holds_the_values_of_the_run():
    losses = 10 / np.arange(1, 51)
    series = [*training_series("loss", range(10, 510, 10), losses), *evaluation_series([250, 500], [0.75, 0.5])]
    drawn = points(draw("loss", series))
    assert [(one["kind"], one["label"]) for one in drawn["series"]] == [
        ("raw", "training"),
        ("smoothed", "smoothed"),
        ("evaluation", "evaluation"),
    ]
    assert drawn["series"][0]["steps"] == list(range(10, 510, 10))
    assert drawn["series"][0]["values"] == pytest.approx(losses, rel=1e-5)
    assert (drawn["series"][2]["steps"], drawn["series"][2]["values"]) == ([250, 500], [0.75, 0.5])


def test_points_lie_where_the_axes_say():
    figure = draw(
        "learning_rate", training_series("learning_rate", [1, 51, 101], [0.0, 0.5, 1.0]), width=500, height=200
    )
    places = re.search(r'<polyline class="smoothed" points="([^"]*)"', figure)[1].split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, place.split(",")) for place in places)
    assert x0 == LEFT and x2 == 500 - RIGHT and x1 == (x0 + x2) / 2
    assert y1 == pytest.approx((y0 + y2) / 2) and TOP < y2 < y0 < 200 - BOTTOM
    tick = re.search(r'x="46" y="([\d.]+)" text-anchor="end">0.4</text>', figure)
    assert float(tick[1]) - 4 == pytest.approx(y0 + 0.4 * (y2 - y0), abs=0.11)


def test_what_is_not_noisy_is_not_smoothed():
    assert [one.kind for one in training_series("learning_rate", range(100), np.linspace(0, 1, 100))] == ["smoothed"]
    assert [one.kind for one in training_series("loss", range(100), np.linspace(0, 1, 100))] == ["raw", "smoothed"]
    assert training_series("loss", [], []) == evaluation_series([], []) == []


def test_rare_spikes_do_not_flatten_the_curve():
    values = np.ones(1000) + np.arange(1000) % 10 / 10
    values[500] = 1e6
    heights = re.search(
        r'<polyline class="raw" points="([^"]*)"', draw("g", training_series("g", range(1000), values))
    )[1]
    heights = [float(place.split(",")[1]) for place in heights.split()]
    assert sorted(heights)[1] - max(heights) < -100


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [0.0, 0.0], [-2.0, -2.0]])
@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_flat_and_single_points_can_be_drawn(name, values):
    figure = draw(name, evaluation_series(range(len(values)), values))
    assert figure.count("<circle") == len(values) and "nan" not in figure and "inf" not in figure


def test_shares_are_in_percent_and_between_none_and_all():
    figure = draw("accuracy", evaluation_series([1, 2], [0.0, 1.0]))
    ticks = re.findall(r'text-anchor="end">(-?\d+)%</text>', figure)
    assert ticks == ["0", "20", "40", "60", "80", "100"] and points(figure)["share"]


def test_the_reference_is_a_labelled_level():
    figure = draw("masked_lm_loss", evaluation_series([1, 2], [5.0, 4.0]), ("unigram loss", 6.125))
    assert 'class="reference"' in figure and ">unigram loss 6.1250</text>" in figure


def test_a_name_cannot_break_out():
    figure = draw("</script><b>&", evaluation_series([1], [1.0]), ("<i>", 1.0))
    assert figure.count("</script>") == 1 and "<b>&" not in figure and "<i>" not in figure


def test_the_figure_of_a_long_run_is_small():
    steps = np.arange(1, 100_001)
    noise = np.random.default_rng(0).normal(size=100_000)
    figure = draw("loss", [*training_series("loss", steps, noise), *evaluation_series(steps[::10], noise[::10])])
    assert len(figure) < 75_000
