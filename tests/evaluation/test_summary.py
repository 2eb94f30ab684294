"""All aggregates of an evaluation in one record, and the tables that people read."""

import json
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from minvenus.evaluation import table
from minvenus.evaluation.aggregate import Run, accuracy, pass_any, pass_unbiased
from minvenus.evaluation.compare import compare
from minvenus.evaluation.summary import pass_ks, summarise
from tests.evaluation.test_aggregate import N, U, Y, runs_of, tables

RUNS = [Run("p", 0, Y, "answered", 2, 2, turns=5, tokens=100, seconds=1.0, hops=1, written=40, f1=1.0),
        Run("p", 1, Y, "answered", 1, 3, turns=5, tokens=100, seconds=1.0, hops=1, written=40, f1=1.0),
        Run("q", 0, N, "answered", 3, 1, turns=5, malformed=1, tool_errors=1, tokens=200, seconds=3.0, hops=2, written=60, f1=0.5,
            error_kinds=["refused"]),
        Run("q", 1, Y, "answered_max_steps", 2, 2, turns=5, tokens=200, seconds=3.0, hops=2, written=60, f1=1.0),
        Run("r", 0, N, "max_steps", 4, 0, turns=4, malformed=4, tokens=300, seconds=5.0, hops=2, f1=0.0),
        Run("r", 1, N, "error", turns=1, tokens=300, seconds=5.0, hops=2, f1=0.0, note="the endpoint\x1b[2J broke"),
        Run("s", 0, U, "answered", 1, 0, turns=2, tokens=300, seconds=5.0, hops=2, f1=0.0, note="no verdict in the reply"),
        Run("s", 1, N, "answered", 1, 0, turns=2, tokens=300, seconds=5.0, hops=2, f1=0.0)]


def test_eight_runs_by_hand():
    s = summarise(RUNS)
    assert (s.questions, s.runs, s.k) == (4, 8, 2)
    assert s.accuracy.value == 3 / 7 and (s.accuracy.counted, s.accuracy.unknown) == (7, 1)
    assert (s.accuracy.worst, s.accuracy.best) == (3 / 8, 4 / 8)
    assert s.averages.avg == (1 / 3 + 2 / 4) / 2 and s.averages.best == 2 / 4
    assert [s.pass_any[k].value for k in (1, 2)] == [1 / 3, 2 / 3] and s.pass_any[2].unknown == 1       # s: unknown or right
    assert {h: part.value for h, part in s.by_hops.items()} == {1: 1.0, 2: 1 / 5} and s.by_source == {}
    assert s.terminations == {"answered": 5, "answered_max_steps": 1, "max_steps": 1, "error": 1}
    assert [(one.question, one.run) for one in s.unfinished] == [("r", 0)] and [one.run for one in s.failed] == [1]
    assert [(one.question, one.note) for one in s.unknown] == [("s", "no verdict in the reply")]
    assert s.malformed == 5 / 29 and s.tool_errors == {"refused": 1}
    assert s.browse["correct"].macro == (1 / 2 + 3 / 4 + 1 / 2) / 3 and s.browse["correct"].pooled == 7 / 12
    assert s.browse["wrong"].macro == (1 / 4 + 0 + 0) / 3 and s.browse["wrong"].skipped == 1


def test_the_table_shows_every_number_of_it():
    shown = table.report(summarise(RUNS))
    for words in ("42.9 %", "of 7, 1 without a verdict", "1 hop ", "avg@2", "pass@2 any", "pass@2 unbiased", "mean F1",
                  "1 max_steps, 1 error", "1 without an answer, counted as wrong", "1 ended in an error, counted as wrong",
                  "with all of them wrong 37.5 %, right 50.0 %", "s run 0: no verdict in the reply", "17.2 % of all turns",
                  "0.12 per run: 1 refused", "0.583 mean, 0.583 pooled", "of 3 runs with a call, 1 made none", "225 per run",
                  "450 per question", "3.50 per run", "7.00 per question"):
        assert words in shown, (words, shown)
    assert "r run 1: the endpoint [2J broke" in shown and "\x1b" not in shown


def test_one_run_each_has_no_pass_at_k_and_nothing_at_all_is_no_error():
    assert "pass@" not in table.report(summarise(RUNS[::2])) and "avg@" not in table.report(summarise(RUNS[::2]))
    empty = summarise([])
    assert empty.accuracy.value is None and empty.k == 0 and "no run yet" in table.report(empty)
    table.side_by_side({"A": empty, "B": summarise(RUNS)})


def test_side_by_side_and_the_difference_in_words():
    a, b = runs_of({f"q{i}": [N] for i in range(20)}, hops=1), runs_of({f"q{i}": [Y] for i in range(20)} | {"new": [Y]}, hops=1)
    found = compare(a, b)
    assert table.difference(found.difference, "SFT", "IGPO") == (
        "IGPO - SFT: +100.0 points, 95 % interval +100.0 to +100.0\npaired over 20 questions, 20 better and 0 worse; "
        "1 questions only in one of them")
    assert "no clear difference" in table.difference(compare(a, a).difference)
    assert "no question has a verdict in both" in table.difference(compare(a, runs_of({"z": [Y]})).difference)
    lines = table.side_by_side({"SFT": found.a, "IGPO": found.b}).splitlines()
    assert lines[0].split() == ["SFT", "IGPO"] and "0.0 % [0.0, 16.1]" in lines[1] and "100.0 %" in lines[1]
    assert len({line.find(cell) for line, cell in ((lines[0], "IGPO"), (lines[1], "100.0 %"))}) == 1


def test_the_ks_are_powers_of_two_and_all_runs():
    assert [pass_ks(k) for k in (0, 1, 2, 3, 8)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


@given(tables, st.integers(0, 9))
def test_the_summary_is_its_parts_and_becomes_json(rows, seed):
    runs = runs_of(rows, turns=1)
    s = summarise(runs)
    assert s.accuracy == accuracy(runs) and s.runs == len(runs)
    assert all(s.pass_any[k] == pass_any(runs, k) and s.pass_unbiased[k] == pass_unbiased(runs, k) for k in s.pass_any)
    assert len(s.unknown) == s.accuracy.unknown and sum(s.terminations.values()) == s.runs
    assert json.loads(json.dumps(asdict(s)))["accuracy"] == asdict(s.accuracy)
    table.report(s)
