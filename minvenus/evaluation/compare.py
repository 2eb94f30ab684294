"""Two evaluations, question by question. Pure functions over finished runs.

    B - A       mean, over the questions that both have, of B's accuracy on the question minus A's
    interval    95 % of the means of as many questions, drawn from these with replacement

Pairing removes what makes a question easy or hard for both, so a small steady difference becomes visible. Questions are
paired by id; the caller checks that equal ids are equal questions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import RunResult, Summary, accuracy, by_question, summarise

SAMPLES = 2000                        # of the bootstrap


@dataclass(frozen=True)
class Difference:
    """B minus A over the questions with a verdict in both."""

    value: float | None
    low: float | None                 # 95 % of the resampled means lie between low and high
    high: float | None
    questions: int
    better: int                       # questions on which B is better than A ...
    worse: int                        # ... and worse
    unpaired: int                     # questions that only one of them has
    unknown: int                      # questions that both have, without any verdict in one of them


@dataclass(frozen=True)
class Comparison:
    a: Summary
    b: Summary
    difference: Difference


def compare(a: Sequence[RunResult], b: Sequence[RunResult], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Refuses results that were graded differently: their difference would be one of the graders."""
    found = Comparison(summarise(a), summarise(b), paired_difference(a, b))
    if found.a.graded_by != found.b.graded_by:
        raise ConfigError(f"{names[0]} was graded by {found.a.graded_by}, {names[1]} by {found.b.graded_by}: they "
                          "cannot be compared. Repeat one's eval.py command with --regrade and the other's grading")
    return found


def paired_difference(a: Sequence[RunResult], b: Sequence[RunResult], samples: int = SAMPLES) -> Difference:
    of_a, of_b = by_question(a), by_question(b)
    both = sorted(of_a.keys() & of_b.keys())               # sorted: the interval must not depend on the order in a file
    pairs = [(accuracy(of_a[question]).value, accuracy(of_b[question]).value) for question in both]
    differences = [y - x for x, y in pairs if x is not None and y is not None]
    unpaired, unknown = len(of_a.keys() ^ of_b.keys()), len(both) - len(differences)
    if not differences:
        return Difference(None, None, None, 0, 0, 0, unpaired, unknown)
    low, high = bootstrap_interval(differences, samples)
    return Difference(fmean(differences), low, high, len(differences), sum(d > 0 for d in differences),
                      sum(d < 0 for d in differences), unpaired, unknown)


def bootstrap_interval(values: Sequence[float], samples: int = SAMPLES) -> tuple[float, float]:
    """95 % percentile interval of the mean, the same in every run."""
    rng = random.Random(0)
    drawn = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(samples))
    tail = samples // 40                                    # 2.5 % on either side
    return drawn[tail], drawn[samples - 1 - tail]
