"""The numbers of an evaluation: worked by hand first, then by brute force, by simulation and as properties."""

import json
import random
from dataclasses import asdict
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation.aggregate import (
    RunResult,
    accuracy,
    accuracy_by,
    browse_ratio,
    each_run,
    pass_at_k,
    pass_share,
    result_of,
    summarise,
    wilson,
)
from minvenus.evaluation.compare import paired_difference
from minvenus.types import Question, Rollout, Turn

Y, N, U = True, False, None


def runs_of(table: dict[str, list[bool | None]], **more) -> list[RunResult]:
    """{"q1": [True, None]} as runs 0 and 1 of q1."""
    rows = [(name, i, correct) for name, row in table.items() for i, correct in enumerate(row)]
    return [RunResult(*row, "answered", **more) for row in rows]


def named(rows):
    return st.lists(rows, min_size=1, max_size=6).map(lambda rows: {f"q{i}": row for i, row in enumerate(rows)})


tables = named(st.lists(st.sampled_from([Y, N, U]), min_size=1, max_size=5))
judged = st.integers(1, 6).flatmap(lambda k: named(st.lists(st.booleans(), min_size=k, max_size=k)))


# ------------------------------------------------------------------------------------------------------------- accuracy


@pytest.mark.parametrize(("right", "n", "low", "high"), [        # the four cases of Newcombe 1998, and a mirrored one
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718),
    (20, 20, 0.8389, 1.0)])
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
    for found in (accuracy(runs), pass_share(runs, 1), pass_share(runs, 1, first=True)):
        assert found.value is found.low is found.high is None and found.counted == 0
    assert summarise(runs).avg is None


def test_an_unfinished_run_is_wrong_and_nothing_else():
    assert accuracy([RunResult("a", 0, N, "timeout"), RunResult("b", 0, Y, "answered_max_steps")]).value == 0.5
    for correct in (Y, U):
        with pytest.raises(ValueError, match="counts as wrong"):
            RunResult("a", 0, correct, "token_limit_no_answer")


@pytest.mark.parametrize("correct", [1, 0, 1.0, "yes"])
def test_a_verdict_is_a_truth_value_or_none(correct):
    with pytest.raises(ValueError, match="True, False or None"):
        RunResult("a", 0, correct, "answered")


@given(tables)
def test_the_accuracy_lies_between_its_bounds_and_is_both_when_nothing_is_unknown(table):
    runs = runs_of(table)
    found = accuracy(runs)
    if found.value is not None:
        assert found.worst - 1e-12 <= found.value <= found.best + 1e-12
    for share in (found, *(pass_share(runs, k, first) for k in (1, 2, 3) for first in (True, False))):
        assert share.worst == share.value == share.best or any(U in row for row in table.values())


# --------------------------------------------------------------------------------------------------------- several runs


TABLE = {"a": [Y, N, Y, N], "b": [N, N, N, Y], "c": [N, N, N, N]}


def test_pass_at_k_and_avg_worked_by_hand():
    runs = runs_of(TABLE)
    assert [one.value for one in each_run(runs)] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert summarise(runs).avg == pytest.approx(0.25)
    assert [pass_share(runs, k, first=True).value for k in (1, 2, 3, 4)] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    # a: 2 of 4 right, so 1 - C(2,k)/C(4,k) = 1/2, 5/6, 1, 1;   b: 1 of 4, so 1/4, 1/2, 3/4, 1;   c: 0
    assert [pass_share(runs, k).value for k in (1, 2, 3, 4)] == pytest.approx([1 / 4, 4 / 9, 7 / 12, 2 / 3])


def test_whether_a_question_counts_does_not_depend_on_its_results():
    """[right, unknown] is left out like [wrong, unknown], although the first has a right run whatever the other is."""
    runs = runs_of({"a": [N, U], "b": [Y, U], "c": [N, N], "d": [Y], "e": [Y, N]})
    for first in (True, False):
        found = pass_share(runs, 2, first)
        assert (found.value, found.counted, found.unknown) == (0.5, 2, 2)                # c and e
        assert (found.worst, found.best) == (2 / 4, 3 / 4)                               # d has one run only
    found = pass_share(runs_of({"a": [Y, U, N], "b": [U, N, N], "c": [U, U, Y]}), 2)
    assert (found.value, found.counted, found.unknown) == (0.5, 2, 1)                    # 1 - C(1,2)/C(2,2) = 1, and 0
    # worst: 1 of 3, 0, 1 of 3 right: 1 - C(2,2)/C(3,2) = 2/3;   best: 2, 1 and 3 of 3
    assert (found.worst, found.best) == pytest.approx(((2 / 3 + 0 + 2 / 3) / 3, (1 + 2 / 3 + 1) / 3))


