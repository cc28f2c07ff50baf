"""The report's charts: numbers by step to inline SVG, through matplotlib without pyplot (no global state, no display).

Contract. A chart of any length has at most `POINTS` points a line; thinning keeps each bucket's lowest and highest
value, so that a one-step spike in 100,000 steps stays visible. Text stays text, ids are unique to the chart, and
nothing in the SVG points outside of it. Numbers that are missing or not finite leave a gap.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1200
GREY = "#808a94"  # reads on white and on near-black, so that one SVG serves both colour schemes
COLOURS = ("#2f7ed8", "#e4572e", "#2a9d5c", "#9b59b6", "#d4a017", "#17a2b8", "#c2185b", "#6d4c41")


@dataclass(frozen=True)
class Line:
    """One line of a chart: ys[i] at step xs[i], None for a gap. smooth: add its running mean and fade the raw line."""

    label: str
    xs: Sequence[int]
    ys: Sequence[float | None]
    colour: str
    smooth: bool = False
    dots: bool = False


def thin(xs: Sequence[int], ys: Sequence[float | None], limit: int = POINTS) -> tuple[list[int], list[float]]:
    """At most `limit` points: each bucket's lowest and highest value, in order. Gaps become NaN and are kept."""
    points = [(x, y if _drawable(y) else math.nan) for x, y in zip(xs, ys, strict=True)]
    if len(points) > limit:
        size = math.ceil(len(points) / (limit // 2))
        buckets = (points[i : i + size] for i in range(0, len(points), size))
        points = [point for bucket in buckets for point in _extremes(bucket)]
    return [x for x, _ in points], [y for _, y in points]


def _drawable(y: float | None) -> TypeGuard[float]:
    """Whether a chart can show it: beyond these the axes' own arithmetic overflows."""
    return y is not None and math.isfinite(y) and (y == 0 or 1e-30 <= abs(y) <= 1e30)


def _extremes(bucket: list[tuple[int, float]]) -> list[tuple[int, float]]:
    finite = [point for point in bucket if not math.isnan(point[1])]
    if not finite:
        return bucket[:1]
    return sorted({min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])})


def running_mean(ys: Sequence[float | None], window: int) -> list[float | None]:
    """Exponential mean over about `window` values, corrected for its start; gaps are passed over."""
    decay, total, weight = 1 - 1 / max(window, 1), 0.0, 0.0
    result: list[float | None] = []
    for y in ys:
        if _drawable(y):
            total, weight = decay * total + y, decay * weight + 1
        result.append(total / weight if weight else None)
    return result


def chart(name: str, lines: Sequence[Line], label: str, log: int | None = None) -> str | None:
    """The lines as an `<svg>` element; None when no line has a finite number.

    `name`: prefix of all ids. `log`: base of a logarithmic scale, used where all values are positive.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    values = [y for line in lines for y in line.ys if _drawable(y)]
    if not values:
        return None
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}):
        figure = Figure(figsize=(5.6, 2.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for line in lines:
            _draw(axes, line)
        _decorate(axes, label, log if min(values) > 0 else None)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), name)


def _draw(axes: Axes, line: Line) -> None:
    xs, ys = thin(line.xs, line.ys)
    label = line.label.encode("utf-8", "replace").decode()  # matplotlib takes no lone surrogates
    if line.dots:
        axes.plot(xs, ys, "o:", color=line.colour, label=label, markersize=3.5, linewidth=1)
        return
    axes.plot(
        xs, ys, color=line.colour, linewidth=1, alpha=0.3 if line.smooth else 1, label=None if line.smooth else label
    )
    if line.smooth:
        smoothed = thin(line.xs, running_mean(line.ys, max(len(line.ys) // 150, 5)))
        axes.plot(*smoothed, color=line.colour, linewidth=1.6, label=label)


def _decorate(axes: Axes, label: str, log: int | None) -> None:
    if log:
        axes.set_yscale("log", base=log)
    axes.set_xlabel("step", color=GREY)
    axes.set_ylabel(label, color=GREY)
    axes.tick_params(colors=GREY, which="both")
    axes.grid(alpha=0.25, color=GREY, linewidth=0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        legend = axes.legend(frameon=False, labelcolor=GREY, fontsize=8)
        for text in legend.get_texts():  # a name is no formula: $ starts one, and a broken one ends the report
            text.set_parse_math(False)


def _inline(svg: str, name: str) -> str:
    """The `<svg>` element alone, scaled by the page, its ids made unique among the page's charts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
