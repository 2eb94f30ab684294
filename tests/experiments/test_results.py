"""What a comparison measures: intervals against Student's distribution, numbers and tables from written metrics."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.console import table
from minvenus.experiments import results
from minvenus.experiments.results import (
    T95,
    Outcome,
    band,
    differences,
    gains_by_hop,
    interval,
    read_outcome,
    rows,
    series,
)

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=15)


def test_intervals_by_hand():
    three = interval([1.0, 2.0, 3.0])                          # standard deviation 1; 4.303 / sqrt(3)
    assert three.mean == 2.0 and three.half == pytest.approx(2.48434, abs=1e-5)
    two = interval([0.0, 1.0])                           # standard deviation sqrt(1/2); 12.706 * sqrt(1/2) / sqrt(2)
    assert two.mean == 0.5 and two.half == pytest.approx(6.353)
    assert str(three) == "2.000 ± 2.484" and str(interval([0.25, 0.25])) == "0.250 ± 0.000"


def test_a_single_run_has_a_mean_and_no_interval():
    alone = interval([0.25])
    assert alone.mean == 0.25 and math.isnan(alone.half) and str(alone) == "0.250"


def test_many_runs_take_the_last_point_which_is_wider_than_theirs():
    values = [0.0, 1.0] * 10                                   # 20 of them: standard deviation sqrt(20 / 4 / 19)
    assert interval(values).half == pytest.approx(2.228 * math.sqrt(5 / 19) / math.sqrt(20))


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
    plain, moved = interval(values), interval([scale * value + shift for value in values])
    assert moved.mean == pytest.approx(scale * plain.mean + shift, abs=1e-6)
    assert moved.half == pytest.approx(scale * plain.half, rel=1e-6, abs=1e-6)


# --------------------------------------------------------------------------------------------------- from a run's files


def write_run(folder, accuracies, evaluate_every=2):
    """Steps 1, 2, ...; accuracies[0] is that before the first step, then one for every `evaluate_every` steps."""
    folder.mkdir(parents=True)
    lines = []
    for step in range(1, evaluate_every * (len(accuracies) - 1) + 1):
        line = {"step": step, "outcome": 0.5, "groups_without_outcome_signal": 0.25, "turns": 9.0}
        line |= {"gain_right": float(step)} if step != 2 else {}
        line |= evaluated(accuracies[0], "before_") if step == 1 else {}
        if step % evaluate_every == 0:
            line |= evaluated(accuracies[step // evaluate_every])
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def evaluated(accuracy, prefix=""):
    numbers = {"test_exact_match": accuracy, "test_right_pages": accuracy / 2, "test_turns": 8.0, "test_malformed": 0.0}
    return {prefix + key: value for key, value in numbers.items()}


def test_the_numbers_of_a_run_come_from_its_metrics(tmp_path):
    run = read_outcome(write_run(tmp_path / "gamma-1-103", [0.1, 0.2, 0.6, 0.7]), at=4)
    assert run.seed == 103 and run.accuracy == 0.6 and run.right_pages == 0.3
    assert run.area == pytest.approx(0.5), "the mean over the evaluations after step 0, which says nothing of a method"
    assert run.curves["test_exact_match"] == {0: 0.1, 2: 0.2, 4: 0.6, 6: 0.7}
    assert run.curves["test_turns"] == {0: 8.0, 2: 8.0, 4: 8.0, 6: 8.0}
    assert run.curves["gain_right"] == {1: 1.0, 3: 3.0, 4: 4.0, 5: 5.0, 6: 6.0}, "a step without a right visit has none"
    assert run.curves["gain_wrong"] == {} and len(run.curves["groups_without_outcome_signal"]) == 6


def test_a_step_that_was_not_evaluated_is_refused_with_the_folder(tmp_path):
    folder = write_run(tmp_path / "paper-1", [0.1, 0.2])
    for at in (1, 4):
        with pytest.raises(ConfigError, match=f"paper-1 has no evaluation after step {at}"):
            read_outcome(folder, at)
    with pytest.raises(ConfigError, match="paper-2 has no evaluation"):
        read_outcome(tmp_path / "paper-2", 2)


def test_the_table_word_for_word(tmp_path):
    runs = [read_outcome(write_run(tmp_path / f"paper-{seed}", [0.1, 0.2, last]), 4)
            for seed, last in ((1, 0.4), (2, 0.6))]
    single = [read_outcome(write_run(tmp_path / "grpo-1", [0.0, 0.1, 0.3]), 4)]
    # accuracies 0.4 and 0.6: half is 12.706 * 0.1; areas 0.3 and 0.4, pages 0.2 and 0.3: half of that
    assert table(rows({"paper": runs, "grpo": single}, 4)).splitlines() == [
        "method          accuracy at step 4  area under the curve  right pages at step 4  each seed",
        "start (step 0)       0.100 ± 0.000                                0.050 ± 0.000  0.10 0.10",
        "paper                0.500 ± 1.271         0.350 ± 0.635          0.250 ± 0.635  0.40 0.60",
        "grpo                         0.300                 0.200                  0.150       0.30"]
    never = Outcome(1, {}, 0.5, 0.25, 0.125)                                   # not evaluated before its first step
    assert rows({"paper": [never]}, 4)[1:] == [["paper", "0.500", "0.250", "0.125", "0.50"]]


def run(seed, points):
    return Outcome(seed, {"gain_right": points}, 0.0, 0.0, 0.0)


def test_a_line_is_over_the_steps_that_every_run_has_and_a_method_without_one_keeps_its_place():
    two = [run(1, {1: 1.0, 2: 2.0, 5: 0.0}), run(2, {5: 1.0, 2: 3.0, 3: 9.0})]
    lines = series({"grpo": [run(1, {}), run(2, {})], "paper": two, "apart": [run(1, {1: 1.0}), run(2, {2: 1.0})],
                    "single": [run(1, {1: 1.0})]}, "gain_right")
    assert [(line.name, line.x) for line in lines] == [("grpo", []), ("paper", [2, 5]), ("apart", []), ("single", [1])]
    assert lines[1].y == [2.5, 0.5] and lines[1].low == pytest.approx([2.5 - 6.353, 0.5 - 6.353])
    assert lines[1].high == pytest.approx([2.5 + 6.353, 0.5 + 6.353]) and lines[3].low is None


def test_a_band_is_drawn_from_the_first_step_to_the_last():
    line = band("paper", {10: [1.0, 1.0], 0: [0.0, 0.0]})
    assert line.x == [0, 10] and line.y == line.low == line.high == [0.0, 1.0]


def finished(seed, accuracy, area=0.0):
    return Outcome(seed, {}, accuracy, area, 0.0)


def test_differences_are_paired_by_seed_and_leave_out_seeds_that_only_one_method_has():
    runs = {"grpo": [finished(1, 0.1), finished(2, 0.3), finished(9, 1.0)],
            "paper": [finished(2, 0.5), finished(1, 0.2)]}
    # 0.1 and 0.2: standard deviation 0.0707, half 12.706 * 0.05
    assert differences(runs) == [["paper - grpo", "accuracy", "0.150 ± 0.635"],
                                 ["paper - grpo", "area", "0.000 ± 0.000"]]
    assert differences({"grpo": runs["grpo"]}) == []


# ------------------------------------------------------------------------------------------------------------- the page


def test_gains_by_hop_are_means_over_seeds_of_right_visits_at_the_first_and_the_last_saved_step(tmp_path, monkeypatch):
    saved = {
        "paper-1/rollouts/step-00000001.jsonl": {("right", 1): [0.1, 0.3], ("wrong", 1): [-9.0],
                                                 ("repeated", 2): [7.0]},
        "paper-1/rollouts/step-00000020.jsonl": {("right", 1): [50.0]},                    # neither first nor last
        "paper-1/rollouts/step-00000039.jsonl": {("right", 2): [0.5]},
        "paper-2/rollouts/step-00000001.jsonl": {("right", 1): [0.8], ("right", 4): [-0.25]},
        "paper-2/rollouts/step-00000039.jsonl": {("failed", 3): [1.0]},
    }
    for path in saved:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    monkeypatch.setattr(results, "run_gains", lambda file: saved[str(file.relative_to(tmp_path))])
    runs = [finished(seed, 0.0) for seed in (1, 2)]
    [shown] = gains_by_hop(tmp_path, {"grpo": runs, "paper": runs})
    cells = [cell.strip() for cell in shown.replace("</td>", "|").replace("<td>", "|").split("|")]
    assert "grpo" not in shown                                                                     # it has saved none
    assert "+0.40" in cells and "-0.25" in cells and "+0.50" in cells
    assert not any(text in shown for text in ("9.0", "7.0", "50.0", "+1.00"))
    assert gains_by_hop(tmp_path, {"released": [finished(1, 0.0)]}) == [], "runs without saved rollouts have no section"
