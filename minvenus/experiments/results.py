"""What the runs of a comparison come to: curves, means over runs with intervals, tables and the page.

    mean                 of all runs
    interquartile mean   of the runs that are left without the lowest and the highest quarter, each rounded down
    [low, high]          95 % bootstrap interval: as many runs as there are, drawn with replacement, 10,000 times; the
                         2.5 and 97.5 percentiles of the number

Methods are compared by the differences of paired runs: the same start, the same questions, the same sampling seed. Runs
are drawn whatever start checkpoint they have: this is right where runs of one start are no more alike than others.
Where they are, `starts` gives the wider interval: checkpoints are drawn first, then runs of each drawn one. A bootstrap
of few runs is too narrow: docs/experiment.md says by how much. The draws are the same each time: a table is
reproducible. One run has no interval.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from minvenus.files import read_jsonl
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
from minvenus.igpo.recipes import RECIPE_WORDS
from minvenus.report.run_page import with_step_0

DRAWS = 10_000
COLLAPSED = 0.5                   # a run has collapsed if its rollouts have less than this share of its start's turns
ACCURACY, RIGHT_PAGES, TURNS = "test_exact_match", "test_right_pages", "test_turns"       # on held-out questions
PLOTS = {                                                            # metric -> title, unit
    ACCURACY: ("Accuracy on held-out questions", "share right"),
    RIGHT_PAGES: ("Right pages found", "share of the path"),
    TURNS: ("Turns per rollout", "turns"),
    "groups_without_outcome_signal": ("Groups that end alike: no signal for GRPO", "share of groups"),
    "gain_right": ("Gain of right visits", "log-prob per answer token"),
    "gain_wrong": ("Gain of wrong visits", "log-prob per answer token"),
}
Statistic = Callable[[np.ndarray], np.ndarray]              # [..., runs] -> [...]
Curves = dict[str, dict[int, float]]        # of one run: metric -> step -> value; step 0 is before training
Runs = dict[str, list[Curves]]              # method -> its runs, one per seed; all methods have the same seeds


def mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values, axis=-1)
    runs = ordered.shape[-1]
    return ordered[..., runs // 4:runs - runs // 4].mean(axis=-1)


def interval(values: Sequence[float], statistic: Statistic = mean, starts: int = 0) -> tuple[float, float, float]:
    """(the number, low, high). With `starts`, run i has the start checkpoint i % starts, and these are drawn, too."""
    array, rng = np.array(values, dtype=float), np.random.default_rng(0)
    if starts:
        start = np.arange(len(array)) % starts                                                     # [runs]
        other = rng.integers(start.max() + 1, size=(DRAWS, starts))[:, start]                      # [draws, runs]
        drawn = array[other + starts * rng.integers(np.bincount(start)[other])]
    else:
        drawn = rng.choice(array, (DRAWS, len(array)))
    low, high = np.percentile(statistic(drawn), (2.5, 97.5))
    return float(statistic(array)), float(low), float(high)


def shown(values: Sequence[float], statistic: Statistic = mean, starts: int = 0) -> str:
    number, low, high = interval(values, statistic, starts)
    return f"{number:.3f}" if len(values) == 1 else f"{number:.3f} [{low:.3f}, {high:.3f}]"


def read_curves(folder: Path) -> Curves:
    """The metrics of a run of train_igpo.py, and the area under its curve of accuracy: the mean over the evaluations up
    to a step. Step 0, the checkpoint that the methods start from, counts in no area."""
    metrics = with_step_0(read_jsonl(folder / "metrics.jsonl"))
    curves: Curves = {key: {row["step"]: row[key] for row in metrics if row.get(key) is not None} for key in PLOTS}
    steps = [step for step in curves[ACCURACY] if step > 0]
    curves["area"] = {last: fmean(curves[ACCURACY][step] for step in steps if step <= last) for last in steps}
    return curves


def results(runs: Runs, checkpoints: int, step: int) -> dict[str, list[list[str]]]:
    """Tables with their titles."""
    columns = {"accuracy at step 0": (ACCURACY, 0), f"at step {step}": (ACCURACY, step),
               "area under the curve": ("area", step), "right pages": (RIGHT_PAGES, step), "turns": (TURNS, step)}
    means = over_seeds(runs, columns)
    means[0].append("collapsed")
    for row, of_seeds in zip(means[1:], runs.values(), strict=True):
        row.append(f"{sum(run[TURNS][step] < COLLAPSED * run[TURNS][0] for run in of_seeds)} of {len(of_seeds)}")
    found = {"Mean over runs [95 % interval]": means,
             "Interquartile mean [95 % interval]": over_seeds(runs, columns, interquartile_mean)}
    apart = {f"{method} - {other}": list(map(minus, runs[method], runs[other]))
             for method in runs for other in compared_with(method, list(runs))}
    if apart:
        found["Differences of paired runs, mean [95 % interval]"] = over_seeds(apart, columns)
        found["The same, start checkpoints drawn, too"] = over_seeds(apart, columns, mean, checkpoints)
    each = [[method, *(f"{run[ACCURACY][step]:.2f}" for run in of_seeds)] for method, of_seeds in runs.items()]
    starts = [str(i % checkpoints + 1) for i in range(len(next(iter(runs.values()))))]
    found[f"Accuracy at step {step} of each run"] = [["start checkpoint", *starts], *each]
    return found


def compared_with(method: str, methods: list[str]) -> list[str]:
    """An arm is compared with the first method and with the arms before it; an arm with changes with the arm itself (or
    the first method), and with the first arm under the same changes."""
    first, (arm, _, changes) = methods[0], method.partition("+")
    others = [first, *(other for other in methods[:methods.index(method)] if "+" not in other)]
    if changes:
        others = [arm if arm in methods else first, f"{first.split('+')[0]}+{changes}"]
    return [other for other in dict.fromkeys(others) if other in methods and other != method]


def minus(run: Curves, other: Curves) -> Curves:
    """At the steps that both have."""
    return {metric: {step: curve[step] - other[metric][step] for step in curve.keys() & other[metric].keys()}
            for metric, curve in run.items()}


def over_seeds(runs: Runs, columns: dict[str, tuple[str, int]], statistic=mean, starts: int = 0) -> list[list[str]]:
    """A table: a head, then each method with every column, a title with a metric and a step, over its runs."""
    found = [["method", *columns]]
    for method, of_seeds in runs.items():
        cells = [shown([run[metric][step] for run in of_seeds], statistic, starts)
                 for metric, step in columns.values()]
        found.append([method, *cells])
    return found


# ------------------------------------------------------------------------------------------------------------ the page


def page_of(runs: Runs, tables: dict[str, list[list[str]]], said: list[str], plan: dict) -> str:
    plots = [page.figure(plot) for metric in PLOTS if (plot := plot_of(runs, metric))]
    listed = [page.table(rows[0], rows[1:], title) for title, rows in tables.items()]
    arms = dict.fromkeys(method.split("+")[0] for method in runs)
    words = [(arm, RECIPE_WORDS[arm]) for arm in arms]
    sections = [page.pairs(words, "glossary"), page.section("Result", listed),
                page.section("Plan", [page.note(remark, "remark") for remark in said]),
                page.section("Curves", [page.figures(plots)], "Bands are 95 % intervals over the runs.")]
    facts = [(key, str(value)) for key, value in plan.items()]
    lede = "All methods start from the same checkpoints and sample as many rollouts; runs of one seed are paired."
    return page.page("Methods compared", sections, lede, facts, kind="minvenus comparison")


def plot_of(runs: Runs, metric: str) -> page.Html | None:
    """A line with its band for each method; nothing if the metric was never logged."""
    title, unit = PLOTS[metric]
    lines = [line(method, [run[metric] for run in of_seeds]) for method, of_seeds in runs.items()]
    return line_plot(lines, title, "steps", unit) if any(drawn.x for drawn in lines) else None


def line(method: str, curves: list[dict[int, float]]) -> Series:
    """The mean over runs, with its interval, at the steps that every curve has. A method without such a step has an
    empty line, so that the others keep the colours that they have in other plots."""
    steps = sorted(set.intersection(*map(set, curves)))
    points = [interval([curve[step] for curve in curves]) for step in steps]
    if len(curves) == 1:
        return Series(method, steps, [number for number, _, _ in points])
    return Series(method, steps, *([point[i] for point in points] for i in range(3)))
