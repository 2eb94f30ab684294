"""Means and intervals over runs, against numbers worked by hand."""

import itertools
from statistics import fmean

import numpy as np
import pytest

from minvenus.experiments import statistics
from minvenus.experiments.statistics import interquartile_mean, interval, mean, shown


@pytest.mark.parametrize(("values", "expected"), [
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], 3.5),         # 2, 3, 4 and 5 are left
    ([9.0, 1.0, 2.0, 3.0], 2.5),                               # 2 and 3
    ([1.0, 2.0, 6.0], 3.0),                                    # a quarter of three runs is none
    ([0.0, 5.0, 6.0, 7.0, 8.0, 50.0], 6.5),                    # one at each end
])
def test_the_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter(values, expected):
    assert interquartile_mean(np.array(values)) == expected
    assert interquartile_mean(np.array([values, values])).tolist() == [expected, expected]


def test_the_interval_equals_the_percentiles_over_all_resamples():
    """Of three runs all 27 resamples can be written down: the 2.5 percentile lies in the lowest of them."""
    values = [0.0, 0.3, 0.9]
    everything = sorted(fmean(drawn) for drawn in itertools.product(values, repeat=3))
    _, low, high = interval(values)
    assert (low, high) == (everything[0], everything[-1])
    ten = [float(i) for i in range(10)]                  # the mean of ten draws: spread 2.872 / sqrt(10) = .908
    number, low, high = interval(ten)
    assert number == 4.5 and (low, high) == pytest.approx((4.5 - 1.96 * 0.908, 4.5 + 1.96 * 0.908), abs=0.07)


def test_the_interval_is_that_of_the_statistic_itself():
    """Four runs, one of them 1: k of four draws are 1 with the binomial chances of 1/4, so k >= 3 with .051 and k = 4
    with .004. The mean is k / 4: its 97.5 percentile is 3/4. The mean of the middle two is 1 from k = 3 on."""
    runs = [0.0, 0.0, 0.0, 1.0]
    assert interval(runs) == (0.25, 0.0, 0.75) and interval(runs, interquartile_mean) == (0.0, 0.0, 1.0)
    assert shown(runs, interquartile_mean) == "0.000 [0.000, 1.000]"


def test_the_same_runs_have_the_same_interval_each_time():
    runs = [i**0.5 for i in range(12)]             # nearly all means of draws differ
    assert interval(runs) == interval(runs) and interval(runs, mean, 3) == interval(runs, mean, 3)


def test_how_often_intervals_hold_the_truth(monkeypatch):
    """The numbers of docs/experiment.md: normal runs around 0, run i from start i % 3; starts differ as much as runs of
    one start, or not at all. 1,500 comparisons each gave .904 and .941 (12 runs), .874 and .930 (8 runs), and .685 and
    .839 (12 runs, starts differ); 400 here, with a standard error of .02 or less."""
    monkeypatch.setattr(statistics, "DRAWS", 1000)
    rng = np.random.default_rng(5)
    for runs, between, *expected in ((12, 0, 0.904, 0.941), (8, 0, 0.874, 0.930), (12, 1, 0.685, 0.839)):
        worlds = rng.normal(size=(400, runs)) + between * rng.normal(size=(400, 3))[:, np.arange(runs) % 3]
        for starts, share in zip((0, 3), expected, strict=True):
            bounds = np.array([interval(world, mean, starts)[1:] for world in worlds])
            assert np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)) == pytest.approx(share, abs=0.05)


def test_drawing_checkpoints_equals_the_percentiles_over_all_such_draws():
    """Three runs of two starts: a and c of the first, b of the second. Four pairs of starts can be drawn; runs 0 and 2
    come from the first of a pair, run 1 from its second."""
    a, b, c = values = [0.0, 0.3, 0.9]
    means = []
    for pair in itertools.product(([a, c], [b]), repeat=2):
        drawn = list(itertools.product(pair[0], pair[1], pair[0]))
        means += [fmean(runs) for runs in drawn for _ in range(8 // len(drawn))]
    exact = [sorted(means)[0], sorted(means)[-1]]                     # 1 of 32 each: above 2.5 %
    assert list(interval(values, mean, 2)[1:]) == pytest.approx(exact)
    assert interval(values, mean, 5)[0] == fmean(values), "fewer runs than checkpoints"
