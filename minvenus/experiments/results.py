"""The numbers of a comparison: those of one run, their mean over seeds with an interval, the table and the page."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from minvenus.files import read_jsonl, write_text
from minvenus.report import page
from minvenus.report.curves import Series, line_plot
from minvenus.report.run_page import with_step_0

# two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; above 10 the last one, a little too wide
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
ACCURACY, RIGHT_PAGES = "test_exact_match", "test_right_pages"       # on held-out questions
PLOTS = {                                                            # metric -> title, unit
    ACCURACY: ("Accuracy on held-out questions", "share right"),
    RIGHT_PAGES: ("Right pages found", "share of the path"),
    "test_turns": ("Turns per rollout", "turns"),
    "groups_without_outcome_signal": ("Groups that end alike: no signal for GRPO", "share of groups"),
    "gain_right": ("Gain of right visits", "log-prob per answer token"),
    "gain_wrong": ("Gain of wrong visits", "log-prob per answer token"),
}
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


def band(name: str, steps: Sequence[int], values: Sequence[Sequence[float]]) -> Series:
    """A line of the mean over seeds at each step, with the interval around it if there are several seeds."""
    if all(len(of_seeds) == 1 for of_seeds in values):
        return Series(name, steps, [value for value, in values])
    points = [interval(of_seeds) for of_seeds in values]
    return Series(name, steps, [mean for mean, _ in points], [mean - half for mean, half in points],
                  [mean + half for mean, half in points])


def read_curves(folder: Path) -> Curves:
    """The metrics of a run of train_igpo.py."""
    metrics = with_step_0(read_jsonl(folder / "metrics.jsonl"))
    return {key: {row["step"]: row[key] for row in metrics if row.get(key) is not None} for key in PLOTS}


def measures(run: Curves, step: int) -> tuple[float, float, float]:
    """What is compared: accuracy after `step`, area under its curve (mean over the evaluations after step 0), and right
    pages after `step`."""
    area = statistics.fmean(value for at, value in run[ACCURACY].items() if at > 0)
    return run[ACCURACY][step], area, run[RIGHT_PAGES][step]


def rows(runs: Runs, step: int) -> list[list[str]]:
    """A head, the checkpoint that all methods start from, and each method: mean and 95 % interval over the seeds, then
    the accuracy of each seed."""
    first = next(iter(runs.values())).values()
    accuracy = [run[ACCURACY][0] for run in first]
    pages = [run[RIGHT_PAGES][0] for run in first]
    found = [["method", f"accuracy at step {step}", "area under the curve", f"right pages at step {step}", "each seed"],
             ["start (step 0)", shown(accuracy), "", shown(pages), each(accuracy)]]
    for method, of_seeds in runs.items():
        columns = list(zip(*(measures(run, step) for run in of_seeds.values()), strict=True))
        found.append([method, *map(shown, columns), each(columns[0])])
    return found


def each(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def differences(runs: Runs, step: int) -> list[list[str]]:
    """A head, then each method minus the first one, paired by seed: runs of a seed have the same questions."""
    (first, baseline), *others = runs.items()
    found = [["paired by seed", "accuracy", "area"]]
    for method, of_seeds in others:
        pairs = [(measures(run, step), measures(baseline[seed], step)) for seed, run in of_seeds.items()]
        accuracy = [own[0] - base[0] for own, base in pairs]
        area = [own[1] - base[1] for own, base in pairs]
        found.append([f"{method} - {first}", shown(accuracy), shown(area)])
    return found


def write_page(path: Path, runs: Runs, step: int, settings: dict) -> Path:
    head, *body = rows(runs, step)
    paired, *apart = differences(runs, step)
    plots = []
    for key, (title, unit) in PLOTS.items():
        lines = [line(method, of_seeds.values(), key) for method, of_seeds in runs.items()]
        if any(len(drawn.x) for drawn in lines):
            plots.append(page.figure(line_plot(lines, title, "steps", unit)))
    parts = [page.section("Result", [page.table(head, body, OVER_SEEDS)]),
             page.section("Differences", [page.table(paired, apart, OVER_SEEDS)]),
             page.section("Curves", [page.figures(plots)], "Bands are 95 % intervals over the seeds.")]
    facts = [(key, str(value)) for key, value in settings.items() if value is not None]
    lede = "All methods start from the same checkpoint and sample as many rollouts."
    return write_text(path, page.page("Methods compared", parts, lede, facts, kind="minvenus comparison"))


def line(method: str, runs, key: str) -> Series:
    """A metric over the steps at which every run has it. A method without such a step has an empty line, so that the
    others keep the colours that they have in other plots."""
    steps = sorted(set.intersection(*(set(run[key]) for run in runs)))
    return band(method, steps, [[run[key][step] for run in runs] for step in steps])
