"""Plain SVG charts of figures, for the documentation: lines on a logarithmic scale, and bars."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "Line", "bar_chart", "line_chart"]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 150, 50, 60
BAR_HEIGHT, BAR_LEFT = 24, 210
COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#56b4e9")
"""Colours that people who do not see all of them can tell apart (Okabe and Ito)."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        name: what the legend calls it.
        values: one for each place on the x axis; None where nothing was measured.
        dashed: whether it is drawn with dashes.
    """

    name: str
    values: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar of a chart.

    Args:
        name: what stands before it.
        value: its length; None if nothing was measured.
        text: what stands behind it.
    """

    name: str
    value: float | None
    text: str


def line_chart(
    title: str, axes: tuple[str, str], places: Sequence[str], lines: Sequence[Line]
) -> str:
    """Return lines over places at equal distances, on a logarithmic scale of powers of ten.

    Args:
        title: what the chart shows.
        axes: the names of the x and the y axis.
        places: the labels of the x axis.
        lines: what is drawn.
    """
    measured = [value for line in lines for value in line.values if value is not None]
    low, high = _powers(measured)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(index: int) -> float:
        return LEFT + width * (index + 0.5) / len(places)

    def y(value: float) -> float:
        share = (math.log10(max(value, 10**low)) - low) / (high - low)
        return TOP + height * (1 - share)

    parts = [_text(LEFT, 28, title, size=16)]
    for power in range(low, high + 1):
        level = y(10**power)
        parts.append(_stroke([(LEFT, level), (LEFT + width, level)], "#ddd", 1))
        parts.append(_text(LEFT - 8, level + 4, f"{10.0**power:,g}", anchor="end"))
    for index, place in enumerate(places):
        parts.append(_text(x(index), TOP + height + 20, place, anchor="middle"))
    parts.append(_text(LEFT + width / 2, HEIGHT - 14, axes[0], anchor="middle"))
    parts.append(_text(LEFT - 8, TOP - 10, axes[1], anchor="end"))
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x(i), y(value)) for i, value in enumerate(line.values) if value is not None]
        parts.append(_stroke(points, colour, 2, dashed=line.dashed))
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        level = TOP + 20 * number + 6
        sample = [(WIDTH - RIGHT + 12, level), (WIDTH - RIGHT + 36, level)]
        parts.append(_stroke(sample, colour, 2, dashed=line.dashed))
        parts.append(_text(WIDTH - RIGHT + 42, level + 4, line.name))
    return _document(HEIGHT, parts)


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return horizontal bars from zero; a bar without a value is its text alone."""
    longest = max((bar.value or 0 for bar in bars), default=0) or 1
    parts = [_text(12, 28, title, size=16)]
    room = WIDTH - BAR_LEFT - RIGHT
    for number, bar in enumerate(bars):
        top = TOP + number * BAR_HEIGHT
        length = max(bar.value or 0, 0) / longest * room
        parts.append(_text(BAR_LEFT - 8, top + 14, bar.name, anchor="end"))
        if bar.value is not None:
            colour = COLOURS[0] if bar.name.startswith("bide") else "#999"
            parts.append(
                f'<rect x="{BAR_LEFT}" y="{top + 2}" width="{length:.1f}" '
                f'height="{BAR_HEIGHT - 8}" fill="{colour}"/>'
            )
        parts.append(_text(BAR_LEFT + length + 6, top + 14, bar.text))
    return _document(TOP + len(bars) * BAR_HEIGHT + 12, parts)


def _powers(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten between which all values are; what is below 0.01 is drawn there."""
    if not values:
        return 0, 1
    low = math.floor(math.log10(max(min(values), 0.01)))
    high = math.ceil(math.log10(max(*values, 0.01)))
    return low, max(high, low + 1)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _stroke(
    points: Sequence[tuple[float, float]], colour: str, width: int, *, dashed: bool = False
) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def _document(height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" fill="#222">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])
