"""Turns and observations as they come, raw or in clean records, and what cleaning makes of them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import is_well_formed
from minvenus.sft.clean import clean
from minvenus.sft.rewrite import parse_search_text
from tests.sft.conversations import (
    FINALS,
    INVALID,
    TURNS,
    answer_of,
    call,
    contents,
    conversation,
    observation,
    raw,
    search_turn,
    think,
    visit_turn,
)


def turns_of(content, make):
    """The agent's turns of a record with this one turn before the answer."""
    out, reason, counts = clean(make("Where?", content, observation(), answer_of()))
    assert reason is None
    return contents(out)[2:-1:2], counts


def observed(text, turn=None):
    """The text of an observation after cleaning a raw record."""
    out, reason, _ = clean(raw("Where?", turn or search_turn("a"), text, answer_of()))
    assert reason is None
    return contents(out)[3].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")


# ---------------------------------------------------------------------------------------------------------- raw records


def test_a_raw_record_worked_by_hand():
    loose = "<tool_call>{name: 'Search', arguments: {queries: 'a',}}</tool_call> done"
    printed = "A Google search for 'a' found 1 results:\n\n## Web Results\n1. [T](http://t)\nDate published: 2020\ntext"
    record = raw(
        "Where?",
        "Let me see. " + think("I <summary>look</summary>.") + loose,
        printed,
        think("read") + call("visit", {"urls": "u", "goal": ["g", "h"], "depth": 2}),
        "  a page about Web Results\n\n",
        "just text",
        observation("of the skipped turn"),
        answer_of(" Rome "),
    )
    out, reason, counts = clean(record, "System.")
    assert reason is None
    assert (
        counts["unreadable_tool_turns_removed"]
        == counts["unreadable_tool_response_turns_removed"]
        == 1
    )
    page = {"title": "T", "url": "http://t", "snippet": "text"}
    results = json.dumps([{"query": "a", "web_page_info_list": [page]}])
    assert contents(out) == [
        "System.",
        "Where?",
        search_turn("a", thought="I look."),
        observation(results),
        visit_turn("u", goal="g", thought="read"),
        observation("a page about Web Results"),
        answer_of("Rome"),
    ]
    assert out["question"] == "Where?" and out["gt"] == "Rome"


def test_a_raw_turn_gets_the_canonical_form_and_a_good_clean_turn_keeps_its_own():
    compact = '<think>x</think><tool_call>{"name":"search","arguments":{"query":["a"]}}</tool_call>'
    assert turns_of(compact, raw)[0] == [search_turn("a", thought="x")]
    assert turns_of(compact, conversation)[0] == [compact]


MIDDLE = (search_turn("a"), observation("1"))
UNREADABLE = {"role": "assistant", "content": "unreadable"}


@pytest.mark.parametrize(
    ("place", "message", "turns", "observations", "kept"),
    [
        (2, UNREADABLE, 2, 1, ()),  # the observation is this turn's, the call has none
        (3, UNREADABLE | {"content": visit_turn("u")}, 1, 0, MIDDLE),
        (3, {"role": "user", "content": observation("2")}, 0, 1, MIDDLE),
        (1, {"role": "user", "content": observation("0")}, 0, 1, MIDDLE),
    ],
)
def test_a_call_and_the_message_after_it_stay_together_or_both_go(
    place, message, turns, observations, kept
):
    record = raw("Where?", *MIDDLE, answer_of())
    record["messages"].insert(place, message)
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [*kept, answer_of()]
    assert counts["unreadable_tool_turns_removed"] == turns
    assert counts["unreadable_tool_response_turns_removed"] == observations
    assert counts["turns_in"] == turns + counts["turns_kept"]


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: messages.clear(),
        lambda messages: messages.pop(),
        lambda messages: messages.append({"role": "user", "content": "thanks"}),
        lambda messages: messages.insert(1, {"role": "tool", "content": "x"}),
        lambda messages: messages.insert(1, {"role": "user", "content": None}),
        lambda messages: messages.__setitem__(1, "text"),
    ],
)
def test_a_raw_record_without_a_usable_conversation_is_dropped(change):
    record = raw("Where?", *MIDDLE, answer_of())
    change(record["messages"])
    assert clean(record)[:2] == (None, "raw_clean_failed")


