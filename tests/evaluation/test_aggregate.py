"""The numbers of an evaluation and the difference of two: by hand first, then by brute force and as properties."""

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import (
    RunResult,
    accuracy,
    bootstrap_interval,
    browse_ratio,
    compare,
    comparison_text,
    executed_calls,
    pass_at_k,
    pass_share,
    report_text,
    summarise,
    wilson,
)
from minvenus.types import Question, Turn

Y, N, U = True, False, None
NUMBERS = dict.fromkeys(
    ("turns", "malformed", "searches", "visits", "tokens", "written", "seconds", "f1"), 1
)


def runs_of(
    table: dict[str, list[bool | None]], text="Who?", truth="Rome", **more
) -> list[RunResult]:
    """{"q1": [True, None]} as runs 0 and 1 of q1."""
    rows = [
        (Question(name, text, [truth]), i, correct)
        for name, row in table.items()
        for i, correct in enumerate(row)
    ]
    return [RunResult(*row, "answered", numbers=NUMBERS, **more) for row in rows]


def named(rows):
    return st.lists(rows, min_size=1, max_size=6).map(
        lambda rows: {f"q{i}": row for i, row in enumerate(rows)}
    )


drawn_tables = named(st.lists(st.sampled_from([Y, N, U]), min_size=1, max_size=5))
judged = st.integers(1, 6).flatmap(lambda k: named(st.lists(st.booleans(), min_size=k, max_size=k)))


# ---------------------------------------------------------------------------------------------------- accuracy, pass@k


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [  # the four cases of Newcombe 1998, and a mirrored one
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_against_known_values(right, n, low, high):
    assert wilson(right, n) == pytest.approx((low, high), abs=6e-5)
    assert wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.floats(0, n), st.just(n))))
def test_wilson_holds_the_share_and_mirrors(case):
    right, n = case
    low, high = wilson(right, n)
    assert 0 <= low <= right / n + 1e-12 and right / n - 1e-12 <= high <= 1
    assert wilson(n - right, n) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_unknown_verdicts_are_neither_right_nor_wrong_and_are_shown():
    found = accuracy(runs_of({"a": [Y], "b": [N], "c": [N], "d": [U]}))
    assert found["value"] == pytest.approx(1 / 3) and (found["counted"], found["unknown"]) == (3, 1)
    assert (found["worst"], found["best"]) == (0.25, 0.5)
    assert (found["low"], found["high"]) == wilson(1, 3)
    none = runs_of({"a": [U, U]})
    for found in (accuracy(none), pass_share(none, 1)):
        assert found["value"] is found["low"] is found["high"] is None and found["counted"] == 0
    assert "–, 2 unknown; unknown verdicts all wrong 0.0 %, all right 100.0 %" in report_text(
        summarise(none)
    )


def test_the_interval_counts_questions_and_not_their_runs():
    found = accuracy(runs_of({"a": [Y, Y, N], "b": [N, N, N]}))
    assert found["value"] == pytest.approx(1 / 3) and found["counted"] == 6
    assert (found["low"], found["high"]) == pytest.approx(wilson(2 / 3, 2))


@given(drawn_tables)
def test_the_accuracy_lies_between_its_bounds_and_is_both_when_nothing_is_unknown(table):
    runs = runs_of(table)
    found = accuracy(runs)
    if found["value"] is not None:
        assert found["worst"] - 1e-12 <= found["value"] <= found["best"] + 1e-12
    for share in (found, *(pass_share(runs, k) for k in (1, 2, 3))):
        assert share["worst"] == share["value"] == share["best"] or any(
            U in row for row in table.values()
        )


def test_pass_at_k_worked_by_hand():
    # a: 2 of 4 right, so 1 - C(2,k)/C(4,k) = 1/2, 5/6, 1, 1;   b: 1 of 4, so 1/4, 1/2, 3/4, 1;   c: 0
    runs = runs_of({"a": [Y, N, Y, N], "b": [N, N, N, Y], "c": [N, N, N, N]})
    assert [pass_share(runs, k)["value"] for k in (1, 2, 3, 4)] == pytest.approx(
        [1 / 4, 4 / 9, 7 / 12, 2 / 3]
    )


def test_whether_a_question_counts_does_not_depend_on_its_results():
    """[right, unknown] is left out like [wrong, unknown], although the first has a right run whatever the other is."""
    found = pass_share(runs_of({"a": [N, U], "b": [Y, U], "c": [N, N], "d": [Y], "e": [Y, N]}), 2)
    assert (found["value"], found["counted"], found["unknown"]) == (0.5, 2, 2)  # c and e
    assert (found["worst"], found["best"]) == (2 / 4, 3 / 4)  # d has one run only
    found = pass_share(runs_of({"a": [Y, U, N], "b": [U, N, N], "c": [U, U, Y]}), 2)
    assert (found["value"], found["counted"], found["unknown"]) == (
        0.5,
        2,
        1,
    )  # 1 - C(1,2)/C(2,2) = 1, and 0
    # worst: 1 of 3, 0, 1 of 3 right: 1 - C(2,2)/C(3,2) = 2/3;   best: 2, 1 and 3 of 3
    assert (found["worst"], found["best"]) == pytest.approx(
        ((2 / 3 + 0 + 2 / 3) / 3, (1 + 2 / 3 + 1) / 3)
    )


