"""Intervals and tests of a comparison, against what can be enumerated or worked by hand."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest

from minvenus.experiments import intervals
from minvenus.experiments.intervals import (
    holm,
    interval,
    p_value,
    start_means,
    t_distribution,
    t_interval,
    t_quantile,
)


def test_the_interval_equals_the_percentiles_over_all_resamples():
    """Of three runs all 27 resamples can be written down: the 2.5 percentile is the lowest one. The
    mean of ten draws of 0 to 9 has the spread 2.872 / sqrt(10) = .908."""
    runs = [0.0, 0.3, 0.9]
    everything = sorted(fmean(resample) for resample in itertools.product(runs, repeat=3))
    assert interval(runs)[1:] == (everything[0], everything[-1])
    mean, low, high = interval([float(i) for i in range(10)])
    assert mean == 4.5 and (4.5 - low, high - 4.5) == pytest.approx((1.78, 1.78), abs=0.07)


def test_the_same_runs_have_the_same_interval_each_time():
    runs = [i**0.5 for i in range(12)]  # nearly all means of draws differ
    assert interval(runs) == interval(runs) and interval(runs, 3) == interval(runs, 3)


def test_how_often_intervals_hold_the_truth(monkeypatch):
    """The numbers of docs/experiment.md: normal runs around 0, run i from start i % 3; starts vary
    as much as runs of one start, or not at all. 1,500 comparisons each gave .904 and .941 (12
    runs), .874 and .930 (8 runs), and .685 and .839 (12 runs, starts differ); 400 here, with a
    standard error of .02 or less."""
    monkeypatch.setattr(intervals, "DRAWS", 1000)
    rng = np.random.default_rng(5)
    for runs, between, *expected in (
        (12, 0, 0.904, 0.941),
        (8, 0, 0.874, 0.930),
        (12, 1, 0.685, 0.839),
    ):
        of_starts = rng.normal(size=(400, 3))[:, np.arange(runs) % 3]
        worlds = rng.normal(size=(400, runs)) + between * of_starts
        for starts, share in zip((0, 3), expected, strict=True):
            bounds = np.array([interval(world, starts)[1:] for world in worlds])
            covered = (bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)
            assert covered.mean() == pytest.approx(share, abs=0.05)


def test_drawing_checkpoints_equals_the_percentiles_over_all_such_draws():
    """Three runs of two starts: a and c of the first, b of the second. Four pairs of starts can be
    drawn; runs 0 and 2 come from the first of a pair, run 1 from its second. Of the 32 equally
    likely draws the lowest and the highest have more than 2.5 % each."""
    a, b, c = runs = [0.0, 0.3, 0.9]
    means = []
    for first, second in itertools.product(([a, c], [b]), repeat=2):
        means += [fmean(draw) for draw in itertools.product(first, second, first)]
    assert interval(runs, 2)[1:] == pytest.approx((min(means), max(means)))
    assert interval(runs, 5)[0] == fmean(runs), "fewer runs than checkpoints"


# ------------------------------------------------------------------------- start checkpoints, by t


def test_students_t_equals_its_closed_forms_and_the_printed_tables():
    for t in (-3.0, 0.0, 0.5, 12.0):
        assert t_distribution(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-6)
        assert t_distribution(t, 2) == pytest.approx(0.5 + t / 2 / math.sqrt(2 + t * t), abs=1e-6)
    for freedom, printed in ((1, 12.706), (2, 4.303), (4, 2.776), (11, 2.201)):
        assert t_quantile(0.975, freedom) == pytest.approx(printed, abs=5e-4)


def test_the_t_interval_of_five_starts_worked_by_hand():
    """Ten runs of five starts; the means of the starts are 1 to 5: mean 3, sd sqrt(2.5), error
    .7071, t = 4.2426 with four degrees of freedom."""
    runs = [0.0, 1.0, 2.0, 3.0, 4.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    means = start_means(runs, 5)
    assert means == [1.0, 2.0, 3.0, 4.0, 5.0]
    mean, low, high = t_interval(means)
    assert (mean, high - mean) == pytest.approx((3.0, 2.7764 * math.sqrt(0.5)), abs=1e-3)
    assert low == pytest.approx(2 * mean - high)
    t = 3 / math.sqrt(0.5)
    exact = 0.5 + 0.75 * (t / math.sqrt(4 + t * t)) * (1 - t * t / (4 + t * t) / 3)
    assert p_value(means) == pytest.approx(2 * (1 - exact), abs=1e-6)
    assert p_value([-mean for mean in means]) == p_value(means), "two-sided"
    assert (p_value([0.0, 0.0]), p_value([0.5, 0.5])) == (1.0, 0.0), "no spread"


def test_holm_worked_by_hand():
    """.01 x 3 = .03; .03 x 2 = .06; .04 x 1, but not below .06."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([0.2]) == [0.2]
