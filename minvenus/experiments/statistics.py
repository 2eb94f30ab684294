"""Means over runs, with intervals.

    mean                 of all runs
    interquartile mean   of the runs that are left without the lowest and the highest quarter, each rounded down
    [low, high]          95 % bootstrap interval: as many runs as there are, drawn with replacement, 10,000 times; the
                         2.5 and 97.5 percentiles of the number

Methods are compared by the differences of paired runs: the same start, the same questions, the same sampling seed. Runs
are drawn whatever start checkpoint they have: this is right where runs of one start are no more alike than others.
Where they are, `starts` gives the wider interval: checkpoints are drawn first, then runs of each drawn one. A bootstrap
of few runs is too narrow: docs/experiment.md says by how much. The draws are the same each time: a table is
reproducible. One run has no interval.
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


def interval(values: Sequence[float], statistic: Statistic = mean, starts: int = 0) -> tuple[float, float, float]:
    """(the number, low, high). With `starts`, run i has the start checkpoint i % starts, and these are drawn, too."""
    array, rng = np.array(values, dtype=float), np.random.default_rng(0)
    if starts:
        start = np.arange(len(array)) % starts                                                     # [runs]
        other = rng.integers(start.max() + 1, size=(DRAWS, starts))[:, start]                      # [draws, runs]
        drawn = array[other + starts * rng.integers(np.bincount(start)[other])]
    else:
        drawn = rng.choice(array, (DRAWS, len(array)))
    low, high = np.percentile(statistic(drawn), (2.5, 97.5))
    return float(statistic(array)), float(low), float(high)


def shown(values: Sequence[float], statistic: Statistic = mean, starts: int = 0) -> str:
    number, low, high = interval(values, statistic, starts)
    return f"{number:.3f}" if len(values) == 1 else f"{number:.3f} [{low:.3f}, {high:.3f}]"
