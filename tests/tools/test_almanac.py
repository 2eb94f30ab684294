"""An almanac: titles by search, whole pages by title, and what its visits are called."""

from types import SimpleNamespace

import pytest

from minvenus.agent.observation import result_text, visit_labels
from minvenus.tools.almanac import Almanac
from minvenus.tools.base import Text, ToolError, run_tool
from minvenus.tools.web import IMMEDIATE, describe_tools, make_tools
from minvenus.types import Turn

PAGES = {
    "Peru": "capital: Lima\nland borders: Chile 168 km; Brazil 2659 km",
    "Chile": "capital: Santiago",
    "Brazil": "capital: Brasilia",
    "Niger": "capital: Niamey",
    "Nigeria": "capital: Abuja",
    "Iles Lima": "capital: none",
}


@pytest.fixture
def tools(tmp_path):
    for title, text in PAGES.items():
        (tmp_path / f"{title}.txt").write_text(f"{title}\n{text}\n")
    return make_tools(f"almanac:{tmp_path}")


def test_the_spec_gives_an_almanac_that_cannot_hang(tools):
    assert isinstance(tools, Almanac) and "almanac" in IMMEDIATE
    assert describe_tools("almanac:docs") == "almanac docs"


def test_a_search_lists_titles_those_with_a_word_of_the_query_first(tools):
    assert tools.search("Lima").text.splitlines() == ["Iles Lima", "Peru"]
    assert len(tools.search("capital").text.splitlines()) == 4
    with pytest.raises(ToolError, match="no results"):
        tools.search("Atlantis")


def test_a_visit_shows_the_whole_page_of_a_title(tools):
    assert tools.visit(" Chile ", "capital") == Text("Chile\ncapital: Santiago")
    with pytest.raises(ToolError, match="no such page: write a title"):
        tools.visit("chile.txt", "capital")


def test_visits_are_labelled_by_title(tools):
    turns = []
    for urls in (["Chile", "Nowhere"], ["Niger"], [" Peru", "Nigeria"], ["Peru"], ["Brazil"]):
        arguments = {"url": urls, "goal": "capital"}
        text = result_text(run_tool(tools, "visit", arguments))
        turns.append(Turn("visit", 0, 1, "", {"name": "visit", "arguments": arguments}, text))
    turns.append(
        Turn("search", 0, 1, "", {"name": "search", "arguments": {"query": ["x"]}}, "Peru")
    )
    cut = {"name": "visit", "arguments": {"url": ["Nigeria", "Iles Lima"], "goal": ""}}
    turns.append(Turn("visit", 0, 1, "", cut, "Nigeria\n[cut: 7 of 50 characters shown]"))
    turns.append(Turn("visit", 0, 1, "", cut | {"arguments": {"url": ["Niger"]}}, "Nigeria\n"))
    labels = visit_labels(SimpleNamespace(turns=turns), ["Peru", "Brazil"])
    assert labels == [
        [("wrong", 1), ("failed", 1)],
        [("wrong", 1)],
        [("right", 1), ("wrong", 2)],
        [("repeated", 2)],
        [("right", 2)],
        [],
        [("repeated", 2), ("failed", 2)],
        [("failed", 2)],
    ]
