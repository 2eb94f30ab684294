"""Means over runs, with intervals.

    mean                 of all runs
    interquartile mean   of the runs that are left without the lowest and the highest quarter, each rounded down
    [low, high]          95 % bootstrap interval: 10,000 times, as many runs are drawn from those of each start
                         checkpoint, with replacement, as it has; the 2.5 and 97.5 percentiles of the number

Methods are compared by the differences of paired runs: the same start, the same questions, the same sampling seed. The
draws are the same each time, so a table is reproducible, and one run has no interval.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

DRAWS = 10_000
Statistic = Callable[[np.ndarray], np.ndarray]              # [..., runs] -> [...]


def mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values, axis=-1)
    runs = ordered.shape[-1]
    return ordered[..., runs // 4:runs - runs // 4].mean(axis=-1)


@cache
def resamples(starts: tuple[int, ...]) -> np.ndarray:
    """[DRAWS, runs] indices of runs; `starts` names the start checkpoint of every run."""
    rng = np.random.default_rng(0)
    drawn = np.empty((DRAWS, len(starts)), dtype=int)
    for start in dict.fromkeys(starts):
        members = np.flatnonzero(np.array(starts) == start)
        drawn[:, members] = rng.choice(members, (DRAWS, len(members)))
    return drawn


def interval(values: Sequence[float], starts: Sequence[int], statistic: Statistic = mean) -> tuple[float, float, float]:
    """(the number, low, high)."""
    array = np.array(values, dtype=float)
    low, high = np.percentile(statistic(array[resamples(tuple(starts))]), (2.5, 97.5))
    return float(statistic(array)), float(low), float(high)


def shown(values: Sequence[float], starts: Sequence[int], statistic: Statistic = mean) -> str:
    number, low, high = interval(values, starts, statistic)
    return f"{number:.3f}" if len(values) == 1 else f"{number:.3f} [{low:.3f}, {high:.3f}]"
