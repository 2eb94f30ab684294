"""The numbers of a comparison: those of one run, their mean over seeds with an interval, the table and the page."""

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.experiments.audit import run_gains
from minvenus.files import read_jsonl, write_text
from minvenus.report.curves import Series, line_plot
from minvenus.report.page import figure, figures, page, section, table

# two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; above 10 the last one, a little too wide
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
ACCURACY, RIGHT_PAGES = "test_exact_match", "test_right_pages"       # on held-out questions
PLOTS = (                                                            # metric, title, unit, caption
    (ACCURACY, "Accuracy on held-out questions", "share right",
     "One sampled run per question; bands are 95 % intervals over the seeds."),
    (RIGHT_PAGES, "Right pages found", "share of the path",
     "Of the pages on the question's path, those that were opened."),
    ("test_turns", "Turns per rollout", "turns",
     "A search and a visit per hop and the answer are the least that a question needs."),
    ("groups_without_outcome_signal", "Collapsed groups", "share of groups",
     "Groups whose rollouts all ended alike: GRPO learns nothing from them."),
    ("gain_right", "Gain of right visits", "log-prob per answer token",
     "As the policy in training scores them; GRPO scores none."),
    ("gain_wrong", "Gain of wrong visits", "log-prob per answer token",
     "Honest gains stay below those of right visits."),
)


@dataclass(frozen=True)
class Outcome:
    """One run. `curves` maps a metric to its value after each step."""

    seed: int
    curves: dict[str, dict[int, float]]
    accuracy: float                  # at the step that is compared
    area: float                      # mean accuracy over the evaluations after step 0
    right_pages: float               # at the step that is compared


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float                      # half of the 95 % interval; nan for a single value

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.half) else f"{self.mean:.3f} ± {self.half:.3f}"


def interval(values: list[float]) -> Interval:
    """The mean and its 95 % interval by Student's t."""
    if len(values) < 2:
        return Interval(values[0], float("nan"))
    t = T95[min(len(values) - 1, len(T95)) - 1]
    return Interval(statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5)


def band(name: str, values: dict[int, list[float]]) -> Series:
    """The mean over seeds at each step as a line, with its interval if there are several seeds."""
    points = {step: interval(values[step]) for step in sorted(values)}
    several = any(len(found) > 1 for found in values.values())
    return Series(name, list(points), [p.mean for p in points.values()],
                  [p.mean - p.half for p in points.values()] if several else None,
                  [p.mean + p.half for p in points.values()] if several else None)


def read_outcome(folder: Path, at: int) -> Outcome:
    """The numbers of the run METHOD-SEED in a folder of train_igpo.py."""
    lines = read_jsonl(folder / "metrics.jsonl")
    curves: dict[str, dict[int, float]] = {}
    for key, *_ in PLOTS:
        curves[key] = {row["step"]: row[key] for row in lines if row.get(key) is not None}
        if lines and f"before_{key}" in lines[0]:
            curves[key][0] = lines[0][f"before_{key}"]
    if at not in curves[ACCURACY]:
        raise ConfigError(f"{folder} has no evaluation after step {at}")
    area = statistics.fmean(value for step, value in curves[ACCURACY].items() if step > 0)
    return Outcome(int(folder.name.rpartition("-")[2]), curves, curves[ACCURACY][at], area, curves[RIGHT_PAGES][at])


def rows(outcomes: dict[str, list[Outcome]], at: int) -> list[list[str]]:
    """The table: a head, the checkpoint that all methods start from, and each method. Mean and 95 % interval over the
    seeds, then the accuracy of each seed."""
    found = [["method", f"accuracy at step {at}", "area under the curve", f"right pages at step {at}", "each seed"]]
    start = [run.curves for run in next(iter(outcomes.values())) if 0 in run.curves.get(ACCURACY, {})]
    if start:
        accuracy = [curves[ACCURACY][0] for curves in start]
        right_pages = [curves[RIGHT_PAGES][0] for curves in start]
        found.append(["start (step 0)", str(interval(accuracy)), "", str(interval(right_pages)), each(accuracy)])
    for method, runs in outcomes.items():
        columns = [str(interval([getattr(run, name) for run in runs])) for name in ("accuracy", "area", "right_pages")]
        found.append([method, *columns, each([run.accuracy for run in runs])])
    return found


def each(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def differences(outcomes: dict[str, list[Outcome]]) -> list[list[str]]:
    """Each method minus the first one, paired by seed: runs of a seed have the same questions."""
    (first, baseline), *others = outcomes.items()
    by_seed = {run.seed: run for run in baseline}
    found = []
    for method, runs in others:
        pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
        for metric in ("accuracy", "area") if pairs else ():
            values = [getattr(run, metric) - getattr(base, metric) for run, base in pairs]
            found.append([f"{method} - {first}", metric, str(interval(values))])
    return found


# ------------------------------------------------------------------------------------------------------------- the page


def write_page(folder: Path, config, outcomes: dict[str, list[Outcome]]) -> Path:
    head, *body = rows(outcomes, config.at)
    over_seeds = "mean ± half of the 95 % interval over the seeds (Student's t)"
    plots = [(series(outcomes, key), title, unit, caption) for key, title, unit, caption in PLOTS]
    drawn = [figure(line_plot(lines, title, "steps", unit), caption) for lines, title, unit, caption in plots
             if any(len(line.x) for line in lines)]
    parts = [
        section("Result", [table(head, body, over_seeds)],
                "All methods start from the same checkpoint and sample as many rollouts."),
        section("Differences", [table(["methods", "of", "difference"], differences(outcomes), over_seeds)],
                "Paired by seed: runs of a seed have the same questions."),
        section("Curves", [figures(drawn)]),
        *gains_by_hop(folder, outcomes),
    ]
    lede = (f"Seeds per method: {config.seeds}; {config.steps} steps of {config.questions} questions x {config.group} "
            "rollouts.")
    facts = [(key, str(value)) for key, value in asdict(config).items() if value is not None]
    return write_text(folder / "report.html", page("Methods compared", parts, lede, facts, kind="minvenus comparison"))


def series(outcomes: dict[str, list[Outcome]], key: str) -> list[Series]:
    """A line per method, over the steps at which every run has the metric. A method without such a step has an empty
    line, so that the others keep the colours that they have in other plots."""
    lines = []
    for method, runs in outcomes.items():
        shared = set.intersection(*(set(run.curves[key]) for run in runs))
        lines.append(band(method, {step: [run.curves[key][step] for run in runs] for step in shared}))
    return lines


def gains_by_hop(folder: Path, outcomes: dict[str, list[Outcome]]) -> list[str]:
    """Mean gain of right visits at each hop, over all seeds, from the first and the last rollouts that the runs have
    saved."""
    lines: list[list[str]] = []
    for method, runs in outcomes.items():
        for name, place in (("first", 0), ("last", -1)):
            gains: dict[int, list[float]] = {}
            for run in runs:
                files = sorted((folder / f"{method}-{run.seed}" / "rollouts").glob("step-*.jsonl"))
                for (kind, hop), values in (run_gains(files[place]) if files else {}).items():
                    if kind == "right":
                        gains.setdefault(hop, []).extend(values)
            if gains:
                means = [f"{statistics.fmean(gains[hop]):+.2f}" if hop in gains else "" for hop in range(1, 5)]
                lines.append([method, name, *means])
    if not lines:
        return []
    names = ["method", "saved step", *(f"hop {hop}" for hop in range(1, 5))]
    return [section("Gains by hop", [table(names, lines, "mean gain of right visits, log-prob per answer token")],
                    "Gains that fall from hop to hop make it pay to stop early.")]