def test_code_after_a_call_is_pruned_by_the_name_of_its_tool():
    for arguments in ("{}", '{"a": 1}'):
        body = f'{{"name": "PythonInterpreter", "arguments": {arguments}}}\n<code>print("x")</code>'
        kept, counts = turns_of(think("x") + f"<tool_call>\n{body}\n</tool_call>", raw)
        assert kept == [] and counts["pruned_tool_name_counts/PythonInterpreter"] == 1


# --------------------------------------------------------------------- turns, the same way in raw and in clean records


@pytest.mark.parametrize("make", [raw, conversation])
@pytest.mark.parametrize(("turn", "kept"), TURNS)
def test_a_turn_is_repaired_or_goes_and_never_takes_its_record_with_it(turn, kept, make):
    turns, counts = turns_of(turn, make)
    assert turns == ([kept] if kept else [])
    assert (
        counts["unreadable_tool_turns_removed"]
        == counts["unreadable_tool_response_turns_removed"]
        == (not kept)
    )
    assert counts["messages_repaired"] == (kept is not None)


@pytest.mark.parametrize("turn", INVALID)
def test_what_the_validation_drops_in_a_clean_record_is_one_turn_in_a_raw_one(turn):
    assert turns_of(turn, raw)[0] == ([search_turn("a", thought="x")] if "<answer>" in turn else [])
    assert clean(conversation("Where?", turn, observation(), answer_of()))[1].startswith(
        "assistant_"
    )


def test_a_call_that_the_thought_mentions_is_not_the_call():
    mentioned = f"<think>not {call('search', {'query': ['b']})}</think>" + call(
        "search", {"query": ["a"]}
    )
    kept, _ = turns_of(mentioned, raw)
    assert len(kept) == 1 and kept[0].endswith(call("search", {"query": ["a"]}))
    inside = f"<think>so {call('search', {'query': ['b']})}</think>"
    assert turns_of(inside, raw)[0][0].endswith(call("search", {"query": ["b"]}))


@pytest.mark.parametrize(("content", "expected"), FINALS)
def test_the_final_turn(content, expected):
    out, reason, _ = clean(raw("Where?", search_turn("b"), observation(), content))
    assert (out and contents(out)[-1]) == expected and reason == (
        None if expected else "raw_clean_failed"
    )
    out, _, _ = clean(conversation("Where?", search_turn("b"), observation(), content))
    assert out is None or contents(out)[-1] == (
        content if is_well_formed(content, final=True) else expected
    )


def test_hostile_text_takes_linear_time():
    assert clean(raw("Where?", think("t") + "<answer>" * 200_000))[1] == "raw_clean_failed"
    record = raw("Where?", search_turn("a"), "## Web Results\n" + "1. [" * 100_000, answer_of())
    assert clean(record)[1] is None
    began, lines = time.process_time(), "## Web Results\n1. [a](http://b)\n" + "word\n" * 400_000
    assert (
        clean(raw("Where?", search_turn("a"), lines, answer_of()))[1] is None
        and time.process_time() - began < 20
    )


# --------------------------------------------------------------------------------------------------------- observations


@pytest.mark.parametrize(
    ("wrapped", "text"),
    [
        (observation("x") + "\n", "x"),
        ("<tool_response>x</tool_response>", "x"),
        ("see " + observation("x"), "see \nx"),
        ("<tool_response>\n</tool_response>", ""),
    ],
)
def test_a_wrapper_is_made_exact_and_text_around_it_moves_inside(wrapped, text):
    out, _, counts = clean(conversation("Q", search_turn("a"), wrapped, answer_of()))
    assert contents(out)[3] == observation(text) and counts["messages_repaired"] == 1


PRINTED = """A Google search for 'who's who' found 2 results:

## Web Results
1. [A [nested] title](https://a.org/x_(y))
Date published: 2020-01-01
  DATE Updated : 2021-01-01
Source: a.org

1

Date published: stays

2. [](https://no-title.org)
lost
3. [No address]()
lost
4. [Last](https://b.org) on the same line
"""
PARSED = [
    {
        "query": "who's who",
        "web_page_info_list": [
            {
                "title": "A [nested] title",
                "url": "https://a.org/x_(y)",
                "snippet": "Source: a.org\n1\nDate published: stays",
            },
            {"title": "Last", "url": "https://b.org", "snippet": "on the same line"},
        ],
    }
]


