"""The printed answer of a search engine to JSON, with the traps of its layout."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.sft.clean import clean
from minvenus.sft.turns import parse_search_text
from tests.sft.conversations import answer_of, contents, observation, raw, search_turn, visit_turn

PRINTED = """A Google search for 'who's who' found 2 results:

## Web Results
1. [A [nested] title](https://a.org/x_(y))
Date published: 2020-01-01
Date updated: 2021-01-01
Source: a.org

first line

second line

2. [](https://no-title.org)
lost
3. [No address]()
lost
4. [Last](https://b.org) on the same line
"""
PARSED = [{"query": "who's who", "web_page_info_list": [
    {"title": "A [nested] title", "url": "https://a.org/x_(y)", "snippet": "Source: a.org\nfirst line\nsecond line"},
    {"title": "Last", "url": "https://b.org", "snippet": "on the same line"}]}]


def observed(text, turn=None):
    """The text of an observation after cleaning a raw record."""
    out, reason, _ = clean(raw("Where?", turn or search_turn("a"), text, answer_of()))
    assert reason is None
    return contents(out)[3].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


def test_a_printed_search_result_worked_by_hand():
    assert json.loads(observed(PRINTED)) == PARSED == json.loads(observed(observation(PRINTED)))


@pytest.mark.parametrize("heading", ["## Web Results", "### Web Results", "Web Results:", "## Web Results (10)",
                                     "**Web Results**", "  ##  Web Results  ", "Here are the Web Results I found",
                                     "1. [Ad](https://ad)\n## Web Results"])
def test_results_are_found_under_any_heading_and_not_before_it(heading):
    assert json.loads(observed(PRINTED.replace("## Web Results", heading))) == PARSED


@pytest.mark.parametrize("line", ["Date published: 2020", "date published: 2020", "DATE UPDATED : 2020",
                                  "  Date Published: 2020"])
def test_dates_before_a_snippet_go_whatever_their_case(line):
    text = f"## Web Results\n1. [T](u)\n{line}\nSource: s\nx\nDate published: stays"
    page = {"title": "T", "url": "u", "snippet": "Source: s\nx\nDate published: stays"}
    assert parse_search_text(text) == [{"query": "", "web_page_info_list": [page]}]


@pytest.mark.parametrize(("header", "query"), [
    ("A Google search for 'the dogs'' found 3 results:", "the dogs'"),            # one pair of quotes goes, not three
    ("A Google search for the dogs' found 3 results:", "the dogs'"),
    ('A Google search for "exact phrase" found 10 results:', "exact phrase"),
    ("A Google search for ''' found 1 result:", "'"),
    ("A Google search for 'police found 3 results: why' found 7 results:", "police found 3 results: why"),
    ("A Google search for '\"a\" OR \"b\"' found 1,200 results:", '"a" OR "b"'),
    ('A Google search for "exact" dogs found 1 results:', '"exact" dogs'),
    ("A Google search for '' found 0 results:", ""),
    ("A Google search for 'b' found about 1,200 results (0.3 seconds):", "b"),
])
def test_the_query_of_a_header(header, query):
    assert parse_search_text(f"{header}\n\n## Web Results\n") == [{"query": query, "web_page_info_list": []}]


def test_several_queries_give_one_element_each():
    text = PRINTED + "\n=======\n" + PRINTED.replace("who's who", "what's what")
    first, second = parse_search_text(text)
    assert (first["query"], second["query"]) == ("who's who", "what's what")
    assert first["web_page_info_list"] == second["web_page_info_list"], "the line between them belongs to neither"


def test_results_without_a_header_have_no_query_and_a_text_without_results_stays():
    assert json.loads(observed("## Web Results\n1. [T](u)\nx")) == [
        {"query": "", "web_page_info_list": [{"title": "T", "url": "u", "snippet": "x"}]}]
    assert observed("Web Results: none today") == "Web Results: none today"
    assert observed("1. [T](u)\nx") == "1. [T](u)\nx", "only a text that names Web Results is read as such"


def test_a_page_that_prints_search_results_is_not_converted():
    assert observed(PRINTED, visit_turn("u")) == PRINTED.strip()


@pytest.mark.parametrize(("line", "link"), [
    ("1. [a ] b](u)", ("a ] b", "u")), ("1. [a [ b](u)", ("a [ b", "u")),
    ("12.[[PDF] t](u_(v)_(w(x)))", ("[PDF] t", "u_(v)_(w(x))")),
    ("1. [t](never closed", None), ("1. [t] (apart)", None), ("[t](u)", None), ("1. [never", None),
])
def test_links_with_odd_brackets(line, link):
    found = parse_search_text(f"## Web Results\n{line}")
    assert (found and tuple(found[0]["web_page_info_list"][0].values())[:2]) == link


def nested(alphabet, pattern):
    """Texts with balanced brackets."""
    plain = st.text(st.sampled_from(alphabet), max_size=4)
    return st.recursive(plain, lambda part: st.builds(pattern.format, part, part, part), max_leaves=6)


titles = nested("ab '().1\\日", "{}[{}]{}").filter(str.strip)
addresses = nested("ab/_%[]", "{}({}){}").filter(bool)
snippets = st.lists(st.text(st.sampled_from("ab [](.1'日"), min_size=1, max_size=10).filter(str.strip), max_size=3)
asked = st.text(st.sampled_from("ab'\" ?日"), max_size=8)
found = st.lists(st.tuples(titles, addresses, snippets), max_size=3)


@given(st.lists(st.tuples(asked, found), min_size=1, max_size=3))
def test_what_is_printed_is_read_back(answers):
    text, expected = "", []
    for query, links in answers:
        text += f"A Google search for '{query}' found {len(links)} results:\n\n## Web Results\n"
        for i, (title, url, body) in enumerate(links, start=1):
            text += "\n".join([f"{i}. [{title}]({url})", "", *body, ""])
        pages = [{"title": title.strip(), "url": url, "snippet": "\n".join(line.strip() for line in body)}
                 for title, url, body in links]
        expected.append({"query": query.strip(), "web_page_info_list": pages})
    assert parse_search_text(text) == expected
