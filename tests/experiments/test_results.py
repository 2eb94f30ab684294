"""Means and intervals over seeds, by hand and against Student's distribution, and the lines of plots."""

import math

import pytest

from minvenus.experiments.results import T95, interval, line, rows, shown


def test_intervals_by_hand():
    assert interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(2.48434, abs=1e-5))    # spread 1; 4.303 / sqrt(3)
    assert interval([0.0, 1.0]) == (0.5, pytest.approx(6.353))     # sqrt(1/2); 12.706 * sqrt(1/2) / sqrt(2)
    many = [0.0, 1.0] * 10                                         # sqrt(20 / 4 / 19), and the last of the points
    assert interval(many) == (0.5, pytest.approx(2.228 * math.sqrt(5 / 19) / math.sqrt(20)))
    assert shown([1.0, 2.0, 3.0]) == "2.000 ± 2.484" and shown([0.25, 0.25]) == "0.250 ± 0.000"
    assert shown([0.25]) == "0.250", "a single run has a mean and no interval"


@pytest.mark.parametrize(("freedom", "point"), list(enumerate(T95, 1)))
def test_95_percent_of_students_distribution_lie_within_each_point(freedom, point):
    """Simpson's rule over the density, twice the half from 0 to the point."""
    def density(t):
        scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
    n = 2000
    inner = sum((4 if k % 2 else 2) * density(point * k / n) for k in range(1, n))
    assert 2 * point / n / 3 * (density(0) + inner + density(point)) == pytest.approx(0.95, abs=5e-5)


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y) == ("paper", [2, 5], [2.5, 0.5])
    assert both.low == pytest.approx([2.5 - 6.353, 0.5 - 6.353])
    assert both.high == pytest.approx([2.5 + 6.353, 0.5 + 6.353])
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], None)
    assert line("grpo", [{}, {1: 1.0}]).x == []


def test_rows_worked_by_hand():
    """Success .5 and .7: standard deviation .1414, half an interval 12.706 * .1 = 1.271; turns 5 and 6: half 12.706 *
    .5."""
    first = {"success": {0: 0.1, 1: 0.5}, "turns": {1: 5.0}}
    second = {"success": {0: 0.1, 1: 0.7}, "turns": {1: 6.0}}
    columns = {"step 0": ("success", 0), "step 1": ("success", 1), "turns": ("turns", 1)}
    assert rows({"paper": {0: first, 1: second}, "grpo": {0: first}}, columns) == [
        ["method", "step 0", "step 1", "turns"],
        ["paper", "0.100 ± 0.000", "0.600 ± 1.271", "5.500 ± 6.353"], ["grpo", "0.100", "0.500", "5.000"]]
