"""What a comparison makes of its runs: curves, tables, paired differences."""

import json

import pytest

from minvenus.experiments.results import PLOTS, line, page_of, read_curves, tables
from tests.report.examples import PAGES, words_of

# --------------------------------------------------------------------------------- curves, tables


def test_the_numbers_of_a_run_come_from_its_metrics(tmp_path):
    """The area is the mean over the evaluations after step 0, which says nothing of a method."""
    metrics = [
        {"step": 1, "gain_right": 1.0, "advantage_max": 2.5, "before_test_exact_match": 0.1},
        {"step": 2, "gain_right": None, "test_exact_match": 0.2},
        {"step": 4, "gain_right": 4.0, "test_exact_match": 0.6},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    run = read_curves(tmp_path)
    assert run["test_exact_match"] == {0: 0.1, 2: 0.2, 4: 0.6} and run["gain_wrong"] == {}
    assert run["gain_right"] == {1: 1.0, 4: 4.0}, "a step without a right visit has none"
    assert run["advantage_max"] == {1: 2.5}
    assert run["area"] == {2: 0.2, 4: pytest.approx(0.4)}


def run(accuracy, area, turns=8.0, start_turns=8.0, largest=(2.0, 1.0)):
    """Before the first step, and after step 4; half as many right pages."""
    return {
        "advantage_max": dict(enumerate(largest, start=1)),
        "test_exact_match": {0: 0.1, 4: accuracy},
        "area": {0: 0.0, 4: area},
        "test_turns": {0: start_turns, 4: turns},
        "test_right_pages": {0: 0.05, 4: accuracy / 2},
    }


def test_the_tables_with_differences_of_paired_runs_worked_by_hand():
    """Of two runs the interval reaches from one to the other."""
    runs = {
        "grpo": [run(0.2, 0.2, turns=3.9), run(0.5, 0.2, largest=(0.5, 1234.5))],
        "paper": [run(0.4, 0.4), run(0.9, 0.3, largest=())],
        "paper / prob": [run(0.6, 0.4), run(0.6, 0.4)],
    }
    means, paired, of_starts, tested, each, largest = tables(runs, 2, 4).values()
    titles = "method, accuracy at step 0, at step 4, area under the curve, right pages, turns"
    assert means[0] == [*titles.split(", "), "failed", "collapsed", "max |A|"]
    assert means[1][2:] == [
        "0.350 [0.200, 0.500]",
        "0.200 [0.200, 0.200]",
        "0.175 [0.100, 0.250]",
        "5.950 [3.900, 8.000]",
        "1 of 2",
        "1 of 2",
        "1.23e+03",
    ]
    assert means[2][2] == "0.650 [0.400, 0.900]"
    assert means[2][-3:] == ["0 of 2", "0 of 2", "2"]
    assert paired[1][2:4] == ["0.300 [0.200, 0.400]", "0.150 [0.100, 0.200]"]  # (.2 + .4) / 2
    assert paired[2][2] == "0.250 [0.100, 0.400]"
    assert of_starts == paired, "with one run each, to draw starts is to draw runs"
    assert each == [
        ["start checkpoint", "1", "2"],
        ["grpo", "0.20", "0.50"],
        ["paper", "0.40", "0.90"],
        ["paper / prob", "0.60", "0.60"],
    ]
    assert largest[1:3] == [["grpo", "2", "1.23e+03"], ["paper", "2", "0"]]
    # .2 and .4: .3 +- 12.706 x .1, t = 3, p = 1 - 2 atan(3) / pi = .2048; paper / prob: .4 and .1,
    # t = 1.6667, p = .3440; twice the smaller p, and no smaller one after it
    assert tested[1][1:4] == ["+0.300 [-0.971, +1.571]", "0.2048", "0.4097"]
    assert tested[2][1:4] == ["+0.250 [-1.656, +2.156]", "0.3440", "0.4097"]
    assert tested[1][4:6] == ["+0.150 [-0.485, +0.785]", "0.2048"]
    assert len(tables({"grpo": [run(0.3, 0.2)]}, 1, 4)) == 3, "one method has no differences"


def test_two_tables_of_differences_are_of_the_start_checkpoints():
    """Runs 0 .8 0 .8 ...: the two checkpoints have equal ones each. If checkpoints are drawn, all
    runs are 0 with 1/4, and .8 with 1/4."""
    alike = {"grpo": [run(0.0, 0.0)] * 8, "paper": [run(a, a) for a in (0.0, 0.8) * 4]}
    _, paired, of_starts, tested, each, _ = tables(alike, 2, 4).values()
    assert (paired[1][2], of_starts[1][2]) == ("0.400 [0.100, 0.700]", "0.400 [0.000, 0.800]")
    assert each[0] == ["start checkpoint", *"12121212"]
    # all runs of a start are one number: 0 and .8, .4 +- 12.706 x .4, t = 1, p = 1 - 2 atan(1) / pi
    assert tested[1][1:3] == ["+0.400 [-4.682, +5.482]", "0.5000"]


def test_a_run_has_collapsed_against_its_own_start():
    runs = [run(0.3, 0.2, turns=3.9), run(0.25, 0.2, turns=4.0), run(0.24, 0.2, 3.9, 7.0)]
    means, *_ = tables({"grpo": runs, "paper": runs[::-1]}, 2, 4).values()
    assert [row[-3:-1] for row in means[1:]] == [["1 of 3", "1 of 3"]] * 2, "half is not below half"


@pytest.mark.parametrize(
    ("methods", "differences"),
    [
        (
            "grpo, grpo / prob, paper, paper / prob, released",
            "grpo / prob minus grpo, paper minus grpo, paper / prob minus grpo, "
            "released minus grpo, released minus paper",
        ),
        (
            "grpo / prob, paper, released, uncentred",
            "paper minus grpo / prob, released minus grpo / prob, released minus paper, "
            "uncentred minus grpo / prob, uncentred minus paper, uncentred minus released",
        ),
    ],
)
def test_what_is_compared_with_what(methods, differences):
    """Every method with the first one, a recipe without changes with every such recipe before."""
    accuracies = {method: 0.1 + i / 5 for i, method in enumerate(methods.split(", "))}
    runs = {method: [run(accuracy, 0.1)] for method, accuracy in accuracies.items()}
    _, paired, *_ = tables(runs, 1, 4).values()
    assert [row[0] for row in paired[1:]] == differences.split(", ")
    for title, _, difference, *_ in paired[1:]:
        method, other = title.split(" minus ")
        assert difference == f"{accuracies[method] - accuracies[other]:.3f}"


def small_page() -> str:
    runs = {"grpo": [run(0.2, 0.2), run(0.5, 0.3)], "paper / prob": [run(0.6, 0.4)] * 2}
    for curves in (*runs["grpo"], *runs["paper / prob"]):
        curves |= {metric: curves.get(metric, {}) for metric in PLOTS} | {"gain_right": {4: 0.5}}
    return page_of(runs, tables(runs, 2, 4), {"seeds": 2, "steps": 4})


def test_the_page_word_for_word():
    """Where it should say something else: python -m tests.report.write_pages"""
    assert words_of(small_page()) == (PAGES / "comparison.txt").read_text("utf-8")


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y) == ("paper", [2, 5], [2.5, 0.5])
    assert (both.low, both.high) == ([2.0, 0.0], [3.0, 1.0])
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], ())
    assert line("grpo", [{}, {1: 1.0}]).x == []
