"""Aggregates: hand-worked tables first, then brute force and properties."""

import json
from dataclasses import asdict
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation.aggregate import (
    Run,
    accuracy,
    accuracy_by,
    averages,
    browse_ratio,
    browse_ratios,
    means,
    pass_any,
    pass_at_k,
    pass_unbiased,
    run_of,
    terminations,
    wilson,
)
from minvenus.evaluation.compare import paired_difference
from minvenus.types import Question, Rollout, Turn

Y, N, U = True, False, None


def runs_of(table: dict[str, list[bool | None]], **more) -> list[Run]:
    """{"q1": [True, None]} as runs 0 and 1 of q1."""
    return [Run(question, i, correct, "answered", **more) for question, some in table.items() for i, correct in enumerate(some)]


def calls(correct, searches, visits, question="q") -> Run:
    return Run(f"{question}{searches}{visits}{correct}", 0, correct, "answered", searches, visits)


verdicts = st.sampled_from([Y, N, U])


def named(rows):
    return st.lists(rows, min_size=1, max_size=6).map(lambda rows: {f"q{i}": row for i, row in enumerate(rows)})


tables = named(st.lists(verdicts, min_size=1, max_size=5))
judged = st.integers(1, 6).flatmap(lambda k: named(st.lists(st.booleans(), min_size=k, max_size=k)))


# --------------------------------------------------------------------------------------------------------------- accuracy


