"""Two evaluations, question by question. Pure functions over finished runs.

    B - A       mean, over the questions that both have, of B's accuracy on the question minus A's
    interval    95 % of the means of as many questions, drawn from these with replacement

Pairing removes what makes a question easy or hard for both, so a small steady difference becomes visible. Questions are
paired by id.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import RunResult, Summary, accuracy, grouped, summarise

SAMPLES = 2000                        # of the bootstrap


@dataclass(frozen=True)
class Comparison:
    """B minus A over the questions with a verdict in both."""

    a: Summary
    b: Summary
    difference: float | None
    low: float | None                 # 95 % of the resampled means lie between low and high
    high: float | None
    questions: int
    better: int                       # questions on which B is better than A ...
    worse: int                        # ... and worse
    unpaired: int                     # questions that only one of them has
    unknown: int                      # questions that both have, without any verdict in one of them


def compare(a: Sequence[RunResult], b: Sequence[RunResult], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Refuses results that were graded differently, whose difference would be one of the graders, and results of other
    questions under the same ids."""
    of_a, of_b = grouped(a, "question"), grouped(b, "question")
    both = [question for question in of_a if question in of_b]
    summaries = summarise(a), summarise(b)
    graders = [summary.graded_by for summary in summaries]
    if graders[0] != graders[1]:
        raise ConfigError(f"{names[0]} was graded by {graders[0]}, {names[1]} by {graders[1]}: they cannot be "
                          "compared. Repeat one's eval.py command with --regrade and the other's grading")
    for question in both:
        if of_a[question][0].text != of_b[question][0].text:
            raise ConfigError(f"question {question!r} is another one in {names[0]} than in {names[1]}: they cannot be "
                              "compared")
    pairs = [(accuracy(of_a[question]).value, accuracy(of_b[question]).value) for question in both]
    differences = [y - x for x, y in pairs if x is not None and y is not None]
    low, high = bootstrap_interval(differences) if differences else (None, None)
    return Comparison(
        *summaries, difference=fmean(differences) if differences else None, low=low, high=high,
        questions=len(differences), better=sum(d > 0 for d in differences), worse=sum(d < 0 for d in differences),
        unpaired=len(of_a.keys() ^ of_b.keys()), unknown=len(both) - len(differences))


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % percentile interval of the mean, the same in every run."""
    rng = random.Random(0)
    drawn = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(SAMPLES))
    tail = SAMPLES // 40                                    # 2.5 % on either side
    return drawn[tail], drawn[-1 - tail]
