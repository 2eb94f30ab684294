"""Means and intervals over runs, against numbers worked by hand."""

import itertools
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.experiments.statistics import interquartile_mean, interval, mean, resamples, shown


@pytest.mark.parametrize(("values", "expected"), [
    ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], 3.5),         # 2, 3, 4 and 5 are left
    ([9.0, 1.0, 2.0, 3.0], 2.5),                               # 2 and 3
    ([1.0, 2.0, 6.0], 3.0),                                    # a quarter of three runs is none
    ([0.0, 5.0, 6.0, 7.0, 8.0, 50.0], 6.5),                    # one at each end
])
def test_the_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter(values, expected):
    assert interquartile_mean(np.array(values)) == expected
    assert interquartile_mean(np.array([values, values])).tolist() == [expected, expected]


def test_intervals_of_two_runs_of_one_start_and_of_two_starts():
    """Of two runs of one start a quarter of the draws has the first twice, a quarter the second twice: the interval
    reaches from one to the other. Two starts with a run each can only be drawn as they are."""
    assert interval([0.0, 1.0], [0, 0]) == (0.5, 0.0, 1.0)
    assert interval([0.0, 1.0], [0, 1]) == (0.5, 0.5, 0.5)
    assert shown([0.25], [0]) == "0.250" and shown([0.0, 1.0], [0, 0]) == "0.500 [0.000, 1.000]"


def test_the_interval_equals_the_percentiles_over_all_resamples():
    """Of three runs all 27 resamples can be written down: the 2.5 percentile lies in the lowest of them."""
    values = [0.0, 0.3, 0.9]
    everything = sorted(fmean(drawn) for drawn in itertools.product(values, repeat=3))
    _, low, high = interval(values, [0, 0, 0])
    assert (low, high) == (everything[0], everything[-1])
    ten = [float(i) for i in range(10)]                  # the mean of ten draws: spread 2.872 / sqrt(10) = .908
    number, low, high = interval(ten, [0] * 10)
    assert number == 4.5 and (low, high) == pytest.approx((4.5 - 1.96 * 0.908, 4.5 + 1.96 * 0.908), abs=0.07)


def test_the_interval_of_the_interquartile_mean_does_not_see_one_outlier():
    values = [0.5] * 7 + [100.0]
    assert interval(values, [0] * 8, interquartile_mean)[0] == 0.5 and interval(values, [0] * 8, mean)[2] > 30


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_a_resample_draws_from_each_start_as_many_runs_as_it_has(starts):
    drawn = resamples(tuple(starts))
    assert (np.array(starts)[drawn] == np.array(starts)).all()
