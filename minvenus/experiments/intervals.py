"""Means over runs, and how far they can be trusted.

Two intervals of 95 %:

    bootstrap    as many runs as there are, drawn with replacement, 10,000 times; the 2.5 and 97.5
                 percentiles of the mean. Runs are drawn whatever start checkpoint they have: right
                 where runs of one start are no more alike than others. With `starts`, checkpoints
                 are drawn first, then runs of each drawn one. The draws are the same each time.
    t            of the means of the start checkpoints, n of them: mean +- t sd / sqrt(n), Student's
                 t with n - 1 degrees of freedom. It is right where these means are normal, however
                 much runs of one start are alike.

A bootstrap of few runs is too narrow: docs/experiment.md says by how much. One run has no interval.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np

DRAWS = 10_000


def interval(numbers: Sequence[float], starts: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of the runs' numbers, by bootstrap.

    With `starts`, run i has the start checkpoint i % starts, and checkpoints are drawn as well.
    """
    runs = np.array(numbers, dtype=float)
    rng = np.random.default_rng(0)
    if starts:
        samples = draw_starts(runs, min(starts, len(runs)), rng)
    else:
        samples = rng.choice(runs, (DRAWS, len(runs)))
    low, high = np.percentile(samples.mean(axis=1), (2.5, 97.5))
    return float(runs.mean()), float(low), float(high)


def draw_starts(runs: np.ndarray, starts: int, rng: np.random.Generator) -> np.ndarray:
    """[DRAWS, runs]: each start checkpoint is replaced by a drawn one, its runs by runs of that."""
    samples = np.empty((DRAWS, len(runs)))
    for start in range(starts):
        drawn_starts = rng.integers(starts, size=DRAWS)
        width = len(runs[start::starts])
        for other in range(starts):
            rows = drawn_starts == other
            other_runs = runs[other::starts]
            samples[rows, start::starts] = rng.choice(other_runs, (rows.sum(), width))
    return samples


def interval_text(numbers: Sequence[float], starts: int = 0) -> str:
    mean, low, high = interval(numbers, starts)
    if len(numbers) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


# ------------------------------------------------------------------------- start checkpoints, by t


def start_means(numbers: Sequence[float], starts: int) -> list[float]:
    """The mean over the runs of each start checkpoint; run i has start i % starts."""
    return [fmean(numbers[start::starts]) for start in range(min(starts, len(numbers)))]


def t_interval(means: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of at least two means, by Student's t."""
    mean = fmean(means)
    error = stdev(means) / len(means) ** 0.5
    width = t_quantile(0.975, len(means) - 1) * error
    return mean, mean - width, mean + width


def p_value(means: Sequence[float]) -> float:
    """How probable a mean at least as far from 0 is if the truth is 0: two-sided t test."""
    error = stdev(means) / len(means) ** 0.5
    if error == 0:
        return 0.0 if fmean(means) else 1.0
    return 2 * (1 - t_distribution(abs(fmean(means)) / error, len(means) - 1))


def t_distribution(t: float, freedom: int) -> float:
    """P(T <= t). With t = sqrt(freedom) tan(a) the density is cos(a)^(freedom - 1), up to a
    constant, for a from -pi/2 to pi/2."""
    return float(np.interp(math.atan(t / freedom**0.5), *t_angles(freedom)))


def t_quantile(p: float, freedom: int) -> float:
    """The t with P(T <= t) = p."""
    angles, shares = t_angles(freedom)
    return freedom**0.5 * math.tan(np.interp(p, shares, angles))


def t_angles(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles a, and the probability below each, by the trapezium rule."""
    angles = np.linspace(-math.pi / 2, math.pi / 2, 200_001)
    density = np.cos(angles) ** (freedom - 1)
    areas = np.cumsum((density[1:] + density[:-1]) / 2)
    return angles, np.append(0, areas) / areas[-1]


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected for being several (Holm): the smallest of n is
    multiplied by n, the next by n - 1, and none is less than one before it."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected
