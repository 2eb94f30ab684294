"""Results of several methods over seeds: means with their intervals, as tables and as curves."""

import statistics
from collections.abc import Sequence

from minvenus.report import page
from minvenus.report.curves import Series, line_plot

# two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; above 10 the last one, a little too wide
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
OVER_SEEDS = "mean ± half of the 95 % interval over the seeds (Student's t)"

Curves = dict[str, dict[int, float]]        # of one run: metric -> step -> value; step 0 is before training
Runs = dict[str, dict[int, Curves]]         # method -> seed -> the run; all methods have the same seeds


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of its 95 % interval by Student's t, of two values or more."""
    t = T95[min(len(values) - 1, len(T95)) - 1]
    return statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5


def shown(values: Sequence[float]) -> str:
    """The mean, with its interval if there are several values."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    mean, half = interval(values)
    return f"{mean:.3f} ± {half:.3f}"


def rows(runs: Runs, columns: dict[str, tuple[str, int]]) -> list[list[str]]:
    """A table: a head, then each method with its mean over seeds of every column, a title with a metric and a step."""
    found = [["method", *columns]]
    for method, of_seeds in runs.items():
        found.append([method, *(shown([run[metric][step] for run in of_seeds.values()])
                                for metric, step in columns.values())])
    return found


def figures(runs: Runs, plots: dict[str, tuple[str, str]]) -> str:
    """A plot with a line per method for every metric that any run has; `plots` gives their titles and units."""
    found = []
    for metric, (title, unit) in plots.items():
        lines = [line(method, [run[metric] for run in of_seeds.values()]) for method, of_seeds in runs.items()]
        if any(drawn.x for drawn in lines):
            found.append(page.figure(line_plot(lines, title, "steps", unit)))
    return page.figures(found)


def line(method: str, curves: list[dict[int, float]]) -> Series:
    """The mean over seeds, with its interval, at the steps that every curve has. A method without such a step has an
    empty line, so that the others keep the colours that they have in other plots."""
    steps = sorted(set.intersection(*map(set, curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    if len(curves) == 1:
        return Series(method, steps, [value for value, in values])
    points = [interval(of_seeds) for of_seeds in values]
    return Series(method, steps, [mean for mean, _ in points], [mean - half for mean, half in points],
                  [mean + half for mean, half in points])
