"""Two evaluations against each other."""

import pytest
from hypothesis import example, given

from minvenus.config import ConfigError
from minvenus.evaluation import tables
from minvenus.evaluation.aggregate import bootstrap_interval, compare
from tests.evaluation.test_aggregate import N, U, Y, judged, runs_of


def test_the_paired_difference_by_hand():
    a = runs_of({"p": [Y, N], "q": [N, N], "r": [Y, Y], "s": [U, U], "only a": [Y]})
    b = runs_of({"p": [Y, Y], "q": [N, U], "r": [N, Y], "s": [Y, Y], "only b": [N], "nor a": [Y]})
    found = compare(a, b)
    del found["a"], found["b"]
    # +1/2, 0, -1/2; in 1/27 of the samples all three are the same one, which is more than 2.5 %
    assert found == {"difference": 0.0, "low": -0.5, "high": 0.5, "questions": 3, "better": 1, "worse": 1,
                     "unpaired": 3, "unknown": 1}


@given(judged, judged)
@example({f"q{i}": [j < i for j in range(9)] for i in range(9)}, {f"q{i}": [i % 2 == 0] for i in range(9)})
def test_swapping_the_two_negates_the_difference_and_the_order_of_the_lines_changes_nothing(x, y):
    a, b = runs_of(x), runs_of(y)
    there, back = compare(a, b), compare(b, a)
    assert compare(a[::-1], b) == there
    assert there["difference"] == pytest.approx(-back["difference"])
    assert (there["better"], there["worse"]) == (back["worse"], back["better"])
    if there["questions"] == 1:
        assert there["low"] is there["high"] is back["low"] is back["high"] is None
        return
    assert -1 <= there["low"] <= there["high"] <= 1
    # the same draws, every sign turned
    assert (there["low"], there["high"]) == pytest.approx((-back["high"], -back["low"]))


def test_the_bootstrap_interval_of_many_values_is_that_of_the_normal_distribution():
    """The mean of 400 coins: 1/2 ± 1.96 / 40. One of 97.5 % would reach 0.007 further."""
    assert bootstrap_interval([0.0, 1.0] * 200) == pytest.approx((0.451, 0.549), abs=0.0035)


def test_two_evaluations_that_were_graded_differently_are_refused():
    a, b = runs_of({"p": [Y], "q": [N]}), runs_of({"p": [Y], "q": [Y]}, graded_by="the judge grader-1")
    with pytest.raises(ConfigError, match=r"A was graded by exact match, B by the judge grader-1: .* --regrade"):
        compare(a, b)
    assert compare(b, b)["difference"] == 0.0


def test_other_questions_or_truths_under_the_same_ids_are_refused():
    with pytest.raises(ConfigError, match="question 'p' is another one in A than in B"):
        compare(runs_of({"p": [Y]}, text="Who?"), runs_of({"p": [Y]}, text="Where?"))
    with pytest.raises(ConfigError, match="or has other answers"):
        compare(runs_of({"p": [N]}, answers=["Rome"]), runs_of({"p": [Y]}, answers=["Roma"]))


def test_side_by_side_and_the_difference_in_words():
    def shown(a, b):
        return tables.comparison(compare(a, b), ("SFT", "IGPO"))
    a = runs_of({f"q{i}": [N] for i in range(20)})
    b = runs_of({f"q{i}": [Y] for i in range(20)} | {"new": [Y]})
    lines = shown(a, b).splitlines()
    assert lines[-2:] == ["B - A: +100.0 points, 95 % interval +100.0 to +100.0",
                          "paired over 20 questions, 20 better and 0 worse; 1 questions only in one of them"]
    [row] = [line for line in lines if line.startswith("accuracy")]
    assert lines[0].split() == ["SFT", "IGPO"] and "0.0 % [0.0, 16.1] of 20" in row
    assert lines[0].find("IGPO") == row.find("100.0 %"), "columns are aligned"
    assert "no clear difference" in shown(a, a) and "B - A: -100.0 points" in shown(b, a)
    assert "no clear difference" not in shown(b, a) + shown(a, b)
    assert "no question has a verdict in both; 21 questions only in one of them" in shown(a, runs_of({"z": [Y]}))
    assert shown(runs_of({"q": [N]}), runs_of({"q": [Y]})).endswith("B - A: +100.0 points, one question: no interval")


def test_sources_with_one_beginning_are_several_rows():
    long = "x" * 50
    a = [*runs_of({"p": [Y]}, source=long + "1"), *runs_of({"q": [N]}, source=long + "2")]
    rows = tables.numbers(compare(a, a)["a"])
    assert [rows[f"  {'x' * 40}{more}"].split()[0] for more in ("", " (2)")] == ["100.0", "0.0"]
