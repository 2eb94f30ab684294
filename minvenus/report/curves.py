"""Line plots with intervals, as SVG. Pure functions from numbers to markup.

A plot can be part of an HTML page or a file of its own: it has no script and no style sheet, and
refers to nothing outside. Axes and text take the page's own colour (currentColor). The lines'
colours stand out on white and on near-black, and each line also has a dash pattern, for print and
for readers who cannot tell the colours apart. Values are finite numbers: a run logs no others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minvenus.report.page import Content, Html, el

# neither blue nor orange: they stand for advantages above and below 0 elsewhere
COLOURS = ("#7d7d85", "#b04fc4", "#b07d00", "#d6336c", "#1f9a55", "#0f929c")
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "none", "5 5", "4 2")
LEFT, RIGHT, TOP, BOTTOM = 76, 504, 34, 252  # of the axes, in pixels; the legend comes below
WIDTH, HEIGHT = 520, 300                     # of the picture without its legend


@dataclass(frozen=True)
class Series:
    """A named line; `low` and `high` are the interval around each of its points, if it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Scale:
    """From a range of numbers to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def line_plot(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    covers: Sequence[float] = (),            # values that the y axis shows at least
) -> Html:
    """One line per series; colour and dashes go by its place."""
    x, y = scales(series, covers)
    lines = []
    legend = []
    for i, line in enumerate(series):
        style = {
            "stroke": COLOURS[i % len(COLOURS)],
            "stroke_dasharray": DASHES[i % len(DASHES)],
            "stroke_width": 2,
        }
        lines.append(curve(line, style, x, y))
        height = HEIGHT + 8 + 18 * i
        legend.append(el("path", d=f"M{LEFT} {height}h34", **style))
        legend.append(label(LEFT + 41, height + 4, line.name, "start"))

    heading = label(LEFT, 18, title, "start", font_weight="bold")
    body = [heading, axes(x, y, x_label, y_label), lines, legend]
    return svg(WIDTH, HEIGHT + 18 * len(series) + 4, title, body)


def scales(series: Sequence[Series], covers: Sequence[float]) -> tuple[Scale, Scale]:
    """Of x and y: from the lowest value to the highest."""
    xs: list[float] = []
    ys = list(covers)
    for line in series:
        xs += line.x
        ys += [*line.y, *line.low, *line.high]
    return Scale(*value_range(xs), LEFT, RIGHT), Scale(*value_range(ys), BOTTOM, TOP)


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest; more than that around values that are almost equal."""
    low = min(values)
    high = max(values)
    size = max(abs(low), abs(high)) or 5.0
    if high - low > 1e-4 * size:             # else the labels of ticks would be the same
        return low, high
    return low - 0.1 * size, high + 0.1 * size


def curve(line: Series, style: dict, x: Scale, y: Scale) -> Html:
    """The line above the band of its interval."""
    colour = style["stroke"]
    shapes = [el("title", line.name)]
    if line.low:
        bottom = points(line.x, line.low, x, y)
        around = points(line.x, line.high, x, y) + bottom[::-1]
        shapes.append(el("polygon", points=" ".join(around), fill=colour, fill_opacity=0.13))
    path = " ".join(points(line.x, line.y, x, y))
    shapes.append(el("polyline", points=path, fill="none", stroke_linejoin="round", **style))
    if len(line.x) == 1:                     # a line of one point would be invisible
        shapes.append(el("circle", cx=x(line.x[0]), cy=y(line.y[0]), r=3, fill=colour))
    return el("g", shapes)


def points(xs: Sequence, ys: Sequence, x: Scale, y: Scale) -> list[str]:
    return [f"{x(a)},{y(b)}" for a, b in zip(xs, ys, strict=True)]


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Html]:
    line = "currentColor"
    middle = (TOP + BOTTOM) / 2
    parts = [
        el("path", d=f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", fill="none", stroke=line),
        label((LEFT + RIGHT) / 2, HEIGHT - 10, x_label),
        label(13, middle, y_label, transform=f"rotate(-90 13 {middle})"),
    ]
    for value in ticks(x.low, x.high):
        if value == round(value):            # there is no step 1.5
            place = x(value)
            parts.append(el("path", d=f"M{place} {BOTTOM}v5", stroke=line))
            parts.append(label(place, BOTTOM + 18, f"{value:.6g}"))
    for value in ticks(y.low, y.high):
        place = y(value)
        path = f"M{LEFT} {place}H{RIGHT}"
        parts.append(el("path", d=path, stroke=line, stroke_opacity=0.15))
        parts.append(label(LEFT - 7, place + 4, f"{value:.6g}", "end"))
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], roughly six of them."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def svg(width: int, height: int, title: str, body: Content) -> Html:
    return el(
        "svg", el("title", title), body,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        font_family="system-ui, sans-serif",
        font_size=12,
        fill="currentColor",
    )


def label(x: float, y: float, words: str, anchor: str = "middle", **more) -> Html:
    x, y = round(x, 2), round(y, 2)
    return el("text", words, x=x, y=y, text_anchor=anchor, **more)