def test_a_printed_search_result_worked_by_hand():
    assert json.loads(observed(PRINTED)) == PARSED == json.loads(observed(observation(PRINTED)))
    assert observed(PRINTED, visit_turn("u")) == PRINTED.strip(), (
        "a page that prints search results is not converted"
    )


@pytest.mark.parametrize(
    "heading",
    [
        "Web Results:",
        "  ##  Web Results (10)",
        "**Web Results**",
        "Here are the Web Results I found",
        "1. [Ad](https://ad)\n## Web Results",
    ],
)
def test_results_are_found_under_any_heading_and_not_before_it(heading):
    assert json.loads(observed(PRINTED.replace("## Web Results", heading))) == PARSED


@pytest.mark.parametrize(
    ("header", "query"),
    [
        (
            "A Google search for 'the dogs'' found 3 results:",
            "the dogs'",
        ),  # one pair of quotes goes, not three
        ("A Google search for the dogs' found 3 results:", "the dogs'"),
        (
            "A Google search for 'police found 3 results: why' found 7 results:",
            "police found 3 results: why",
        ),
        ('A Google search for \'"a" OR "b"\' found 1,200 results:', '"a" OR "b"'),
        ("A Google search for 'b' found about 1,200 results (0.3 seconds):", "b"),
    ],
)
def test_the_query_of_a_header(header, query):
    assert parse_search_text(f"{header}\n\n## Web Results\n") == [
        {"query": query, "web_page_info_list": []}
    ]


def test_results_without_a_header_have_no_query_and_a_text_without_results_stays():
    assert json.loads(observed("## Web Results\n1. [T](u)\nx")) == [
        {"query": "", "web_page_info_list": [{"title": "T", "url": "u", "snippet": "x"}]}
    ]
    assert observed("Web Results: none today") == "Web Results: none today"
    assert observed("1. [T](u)\nx") == "1. [T](u)\nx", (
        "only a text that names Web Results is read as such"
    )


@pytest.mark.parametrize(
    ("line", "link"),
    [
        ("1. [a ] b](u)", ("a ] b", "u")),
        ("1. [a [ b](u)", ("a [ b", "u")),
        ("12.[[PDF] t](u_(v)_(w(x)))", ("[PDF] t", "u_(v)_(w(x))")),
        ("1. [t](never closed", None),
        ("1. [t] (apart)", None),
        ("[t](u)", None),
        ("1. [never", None),
    ],
)
def test_links_with_odd_brackets(line, link):
    found = parse_search_text(f"## Web Results\n{line}")
    assert (found and tuple(found[0]["web_page_info_list"][0].values())[:2]) == link


def nested(alphabet, pattern):
    """Texts with balanced brackets."""
    plain = st.text(st.sampled_from(alphabet), max_size=4)
    return st.recursive(
        plain, lambda part: st.builds(pattern.format, part, part, part), max_leaves=6
    )


titles = nested("ab '().1\\日", "{}[{}]{}").filter(str.strip)
addresses = nested("ab/_%[]", "{}({}){}").filter(bool)
snippets = st.lists(
    st.text(st.sampled_from("ab [](.1'日"), min_size=1, max_size=10).filter(str.strip), max_size=3
)
asked = st.text(st.sampled_from("ab'\" ?日"), max_size=8)
found = st.lists(st.tuples(titles, addresses, snippets), max_size=3)


@given(st.lists(st.tuples(asked, found), min_size=1, max_size=3))
def test_what_is_printed_is_read_back(answers):
    text, expected = "", []
    for query, links in answers:
        text += f"A Google search for '{query}' found {len(links)} results:\n\n## Web Results\n"
        for i, (title, url, body) in enumerate(links, start=1):
            text += "\n".join([f"{i}. [{title}]({url})", "", *body, ""])
        pages = [
            {
                "title": title.strip(),
                "url": url,
                "snippet": "\n".join(line.strip() for line in body),
            }
            for title, url, body in links
        ]
        text += "\n=======\n"  # belongs to neither query
        expected.append({"query": query.strip(), "web_page_info_list": pages})
    assert parse_search_text(text) == expected