@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_pass_at_k_is_the_mean_of_any_over_all_choices_of_k_runs(correct):
    for k in range(1, len(correct) + 1):
        choices = list(combinations(correct, k))
        expected = sum(map(any, choices)) / len(choices)
        assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(expected, abs=1e-12)


# ------------------------------------------------------------------------------------------ behaviour, the whole report


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6), st.integers(1, 5))
def test_runs_without_a_call_and_the_same_runs_again_change_no_browse_ratio(calls, times):
    found = browse_ratio(calls)
    assert browse_ratio(calls * times + [(0, 0)]) == pytest.approx(found)
    assert found is None if not any(map(sum, calls)) else 0 <= found <= 1
    assert browse_ratio([(1, 1), (9, 1), (0, 0)]) == pytest.approx(0.3)


def test_a_call_counts_if_something_came_back_and_the_answer_is_no_call():
    turns = [
        Turn("search", 1, 2, "", {}, "x"),
        Turn("visit", 2, 3, "", {}, "e", tool_error="timeout"),
        Turn("none", 3, 4, "", observation="e", malformed=True),
        Turn("visit", 4, 5, "", {}),
    ]
    assert executed_calls(turns) == (1, 1)


def eight_runs() -> list[RunResult]:
    """Two runs of four questions: right, mixed, without an answer, and one without a verdict."""
    p = {"turns": 5, "tokens": 100, "seconds": 1.0, "written": 40, "f1": 1.0}
    q = {
        "turns": 5,
        "tokens": 200,
        "seconds": 3.0,
        "written": 60,
        "f1": 1.0,
        "searches": 2,
        "visits": 2,
    }
    rest = {"turns": 2, "tokens": 300, "seconds": 5.0}
    rows = [
        ("p", True, "answered", p | {"searches": 2, "visits": 2}, {}),
        ("p", True, "answered", p | {"searches": 1, "visits": 3}, {}),
        (
            "q",
            False,
            "answered",
            q | {"searches": 3, "visits": 1, "f1": 0.5, "malformed": 1},
            {"tool_errors": ["refused", "refused"]},
        ),
        ("q", True, "answered_max_steps", q, {}),
        ("r", False, "max_steps", rest | {"searches": 4, "turns": 4, "malformed": 4}, {}),
        ("r", False, "error", rest | {"turns": 1}, {"note": "the endpoint\x1b[2J broke"}),
        ("s", None, "answered", rest | {"searches": 1}, {"note": "no verdict in the reply"}),
        ("s", False, "answered", rest | {"searches": 1}, {}),
    ]
    return [
        RunResult(
            Question(name, "Who?", ["Rome"], "10-hop" if name == "p" else "2-hop"),
            i % 2,
            correct,
            ended,
            graded_by="the judge grader-1",
            numbers=dict.fromkeys(NUMBERS, 0) | numbers,
            **more,
        )
        for i, (name, correct, ended, numbers, more) in enumerate(rows)
    ]


def test_eight_runs_by_hand():
    s = summarise(eight_runs())
    assert (s["questions"], s["runs"], s["graded_by"]) == (4, 8, "the judge grader-1")
    assert s["accuracy"]["value"] == 3 / 7 and (
        s["accuracy"]["counted"],
        s["accuracy"]["unknown"],
    ) == (7, 1)
    assert (s["accuracy"]["worst"], s["accuracy"]["best"]) == (3 / 8, 4 / 8)
    # at 1: p 1, q 1/2, r 0, s 0;   at 2: p 1, q 1, r 0
    assert [s["pass_at_k"][k]["value"] for k in (1, 2)] == [3 / 8, 2 / 3] and s["pass_at_k"][2][
        "unknown"
    ] == 1
    assert {source: part["value"] for source, part in s["by_source"].items()} == {
        "10-hop": 1.0,
        "2-hop": 1 / 5,
    }
    assert [*s["terminations"].items()] == [
        ("answered", 5),
        ("answered_max_steps", 1),
        ("max_steps", 1),
        ("error", 1),
    ]
    assert s["problems"] == [
        "r run 1: the endpoint\x1b[2J broke",
        "s run 0: no verdict in the reply",
    ]
    assert s["malformed"] == 5 / 29 and s["tool_errors"] == {"refused": 2}
    assert (
        s["means"]["turns"] == 29 / 8
        and s["means"]["tokens"] == 1800 / 8
        and s["means"]["f1"] == 3.5 / 8
    )
    browse = {"all": 2 / 7, "correct": (1 / 2 + 3 / 4 + 1 / 2) / 3, "wrong": (1 / 4 + 0 + 0) / 3}
    assert s["browse"] == pytest.approx(browse)
    assert list(summarise(runs_of({"a": [Y] * 6}))["pass_at_k"]) == [1, 2, 4, 6]


