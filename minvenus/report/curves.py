"""Plots as SVG text: lines with intervals, and histograms. Pure functions from numbers to a string.

The string stands in an HTML page as it is, or alone in a file: no script, no style sheet, no reference to
anything outside. Axes and text take the page's own colour (currentColor); the lines' colours stand out on
white and on near-black, and each line has a dash pattern too, for those who print or cannot tell the
colours. All text is escaped. A value that is not a number is an error, never a hole: leave the point out.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

COLOURS = ("#2f7fd6", "#d9541e", "#1f9a55", "#b04fc4", "#b07d00", "#d6336c", "#0f929c", "#7d7d85")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 5", "9 3 2 3 2 3", "4 2", "16 3 6 3")     # 9: 72 different pairs
LARGEST, SMALLEST = 1e100, 1e-100            # a larger value would overflow a range; a smaller range counts as none
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 520, 300, 64, 34, 48, 16       # pixels; the legend comes below
SHORT_NAME = 28                              # letters of a name, so that two fit side by side in the legend
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Series:
    """A named line; `low` and `high` are the interval around each of its points, if it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self):
        if (self.low is None) != (self.high is None):
            raise ValueError(f"series {self.name!r}: an interval needs both low and high")
        for part in ("x", "y", "low", "high"):
            values = getattr(self, part)
            if values is not None:
                if len(values) != len(self.x):
                    raise ValueError(f"series {self.name!r}: {len(self.x)} x but {len(values)} {part}")
                check_numbers(values, f"series {self.name!r}, {part}")


@dataclass(frozen=True)
class Frame:
    """The rectangle of the axes and the ranges that it shows."""

    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: float) -> float:
        return LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)

    def py(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - TOP - BOTTOM)

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{self.px(x):.2f},{self.py(y):.2f}" for x, y in zip(xs, ys, strict=True))


def line_plot(series: Sequence[Series], title: str, x_label: str, y_label: str,
              covers: tuple[float, float] | None = None) -> str:
    """One line per series. Units belong in the labels. The y axis shows all values, and at least the range `covers`."""
    xs = [v for s in series for v in s.x]
    ys = [v for s in series for part in (s.y, s.low, s.high) if part is not None for v in part]
    if covers is not None:
        check_numbers(covers, "covers")
        ys += covers
    frame = Frame(value_range(xs), widened(value_range(ys), covers))
    bands = [band(s, frame, COLOURS[i % len(COLOURS)]) for i, s in enumerate(series)]
    lines = [line(s, frame, i) for i, s in enumerate(series)]
    columns = 1 if any(len(s.name) > SHORT_NAME for s in series) else 2
    legend = [legend_entry(s.name, i, columns) for i, s in enumerate(series)]
    below = 18 * math.ceil(len(series) / columns) + 4
    return document([*axes(frame, x_label, y_label), *bands, *lines, *legend], title, len(xs), HEIGHT + below)


def histogram(values: Sequence[float], title: str, x_label: str, y_label: str = "count", bins: int = 20) -> str:
    """How often values fall into each of `bins` equal parts of their range; the last part includes its upper end."""
    check_numbers(values, "values")
    low, high = value_range(values)
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    frame = Frame((low, high), (0.0, max(1, *counts) * 1.05))
    wide, floor = (WIDTH - LEFT - RIGHT) / bins, frame.py(0.0)
    bars = [f'<rect x="{LEFT + k * wide:.2f}" y="{frame.py(count):.2f}" width="{wide - 1:.2f}" '
            f'height="{floor - frame.py(count):.2f}" fill="{COLOURS[0]}"/>' for k, count in enumerate(counts) if count]
    return document([*axes(frame, x_label, y_label), *bars], title, len(values), HEIGHT)


# ------------------------------------------------------------------------------------------------- ranges


