"""What a comparison measures: numbers of one run, their mean over seeds with an interval, and the table."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.train.metrics import read

# two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; for more than 10 the last one, a little too wide
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
CURVES = ("test_exact_match", "test_right_pages", "test_turns", "test_malformed")             # on held-out questions
TRAINING = ("groups_without_outcome_signal", "gain_right", "gain_wrong", "outcome")   # of the training batches


@dataclass(frozen=True)
class Outcome:
    """One run. `curves` maps a metric to (steps done, value) pairs."""

    seed: int
    curves: dict[str, list[tuple[int, float]]]
    accuracy: float                  # at the fixed step
    area: float                      # mean accuracy over the evaluations
    right_pages: float               # at the fixed step
    seconds: dict[str, float]        # per phase


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float                      # of the 95 % interval; nan for a single run

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.half) else f"{self.mean:.3f} ± {self.half:.3f}"


def interval(values: list[float]) -> Interval:
    """Student's t over the seeds."""
    if len(values) < 2:
        return Interval(values[0], float("nan"))
    t = T95[min(len(values) - 1, len(T95)) - 1]
    return Interval(statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5)


def read_outcome(folder: Path, at: int) -> Outcome:
    lines = read(folder / "metrics.jsonl")
    curves = {key: [(row["step"], row[key]) for row in lines if row.get(key) is not None] for key in CURVES + TRAINING}
    for key in CURVES:                                                     # evaluated before the first step
        curves[key] = [(0, row[f"before_{key}"]) for row in lines[:1] if f"before_{key}" in row] + curves[key]
    by_step = {key: dict(curves[key]) for key in ("test_exact_match", "test_right_pages")}
    if at not in by_step["test_exact_match"]:
        raise ConfigError(f"{folder} has no evaluation after step {at}")
    evaluated = [value for step, value in curves["test_exact_match"] if step > 0]
    seconds: dict[str, float] = {}
    for row in read(folder / "timing.jsonl"):
        for key, value in row.items():
            if key.endswith("_seconds"):
                seconds[key.removesuffix("_seconds")] = seconds.get(key.removesuffix("_seconds"), 0.0) + value
    return Outcome(int(folder.name.rpartition("-")[2]), curves, by_step["test_exact_match"][at], statistics.fmean(evaluated),
                   by_step["test_right_pages"][at], seconds)


def head(at: int) -> list[str]:
    return ["method", f"accuracy at step {at}", "area under the curve", f"right pages at step {at}", "accuracy of each seed"]


def rows(outcomes: dict[str, list[Outcome]]) -> list[list[str]]:
    """Mean and 95 % interval over the seeds, and every seed's accuracy; first of the checkpoint that all start from."""
    found, some = [], next(iter(outcomes.values()))
    accuracy, right_pages = ([value for run in some for step, value in run.curves.get(key, ()) if step == 0]
                             for key in ("test_exact_match", "test_right_pages"))
    if accuracy and right_pages:
        found.append(["start (step 0)", str(interval(accuracy)), "", str(interval(right_pages)), each(accuracy)])
    for method, runs in outcomes.items():
        columns = [str(interval([getattr(run, name) for run in runs])) for name in ("accuracy", "area", "right_pages")]
        found.append([method, *columns, each([run.accuracy for run in runs])])
    return found


def each(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def table(outcomes: dict[str, list[Outcome]], at: int) -> str:
    return "\n".join("{:<20} {:<22} {:<22} {:<24} {}".format(*cells) for cells in [head(at), *rows(outcomes)])


def differences(outcomes: dict[str, list[Outcome]]) -> list[tuple[str, str, Interval]]:
    """(name, metric, interval) of each method minus the first one, paired by seed: runs of a seed have the same questions."""
    (first, baseline), *others = outcomes.items()
    by_seed, found = {run.seed: run for run in baseline}, []
    for method, runs in others:
        pairs = [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]
        for metric in ("accuracy", "area") if pairs else ():
            values = [getattr(run, metric) - getattr(base, metric) for run, base in pairs]
            found.append((f"{method} - {first}", metric, interval(values)))
    return found


def mean_curve(runs: list[Outcome], key: str) -> tuple[list[int], list[Interval]]:
    """Over the steps that every run has."""
    shared = sorted(set.intersection(*(set(dict(run.curves[key])) for run in runs)))
    return shared, [interval([dict(run.curves[key])[step] for run in runs]) for step in shared]
