import math
import xml.etree.ElementTree as ElementTree

import pytest

from loadtest.svg_plot import Axes, Curve, svg_plot


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize(
    ("xs", "ys"),
    [
        ([1.0, 2.0, 30.0], [0.1, 0.5, 1.0]),
        ([5.0], [2.0]),
        ([1.0, 1.0], [0.0, 0.0]),
        ([], []),
        ([math.nan], [1.0]),
        ([1e-3, 1e6], [-5.0, 5.0]),
    ],
)
def test_every_plot_is_sound_xml_without_nan(xs: list[float], ys: list[float], log_x: bool) -> None:
    curve = Curve("a & b", xs, ys, 0, markers=True)
    text = svg_plot(Axes("title <x>", "x", "y", log_x=log_x), [curve])
    ElementTree.fromstring(text)
    assert "nan" not in text


def test_points_lie_inside_the_frame() -> None:
    text = svg_plot(Axes("t", "x", "y"), [Curve("a", [3.0, 7.0], [11.0, 99.0], 0, markers=True)])
    circles = [e for e in ElementTree.fromstring(text).iter() if e.tag == "circle"]
    assert len(circles) == 2
    assert all(64 <= float(c.attrib["cx"]) <= 544 and 34 <= float(c.attrib["cy"]) <= 274 for c in circles)


def test_no_data_says_so() -> None:
    assert "no data" in svg_plot(Axes("t", "x", "y", log_x=True), [Curve("a", [0.0], [1.0], 0)])