def check_numbers(values: Sequence[float], where: str) -> None:
    for i, value in enumerate(values):
        if not abs(value) < LARGEST:
            raise ValueError(f"{where}[{i}] is {value}: a plot takes finite numbers below {LARGEST:g}; leave the point "
                             "out")


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest; a range of its own around a single value, and 0 to 1 of nothing."""
    if not len(values):
        return 0.0, 1.0
    low, high = min(values), max(values)
    around = max(abs(low), abs(high))
    if high - low > max(1e-9 * around, SMALLEST):     # else the ticks would differ by less than floats can tell
        return float(low), float(high)
    half = 0.1 * around if around > SMALLEST else 0.5
    return low - half, high + half


def widened(limits: tuple[float, float], covers: tuple[float, float] | None) -> tuple[float, float]:
    """A little air above and below, but none where the range ends at what the caller asked for."""
    low, high = limits
    air = 0.04 * (high - low)
    return (low if covers and low == covers[0] else low - air, high if covers and high == covers[1] else high + air)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], roughly `about` of them."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [min(max(k * step, low), high) for k in range(first, last + 1)]


def tick_labels(values: list[float]) -> list[str]:
    """As few digits as tell the ticks apart; powers of ten where there would be too many."""
    largest = max(map(abs, values), default=0.0)
    step = min((b - a for a, b in pairwise(values)), default=largest or 1.0)
    values = [0.0 if abs(v) < step / 2 else v for v in values]
    digits = max(0, -math.floor(math.log10(step) + 1e-6))
    if largest < 1e6 and digits <= 4:
        return [f"{v:,.{digits}f}" for v in values]
    digits = max(0, math.floor(math.log10(largest) + 1e-6) - math.floor(math.log10(step) + 1e-6))
    return [f"{v:.{digits}e}" for v in values]


# ------------------------------------------------------------------------------------------------- pieces


def axes(frame: Frame, x_label: str, y_label: str) -> list[str]:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    middle = (top + bottom) / 2
    parts = [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
             label((left + right) / 2, HEIGHT - 10, x_label, "middle"),
             label(13, middle, y_label, "middle", f' transform="rotate(-90 13 {middle})"')]
    x_ticks, y_ticks = ticks(*frame.x), ticks(*frame.y)
    for value, text in zip(x_ticks, tick_labels(x_ticks), strict=True):
        at = frame.px(value)
        parts.append(f'<path d="M{at:.2f} {bottom}v5" stroke="currentColor"/>' + label(at, bottom + 18, text, "middle"))
    for value, text in zip(y_ticks, tick_labels(y_ticks), strict=True):
        at = frame.py(value)
        parts.append(f'<path d="M{left} {at:.2f}H{right}" stroke="currentColor" stroke-opacity="0.15"/>'
                     + label(left - 7, at + 4, text, "end"))
    return parts


def stroke(index: int) -> str:
    """Colour and dashes of a line."""
    dash = DASHES[index % len(DASHES)]
    return f'stroke="{COLOURS[index % len(COLOURS)]}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def line(series: Series, frame: Frame, index: int) -> str:
    if not len(series.x):
        return ""
    mark = ""
    if len(series.x) == 1:                            # a line of one point would be invisible
        x, y = frame.px(series.x[0]), frame.py(series.y[0])
        mark = f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{COLOURS[index % len(COLOURS)]}"/>'
    return (f'<g><title>{clean(series.name)}</title><polyline points="{frame.points(series.x, series.y)}" fill="none" '
            f'{stroke(index)} stroke-width="1.8" stroke-linejoin="round"/>{mark}</g>')


def band(series: Series, frame: Frame, colour: str) -> str:
    if series.low is None or series.high is None or not len(series.x):
        return ""
    there, back = frame.points(series.x, series.high), frame.points(series.x[::-1], series.low[::-1])
    return f'<polygon points="{there} {back}" fill="{colour}" fill-opacity="0.13"/>'


def legend_entry(name: str, index: int, columns: int) -> str:
    x, y = LEFT + 228 * (index % columns), HEIGHT + 8 + 18 * (index // columns)
    return f'<path d="M{x} {y}h34" {stroke(index)} stroke-width="2.2"/>' + label(x + 41, y + 4, name, "start")


def label(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{more}>{clean(text)}</text>'


def clean(text: str) -> str:
    """Escaped, and without the characters that no XML may hold."""
    return escape(NOT_XML.sub("\ufffd", text))


def document(body: list[str], title: str, values: int, height: int) -> str:
    heading = label(LEFT, 18, title, "start", ' font-weight="bold"')
    if not values:
        body.append(label((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2, "no data", "middle"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{clean(title)}" font-family="system-ui, sans-serif" font-size="12" '
            f'fill="currentColor">\n<title>{clean(title)}</title>\n{heading}\n' + "\n".join(body) + "\n</svg>")
