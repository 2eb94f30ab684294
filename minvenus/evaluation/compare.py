"""One evaluation against another, question by question. Pure functions over finished runs.

    B - A       mean over the questions that both have of B's accuracy on it minus A's
    interval    95 % of the means of as many questions drawn from these with replacement

Pairing takes out what makes questions easy or hard for both, so a small steady difference can be seen. Questions are paired by
their ids: whoever reads the files checks that equal ids are equal questions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from minvenus.evaluation.aggregate import Run, accuracy, by_question
from minvenus.evaluation.summary import Summary, summarise


@dataclass(frozen=True)
class Difference:
    """B minus A over the questions that both have a verdict on."""

    value: float | None
    low: float | None                 # 95 % of the resampled means lie between
    high: float | None
    questions: int
    better: int                       # questions on which B is better than A ...
    worse: int                        # ... and worse
    unpaired: int                     # questions that only one of them has
    unknown: int                      # questions that both have, but one of them without any verdict


@dataclass(frozen=True)
class Comparison:
    a: Summary
    b: Summary
    difference: Difference


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    return Comparison(summarise(a), summarise(b), paired_difference(a, b))


def paired_difference(a: Sequence[Run], b: Sequence[Run], samples: int = 2000, seed: int = 0) -> Difference:
    of_a, of_b = by_question(a), by_question(b)
    both = sorted(of_a.keys() & of_b.keys())               # by name: the interval must not depend on the order of a file
    pairs = [(accuracy(of_a[question]).value, accuracy(of_b[question]).value) for question in both]
    differences = [y - x for x, y in pairs if x is not None and y is not None]
    unpaired, unknown = len(of_a.keys() ^ of_b.keys()), len(both) - len(differences)
    if not differences:
        return Difference(None, None, None, 0, 0, 0, unpaired, unknown)
    low, high = bootstrap_interval(differences, samples, seed)
    return Difference(fmean(differences), low, high, len(differences), sum(d > 0 for d in differences),
                      sum(d < 0 for d in differences), unpaired, unknown)


def bootstrap_interval(values: Sequence[float], samples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Percentile interval, 95 %, of the mean: that of as many values drawn with replacement, `samples` times."""
    if samples < 40 or not values:
        raise ValueError(f"need at least one value, and 40 samples to see 2.5 % of them; got {len(values)} and {samples}")
    rng = random.Random(seed)
    drawn = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(samples))
    tail = samples // 40
    return drawn[tail], drawn[samples - 1 - tail]