def test_the_report_shows_every_number():
    shown = report_text(summarise(eight_runs()))
    for words in (
        "the judge grader-1",
        "  10-hop ",
        "42.9 %",
        "66.7 %",
        "0.438",
        "1 max_steps, 1 error",
        "of 3, 1 unknown; unknown verdicts all wrong 50.0 %, all right 75.0 %",
        "2 without an answer, counted as wrong",
        "s run 0: no verdict in the reply",
        "17.2 % of all turns",
        "2 refused",
        "225 per run",
        "3.50 per run",
        "58.3 % of a run's calls",
    ):
        assert words in shown, (words, shown)
    assert "r run 1: the endpoint [2J broke" in shown and "\x1b" not in shown
    assert "pass@" not in report_text(summarise(eight_runs()[::2]))
    many = report_text(summarise(runs_of({"a": [U] * 7}, note="no reply")))
    assert many.count("no reply") == 5 and "and 2 more" in many


# ----------------------------------------------------------------------------------------------------- two evaluations


def test_the_paired_difference_by_hand():
    a = runs_of({"p": [Y, N], "q": [N, N], "r": [Y, Y], "s": [U, U], "only a": [Y]})
    b = runs_of({"p": [Y, Y], "q": [N, U], "r": [N, Y], "s": [Y, Y], "only b": [N], "nor a": [Y]})
    found = compare(a, b)
    # +1/2, 0, -1/2; in 1/27 of the samples all three are the same one, which is more than 2.5 %
    assert {name: found[name] for name in found if name not in "ab"} == {
        "difference": 0.0,
        "low": -0.5,
        "high": 0.5,
        "questions": 3,
        "better": 1,
        "worse": 1,
        "unpaired": 3,
        "unknown": 1,
    }
    lines = comparison_text(found, ("SFT", "IGPO")).splitlines()
    assert lines[-2:] == [
        "B - A: +0.0 points, 95 % interval -50.0 to +50.0: no clear difference",
        "paired over 3 questions, 1 better and 1 worse; 3 questions only in one of them; "
        "1 without a verdict in one of them",
    ]
    [row] = [line for line in lines if line.startswith("accuracy")]
    assert lines[0].split() == ["SFT", "IGPO"] and lines[0].find("IGPO") == row.find(
        "66.7 % [30"
    ), "aligned"


@given(judged, judged)
@example(
    {f"q{i}": [j < i for j in range(9)] for i in range(9)},
    {f"q{i}": [i % 2 == 0] for i in range(9)},
)
def test_swapping_the_two_negates_the_difference_and_the_order_of_the_lines_changes_nothing(x, y):
    a, b = runs_of(x), runs_of(y)
    if len(x.keys() & y.keys()) == 1:
        with pytest.raises(
            ConfigError, match="1 questions have a verdict in both, and an interval needs two"
        ):
            compare(a, b)
        return
    there, back = compare(a, b), compare(b, a)
    assert compare(a[::-1], b) == there
    assert there["difference"] == pytest.approx(-back["difference"])
    assert (there["better"], there["worse"]) == (back["worse"], back["better"])
    assert -1 <= there["low"] <= there["high"] <= 1
    # the same draws, every sign turned
    assert (there["low"], there["high"]) == pytest.approx((-back["high"], -back["low"]))
    apart = there["low"] > 0 or there["high"] < 0
    assert ("no clear difference" not in comparison_text(there, ("a", "b"))) == apart


def test_the_bootstrap_interval_of_many_values_is_that_of_the_normal_distribution():
    """The mean of 400 coins: 1/2 ± 1.96 / 40. One of 97.5 % would reach 0.007 further."""
    assert bootstrap_interval([0.0, 1.0] * 200) == pytest.approx((0.451, 0.549), abs=0.0035)
    roots = [i**0.5 for i in range(20)]
    low, high = bootstrap_interval(roots)
    assert bootstrap_interval([-root for root in roots]) == (-high, -low), (
        "as many means below it as above"
    )


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (
            {},
            {"graded_by": "the judge grader-1"},
            "A and B cannot be compared, they were graded by exact match and the",
        ),
        ({}, {"text": "Where?"}, "question 'p' is another one in A than in B"),
        ({}, {"truth": "Roma"}, "other answers"),
    ],
)
def test_evaluations_that_were_graded_differently_or_have_other_questions_or_truths_are_refused(
    a, b, words
):
    table = {"p": [Y], "q": [N]}
    with pytest.raises(ConfigError, match=words):
        compare(runs_of(table, **a), runs_of(table, **b))
    assert compare(runs_of(table, **b), runs_of(table, **b))["difference"] == 0.0


def test_an_evaluation_that_is_graded_in_two_ways_says_so():
    a, b = runs_of({"p": [Y]}), runs_of({"q": [N]}, graded_by="the judge grader-1")
    with pytest.raises(
        ConfigError, match="B was stopped while its runs were graded again, by exact match and the"
    ):
        compare(a, [*a, *b])
