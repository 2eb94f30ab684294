"""Runs that several tests describe."""

import pytest

from minvenus.evaluation.aggregate import RunResult


@pytest.fixture
def eight_runs() -> list[RunResult]:
    """Two runs of four questions: right, mixed, without an answer, and one without a verdict."""
    p = {"tokens": 100, "seconds": 1.0, "written": 40, "f1": 1.0}
    q = {"tokens": 200, "seconds": 3.0, "written": 60, "visits": 2, "searches": 2, "f1": 1.0}
    rows = [("p", 0, True, "answered", p | {"searches": 2, "visits": 2}),
            ("p", 1, True, "answered", p | {"searches": 1, "visits": 3}),
            ("q", 0, False, "answered", q | {"searches": 3, "visits": 1, "f1": 0.5, "malformed": 1,
                                             "tool_errors": ["refused", "refused"]}),
            ("q", 1, True, "answered_max_steps", q),
            ("r", 0, False, "max_steps", {"searches": 4, "turns": 4, "malformed": 4}),
            ("r", 1, False, "error", {"turns": 1, "note": "the endpoint\x1b[2J broke"}),
            ("s", 0, None, "answered", {"searches": 1, "turns": 2, "note": "no verdict in the reply"}),
            ("s", 1, False, "answered", {"searches": 1, "turns": 2})]
    usual = {"turns": 5, "tokens": 300, "seconds": 5.0, "graded_by": "the judge grader-1"}
    return [RunResult(question, run, correct, termination, hops=1 if question == "p" else 2, **usual | more)
            for question, run, correct, termination, more in rows]
