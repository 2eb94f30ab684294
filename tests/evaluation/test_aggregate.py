"""The numbers of an evaluation and the difference of two: by hand."""

import re
from dataclasses import replace

import pytest

from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import (
    RunResult,
    accuracy,
    bootstrap_interval,
    compare,
    pass_share,
    summarise,
    wilson,
)
from minvenus.evaluation.answers import browse_ratio, executed_calls
from minvenus.evaluation.tables import comparison_text, report_text
from minvenus.types import Question, Turn

VERDICTS = {"Y": True, "N": False, "U": None}
NUMBERS = dict.fromkeys("turns malformed searches visits browse tokens seconds f1".split(), 1)


def runs_of(table: str, text="Who?", truth="Rome", note="") -> list[RunResult]:
    """ "a:YU b:N" as runs 0 and 1 of question a, right and unknown, and a wrong run of b."""
    results = []
    for row in table.split():
        name, verdicts = row.split(":")
        question = Question(name, text, [truth])
        for i, letter in enumerate(verdicts):
            result = RunResult(question, i, "answered", numbers=NUMBERS, note=note)
            results.append(replace(result, correct=VERDICTS[letter]))
    return results


def report_of(table: str, grader="exact match", **more) -> dict:
    return summarise(runs_of(table, **more), grader)


