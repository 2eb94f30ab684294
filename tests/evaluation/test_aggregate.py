"""The numbers of an evaluation and the difference of two: by hand first, then by brute force and
as properties."""

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import (
    Evaluation,
    RunResult,
    accuracy,
    bootstrap_interval,
    browse_ratio,
    compare,
    executed_calls,
    pass_at_k,
    pass_share,
    summarise,
    wilson,
)
from minvenus.evaluation.tables import comparison_text, report_text
from minvenus.types import Question, Turn

Y, N, U = True, False, None
NAMES = ("turns", "malformed", "searches", "visits", "tokens", "written", "seconds", "f1")
NUMBERS = dict.fromkeys(NAMES, 1)


def runs_of(table: dict[str, list[bool | None]], text="Who?", truth="Rome", note="") -> list:
    """{"q1": [True, None]} as runs 0 and 1 of q1."""
    results = []
    for name, row in table.items():
        question = Question(name, text, [truth])
        for i, correct in enumerate(row):
            results.append(RunResult(question, i, "answered", None, correct, NUMBERS, note=note))
    return results


def evaluation_of(table, name="A", grader="exact match", **more) -> Evaluation:
    return Evaluation(name, grader, runs_of(table, **more))


def named(rows):
    return st.lists(rows, min_size=1, max_size=6).map(
        lambda rows: {f"q{i}": row for i, row in enumerate(rows)}
    )


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


def test_unknown_verdicts_are_neither_right_nor_wrong_and_are_counted():
    share = accuracy(runs_of({"a": [Y], "b": [N], "c": [N], "d": [U]}))
    low, high = wilson(1, 3)
    assert share == {"value": 1 / 3, "low": low, "high": high, "counted": 3, "unknown": 1}
    none = evaluation_of({"a": [U, U]})
    nothing = {"value": None, "low": None, "high": None, "counted": 0}
    assert accuracy(none.results) == nothing | {"unknown": 2}
    assert pass_share(none.results, 1) == nothing | {"unknown": 1}
    assert "accuracy         –, 2 unknown\n" in report_text(summarise(none))


def test_the_interval_counts_questions_and_not_their_runs():
    found = accuracy(runs_of({"a": [Y, Y, N], "b": [N, N, N]}))
    assert found["value"] == pytest.approx(1 / 3) and found["counted"] == 6
    assert (found["low"], found["high"]) == pytest.approx(wilson(2 / 3, 2))


def test_pass_at_k_worked_by_hand():
    # a: 2 of 4 right, so 1 - C(2,k)/C(4,k) = 1/2, 5/6, 1, 1;   b: 1 of 4, so 1/4, 1/2, 3/4, 1;   c: 0
    runs = runs_of({"a": [Y, N, Y, N], "b": [N, N, N, Y], "c": [N, N, N, N]})
    assert [pass_share(runs, k)["value"] for k in (1, 2, 3, 4)] == pytest.approx(
        [1 / 4, 4 / 9, 7 / 12, 2 / 3]
    )


@pytest.mark.parametrize(
    ("table", "value", "counted", "unknown"),
    [
        ({"a": [N, U], "b": [Y, U], "c": [N, N], "d": [Y], "e": [Y, N]}, 1 / 2, 2, 2),  # c and e
        ({"a": [Y, U, N], "b": [U, N, N], "c": [U, U, Y]}, 1 / 2, 2, 1),  # 1 - C(1,2)/C(2,2), and 0
    ],
)
def test_whether_a_question_counts_does_not_depend_on_its_results(table, value, counted, unknown):
    """[right, unknown] is left out like [wrong, unknown], although the first has a right run
    whatever the other is."""
    share = pass_share(runs_of(table), 2)
    assert (share["value"], share["counted"], share["unknown"]) == (value, counted, unknown)


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


def eight_runs() -> Evaluation:
    """Two runs of four questions: right, mixed, without an answer, and one without a verdict."""
    p = {"turns": 5, "tokens": 100, "seconds": 1.0, "written": 40, "f1": 1.0, "searches": 2}
    q = p | {"tokens": 200, "seconds": 3.0, "written": 60, "visits": 2}
    rest = {"turns": 2, "tokens": 300, "seconds": 5.0}
    failed = {"note": "the endpoint\x1b[2J broke"}
    rows = [
        ("p", Y, "answered", p | {"visits": 2}, {}),
        ("p", Y, "answered", p | {"searches": 1, "visits": 3}, {}),
        ("q", N, "answered", q | {"searches": 3, "visits": 1, "f1": 0.5, "malformed": 1}, {}),
        ("q", Y, "answered_max_steps", q, {"tool_errors": ["refused", "refused"]}),
        ("r", N, "max_steps", rest | {"searches": 4, "turns": 4, "malformed": 4}, {}),
        ("r", N, "error", rest | {"turns": 1}, failed),
        ("s", U, "answered", rest | {"searches": 1}, {"note": "no verdict in the reply"}),
        ("s", N, "answered", rest | {"searches": 1}, {}),
    ]
    results = []
    for i, (name, correct, ended, numbers, more) in enumerate(rows):
        question = Question(name, "Who?", ["Rome"], "10-hop" if name == "p" else "2-hop")
        numbers = dict.fromkeys(NAMES, 0) | numbers
        results.append(RunResult(question, i % 2, ended, None, correct, numbers, **more))
    return Evaluation("eight", "the judge grader-1", results)


