"""What the visits of a rollout were worth, told from the rollout alone."""

import pytest

from minvenus.tools.base import run_tool
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_visits import visit_labels
from minvenus.types import Question, Rollout, Turn

WEB = ToyWeb(0, hops=(2,), train=4)
CASE = WEB.case("train-1")
FIRST, SECOND = CASE.path
OTHER = next(name for name in CASE.pages if name not in CASE.path)


def url(name):
    return CASE.pages[name].url


def rollout(*calls) -> Rollout:
    """A rollout that makes these calls on the web, ("search", query) or ("visit", pages ...), and answers."""
    tools, turns, tokens = WEB.for_question(CASE.question.id), [], [1]
    for name, *words in calls:
        pages = [url(word) if word in CASE.pages else word for word in words]
        arguments = {"query": words} if name == "search" else {"url": pages, "goal": "pet"}
        result = run_tool(tools, name, arguments)
        turns.append(Turn(name, len(tokens), len(tokens) + 1, "", {"name": name, "arguments": arguments}, result.text,
                          tool_error=result.error))
        tokens.append(2)
    turns.append(Turn("answer", len(tokens), len(tokens) + 1, ""))
    count = len(tokens)
    question = Question(CASE.question.id, CASE.question.text, CASE.question.answers)
    return Rollout(question, [*tokens, 2], [False] + [True] * count, [None] + [-1.0] * count, turns, "answered")


def kinds(*calls) -> list[list[str]]:
    return [[label.kind for label in turn] for turn in visit_labels(WEB, rollout(*calls))]


def test_right_wrong_repeated_and_failed_visits_are_told_apart():
    assert kinds(("visit", FIRST), ("search", FIRST), ("visit", FIRST), ("search", OTHER), ("visit", OTHER), ("visit", FIRST),
                 ("search", SECOND), ("visit", SECOND)) == [
        ["failed"], [], ["right"], [], ["wrong"], ["repeated"], [], ["right"], []]


def test_of_several_pages_in_one_call_each_counts_by_itself():
    """The second was never listed by a search: the call shows the first and refuses the second."""
    hidden = next(name for name in CASE.pages if name not in (FIRST, *titles_shown(FIRST)))
    assert kinds(("search", FIRST), ("visit", FIRST, hidden, "page Nobody"))[1] == ["right", "failed", "failed"]


def titles_shown(query):
    tools = WEB.for_question(CASE.question.id)
    tools.search([query])
    return [name for name in CASE.pages if run_tool(tools, "visit", {"url": [url(name)], "goal": "pet"}).error is None]


def test_a_call_that_was_refused_as_a_whole_opened_nothing():
    assert kinds(("search", FIRST), ("visit", *[FIRST] * 100))[1] == ["failed"] * 100


@pytest.mark.parametrize("calls", [(), (("search", FIRST),)])
def test_a_rollout_without_a_visit_has_no_labels(calls):
    assert kinds(*calls) == [[] for _ in range(len(calls) + 1)]
