"""Line plots with intervals, as SVG. Pure functions from numbers to markup.

A plot stands in an HTML page as it is, or alone in a file: no script, no style sheet, no reference to
anything outside. Axes and text take the page's own colour (currentColor); the lines' colours stand out on
white and on near-black, and each line has a dash pattern too, for those who print or cannot tell the
colours. Values are finite numbers: a run logs no others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from minvenus.report.page import Content, Html, el

# Blue and orange come last: they stand for advantages above and below 0 elsewhere.
COLOURS = ("#1f9a55", "#b04fc4", "#b07d00", "#d6336c", "#0f929c", "#7d7d85", "#2f7fd6", "#d9541e")
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "14 4", "5 5", "9 3 2 3 2 3", "4 2", "16 3 6 3")     # 9: 72 different pairs
METHODS = {"grpo": 5, "paper": 1, "released": 2, "uncentred": 0}     # the colour of a method in every plot
SMALLEST = 1e-100                            # a smaller value counts as 0
LEFT, RIGHT, TOP, BOTTOM = 76, 504, 34, 252  # of the axes, in pixels; the legend comes below
WIDTH, HEIGHT = 520, 300                     # of the picture without its legend


@dataclass(frozen=True)
class Series:
    """A named line; `low` and `high` are the interval around each of its points, if it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Scale:
    """From a range of numbers to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def line_plot(series: Sequence[Series], title: str, x_label: str, y_label: str, covers: Sequence[float] = ()) -> Html:
    """One line per series. Units belong in the labels. The y axis shows all values, and at least those in `covers`."""
    xs: list[float] = []
    ys = [*covers]
    for s in series:
        xs += s.x
        ys += [*s.y, *(s.low or ()), *(s.high or ())]
    low, high = value_range(ys)
    air = 0.04 * (high - low)                # but none where the range ends at what the caller asked for
    x = Scale(*value_range(xs), LEFT, RIGHT)
    y = Scale(low if low in covers else low - air, high if high in covers else high + air, BOTTOM, TOP)
    bands, lines, legend = [], [], []
    for i, (s, place) in enumerate(zip(series, places([s.name for s in series]), strict=True)):
        colour = COLOURS[place % len(COLOURS)]
        width = round(1.7 + 2.5 * (len(series) - 1 - i) / len(series), 2)      # wider below: no line hides another
        style = {"stroke": colour, "stroke_dasharray": DASHES[place % len(DASHES)], "stroke_width": width}
        if s.low is not None and s.high is not None:
            around = f"{points(s.x, s.high, x, y)} {points(s.x[::-1], s.low[::-1], x, y)}"
            bands.append(el("polygon", points=around, fill=colour, fill_opacity=0.13))
        if s.x:
            drawn = el("polyline", points=points(s.x, s.y, x, y), fill="none", stroke_linejoin="round", **style)
            lines.append(el("g", el("title", s.name), drawn))
        if len(s.x) == 1:                             # a line of one point would be invisible
            lines.append(el("circle", cx=x(s.x[0]), cy=y(s.y[0]), r=3, fill=colour))
        legend.append(el("path", d=f"M{LEFT} {HEIGHT + 8 + 18 * i}h34", **style))
        legend.append(label(LEFT + 41, HEIGHT + 12 + 18 * i, s.name, "start"))
    body = [label(LEFT, 18, title, "start", font_weight="bold"), axes(x, y, x_label, y_label), bands, lines, legend]
    height = HEIGHT + 18 * len(series) + 4
    return svg(WIDTH, height, title, body)


def places(names: Sequence[str]) -> list[int]:
    """Where in COLOURS and DASHES each line has its own: a method has one of its own, the others what is left; without
    methods they have all."""
    own = [METHODS.get(name.lower()) for name in names]
    taken = set(METHODS.values()) if any(place is not None for place in own) else set()
    free = (place for place in count() if place not in taken)
    return [next(free) if place is None else place for place in own]


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest; a range of its own around values that are almost equal, and 0 to 1 of nothing."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    size = max(abs(low), abs(high))
    if size < SMALLEST:
        return -0.5, 0.5
    if high - low > 1e-4 * size:                      # else the labels of ticks would be the same
        return low, high
    return low - 0.1 * size, high + 0.1 * size


def ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], roughly six of them."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [min(max(k * step, low), high) for k in range(first, last + 1)]


# ------------------------------------------------------------------------------------------------- pieces


def axes(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Html]:
    middle = (TOP + BOTTOM) / 2
    parts = [el("path", d=f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", fill="none", stroke="currentColor"),
             label((LEFT + RIGHT) / 2, HEIGHT - 10, x_label),
             label(13, middle, y_label, transform=f"rotate(-90 13 {middle})")]
    for value in ticks(x.low, x.high):
        if value == round(value):                     # there is no step 1.5
            parts.append(el("path", d=f"M{x(value)} {BOTTOM}v5", stroke="currentColor"))
            parts.append(label(x(value), BOTTOM + 18, f"{value:.6g}"))
    for value in ticks(y.low, y.high):
        parts.append(el("path", d=f"M{LEFT} {y(value)}H{RIGHT}", stroke="currentColor", stroke_opacity=0.15))
        parts.append(label(LEFT - 7, y(value) + 4, f"{value:.6g}", "end"))
    return parts


def points(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in zip(xs, ys, strict=True))


def svg(width: int, height: int, title: str, body: Content) -> Html:
    return el("svg", el("title", title), body, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
              width=width, height=height, role="img", aria_label=title, font_family="system-ui, sans-serif",
              font_size=12, fill="currentColor")


def label(x: float, y: float, words: str, anchor: str = "middle", **more) -> Html:
    return el("text", words, x=round(x, 2), y=round(y, 2), text_anchor=anchor, **more)
