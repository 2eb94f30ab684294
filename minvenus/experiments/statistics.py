"""Means over runs, with intervals.

    mean                 of all runs
    interquartile mean   of the runs that are left without the lowest and the highest quarter, each rounded down
    [low, high]          95 % bootstrap interval: as many runs as there are, drawn with replacement, 10,000 times; the
                         2.5 and 97.5 percentiles of the number

Methods are compared by the differences of paired runs: the same start, the same questions, the same sampling seed. Runs
are drawn whatever start checkpoint they have, so that the interval also holds how much the starts differ; it cannot
say what a checkpoint unlike all of them would do. The draws are the same each time: a table is reproducible. One run
has no interval.
"""

from collections.abc import Callable, Sequence

import numpy as np

DRAWS = 10_000
Statistic = Callable[[np.ndarray], np.ndarray]              # [..., runs] -> [...]


def mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values, axis=-1)
    runs = ordered.shape[-1]
    return ordered[..., runs // 4:runs - runs // 4].mean(axis=-1)


def interval(values: Sequence[float], statistic: Statistic = mean) -> tuple[float, float, float]:
    """(the number, low, high)."""
    array = np.array(values, dtype=float)
    drawn = np.random.default_rng(0).choice(array, (DRAWS, len(array)))
    low, high = np.percentile(statistic(drawn), (2.5, 97.5))
    return float(statistic(array)), float(low), float(high)


def shown(values: Sequence[float], statistic: Statistic = mean) -> str:
    number, low, high = interval(values, statistic)
    return f"{number:.3f}" if len(values) == 1 else f"{number:.3f} [{low:.3f}, {high:.3f}]"
