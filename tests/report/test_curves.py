"""Plots: well-formed, complete, and readable on light and dark."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.report.curves import BOTTOM, COLOURS, LEFT, RIGHT, TOP, Series, line_plot
from minvenus.report.page import UNSAFE
from tests.report.examples import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"
TAGS = ("svg", "title", "text", "g", "path", "polyline", "polygon", "circle")
ATTACK = " ".join(HOSTILE) + "\x00\x1b[0m\ud800"
numbers = (
    st.floats(-2, 2, allow_subnormal=False)
    | st.integers(-1000, 1000)
    | st.sampled_from([0.0, 1e-99, 1e99, 1.0, 1.0001, 1.00011])
)


def lines_of(svg: str) -> list[list[tuple[float, ...]]]:
    root = ET.fromstring(svg)
    lines = [*root.iter(f"{SVG}polyline"), *root.iter(f"{SVG}polygon")]
    pairs = [[pair.split(",") for pair in line.get("points").split()] for line in lines]
    return [[tuple(map(float, pair)) for pair in line] for line in pairs]


def texts_of(svg: str, anchors=("start", "middle", "end")) -> list[str]:
    texts = ET.fromstring(svg).iter(f"{SVG}text")
    return [text.text or "" for text in texts if text.get("text-anchor") in anchors]


def strokes(*names: str) -> list[tuple[str, str]]:
    """Colour and dashes of lines with these names."""
    root = ET.fromstring(line_plot([Series(name, [0, 1], [0, 1]) for name in names], "", "", ""))
    return [(e.get("stroke"), e.get("stroke-dasharray")) for e in root.iter(f"{SVG}polyline")]


@st.composite
def some_series(draw):
    count = draw(st.integers(1, 6))
    column = st.lists(numbers, min_size=count, max_size=count)
    interval = draw(st.just(()) | st.tuples(column, column))
    return Series(draw(st.text()), draw(column), draw(column), *interval)


def test_a_line_from_corner_to_corner_and_its_interval_worked_by_hand():
    rising = Series("rising", [0, 1, 2], [0, 0.25, 1], low=[0, 0.25, 0.75], high=[0.5, 0.5, 1])
    svg = line_plot([rising], "success", "step", "share", covers=(0, 1))
    line, band = lines_of(svg)
    shares = [(BOTTOM - y) / (BOTTOM - TOP) for _, y in line + band]
    assert shares == [*rising.y, *rising.high, *rising.low[::-1]]
    assert [x for x, _ in line] == [LEFT, (LEFT + RIGHT) / 2, RIGHT]
    ticks = "0 1 2 0 0.2 0.4 0.6 0.8 1".split()
    assert texts_of(svg) == ["success", "step", "share", *ticks, "rising"]


@example([Series(ATTACK, [0, 1], [0, 1])], ATTACK, ATTACK, [])
@given(
    st.lists(some_series(), min_size=1, max_size=4),
    st.text(),
    st.text(),
    st.lists(numbers, max_size=2),
)
def test_any_plot_is_well_formed_with_every_point_inside_the_axes(series, title, text, covers):
    svg = line_plot(series, title, text, text, covers=covers)
    for element in ET.fromstring(svg).iter():  # text stays text, and nothing is fetched
        assert element.tag.removeprefix(SVG) in TAGS
        assert not any(re.match("on|href|src|style", name) for name in element.attrib)
    shown = texts_of(svg)
    for name in (title, text, *(s.name for s in series)):
        assert UNSAFE.sub("\ufffd", name) in shown
    lines = lines_of(svg)
    assert len(lines) == sum(1 + bool(s.low) for s in series)
    for x, y in itertools.chain(*lines):
        assert LEFT - 0.01 <= x <= RIGHT + 0.01 and TOP - 0.01 <= y <= BOTTOM + 0.01
    ticks = texts_of(svg, "end")
    assert 2 <= len(ticks) <= 8 and len(set(map(float, ticks))) == len(ticks)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 79, "0 20 40 60"),
        (1, 1.001, "1 1.0002 1.0004 1.0006 1.0008 1.001"),
        (0, 2.4e7, "0 5e+06 1e+07 1.5e+07 2e+07"),
        (1e-7, 3e-7, "1e-07 1.5e-07 2e-07 2.5e-07 3e-07"),
    ],
)
def test_ticks_are_round_numbers(low, high, labels):
    svg = line_plot([Series("", [0], [low])], "", "x", "y", covers=[high])
    assert texts_of(svg, "end") == labels.split()


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-9, 1e16])
def test_a_constant_line_runs_through_the_middle_and_a_single_point_is_visible(value):
    (points,) = lines_of(line_plot([Series("c", [0, 1, 2], [value] * 3)], "t", "x", "y"))
    assert {y for _, y in points} == {(TOP + BOTTOM) / 2}
    assert line_plot([Series("one", [3], [value])], "t", "x", "y").count("<circle") == 1


def test_16_lines_differ_show_below_one_another_and_fit_the_legend():
    names = [f"line {i}" for i in range(16)]
    svg = line_plot([Series(name, [0, 1], [0, 1]) for name in names], "t", "x", "y")
    assert texts_of(svg, "start") == ["t", *names] and len(set(strokes(*names))) == 16
    assert strokes(*names[:5]) == strokes(*names)[:5], "places have the same in every plot"
    root = ET.fromstring(svg)
    *_, last = [float(text.get("y")) for text in root.iter(f"{SVG}text") if text.text in names]
    assert BOTTOM < last == float(root.get("height")) - 10


@pytest.mark.parametrize("colour", COLOURS)
def test_every_colour_stands_out_on_white_and_on_near_black(colour):
    """Contrast of at least 3 : 1, what the web's accessibility guidelines ask of graphics."""

    def luminance(text):
        parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05

    assert luminance("#ffffff") / luminance(colour) >= 3
    assert luminance(colour) / luminance("#121212") >= 3