# --------------------------------------------------------------------------------- accuracy, pass@k


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [  # the four cases of Newcombe 1998, and a mirrored one
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_against_known_values(right, n, low, high):
    assert wilson(right, n) == pytest.approx((low, high), abs=6e-5)
    assert all(str(wilson(0, n)[0]) == "0.0" and wilson(n, n)[1] == 1 for n in range(1, 99))


def test_unknown_verdicts_are_neither_right_nor_wrong_and_are_counted():
    low, high = wilson(1, 3)
    share = {"value": 1 / 3, "low": low, "high": high, "counted": 3, "unknown": 1}
    assert accuracy(runs_of("a:Y b:N c:N d:U")) == share
    nothing = {"value": None, "low": None, "high": None, "counted": 0, "unknown": 2}
    assert accuracy(runs_of("a:UU")) == nothing == pass_share(runs_of("a:U b:U"), 1)
    assert "accuracy       –, 2 unknown\n" in report_text(report_of("a:UU"))


def test_the_interval_counts_questions_and_not_their_runs():
    share = accuracy(runs_of("a:YYN b:NNN"))
    assert share["value"] == pytest.approx(1 / 3) and share["counted"] == 6
    assert (share["low"], share["high"]) == pytest.approx(wilson(2 / 3, 2))


def test_pass_at_k_worked_by_hand():
    # a: 2 of 4 right, so 1 - C(2,k)/C(4,k) = 1/2, 5/6, 1, 1;   b: 1 of 4, so 1/4, 1/2, 3/4, 1
    runs = runs_of("a:YNYN b:NNNY c:NNNN")
    shares = [pass_share(runs, k)["value"] for k in (1, 2, 3, 4)]
    assert shares == pytest.approx([1 / 4, 4 / 9, 7 / 12, 2 / 3])


@pytest.mark.parametrize(
    ("table", "unknown"),
    [
        ("a:NU b:YU c:NN d:Y e:YN", 2),  # c and e count: 0 and 1
        ("a:YUN b:UNN c:UUY", 1),  # a and b: 1 - C(1,2)/C(2,2) = 1, and 0
    ],
)
def test_whether_a_question_counts_does_not_depend_on_its_results(table, unknown):
    """[right, unknown] is left out like [wrong, unknown], although the first has a right run
    whatever the other is."""
    share = pass_share(runs_of(table), 2)
    assert (share["value"], share["counted"], share["unknown"]) == (1 / 2, 2, unknown)


# ---------------------------------------------------------------------- behaviour, the whole report


def test_runs_without_a_call_change_no_browse_ratio():
    assert browse_ratio([(1, 1), (9, 1), (0, 0)]) == pytest.approx(0.3)
    assert browse_ratio([(0, 0)]) is browse_ratio([]) is None


def test_a_call_counts_if_something_came_back_and_the_answer_is_no_call():
    turns = [
        Turn("search", 1, 2, "", {}, "x"),
        Turn("visit", 2, 3, "", {}, "e", tool_error="timeout"),
        Turn("none", 3, 4, "", observation="e", malformed=True),
        Turn("visit", 4, 5, "", {}),
    ]
    assert executed_calls(turns) == (1, 1)


# Two runs of four questions: right, mixed, without an answer, and one without a verdict.
RUNS = """
    question           ended   turns malformed searches visits browse tokens seconds  f1
    p   Y           answered       5         0        2      2     .5    100       1   1
    p   Y           answered       5         0        1      3    .75    100       1   1
    q   N           answered       5         1        3      1    .25    200       3  .5
    q   Y answered_max_steps       5         0        2      2     .5    200       3   1
    r   N          max_steps       4         4        4      0      0    300       5   0
    r   N              error       1         0        0      0      -    300       5   0
    s   U           answered       2         0        1      0      0    300       5   0
    s   N           answered       2         0        1      0      0    300       5   0
""".strip()
REPORT = """\
graded by        the judge grader-1
accuracy         42.9 % [11.5, 81.2] of 7, 1 unknown
  10-hop         100.0 % [20.7, 100.0] of 2
  2-hop          20.0 % [2.5, 71.2] of 5, 1 unknown
pass@2           66.7 % [20.8, 93.9] of 3, 1 unknown
ended            5 answered, 1 answered_max_steps, 1 max_steps, 1 error
mean F1          0.438, of the answer's words
turns            3.6 per run: 1.8 searches, 1.0 visits
tokens           225 per run
seconds          3.50 per run, while other runs share the machine
right pages      75.0 % of the path visited
format errors    17.2 % of all turns
tool errors      2 refused
browse, all      28.6 % of a run's calls are visits
browse, correct  58.3 % of a run's calls are visits
browse, wrong    8.3 % of a run's calls are visits
problem          r run 1: the endpoint [2J broke
problem          s run 0: no verdict in the reply"""


def eight_runs() -> list[RunResult]:
    head, *lines = RUNS.splitlines()
    _, _, *names = head.split()
    results = []
    for i, line in enumerate(lines):
        name, verdict, ending, *numbers = line.split()
        question = Question(name, "Who?", ["Rome"], "10-hop" if name == "p" else "2-hop")
        numbers = {name: float(n) for name, n in zip(names, numbers, strict=True) if n != "-"}
        results.append(RunResult(question, i % 2, ending, None, VERDICTS[verdict], numbers))
    results[2].numbers["right_pages"], results[3].numbers["right_pages"] = 1.0, 0.5
    results[3] = replace(results[3], tool_errors=["refused", "refused"])
    results[5] = replace(results[5], note="the endpoint\x1b[2J broke")
    results[6] = replace(results[6], note="no verdict in the reply")
    return results


def test_eight_runs_by_hand():
    summary = summarise(eight_runs(), "the judge grader-1")
    assert (summary["questions"], summary["runs"]) == (4, 8)
    assert summary["problems"][0] == "r run 1: the endpoint\x1b[2J broke"
    by_question = [part["accuracy"] for part in summary["by_question"].values()]
    assert by_question == [1.0, 1 / 2, 0.0, 0.0]
    assert report_text(summary) == REPORT


def test_the_report_has_pass_at_powers_of_two_and_five_problems():
    assert list(report_of("a:" + "Y" * 40)["pass_at_k"]) == "2 4 8 16 32 40".split()
    assert "pass@" not in report_text(report_of("a:Y b:N"))
    many = report_text(report_of("a:UUUUUUU", note="no reply"))
    assert many.count("no reply") == 5 and many.endswith("and 2 more in report.json")
    assert "x" * 180 in (long := report_text(report_of("a:U", note="x" * 300))) and len(long) < 999


# ---------------------------------------------------------------------------------- two evaluations


def test_the_paired_difference_by_hand():
    a = report_of("p:YN q:NN r:YY s:UU only-a:Y")
    b = report_of("p:YY q:NU r:NY s:YY only-b:N nor-a:Y")
    # +1/2, 0, -1/2; in 1/27 of the samples all three are the same one, which is more than 2.5 %
    lines = comparison_text(compare(a, b), ("SFT", "IGPO")).splitlines()
    assert lines[-2:] == [
        "B - A: +0.0 points, 95 % interval -50.0 to +50.0: no clear difference",
        "paired over 3 questions, 1 better and 1 worse; beside them 3 only in one of the two, "
        "1 without a verdict in one",
    ]
    [row] = [line for line in lines if line.startswith("accuracy")]
    assert lines[0].find("IGPO") == row.find("66.7 % [30"), "aligned"
    apart = compare(report_of("p:N q:N"), report_of("p:Y q:Y"))
    assert "B - A: +100.0 points, 95 % interval +100.0 to +100.0\n" in comparison_text(apart, "ab")
    half = compare(report_of("p:N q:N"), report_of("p:Y q:N"))  # a quarter of the samples: q, q
    assert "interval +0.0 to +100.0: no clear difference\n" in comparison_text(half, "ab")


ONLY_ONE = """\
 | 10-hop | 100.0 % [20.7, 100.0] of 2 | –
 | 2-hop | 20.0 % [2.5, 71.2] of 5, 1 unknown | –
right pages | 75.0 % of the path visited | –
pass@4 | – | 100.0 % [20.7, 100.0] of 1"""


def test_what_only_one_of_two_evaluations_has_is_a_row_too():
    a = summarise(eight_runs(), "a judge")
    b = report_of("p:YYNN q:U r:Y s:N z:Y", grader="a judge")
    lines = re.sub("  +", " | ", comparison_text(compare(a, b), ("SFT", "IGPO"))).splitlines()
    assert [line for line in lines if "–" in line] == ONLY_ONE.splitlines()
    assert "graded by | a judge | a judge" in lines and "tool errors | 2 refused | none" in lines


def test_swapping_the_two_negates_the_difference_and_the_order_of_the_lines_changes_nothing():
    a = runs_of(" ".join(f"q{i}:{'Y' * i + 'N' * (9 - i)}" for i in range(9)))
    b = report_of("q0:Y q1:N q2:Y q3:N q4:Y q5:N q6:Y q7:N q8:Y")
    there = compare(summarise(a, "exact match"), b)
    back = compare(b, summarise(a, "exact match"))
    assert compare(summarise(a[::-1], "exact match"), b) == there
    assert there["difference"] == pytest.approx(-back["difference"])
    assert (there["better"], there["worse"]) == (back["worse"], back["better"])
    # the same draws, every sign turned: as many means below the interval as above it
    assert (there["low"], there["high"]) == pytest.approx((-back["high"], -back["low"]))


def test_the_bootstrap_interval_of_many_values_is_that_of_the_normal_distribution():
    """The mean of 400 coins: 1/2 ± 1.96 / 40. One of 97.5 % would reach 0.007 further."""
    assert bootstrap_interval([0.0, 1.0] * 200) == pytest.approx((0.451, 0.549), abs=0.0035)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grader": "the judge grader-1"}, "A was graded by exact match, B by the judge grader-1"),
        ({"text": "Where?"}, "question 'p' is another one in A than in B"),
        ({"truth": "Roma"}, "other answers"),
        ({"table": "p:Y q:U"}, "1 questions have a verdict in both, and an interval needs two"),
    ],
)
def test_evaluations_that_were_graded_differently_or_have_other_questions_or_truths_are_refused(
    change, words
):
    with pytest.raises(ConfigError, match=words):
        compare(report_of("p:Y q:N"), report_of(**{"table": "p:Y q:N"} | change))
