"""What a comparison makes of its runs: means and intervals, curves, tables, paired differences."""

import itertools
import json
from statistics import fmean

import numpy as np
import pytest

from minvenus.experiments import results
from minvenus.experiments.results import interval, line, read_curves, tables

# -------------------------------------------------------------------------------------- intervals


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
    monkeypatch.setattr(results, "DRAWS", 1000)
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


# --------------------------------------------------------------------------------- curves, tables


def test_the_numbers_of_a_run_come_from_its_metrics(tmp_path):
    """The area is the mean over the evaluations after step 0, which says nothing of a method."""
    metrics = [
        {"step": 1, "gain_right": 1.0, "before_test_exact_match": 0.1},
        {"step": 2, "gain_right": None, "test_exact_match": 0.2},
        {"step": 4, "gain_right": 4.0, "test_exact_match": 0.6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    run = read_curves(tmp_path)
    assert run["test_exact_match"] == {0: 0.1, 2: 0.2, 4: 0.6} and run["gain_wrong"] == {}
    assert run["gain_right"] == {1: 1.0, 4: 4.0}, "a step without a right visit has none"
    assert run["area"] == {2: 0.2, 4: pytest.approx(0.4)}


def run(accuracy, area, turns=8.0, start_turns=8.0):
    """Before the first step, and after step 4; half as many right pages."""
    return {
        "test_exact_match": {0: 0.1, 4: accuracy},
        "area": {0: 0.0, 4: area},
        "test_turns": {0: start_turns, 4: turns},
        "test_right_pages": {0: 0.05, 4: accuracy / 2},
    }


def test_the_tables_with_differences_of_paired_runs_worked_by_hand():
    """Of two runs the interval reaches from one to the other."""
    runs = {
        "grpo": [run(0.3, 0.2, turns=3.9), run(0.4, 0.2)],
        "paper": [run(0.5, 0.4), run(0.8, 0.3)],
        "paper / prob": [run(0.6, 0.4), run(0.6, 0.4)],
    }
    means, paired, of_starts, each = tables(runs, 2, 4).values()
    titles = "method, accuracy at step 0, at step 4, area under the curve, right pages, turns"
    assert means[0] == [*titles.split(", "), "collapsed"]
    assert means[1][2:] == [
        "0.350 [0.300, 0.400]",
        "0.200 [0.200, 0.200]",
        "0.175 [0.150, 0.200]",
        "5.950 [3.900, 8.000]",
        "1 of 2",
    ]
    assert means[2][2] == "0.650 [0.500, 0.800]"
    assert paired[1][2:4] == ["0.300 [0.200, 0.400]", "0.150 [0.100, 0.200]"]  # (.2 + .4) / 2
    assert paired[2][2] == "-0.050 [-0.200, 0.100]"
    assert of_starts == paired, "with one run each, to draw starts is to draw runs"
    assert each == [
        ["start checkpoint", "1", "2"],
        ["grpo", "0.30", "0.40"],
        ["paper", "0.50", "0.80"],
        ["paper / prob", "0.60", "0.60"],
    ]
    assert len(tables({"grpo": [run(0.3, 0.2)]}, 1, 4)) == 2, "one method has no differences"


def test_the_second_table_of_differences_draws_checkpoints_too():
    """Runs 0 .8 0 .8 ...: the two checkpoints have equal ones each. If checkpoints are drawn, all
    runs are 0 with 1/4, and .8 with 1/4."""
    alike = {"grpo": [run(0.0, 0.0)] * 8, "paper": [run(a, a) for a in (0.0, 0.8) * 4]}
    _, paired, of_starts, _ = tables(alike, 2, 4).values()
    assert (paired[1][2], of_starts[1][2]) == ("0.400 [0.100, 0.700]", "0.400 [0.000, 0.800]")


def test_a_run_has_collapsed_against_its_own_start():
    runs = [run(0.3, 0.2, turns=3.9), run(0.3, 0.2, turns=3.9, start_turns=7.0)]
    means, *_ = tables({"grpo": runs, "paper": runs[::-1]}, 2, 4).values()
    assert [row[-1] for row in means[1:]] == ["1 of 2", "1 of 2"]


@pytest.mark.parametrize(
    ("methods", "differences"),
    [
        (
            "grpo, grpo / prob, paper, paper / prob",
            "grpo / prob minus grpo, paper minus grpo, paper / prob minus paper, "
            "paper / prob minus grpo / prob",
        ),
        (
            "grpo / prob, paper, released, uncentred",
            "paper minus grpo / prob, released minus grpo / prob, released minus paper, "
            "uncentred minus grpo / prob, uncentred minus paper, uncentred minus released",
        ),
        ("grpo, paper - penalty", "paper - penalty minus grpo"),
    ],
    ids=[
        "a change with its recipe and with the first recipe under the same change",
        "a recipe with the first method and every recipe before it",
        "a change without its recipe with the first method",
    ],
)
def test_what_is_compared_with_what(methods, differences):
    accuracies = {method: 0.1 + i / 5 for i, method in enumerate(methods.split(", "))}
    runs = {method: [run(accuracy, 0.1)] for method, accuracy in accuracies.items()}
    _, paired, *_ = tables(runs, 1, 4).values()
    assert [row[0] for row in paired[1:]] == differences.split(", ")
    for title, _, difference, *_ in paired[1:]:
        method, other = title.split(" minus ")
        assert difference == f"{accuracies[method] - accuracies[other]:.3f}"


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y) == ("paper", [2, 5], [2.5, 0.5])
    assert (both.low, both.high) == ([2.0, 0.0], [3.0, 1.0])
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], ())
    assert line("grpo", [{}, {1: 1.0}]).x == []
