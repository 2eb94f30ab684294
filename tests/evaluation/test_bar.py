"""The progress line: how far, how accurate so far, how long still, on a terminal and in a log."""

import io
import re

import pytest

from minvenus.evaluation import bar as bar_module
from minvenus.evaluation.bar import Bar
from tests.evaluation.test_aggregate import N, U, Y, runs_of


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bar_module.time, "monotonic", lambda: now[0])
    return now


def test_the_line_by_hand(clock):
    there, new = runs_of({"a": [Y], "b": [N]}), runs_of({"c": [Y], "d": [U]})
    bar = Bar(8, there, io.StringIO())
    assert bar.line(2) == "eval [######                  ] 2/8  accuracy 50.0 %  –  2 under way"
    clock[0] = 10.0
    for run in new:
        bar.count(run)
    assert bar.line(0) == "eval [############            ] 4/8  accuracy 66.7 % (1 without a verdict)  20 s left", \
        "two runs in ten seconds: four more take twenty, and those that were there do not count"


def test_nothing_known_is_no_accuracy(clock):
    assert "accuracy –" in Bar(4, [], io.StringIO()).line(0)


def test_a_terminal_has_one_line_that_fits_and_is_renewed_ten_times_a_second_at_most(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    bar = Bar(3, [], out)
    for seconds in (0.05, 0.2, 0.21, 0.4):
        clock[0] = seconds
        bar.show()
    bar.end()
    shown = out.getvalue()
    assert shown.count("\r\033[K") == 2 and shown.endswith("\n") and shown.count("\n") == 1
    assert max(map(len, re.split(r"\r\033\[K|\n", shown))) == 39


def test_a_log_gets_a_line_for_the_first_run_every_tenth_and_the_last(clock):
    out = io.StringIO()
    bar = Bar(50, [], out)
    for run in runs_of({f"q{i}": [Y] for i in range(50)}):
        bar.count(run)
        bar.show()
        bar.show()
    assert [int(n) for n in re.findall(r"(\d+)/50", out.getvalue())] == [1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 50]
