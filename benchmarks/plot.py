"""A plot of a few measured points, as SVG: both axes logarithmic, one line, every point with its figure.

Owns: the drawing. Never: what is drawn.
"""

from __future__ import annotations

import math
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 640
HEIGHT: Final = 360
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 50, 60

Points = list[tuple[float, float]]


def slope(points: Points) -> float:
    """The exponent of growth: the slope of the straight line through the points, both axes logarithmic.

    0 is a constant cost, 1 a cost in proportion.
    """
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


def draw(points: Points, *, title: str, x_label: str, y_label: str) -> str:
    """The plot."""
    x_low, x_high = _bounds([x for x, _ in points])
    y_low, y_high = _bounds([y for _, y in points])

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(x) - x_low) / (x_high - x_low)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(y) - y_low) / (y_high - y_low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="{LEFT - 50}" y="{TOP - 10}">{escape(y_label)}</text>',
    ]
    for power in range(math.ceil(x_low), math.floor(x_high) + 1):
        at = across(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(10.0**power)}</text>')
    for power in range(math.ceil(y_low), math.floor(y_high) + 1):
        at = up(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_short(10.0**power)}</text>')
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="2"/>')
    for x, y in points:
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="#1f5fa8"/>')
        parts.append(f'<text x="{across(x):.1f}" y="{up(y) - 9:.1f}" text-anchor="middle">{_short(y)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bounds(values: list[float]) -> tuple[float, float]:
    """Powers of ten to draw between; at least one decade, so that noise does not look like growth."""
    low, high = math.log10(min(values)), math.log10(max(values))
    if high - low < 1:
        middle = (low + high) / 2
        low, high = math.floor(middle - 0.5), math.ceil(middle + 0.5)
    return low - 0.1, high + 0.15


def _short(value: float) -> str:
    for bound, letter in ((1e6, "M"), (1e3, "k")):
        if value >= bound:
            return f"{value / bound:.3g}{letter}"
    return f"{value:.3g}"