@pytest.mark.parametrize("first", [True, False])
def test_pass_at_k_is_unbiased_when_verdicts_are_missing_at_random(first):
    """1,500 questions, six runs each, a tenth of the verdicts unknown, ten times. Counting a question as soon as one of
    its runs is right, and leaving it out if none is and one is unknown, reads more than 4 points too high here."""
    rng, k = random.Random(3), 4
    errors, naive_errors = [], []
    for _ in range(10):
        chances = [rng.choice((0.02, 0.1, 0.3, 0.6)) for _ in range(1500)]
        truth = fmean(1 - (1 - p) ** k for p in chances)
        table = {}
        for i, p in enumerate(chances):
            table[f"q{i}"] = [U if rng.random() < 0.1 else rng.random() < p for _ in range(6)]
        errors.append(pass_share(runs_of(table), k, first).value - truth)
        decided = [True in row[:k] for row in table.values() if True in row[:k] or U not in row[:k]]
        naive_errors.append(fmean(decided) - truth)
    assert fmean(naive_errors) > 0.04, "the test would see the bias"
    assert abs(fmean(errors)) < 0.01, errors                       # the standard error of this mean is below 0.004


def test_the_order_of_the_lines_in_a_file_changes_nothing():
    runs = runs_of({"a": [Y, N, Y, N], "b": [Y, N, N, N], "c": [N, N, N, N], "d": [Y, Y, Y, Y]})
    other = runs_of({"a": [Y, Y, Y, Y], "b": [N, N, N, N], "c": [Y, Y, Y, N], "d": [Y, Y, Y, Y]})
    mixed = runs[::-1]
    assert each_run(mixed) == each_run(runs)
    assert all(pass_share(mixed, k, first=True) == pass_share(runs, k, first=True) for k in (1, 2, 3, 4))
    for seed in range(5):
        assert paired_difference(mixed, other, 40, seed) == paired_difference(runs, other, 40, seed)


def test_a_run_that_is_there_twice_is_an_error():
    runs = runs_of({"a": [Y]})
    for aggregate in (summarise, lambda r: pass_share(r, 1), lambda r: paired_difference(r, r)):
        with pytest.raises(ValueError, match="run 0 of question 'a' is there twice"):
            aggregate(runs * 2)


@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_pass_at_k_is_the_mean_of_any_over_all_choices_of_k_runs(correct):
    for k in range(1, len(correct) + 1):
        choices = list(combinations(correct, k))
        expected = sum(map(any, choices)) / len(choices)
        assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(expected, abs=1e-12)


@given(judged)
def test_both_kinds_of_pass_at_k_grow_with_k_stay_in_bounds_and_meet_at_the_end(table):
    runs, k_max = runs_of(table), len(table["q0"])
    plain = [pass_share(runs, k, first=True).value for k in range(1, k_max + 1)]
    unbiased = [pass_share(runs, k).value for k in range(1, k_max + 1)]
    for curve in (plain, unbiased):
        assert all(0 <= a <= b + 1e-12 and b <= 1 for a, b in zip(curve, curve[1:] or curve, strict=False))
    assert plain == pytest.approx([fmean(any(row[:k]) for row in table.values()) for k in range(1, k_max + 1)])
    assert unbiased[0] == pytest.approx(summarise(runs).avg) == pytest.approx(accuracy(runs).value)    # pass@1 is avg@k
    assert plain[-1] == pytest.approx(unbiased[-1])


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_an_impossible_pass_at_k_is_refused(n, c, k):
    with pytest.raises(ValueError, match=f"k = {k}"):
        pass_at_k(n, c, k)


# ------------------------------------------------------------------------------------------------ breakdowns, behaviour


def test_accuracy_by_hops_and_source_in_order():
    runs = [RunResult("a", 0, Y, "answered", hops=10), RunResult("b", 0, N, "answered", hops=2),
            RunResult("c", 0, U, "answered", hops=2, source="x"), RunResult("d", 0, Y, "answered")]
    by_hops = accuracy_by(runs, "hops")
    assert list(by_hops) == [2, 10, "none"] and [share.value for share in by_hops.values()] == [0.0, 1.0, 1.0]
    assert by_hops[2].unknown == 1
    assert list(accuracy_by(runs, "source")) == ["x", "none"]
    assert accuracy_by(runs_of(TABLE), "source") == {} == accuracy_by([], "hops")


