"""What a comparison makes of its runs: curves, tables, differences of paired runs, worked by hand."""

import json

import pytest

from minvenus.experiments.compare import line, read_curves, results


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
    assert run["area"] == {2: 0.2, 4: pytest.approx(0.4)}


def run(accuracy, area, start=0.1, turns=8.0, start_turns=8.0):
    """Before the first step, and after step 4; half as many right pages."""
    return {"test_exact_match": {0: start, 4: accuracy}, "area": {0: 0.0, 4: area},
            "test_turns": {0: start_turns, 4: turns}, "test_right_pages": {0: start / 2, 4: accuracy / 2}}


def test_the_tables_with_differences_of_paired_runs_worked_by_hand():
    """Of two runs the interval reaches from one to the other."""
    runs = {"grpo": [run(0.3, 0.2, turns=3.9), run(0.4, 0.2)], "paper": [run(0.5, 0.4), run(0.8, 0.3)],
            "paper+prob": [run(0.6, 0.4), run(0.6, 0.4)]}
    tables = results(runs, 2, 4)
    means, middle, apart, drawn, each = tables.values()
    assert means[0] == ["method", "accuracy at step 0", "at step 4", "area under the curve", "right pages", "turns",
                        "collapsed"]
    assert means[1][2:] == ["0.350 [0.300, 0.400]", "0.200 [0.200, 0.200]", "0.175 [0.150, 0.200]",
                            "5.950 [3.900, 8.000]", "1 of 2"]
    assert means[2][2] == "0.650 [0.500, 0.800]" and middle[2][2] == means[2][2]
    assert [row[0] for row in apart] == ["method", "paper - grpo", "paper+prob - paper"]
    assert apart[1][2:4] == ["0.300 [0.200, 0.400]", "0.150 [0.100, 0.200]"], "paired: (.2 + .4) / 2"
    assert apart[2][2] == "-0.050 [-0.200, 0.100]"
    assert drawn == apart, "with one run each, to draw starts is to draw runs"
    assert each == [["start checkpoint", "1", "2"], ["grpo", "0.30", "0.40"], ["paper", "0.50", "0.80"],
                    ["paper+prob", "0.60", "0.60"]]
    assert len(results({"grpo": [run(0.3, 0.2)]}, 1, 4)) == 3, "one method has no differences"


def test_each_table_has_its_own_statistic_and_unit_of_drawing():
    """Runs 0 0 0 .8: mean .2, of the middle two 0. They are also the differences from runs of 0. Of two checkpoints the
    second has the runs 0 and .8: it is drawn twice with 1/4; then all runs are .8 with 1/16, three of four with 1/4."""
    runs = {"grpo": [run(0.0, 0.0)] * 4, "paper": [run(a, a) for a in (0.0, 0.0, 0.0, 0.8)]}
    means, middle, apart, drawn, _ = results(runs, 2, 4).values()
    assert (means[2][2], middle[2][2]) == ("0.200 [0.000, 0.600]", "0.000 [0.000, 0.800]")
    assert (apart[1][2], drawn[1][2]) == ("0.200 [0.000, 0.600]", "0.200 [0.000, 0.600]")
    alike = {"grpo": [run(0.0, 0.0)] * 8, "paper": [run(a, a) for a in (0.0, 0.8) * 4]}
    _, _, apart, drawn, _ = results(alike, 2, 4).values()
    assert (apart[1][2], drawn[1][2]) == ("0.400 [0.100, 0.700]", "0.400 [0.000, 0.800]")


def test_a_run_has_collapsed_against_its_own_start_and_a_change_without_its_arm_is_compared_with_the_first_method():
    starts = [run(0.3, 0.2, turns=3.9), run(0.3, 0.2, turns=3.9, start_turns=7.0)]
    means, _, apart, _, _ = results({"grpo": starts, "paper+prob": starts[::-1]}, 2, 4).values()
    assert means[1][-1] == "1 of 2" and apart[1][0] == "paper+prob - grpo"


def test_an_arm_with_a_change_is_compared_with_itself_and_with_the_first_arm_under_the_same_change():
    accuracies = {"grpo": 0.1, "grpo+prob": 0.2, "paper": 0.4, "paper+prob": 0.7}
    runs = {method: [run(accuracy, 0.1)] for method, accuracy in accuracies.items()}
    _, _, apart, _, _ = results(runs, 1, 4).values()
    assert [(row[0], row[2]) for row in apart[1:]] == [
        ("grpo+prob - grpo", "0.100"), ("paper - grpo", "0.300"), ("paper+prob - paper", "0.300"),
        ("paper+prob - grpo+prob", "0.500")]


def test_an_arm_is_compared_with_the_first_method_and_with_every_arm_before_it():
    accuracies = {"grpo+prob": 0.1, "paper": 0.4, "released": 0.6, "uncentred": 0.9}
    runs = {method: [run(accuracy, 0.1)] for method, accuracy in accuracies.items()}
    _, _, apart, _, _ = results(runs, 1, 4).values()
    assert [(row[0], row[2]) for row in apart[1:]] == [
        ("paper - grpo+prob", "0.300"), ("released - grpo+prob", "0.500"), ("released - paper", "0.200"),
        ("uncentred - grpo+prob", "0.800"), ("uncentred - paper", "0.500"), ("uncentred - released", "0.300")]


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    both = line("paper", [{5: 0.0, 2: 2.0, 1: 1.0}, {5: 1.0, 2: 3.0, 3: 9.0}])
    assert (both.name, both.x, both.y, both.low, both.high) == ("paper", [2, 5], [2.5, 0.5], [2.0, 0.0], [3.0, 1.0])
    assert line("paper", [{1: 0.0}, {1: 0.0}, {1: 0.9}]).y == [pytest.approx(0.3)]
    alone = line("single", [{1: 1.0}])
    assert (alone.x, alone.y, alone.low) == ([1], [1.0], None)
    assert line("grpo", [{}, {1: 1.0}]).x == []
