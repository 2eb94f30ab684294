"""Means and intervals over runs, against numbers worked by hand."""

import itertools
from statistics import fmean

import numpy as np
import pytest

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


def test_the_interval_of_two_runs_reaches_from_one_to_the_other_and_one_run_has_none():
    """A quarter of the draws has the first run twice, a quarter the second: both are above 2.5 %."""
    assert interval([0.0, 1.0]) == (0.5, 0.0, 1.0) and interval([0.3, 0.3]) == (0.3, 0.3, 0.3)
    assert shown([0.25]) == "0.250" and shown([0.0, 1.0]) == "0.500 [0.000, 1.000]"


def test_the_interval_equals_the_percentiles_over_all_resamples():
    """Of three runs all 27 resamples can be written down: the 2.5 percentile lies in the lowest of them."""
    values = [0.0, 0.3, 0.9]
    everything = sorted(fmean(drawn) for drawn in itertools.product(values, repeat=3))
    _, low, high = interval(values)
    assert (low, high) == (everything[0], everything[-1])
    ten = [float(i) for i in range(10)]                  # the mean of ten draws: spread 2.872 / sqrt(10) = .908
    number, low, high = interval(ten)
    assert number == 4.5 and (low, high) == pytest.approx((4.5 - 1.96 * 0.908, 4.5 + 1.96 * 0.908), abs=0.07)


def test_the_interval_of_the_interquartile_mean_does_not_see_one_outlier():
    values = [0.5] * 7 + [100.0]
    assert interval(values, interquartile_mean)[0] == 0.5 and interval(values, mean)[2] > 30