def test_the_browse_ratio_by_hand_macro_and_pooled():
    found = browse_ratio([(1, 1), (9, 1), (0, 0)])
    assert (found.macro, found.pooled, found.runs, found.skipped) == (pytest.approx(0.3), pytest.approx(2 / 12), 2, 1)
    assert browse_ratio([(0, 0)]).macro is None is browse_ratio([]).pooled


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.integers(1, 5))
def test_runs_without_a_call_and_the_same_runs_again_change_no_browse_ratio(calls, times):
    found, more = browse_ratio(calls), browse_ratio(calls * times + [(0, 0)])
    assert (more.macro, more.pooled) == (pytest.approx(found.macro), pytest.approx(found.pooled))
    assert found.macro is None or (0 <= found.macro <= 1 and 0 <= found.pooled <= 1)


def test_a_call_counts_if_something_came_back_and_the_answer_is_no_call():
    def turn(kind, start, **more):
        return Turn(kind, start, start + 1, "", **more)
    turns = [turn("search", 1, tool={}, observation="x"),
             turn("visit", 2, tool={}, observation="e", tool_error="timeout"),
             turn("none", 3, observation="e", malformed=True), turn("visit", 4, tool={})]
    rollout = Rollout(Question("q", "?", ["a"]), [0] * 5, [False] * 5, [None] * 5, turns, "timeout", seconds=2.5)
    assert result_of(rollout, 3, N, hops=2, source="s", note="why") == RunResult(
        "q", 3, N, "timeout", searches=1, visits=1, turns=4, malformed=1, tool_errors=["timeout"], tokens=5, written=4,
        seconds=2.5, hops=2, source="s", note="why")


def test_eight_runs_by_hand(eight_runs):
    s = summarise(eight_runs)
    assert (s.questions, s.runs, s.k, s.graded_by) == (4, 8, 2, "the judge grader-1")
    assert s.accuracy.value == 3 / 7 and (s.accuracy.counted, s.accuracy.unknown) == (7, 1)
    assert (s.accuracy.worst, s.accuracy.best) == (3 / 8, 4 / 8)
    assert s.avg == (1 / 3 + 2 / 4) / 2 and [one.value for one in s.each_run] == [1 / 3, 2 / 4]
    assert [s.pass_any[k].value for k in (1, 2)] == [1 / 3, 2 / 3] and s.pass_any[2].unknown == 1
    assert {h: part.value for h, part in s.by_hops.items()} == {1: 1.0, 2: 1 / 5} and s.by_source == {}
    assert list(s.terminations.items()) == [("answered", 5), ("answered_max_steps", 1), ("max_steps", 1), ("error", 1)]
    assert [(r.question, r.run) for r in s.unfinished] == [("r", 0)] and [r.run for r in s.failed] == [1]
    assert [(r.question, r.note) for r in s.unknown] == [("s", "no verdict in the reply")]
    assert s.malformed == 5 / 29 and s.tool_errors == {"refused": 2} and s.means["tool_errors"] == 2 / 8
    assert s.means["turns"] == 29 / 8 and s.means["tokens"] == 1800 / 8 and s.means["f1"] == 3.5 / 8
    assert s.browse["correct"].macro == (1 / 2 + 3 / 4 + 1 / 2) / 3 and s.browse["correct"].pooled == 7 / 12
    assert s.browse["wrong"].macro == (1 / 4 + 0 + 0) / 3 and s.browse["wrong"].skipped == 1
    assert s.browse["unknown"].macro == 0.0 and s.browse["all"].runs == 7


def test_pass_at_k_is_reported_at_powers_of_two_and_at_all_runs():
    ks = [list(summarise(runs_of({"a": [Y] * k})).pass_any) for k in (0, 1, 2, 3, 8)]
    assert ks == [[], [1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


@given(tables)
def test_the_summary_is_its_parts_and_becomes_json(rows):
    runs = runs_of(rows, turns=1)
    s = summarise(runs)
    assert s.accuracy == accuracy(runs) and s.runs == len(runs)
    assert s.pass_any == {k: pass_share(runs, k, first=True) for k in s.pass_any}
    assert s.pass_unbiased == {k: pass_share(runs, k) for k in s.pass_any}
    assert len(s.unknown) == s.accuracy.unknown and sum(s.terminations.values()) == s.runs
    assert json.loads(json.dumps(asdict(s)))["accuracy"] == asdict(s.accuracy)
