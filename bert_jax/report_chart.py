"""Curves over the training steps as inline SVG, small enough to stay in a page whatever the length of the run."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from html import escape

import numpy as np

from bert_jax.metric_names import format_value, metric

# More points than a screen has pixels only make the page heavy.
FULL_CURVE_POINTS = 400
BUCKETS = 240
SMOOTHED_SHARE = 0.02

LEFT, RIGHT, TOP, BOTTOM = 54, 24, 10, 26


@dataclasses.dataclass(frozen=True)
class Series:
    """Points of one curve: kind is "raw", "smoothed" or "evaluation"; steps int [n] ascending, values float [n].

    `span` holds the lowest and the highest value that the picture must have room for.
    """

    kind: str
    label: str
    steps: np.ndarray
    values: np.ndarray
    span: tuple[float, float]


def training_series(name: str, steps: Sequence[int], values: Sequence[float]) -> list[Series]:
    """The curve of a logged metric, thinned out, and a smoothed one where the metric is noisy and the run long enough.

    Args:
        name: the metric, which says whether it is noisy.
        steps: [n] ascending.
        values: [n] finite.
    """
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    kept, edges = thin_out(values)
    if len(values) < 20 or not metric(name).smooth:
        return [_series("smoothed", "training", steps[kept], values[kept])] if len(values) else []
    smoothed = smooth(values, max(round(len(values) * SMOOTHED_SHARE), 2), edges)
    # Rare spikes of a noisy curve may leave the picture.
    span = tuple(np.percentile(values, [0.5, 99.5])) if len(values) > 100 else (values.min(), values.max())
    return [
        Series("raw", "training", steps[kept], values[kept], span),
        _series("smoothed", "smoothed", steps[edges], smoothed),
    ]


def evaluation_series(steps: Sequence[int], values: Sequence[float]) -> list[Series]:
    """The points of an evaluation metric, as `training_series`."""
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    kept, _ = thin_out(values)
    return [_series("evaluation", "evaluation", steps[kept], values[kept])] if len(values) else []


def _series(kind: str, label: str, steps: np.ndarray, values: np.ndarray) -> Series:
    return Series(kind, label, steps, values, (values.min(), values.max()))


def thin_out(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Picks the points to draw: the extremes of every bucket of neighbours, so that no spike gets lost.

    Buckets are small at the start of the curve, where a logarithmic axis looks closely.

    Returns:
        Ascending indices of the points to draw, and of one point a bucket; all indices of a curve that is short.
    """
    count = len(values)
    if count <= FULL_CURVE_POINTS:
        return np.arange(count), np.arange(count)
    edges = np.concatenate([np.linspace(0, count, BUCKETS + 1), np.geomspace(1, count, BUCKETS // 4)])
    edges = np.unique(edges.astype(np.int64))
    picked = [0, count - 1]
    for start, end in itertools.pairwise(edges):
        bucket = values[start:end]
        picked += [start + int(bucket.argmin()), start + int(bucket.argmax())]
    return np.unique(picked), np.minimum(edges, count - 1)


def smooth(values: np.ndarray, half_window: int, at: np.ndarray) -> np.ndarray:
    """Mean of the neighbours up to `half_window` on each side, without the highest and the lowest twentieth of them.

    At the start, where a loss falls fastest, the window is narrower: it grows with the place.

    Args:
        values: float64 [n].
        at: int [m], the places to compute it for.

    Returns:
        float64 [m].
    """
    means = []
    for place in at:
        half = min(half_window, max(place // 2, 5))
        window = np.sort(values[max(place - half, 0) : place + half + 1])
        trimmed = math.ceil(len(window) / 20) if len(window) >= 5 else 0
        means.append(window[trimmed : len(window) - trimmed].mean())
    return np.array(means)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers in [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    spacing = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= 0.75 * raw)
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [round(tick * spacing, 12) for tick in range(first, last + 1)]


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in [low, high], with 2 and 5 times them where there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if math.log10(high / low) >= 3 else (1, 2, 5)
    return [factor * 10.0**decade for decade in decades for factor in factors if low <= factor * 10.0**decade <= high]


@dataclasses.dataclass(frozen=True)
class _Frame:
    """Where steps and values lie in the picture: (first, last) steps by (low, high) values, in SVG units."""

    first: int
    last: int
    low: float
    high: float
    right: int
    bottom: int

    def x(self, step: float) -> float:
        return LEFT + (self.right - LEFT) * (step - self.first) / (self.last - self.first)

    def logarithmic_x(self, step: float) -> float:
        return LEFT + (self.right - LEFT) * math.log(max(step, self.first) / self.first) / math.log(
            self.last / self.first
        )

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - TOP) * (value - self.low) / (self.high - self.low)


def draw(
    name: str, series: list[Series], reference: tuple[str, float] | None = None, *, width: int = 520, height: int = 230
) -> str:
    """One figure: heading, the values under the pointer, and the curves.

    Args:
        name: the metric.
        series: at least one, each with at least one point.
        reference: label and value of a level to compare with, drawn as a dashed line.
        width, height: in SVG units, which are pixels at full size.

    Returns:
        HTML of a <figure>. The page's script finds the drawn points in it as JSON.
    """
    first = max(min(int(one.steps[0]) for one in series), 1)
    last = max(max(int(one.steps[-1]) for one in series), first + 1)
    share = metric(name).kind == "share"
    frame = _Frame(first, last, *_value_range(series, reference, share), width - RIGHT, height - BOTTOM)
    title = escape(metric(name).title)
    readout = "".join(
        f'<span class="{one.kind}">{escape(one.label)} <b>{format_value(name, float(one.values[-1]))}</b></span>'
        for one in series
    )
    summary = "; ".join(
        f"{one.label} from {format_value(name, float(one.values[0]))} at step {one.steps[0]:,} "
        f"to {format_value(name, float(one.values[-1]))} at step {one.steps[-1]:,}"
        for one in series
        if one.kind != "raw"
    )
    return (
        f'<figure class="chart"><figcaption><h3>{title}</h3><p class="readout">{readout}</p></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" tabindex="0" aria-label="{title}: {escape(summary)}">'
        f"{_axes(frame, share)}{_reference(frame, name, reference) if reference else ''}{_curves(frame, name, series)}"
        f'<path class="cursor" d="M0 {TOP}V{frame.bottom}"/></svg>'
        f'<script type="application/json">{_points_as_json(frame, series, share)}</script></figure>'
    )


def _axes(frame: _Frame, share: bool) -> str:
    parts = []
    for tick in nice_ticks(frame.low, frame.high):
        y = frame.y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{frame.right}"/>')
        text = f"{100 * tick:g}%" if share else _short(tick)
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    linear = [tick for tick in nice_ticks(frame.first, frame.last, 6) if tick == int(tick)]
    logarithmic = logarithmic_ticks(frame.first, frame.last)
    for axis, ticks, x in (("linear", linear, frame.x), ("logarithmic", logarithmic, frame.logarithmic_x)):
        labels = "".join(
            f'<text class="tick" x="{x(tick):.1f}" y="{frame.bottom + 18}" text-anchor="middle">{_short(tick)}</text>'
            for tick in ticks
        )
        parts.append(f'<g class="{axis}">{labels}</g>')
    parts.append(f'<path class="base" d="M{LEFT} {frame.bottom}H{frame.right}"/>')
    return "".join(parts)


def _reference(frame: _Frame, name: str, reference: tuple[str, float]) -> str:
    label, level = reference
    y = frame.y(level)
    return (
        f'<path class="reference" d="M{LEFT} {y:.1f}H{frame.right}"/>'
        f'<text class="reference-label" x="{frame.right}" y="{y - 5 if y > TOP + 16 else y + 14:.1f}" '
        f'text-anchor="end">{escape(label)} {format_value(name, level)}</text>'
    )


def _curves(frame: _Frame, name: str, series: list[Series]) -> str:
    clip = escape(f"clip-{name}")
    parts = [
        f'<clipPath id="{clip}"><rect x="{LEFT - 4}" y="{TOP - 6}" width="{frame.right - LEFT + 8}" '
        f'height="{frame.bottom - TOP + 10}"/></clipPath><g clip-path="url(#{clip})">'
    ]
    for one in series:
        points = [(f"{frame.x(step):.1f}", f"{frame.y(value):.1f}") for step, value in zip(one.steps, one.values)]
        parts.append(f'<polyline class="{one.kind}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
        if one.kind == "evaluation" or len(points) == 1:
            parts += [f'<circle class="{one.kind}" cx="{x}" cy="{y}" r="3.5"/>' for x, y in points]
    return "".join([*parts, "</g>"])


def _points_as_json(frame: _Frame, series: list[Series], share: bool) -> str:
    points = {
        "first": frame.first,
        "last": frame.last,
        "left": LEFT,
        "right": frame.right,
        "share": share,
        "series": [
            {
                "kind": one.kind,
                "label": one.label,
                "steps": [int(step) for step in one.steps],
                "values": [float(f"{value:.6g}") for value in one.values],
            }
            for one in series
        ],
    }
    return json.dumps(points, separators=(",", ":")).replace("<", "\\u003c")  # no "</script>" may end it


def _value_range(series: list[Series], reference: tuple[str, float] | None, share: bool) -> tuple[float, float]:
    """Lowest and highest value of the picture, with a margin."""
    levels = [*(level for one in series for level in one.span), *([reference[1]] if reference else [])]
    lowest, highest = float(min(levels)), float(max(levels))
    margin = 0.06 * (highest - lowest) or 0.1 * abs(highest) or 0.5
    low, high = lowest - margin, highest + margin
    return (max(low, min(lowest, 0.0)), min(high, max(highest, 1.0))) if share else (low, high)


def _short(value: float) -> str:
    """A tick label: 100k, 2.5M, 0.25, 2.5e-4."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if unit == "k" else size
            return f"{value / divisor:g}{unit}"
    if 0 < abs(value) < 1e-2:
        digits, exponent = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:,g}" if abs(value) >= 1000 else f"{value:.6g}"
