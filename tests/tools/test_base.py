"""Calls: their arguments, errors, threads and deadline; the guard against failures."""

import sys
from types import SimpleNamespace

import pytest

from minvenus.config import ConfigError
from minvenus.tools.base import (
    Call,
    Failure,
    FailureGuard,
    Text,
    ToolError,
    ToolResult,
    TooManyFailures,
    run_tool,
)


def tools_that(answer):
    return SimpleNamespace(search=answer, visit=answer)


def raising(error):
    def answer(*_):
        raise error

    return tools_that(answer)


def test_every_query_and_page_is_asked_for_and_the_results_come_in_order():
    tools = tools_that(lambda *arguments: Text(repr(arguments[:-1])))
    searched = run_tool(tools, "search", {"query": ["a", "b", "a"]})
    assert searched.entries == [(q, Text(f"('{q}',)")) for q in "aba"]
    visited = run_tool(tools, "visit", {"url": ["u"], "goal": "g"})
    assert visited == ToolResult("visit", "g", [("u", Text("('u', 'g')"))])


@pytest.mark.parametrize("items", [{"query": ["a"] * 11}, {"url": ["a"] * 11, "goal": "g"}])
def test_a_call_with_too_many_entries_is_a_typed_error_and_never_runs(items):
    name = "search" if "query" in items else "visit"
    result = run_tool(raising(KeyboardInterrupt()), name, items)
    assert result.error == "bad_arguments" and "at most 10 entries" in result.failure.reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ToolError("refused", "no"),
            ToolResult("search", "", [("a", Failure("refused", "no"))] * 10),
        ),
        (
            TimeoutError("sk-secret"),
            ToolResult("search", failure=Failure("http", "search failed (TimeoutError)")),
        ),
        (KeyboardInterrupt(), None),
        (ConfigError("no key"), None),
    ],
)
def test_an_exception_is_a_typed_error_without_its_text_but_a_wrong_set_up_and_ctrl_c_stop_a_run(
    error, expected
):
    call = raising(error), "search", {"query": ["a"] * 10}
    if expected:
        assert run_tool(*call) == expected
    else:
        with pytest.raises(type(error)):
            run_tool(*call)


def test_whatever_ends_a_thread_comes_to_who_waits_for_it():
    with pytest.raises(SystemExit):
        Call("tool", 5.0, sys.exit).result()
    with pytest.raises(TimeoutError, match="its own"):
        Call("tool", 5.0, raising(TimeoutError("its own")).search).result()


def test_only_a_service_that_failed_counts_as_a_fault():
    for kind in ("refused", "empty", "bad_arguments", "page", "http", "timeout"):
        fault = f"visit {kind}" if kind in ("http", "timeout") else None
        assert ToolResult("visit", failure=Failure(kind, "why")).fault == fault
    entries = [("a", Failure("empty", "why")), ("b", Failure("http", "why"))]
    assert ToolResult("search", entries=entries).fault == "search http", "whatever is before it"


def test_the_run_stops_when_more_than_the_allowed_share_of_the_last_calls_failed():
    guard = FailureGuard(window=4)
    for failure in ("visit timeout", None, "visit timeout", None, "search http"):
        guard.add(failure)  # 2 of the last 4: not more than half
    words = r"3 of the last 4 tool calls failed.* 2 times: search http; 1 times: visit timeout"
    with pytest.raises(TooManyFailures, match=words):
        guard.add("search http")
    words = r"1 of the last 1 verdicts failed, more than the share 0 of 50"
    with pytest.raises(TooManyFailures, match=words):
        FailureGuard("verdicts", window=50, limit=0.0).add("down")  # before the window is full
