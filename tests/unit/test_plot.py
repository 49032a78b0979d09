"""Plots of the benchmarks: the exponent of growth, and a drawing that is well-formed."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from benchmarks.plot import draw, slope


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 5), (10, 5), (1_000, 5)], 0.0),
        ([(1, 3), (10, 30), (100, 300)], 1.0),
        ([(2, 4), (20, 400)], 2.0),
    ],
)
def test_the_slope_is_the_exponent_of_growth(points: list[tuple[float, float]], expected: float) -> None:
    assert slope(points) == pytest.approx(expected)


def test_every_point_is_drawn_inside_the_picture() -> None:
    points = [(50.0, 310.0), (5_000.0, 290.0), (50_000.0, 12_000.0)]
    root = ET.fromstring(draw(points, title="A & B", x_label="n", y_label="µs"))
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(circles) == len(points)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)
    assert [float(c.attrib["cx"]) for c in circles] == sorted(float(c.attrib["cx"]) for c in circles)