def test_eight_runs_by_hand():
    s = summarise(eight_runs())
    assert (s["questions"], s["runs"], s["graded_by"]) == (4, 8, "the judge grader-1")
    share = s["accuracy"]
    assert (share["value"], share["counted"], share["unknown"]) == (3 / 7, 7, 1)
    # at 1: p 1, q 1/2, r 0, s 0;   at 2: p 1, q 1, r 0
    assert [s["pass_at_k"][k]["value"] for k in (1, 2)] == [3 / 8, 2 / 3]
    assert s["pass_at_k"][2]["unknown"] == 1
    assert {source: part["value"] for source, part in s["by_source"].items()} == {
        "10-hop": 1.0,
        "2-hop": 1 / 5,
    }
    endings = {"answered": 5, "answered_max_steps": 1, "max_steps": 1, "error": 1}
    assert list(s["terminations"].items()) == list(endings.items())
    assert s["problems"] == [
        "r run 1: the endpoint\x1b[2J broke",
        "s run 0: no verdict in the reply",
    ]
    assert s["malformed"] == 5 / 29 and s["tool_errors"] == {"refused": 2}
    means = [s["means"][name] for name in ("turns", "tokens", "f1")]
    assert means == [29 / 8, 1800 / 8, 3.5 / 8]
    browse = {"all": 2 / 7, "correct": (1 / 2 + 3 / 4 + 1 / 2) / 3, "wrong": (1 / 4 + 0 + 0) / 3}
    assert s["browse"] == pytest.approx(browse)
    assert list(summarise(evaluation_of({"a": [Y] * 6}))["pass_at_k"]) == [1, 2, 4, 6]


def test_the_report_shows_every_number():
    shown = report_text(summarise(eight_runs()))
    for words in (
        "the judge grader-1",
        "  10-hop ",
        "42.9 %",
        "66.7 %",
        "0.438",
        "1 max_steps, 1 error",
        "of 3, 1 unknown\n",
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
    assert "pass@" not in report_text(summarise(evaluation_of({"a": [Y], "b": [N]})))
    many = report_text(summarise(evaluation_of({"a": [U] * 7}, note="no reply")))
    assert many.count("no reply") == 5 and "and 2 more" in many


# ----------------------------------------------------------------------------------------------------- two evaluations


def test_the_paired_difference_by_hand():
    a = {"p": [Y, N], "q": [N, N], "r": [Y, Y], "s": [U, U], "only a": [Y]}
    b = {"p": [Y, Y], "q": [N, U], "r": [N, Y], "s": [Y, Y], "only b": [N], "nor a": [Y]}
    comparison = compare(evaluation_of(a), evaluation_of(b))
    # +1/2, 0, -1/2; in 1/27 of the samples all three are the same one, which is more than 2.5 %
    assert {name: comparison[name] for name in comparison if name not in "ab"} == {
        "difference": 0.0,
        "low": -0.5,
        "high": 0.5,
        "questions": 3,
        "better": 1,
        "worse": 1,
        "unpaired": 3,
        "unknown": 1,
    }
    lines = comparison_text(comparison, ("SFT", "IGPO")).splitlines()
    assert lines[-2:] == [
        "B - A: +0.0 points, 95 % interval -50.0 to +50.0: no clear difference",
        "paired over 3 questions, 1 better and 1 worse; 3 questions only in one of them; "
        "1 without a verdict in one of them",
    ]
    [row] = [line for line in lines if line.startswith("accuracy")]
    assert lines[0].split() == ["SFT", "IGPO"]
    assert lines[0].find("IGPO") == row.find("66.7 % [30"), "aligned"


@given(judged, judged)
@example(
    {f"q{i}": [j < i for j in range(9)] for i in range(9)},
    {f"q{i}": [i % 2 == 0] for i in range(9)},
)
def test_swapping_the_two_negates_the_difference_and_the_order_of_the_lines_changes_nothing(x, y):
    a, b = evaluation_of(x), evaluation_of(y)
    if len(x.keys() & y.keys()) == 1:
        with pytest.raises(ConfigError, match="1 questions have a verdict in both, and an"):
            compare(a, b)
        return
    there, back = compare(a, b), compare(b, a)
    assert compare(Evaluation("A", "exact match", a.results[::-1]), b) == there
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
    ("change", "words"),
    [
        (
            {"grader": "the judge grader-1"},
            "A and B cannot be compared, they were graded by exact match and the judge grader-1",
        ),
        ({"text": "Where?"}, "question 'p' is another one in A than in B"),
        ({"truth": "Roma"}, "other answers"),
    ],
)
def test_evaluations_that_were_graded_differently_or_have_other_questions_or_truths_are_refused(
    change, words
):
    table = {"p": [Y], "q": [N]}
    other = evaluation_of(table, "B", **change)
    with pytest.raises(ConfigError, match=words):
        compare(evaluation_of(table), other)
    assert compare(other, other)["difference"] == 0.0
