"""Line plots with intervals, as SVG text. Pure functions from numbers to a string.

The string stands in an HTML page as it is, or alone in a file: no script, no style sheet, no reference to
anything outside. Axes and text take the page's own colour (currentColor); the lines' colours stand out on
white and on near-black, and each line has a dash pattern too, for those who print or cannot tell the
colours. All text is escaped. A value that is not a number is an error, never a hole: leave the point out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minvenus.report.page import text

COLOURS = ("#2f7fd6", "#d9541e", "#1f9a55", "#b04fc4", "#b07d00", "#d6336c", "#0f929c", "#7d7d85")
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "14 4", "5 5", "9 3 2 3 2 3", "4 2", "16 3 6 3")     # 9: 72 different pairs
LARGEST, SMALLEST = 1e100, 1e-100            # a larger value would overflow a range; a smaller one counts as 0
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 520, 300, 64, 34, 48, 16       # pixels; the legend comes below
SHORT_NAME = 28                              # letters of a name, so that two fit side by side in the legend


@dataclass(frozen=True)
class Series:
    """A named line; `low` and `high` are the interval around each of its points, if it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self):
        for part in ("x", "y", "low", "high"):
            for i, value in enumerate(getattr(self, part) or ()):
                if not abs(value) < LARGEST:
                    raise ValueError(f"series {self.name!r}, {part}[{i}] is {value}: a plot takes finite numbers below "
                                     f"{LARGEST:g}; leave the point out")


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


def line_plot(series: Sequence[Series], title: str, x_label: str, y_label: str, covers: Sequence[float] = ()) -> str:
    """One line per series. Units belong in the labels. The y axis shows all values, and at least those in `covers`."""
    xs: list[float] = []
    ys = [*covers]
    for s in series:
        xs += s.x
        ys += [*s.y, *(s.low or ()), *(s.high or ())]
    frame = Frame(value_range(xs), with_air(value_range(ys), covers))
    body = axes(frame, x_label, y_label)
    body += [band(s, frame, COLOURS[i % len(COLOURS)]) for i, s in enumerate(series)]
    body += [line(s, frame, i) for i, s in enumerate(series) if s.x]
    columns = 1 if any(len(s.name) > SHORT_NAME for s in series) else 2
    body += [legend_entry(s.name, i, columns) for i, s in enumerate(series)]
    height = HEIGHT + 18 * math.ceil(len(series) / columns) + 4
    heading = label(LEFT, 18, title, "start", ' font-weight="bold"')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{text(title)}" font-family="system-ui, sans-serif" font-size="12" '
            f'fill="currentColor">\n<title>{text(title)}</title>\n{heading}\n' + "\n".join(body) + "\n</svg>")


# ------------------------------------------------------------------------------------------------- ranges


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest; a range of its own around values that are almost equal, and 0 to 1 of nothing."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    size = max(abs(low), abs(high))
    if size < SMALLEST:
        return -0.5, 0.5
    if high - low > 1e-4 * size:                      # else the labels of ticks would be the same
        return low, high
    return low - 0.1 * size, high + 0.1 * size


def with_air(limits: tuple[float, float], covers: Sequence[float]) -> tuple[float, float]:
    """A little room above and below, but none where the range ends at what the caller asked for."""
    low, high = limits
    air = 0.04 * (high - low)
    return low if low in covers else low - air, high if high in covers else high + air


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], roughly `about` of them."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5) if m * power >= rough * 0.999), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [min(max(k * step, low), high) for k in range(first, last + 1)]


# ------------------------------------------------------------------------------------------------- pieces


def axes(frame: Frame, x_label: str, y_label: str) -> list[str]:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    middle = (top + bottom) / 2
    parts = [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
             label((left + right) / 2, HEIGHT - 10, x_label, "middle"),
             label(13, middle, y_label, "middle", f' transform="rotate(-90 13 {middle})"')]
    for value in ticks(*frame.x):
        at = frame.px(value)
        parts.append(f'<path d="M{at:.2f} {bottom}v5" stroke="currentColor"/>')
        parts.append(label(at, bottom + 18, f"{value:.6g}", "middle"))
    for value in ticks(*frame.y):
        at = frame.py(value)
        parts.append(f'<path d="M{left} {at:.2f}H{right}" stroke="currentColor" stroke-opacity="0.15"/>')
        parts.append(label(left - 7, at + 4, f"{value:.6g}", "end"))
    return parts


def stroke(index: int) -> str:
    """Colour and dashes of a line."""
    return f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-dasharray="{DASHES[index % len(DASHES)]}"'


def line(series: Series, frame: Frame, index: int) -> str:
    mark = ""
    if len(series.x) == 1:                            # a line of one point would be invisible
        x, y = frame.px(series.x[0]), frame.py(series.y[0])
        mark = f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{COLOURS[index % len(COLOURS)]}"/>'
    return (f'<g><title>{text(series.name)}</title><polyline points="{frame.points(series.x, series.y)}" fill="none" '
            f'{stroke(index)} stroke-width="1.8" stroke-linejoin="round"/>{mark}</g>')


def band(series: Series, frame: Frame, colour: str) -> str:
    if series.low is None or series.high is None:
        return ""
    there, back = frame.points(series.x, series.high), frame.points(series.x[::-1], series.low[::-1])
    return f'<polygon points="{there} {back}" fill="{colour}" fill-opacity="0.13"/>'


def legend_entry(name: str, index: int, columns: int) -> str:
    x, y = LEFT + 228 * (index % columns), HEIGHT + 8 + 18 * (index // columns)
    return f'<path d="M{x} {y}h34" {stroke(index)} stroke-width="2.2"/>' + label(x + 41, y + 4, name, "start")


def label(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{more}>{text(words)}</text>'