@pytest.mark.parametrize(("right", "n", "low", "high"), [                 # the four cases of Newcombe 1998, and a mirrored one
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718), (20, 20, 0.8389, 1.0)])
def test_wilson_against_known_values(right, n, low, high):
    assert wilson(right, n) == pytest.approx((low, high), abs=6e-5)
    assert wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(case):
    right, n = case
    low, high = wilson(right, n)
    assert 0 <= low <= right / n + 1e-12 and right / n - 1e-12 <= high <= 1
    assert wilson(n - right, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


@pytest.mark.parametrize(("right", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_a_share_that_cannot_be_is_refused(right, n):
    with pytest.raises(ValueError, match="need"):
        wilson(right, n)


def test_unknown_verdicts_are_neither_right_nor_wrong_and_are_shown():
    found = accuracy(runs_of({"a": [Y], "b": [N], "c": [N], "d": [U]}))
    assert found.value == pytest.approx(1 / 3) and (found.counted, found.unknown) == (3, 1)
    assert (found.worst, found.best) == (0.25, 0.5)
    assert (found.low, found.high) == wilson(1, 3)


def test_the_interval_counts_questions_and_not_their_runs():
    found = accuracy(runs_of({"a": [Y, Y, N], "b": [N, N, N]}))
    assert found.value == pytest.approx(1 / 3) and found.counted == 6
    assert (found.low, found.high) == pytest.approx(wilson(2 / 3, 2))


@pytest.mark.parametrize("runs", [[], runs_of({"a": [U, U]})])
def test_nothing_known_is_none_and_not_zero(runs):
    for found in (accuracy(runs), pass_any(runs, 1), pass_unbiased(runs, 1)):
        assert found.value is found.low is found.high is None and found.counted == 0
    assert averages(runs).avg is None and averages(runs).best is None


def test_an_unfinished_run_is_wrong_and_nothing_else():
    assert accuracy([Run("a", 0, N, "timeout"), Run("b", 0, Y, "answered_max_steps")]).value == 0.5
    for correct in (Y, U):
        with pytest.raises(ValueError, match="counts as wrong"):
            Run("a", 0, correct, "token_limit_no_answer")


@pytest.mark.parametrize("correct", [1, 0, 1.0, "yes"])
def test_a_verdict_is_a_truth_value_or_none(correct):
    with pytest.raises(ValueError, match="True, False or None"):
        Run("a", 0, correct, "answered")


def test_an_unnamed_termination_is_refused():
    with pytest.raises(ValueError, match="gave_up"):
        Run("a", 0, N, "gave_up")


@given(tables)
def test_the_value_lies_between_worst_and_best(table):
    for found in (accuracy(runs_of(table)), pass_any(runs_of(table), 1), pass_any(runs_of(table), 2)):
        if found.value is not None:
            assert found.worst - 1e-12 <= found.value <= found.best + 1e-12
        if found.unknown == 0:
            assert found.worst == found.value == found.best


# ----------------------------------------------------------------------------------------------------------- several runs


TABLE = {"a": [Y, N, Y, N], "b": [N, N, N, Y], "c": [N, N, N, N]}


def test_avg_and_best_worked_by_hand():
    found = averages(runs_of(TABLE))
    assert [one.value for one in found.each] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert found.avg == pytest.approx(0.25) and found.best == pytest.approx(1 / 3)


def test_pass_at_k_of_both_kinds_worked_by_hand():
    runs = runs_of(TABLE)
    assert [pass_any(runs, k).value for k in (1, 2, 3, 4)] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    # a: 2 of 4 right, so 1 - C(2,k)/C(4,k) = 1/2, 5/6, 1, 1;   b: 1 of 4, so 1/4, 1/2, 3/4, 1;   c: 0
    assert [pass_unbiased(runs, k).value for k in (1, 2, 3, 4)] == pytest.approx([1 / 4, 4 / 9, 7 / 12, 2 / 3])


def test_the_order_of_the_lines_in_a_file_changes_nothing():
    runs = runs_of({"a": [Y, N, Y, N], "b": [Y, N, N, N], "c": [N, N, N, N], "d": [Y, Y, Y, Y]})
    other = runs_of({"a": [Y, Y, Y, Y], "b": [N, N, N, N], "c": [Y, Y, Y, N], "d": [Y, Y, Y, Y]})
    mixed = runs[::-1]
    assert averages(mixed) == averages(runs)
    assert all(pass_any(mixed, k) == pass_any(runs, k) for k in (1, 2, 3, 4))
    assert all(paired_difference(mixed, other, 40, seed) == paired_difference(runs, other, 40, seed) for seed in range(5))


def test_a_question_that_an_unknown_verdict_leaves_open_is_unknown_and_a_short_one_is_left_out():
    runs = runs_of({"a": [N, U], "b": [Y, U], "c": [N, N], "d": [Y]})
    found = pass_any(runs, 2)
    assert (found.value, found.counted, found.unknown, found.short) == (0.5, 2, 1, 1)
    assert (found.worst, found.best) == pytest.approx((1 / 3, 2 / 3))
    unbiased = pass_unbiased(runs, 2)
    assert (unbiased.value, unbiased.counted, unbiased.unknown, unbiased.short) == (0.0, 1, 2, 1)


def test_a_run_that_is_there_twice_is_an_error():
    runs = runs_of({"a": [Y]})
    for aggregate in (averages, lambda r: pass_any(r, 1), lambda r: pass_unbiased(r, 1), lambda r: paired_difference(r, r)):
        with pytest.raises(ValueError, match="run 0 of question 'a' is there twice"):
            aggregate(runs * 2)


@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_the_unbiased_estimator_is_the_mean_of_any_over_all_choices_of_k(correct):
    for k in range(1, len(correct) + 1):
        choices = list(combinations(correct, k))
        assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@given(judged)
def test_both_kinds_of_pass_at_k_grow_with_k_stay_in_bounds_and_meet_at_the_end(table):
    runs, k_max = runs_of(table), len(table["q0"])
    plain = [pass_any(runs, k).value for k in range(1, k_max + 1)]
    unbiased = [pass_unbiased(runs, k).value for k in range(1, k_max + 1)]
    for curve in (plain, unbiased):
        assert all(0 <= a <= b + 1e-12 and b <= 1 for a, b in zip(curve, curve[1:] or curve, strict=False))
    assert plain[0] == pytest.approx(averages(runs).each[0].value)
    assert unbiased[0] == pytest.approx(averages(runs).avg)                   # pass@1 is avg@k
    assert plain[-1] == pytest.approx(unbiased[-1])
    assert averages(runs).avg == pytest.approx(accuracy(runs).value)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_an_impossible_pass_at_k_is_refused(n, c, k):
    with pytest.raises(ValueError, match=f"k = {k}"):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match="at least 1"):
        pass_any([], 0)


# ------------------------------------------------------------------------------------------------------------- breakdowns


def test_accuracy_by_hops_and_source_in_order():
    runs = [Run("a", 0, Y, "answered", hops=10), Run("b", 0, N, "answered", hops=2),
            Run("c", 0, U, "answered", hops=2, source="x"), Run("d", 0, Y, "answered")]
    by_hops = accuracy_by(runs, "hops")
    assert list(by_hops) == [2, 10, "none"] and [share.value for share in by_hops.values()] == [0.0, 1.0, 1.0]
    assert by_hops[2].unknown == 1
    assert list(accuracy_by(runs, "source")) == ["x", "none"]
    assert accuracy_by(runs_of(TABLE), "source") == {} == accuracy_by([], "hops")


def test_terminations_and_means_by_hand():
    runs = [Run("a", 0, N, "timeout", turns=4, tokens=10, f1=0.5), Run("b", 0, Y, "answered", turns=2, tokens=20, f1=1.0),
            Run("c", 0, N, "timeout", turns=3, tokens=0, f1=0.0)]
    assert list(terminations(runs).items()) == [("answered", 1), ("timeout", 2)]
    assert means(runs)["turns"] == 3 and means(runs)["tokens"] == 10 and means(runs)["f1"] == 0.5
    assert "f1" not in means([*runs, Run("d", 0, N, "answered")]) and means([]) == {}


def test_the_browse_ratio_by_hand_correct_and_wrong_macro_and_pooled():
    runs = [calls(Y, 1, 1), calls(Y, 9, 1), calls(N, 4, 0), calls(N, 0, 0), calls(U, 0, 2)]
    found = browse_ratios(runs)
    assert (found["correct"].macro, found["correct"].pooled) == pytest.approx((0.3, 2 / 12))
    assert (found["wrong"].macro, found["wrong"].pooled, found["wrong"].runs, found["wrong"].skipped) == (0.0, 0.0, 1, 1)
    assert found["unknown"].macro == 1.0
    assert (found["all"].macro, found["all"].pooled) == pytest.approx((1.6 / 4, 4 / 18))
    assert browse_ratio([calls(N, 0, 0)]).macro is None is browse_ratio([]).pooled


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.integers(1, 5))
def test_runs_without_a_call_and_the_same_runs_again_change_no_browse_ratio(counts, times):
    runs = [calls(Y, *pair) for pair in counts]
    found, more = browse_ratio(runs), browse_ratio(runs * times + [calls(N, 0, 0)])
    assert (more.macro, more.pooled) == (pytest.approx(found.macro), pytest.approx(found.pooled))
    assert found.macro is None or (0 <= found.macro <= 1 and 0 <= found.pooled <= 1)


def test_a_call_counts_if_something_came_back_and_the_answer_is_no_call():
    def turn(kind, start, **more):
        return Turn(kind, start, start + 1, "", **more)
    turns = [turn("search", 1, tool={}, observation="x"), turn("visit", 2, tool={}, observation="e", tool_error="timeout"),
             turn("none", 3, observation="e", malformed=True), turn("visit", 4, tool={})]
    rollout = Rollout(Question("q", "?", ["a"]), [0] * 5, [False] * 5, [None] * 5, turns, "timeout", seconds=2.5)
    run = run_of(rollout, 3, N, hops=2, source="s", f1=0.0)
    assert run == Run("q", 3, N, "timeout", searches=1, visits=1, turns=4, malformed=1, tool_errors=1, tokens=5, seconds=2.5,
                      hops=2, source="s", f1=0.0, written=4, error_kinds=["timeout"])
    assert run_of(rollout, 0, N, note="why").note == "why"
    assert Run(**json.loads(json.dumps(asdict(run)))) == run
