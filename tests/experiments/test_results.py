"""What a comparison measures: intervals against Student's distribution, numbers, tables and lines from metrics."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.console import table
from minvenus.experiments.results import T95, differences, interval, line, measures, read_curves, rows, shown

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=15)


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


@given(numbers, st.floats(-100, 100), st.floats(0.1, 10))
def test_shifting_all_values_shifts_the_interval_and_scaling_them_scales_it(values, shift, scale):
    mean, half = interval(values)
    moved = interval([scale * value + shift for value in values])
    assert moved == (pytest.approx(scale * mean + shift, abs=1e-6), pytest.approx(scale * half, rel=1e-6, abs=1e-6))


def test_the_numbers_of_a_run_come_from_its_metrics(tmp_path):
    metrics = [{"step": 1, "gain_right": 1.0, "before_test_exact_match": 0.1, "before_test_right_pages": 0.05},
               {"step": 2, "gain_right": None, "test_exact_match": 0.2, "test_right_pages": 0.1},
               {"step": 3, "gain_right": 3.0},
               {"step": 4, "gain_right": 4.0, "test_exact_match": 0.6, "test_right_pages": 0.3}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    run = read_curves(tmp_path)
    assert run["test_exact_match"] == {0: 0.1, 2: 0.2, 4: 0.6} and run["gain_wrong"] == {}
    assert run["gain_right"] == {1: 1.0, 3: 3.0, 4: 4.0}, "a step without a right visit has none"
    # the area is the mean over the evaluations after step 0, which says nothing of a method
    assert measures(run, 4) == (0.6, pytest.approx(0.4), 0.3)


def run(*accuracies):
    """Evaluated before the first step, and after every second one."""
    curve = {2 * i: accuracy for i, accuracy in enumerate(accuracies)}
    return {"test_exact_match": curve, "test_right_pages": {step: value / 2 for step, value in curve.items()}}


def test_the_table_word_for_word():
    runs = {"paper": {1: run(0.1, 0.2, 0.4), 2: run(0.1, 0.2, 0.6)}, "grpo": {1: run(0.0, 0.1, 0.3)}}
    # accuracies 0.4 and 0.6: half is 12.706 * 0.1; areas 0.3 and 0.4, pages 0.2 and 0.3: half of that
    assert table(rows(runs, 4)).splitlines() == [
        "method          accuracy at step 4  area under the curve  right pages at step 4  each seed",
        "start (step 0)       0.100 ± 0.000                                0.050 ± 0.000  0.10 0.10",
        "paper                0.500 ± 1.271         0.350 ± 0.635          0.250 ± 0.635  0.40 0.60",
        "grpo                         0.300                 0.200                  0.150       0.30"]


def test_differences_are_paired_by_seed():
    runs = {"grpo": {1: run(0, 0.1), 2: run(0, 0.3)}, "paper": {2: run(0, 0.4, 0.4), 1: run(0, 0.3, 0.3)}}
    # 0.2 and 0.1: standard deviation 0.0707, half 12.706 * 0.05
    assert differences(runs, 2) == [["paired by seed", "accuracy", "area"],
                                    ["paper - grpo", "0.150 ± 0.635", "0.150 ± 0.635"]]


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{"gain": {5: 0.0, 2: 2.0, 1: 1.0}}, {"gain": {5: 1.0, 2: 3.0, 3: 9.0}}], "gain")
    assert (both.name, both.x, both.y) == ("paper", [2, 5], [2.5, 0.5])
    assert both.low == pytest.approx([2.5 - 6.353, 0.5 - 6.353])
    assert both.high == pytest.approx([2.5 + 6.353, 0.5 + 6.353])
    alone = line("single", [{"gain": {1: 1.0}}], "gain")
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], None)
    assert line("grpo", [{"gain": {}}, {"gain": {1: 1.0}}], "gain").x == []
