"""The results of a comparison: curves, means over runs with intervals, tables and the page.

Methods are compared by the differences of paired runs: the same start checkpoint, the same
questions, the same sampling seed. intervals.py says what the intervals are.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from minvenus.experiments.intervals import (
    holm,
    interval,
    interval_text,
    p_value,
    start_means,
    t_interval,
)
from minvenus.files import read_jsonl
from minvenus.igpo.recipes import RECIPE_WORDS
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
from minvenus.report.run_page import curve, with_step_0

COLLAPSED = 0.5             # of its turns at step 0: a run that keeps fewer has collapsed
FAILED = 0.25               # accuracy at the end: a run below it has failed
ACCURACY = "test_exact_match"                               # metrics on held-out questions
RIGHT_PAGES = "test_right_pages"
TURNS = "test_turns"
LARGEST = "advantage_max"   # the largest advantage of a step, in size
PLOTS = {                                                   # metric -> title, unit
    ACCURACY: ("Accuracy on held-out questions", "share right"),
    RIGHT_PAGES: ("Right pages found", "share of the path"),
    TURNS: ("Turns per rollout", "turns"),
    "groups_without_outcome_signal": (
        "Groups that end alike: no signal for GRPO", "share of groups"),
    "gain_right": ("Gain of right visits", "log-prob per answer token"),
    "gain_wrong": ("Gain of wrong visits", "log-prob per answer token"),
}
Curves = dict[str, dict[int, float]]    # of one run: metric -> step -> number; 0 = before training
Runs = dict[str, list[Curves]]          # method -> its runs; all methods have the same seeds
Table = list[list[str]]                 # a head, then rows

# ------------------------------------------------------------------------------------------ tables


def read_curves(folder: Path) -> Curves:
    """The metrics of a run of train_igpo.py, and the area under its curve of accuracy.

    The area is the mean over the evaluations up to a step. Step 0, the checkpoint that the methods
    start from, counts in no area.
    """
    rows = with_step_0(read_jsonl(folder / "metrics.jsonl"))
    curves = {metric: curve(rows, metric) for metric in (*PLOTS, LARGEST)}
    accuracies = []
    curves["area"] = {}
    for step, accuracy in curves[ACCURACY].items():
        if step > 0:
            accuracies.append(accuracy)
            curves["area"][step] = fmean(accuracies)
    return curves


def tables(runs: Runs, checkpoints: int, step: int) -> dict[str, Table]:
    """Tables with their titles."""
    columns = {
        "accuracy at step 0": (ACCURACY, 0),
        f"at step {step}": (ACCURACY, step),
        "area under the curve": ("area", step),
        "right pages": (RIGHT_PAGES, step),
        "turns": (TURNS, step),
    }
    means = over_seeds(runs, columns)
    means[0] += ["failed", "collapsed", "max |A|"]
    for row, method_runs in zip(means[1:], runs.values(), strict=True):
        row += endings(method_runs, step)
    listed = {"Mean over runs [95 % interval]": means}

    differences = differences_of(runs)
    if differences:
        title = "Differences of paired runs, mean [95 % interval]"
        listed[title] = over_seeds(differences, columns)
        title = "The same, start checkpoints drawn as well"
        listed[title] = over_seeds(differences, columns, checkpoints)
    if differences and checkpoints > 1:
        first, *others = runs
        title = f"Minus {first}: mean of the start checkpoints [95 % t interval], p, p after Holm"
        minus_first = {method: differences[f"{method} minus {first}"] for method in others}
        listed[title] = tested(minus_first, checkpoints, step)

    accuracies = each_run(runs, checkpoints, lambda run: f"{run[ACCURACY][step]:.2f}")
    listed[f"Accuracy at step {step} of each run"] = accuracies
    largest = each_run(runs, checkpoints, lambda run: f"{largest_advantage(run):.3g}")
    listed["Largest |A| of each run"] = largest
    return listed


def endings(runs: list[Curves], step: int) -> list[str]:
    """How many runs of a method have failed and collapsed, and the largest advantage of any."""
    failed = sum(run[ACCURACY][step] < FAILED for run in runs)
    collapsed = sum(run[TURNS][step] < COLLAPSED * run[TURNS][0] for run in runs)
    largest = max(map(largest_advantage, runs))
    return [f"{failed} of {len(runs)}", f"{collapsed} of {len(runs)}", f"{largest:.3g}"]


def tested(differences: Runs, checkpoints: int, step: int) -> Table:
    """The differences of methods to one and the same, with a test over the start checkpoints.

    The tests of a metric are corrected for being as many as there are methods.
    """
    rows = {method: [method] for method in differences}
    for metric in (ACCURACY, "area"):
        p_values = []
        for method, runs in differences.items():
            means = start_means([run[metric][step] for run in runs], checkpoints)
            mean, low, high = t_interval(means)
            p_values.append(p_value(means))
            rows[method].append(f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]")
        for row, p, corrected in zip(rows.values(), p_values, holm(p_values), strict=True):
            row += [f"{p:.4f}", f"{corrected:.4f}"]
    head = ["method", f"at step {step}", "p", "Holm", "area under the curve", "p", "Holm"]
    return [head, *rows.values()]


def each_run(runs: Runs, checkpoints: int, cell: Callable[[Curves], str]) -> Table:
    rows = [[method, *map(cell, method_runs)] for method, method_runs in runs.items()]
    starts = [str(i % checkpoints + 1) for i in range(len(rows[0]) - 1)]
    return [["start checkpoint", *starts], *rows]


def largest_advantage(run: Curves) -> float:
    """Of all turns of all steps, in size; 0 where nothing had an advantage."""
    return max(run[LARGEST].values(), default=0.0)


def differences_of(runs: Runs) -> Runs:
    """Paired runs: every method minus the first one, and recipes minus the recipes before them,
    where neither has changes."""
    first, *others = runs
    differences: Runs = {}
    recipes: list[str] = []
    for method in others:
        before = [first]
        if " " not in method:
            before += recipes
            recipes.append(method)
        for other in before:
            pairs = zip(runs[method], runs[other], strict=True)
            differences[f"{method} minus {other}"] = [minus(run, paired) for run, paired in pairs]
    return differences


def minus(run: Curves, other: Curves) -> Curves:
    """The difference of two runs at the steps that both have."""
    difference: Curves = {}
    for metric, numbers in run.items():
        steps = numbers.keys() & other[metric].keys()
        difference[metric] = {step: numbers[step] - other[metric][step] for step in steps}
    return difference


def over_seeds(runs: Runs, columns: dict[str, tuple[str, int]], starts: int = 0) -> Table:
    """A row for each method: the means over its runs. A column is a title, a metric and a step."""
    table = [["method", *columns]]
    for method, method_runs in runs.items():
        row = [method]
        for metric, step in columns.values():
            row.append(interval_text([run[metric][step] for run in method_runs], starts))
        table.append(row)
    return table


# ---------------------------------------------------------------------------------------- the page


def page_of(runs: Runs, listed: dict[str, Table], plan: dict) -> str:
    recipes = dict.fromkeys(method.split()[0] for method in runs)
    words = [(recipe, RECIPE_WORDS[recipe]) for recipe in recipes]
    tables = [page.table(head, rows, title) for title, (head, *rows) in listed.items()]
    plots = [plot_of(runs, metric) for metric in PLOTS]
    figures = [page.figure(plot) for plot in plots if plot]

    sections = [
        page.pairs(words, "glossary"),
        page.section("Result", tables),
        page.section("Curves", [page.figures(figures)], "Bands are 95 % intervals over the runs."),
    ]
    facts = [(key, str(fact)) for key, fact in plan.items()]
    lede = (
        "All methods start from the same checkpoints and sample as many rollouts; runs of one seed "
        "are paired. Metric, step, seeds and all other settings were fixed before the first run."
    )
    return page.page("Methods compared", sections, lede, facts, kind="minvenus comparison")


def plot_of(runs: Runs, metric: str) -> page.Html | None:
    """A line with its band for each method; nothing if the metric was never logged."""
    title, unit = PLOTS[metric]
    lines = []
    for method, method_runs in runs.items():
        lines.append(line(method, [run[metric] for run in method_runs]))
    if not any(series.x for series in lines):
        return None
    return line_plot(lines, title, "steps", unit)


def line(method: str, curves: list[dict[int, float]]) -> Series:
    """The mean over runs, with its interval, at the steps that every curve has.

    A method without such a step has an empty line, so that the others keep their colours.
    """
    steps = sorted(set.intersection(*map(set, curves)))
    means, lows, highs = [], [], []
    for step in steps:
        mean, low, high = interval([curve[step] for curve in curves])
        means.append(mean)
        lows.append(low)
        highs.append(high)
    if len(curves) == 1:
        return Series(method, steps, means)
    return Series(method, steps, means, lows, highs)
