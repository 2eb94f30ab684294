"""Raw trajectories to messages, and the search engine's text to JSON, with the traps of both."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.sft.blocks import all_blocks, first_block, innermost_last, without_blocks
from minvenus.sft.clean import clean
from minvenus.sft.normalise import answer_turn, tool_turn
from minvenus.sft.search_text import parse_search_text
from tests.sft.conversations import answer_of, call, contents, observation, raw, search_turn, think, visit_turn

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


# ----------------------------------------------------------------------------------------------------------- search text


def test_a_printed_search_result_worked_by_hand():
    assert parse_search_text(PRINTED) == [{"query": "who's who", "web_page_info_list": [
        {"title": "A [nested] title", "url": "https://a.org/x_(y)", "snippet": "Source: a.org\nfirst line\nsecond line"},
        {"title": "Last", "url": "https://b.org", "snippet": "on the same line"}]}]


@pytest.mark.parametrize(("header", "query"), [
    ("A Google search for 'the dogs'' found 3 results:", "the dogs'"),            # one pair of quotes goes, not three
    ("A Google search for the dogs' found 3 results:", "the dogs'"),
    ('A Google search for "exact phrase" found 10 results:', "exact phrase"),
    ("A Google search for ''' found 1 result:", "'"),
    ("A Google search for 'police found 3 results: why' found 7 results:", "police found 3 results: why"),
    ("A Google search for '\"a\" OR \"b\"' found 1,200 results:", '"a" OR "b"'),
    ('A Google search for "exact" dogs found 1 results:', '"exact" dogs'),
    ("A Google search for '' found 0 results:", ""),
])
def test_the_query_of_a_header(header, query):
    assert parse_search_text(f"{header}\n\n## Web Results\n") == [{"query": query, "web_page_info_list": []}]


def test_several_queries_give_one_element_each():
    text = PRINTED + "\n=======\n" + PRINTED.replace("who's who", "what's what")
    first, second = parse_search_text(text)
    assert (first["query"], second["query"]) == ("who's who", "what's what")
    assert first["web_page_info_list"] == second["web_page_info_list"], "the line between them belongs to neither"


def test_results_without_a_header_have_no_query_and_a_text_without_results_is_no_search():
    assert parse_search_text("## Web Results\n1. [T](u)\nx") == [{"query": "", "web_page_info_list": [
        {"title": "T", "url": "u", "snippet": "x"}]}]
    assert parse_search_text("The page says: Web Results are in.\n1. [T](u)") is None


@pytest.mark.parametrize(("line", "link"), [
    ("1. [a ] b](u)", ("a ] b", "u")), ("1. [a [ b](u)", ("a [ b", "u")),
    ("12.[[PDF] t](u_(v)_(w(x)))", ("[PDF] t", "u_(v)_(w(x))")),
    ("1. [t](never closed", None), ("1. [t] (apart)", None), ("[t](u)", None), ("1. [never", None),
])
def test_links_with_odd_brackets(line, link):
    found = parse_search_text(f"## Web Results\n{line}")
    assert (found and tuple(found[0]["web_page_info_list"][0].values())[:2]) == link


titles = st.text(st.sampled_from("ab []'().1\\日"), max_size=8).filter(lambda t: balanced(t, "[]") and t.strip())
addresses = st.text(st.sampled_from("ab/_()%[]"), min_size=1, max_size=8).filter(lambda u: balanced(u, "()"))
snippets = st.lists(st.text(st.sampled_from("ab [](.1'日"), min_size=1, max_size=10).filter(str.strip), max_size=3)


def balanced(text, pair):
    depth = 0
    for char in text:
        depth += (char == pair[0]) - (char == pair[1])
        if depth < 0:
            return False
    return depth == 0


asked = st.text(st.sampled_from("ab'\" ?日"), max_size=8)
found = st.lists(st.tuples(titles, addresses, snippets), max_size=3)


@given(st.lists(st.tuples(asked, found), min_size=1, max_size=3))
def test_what_is_printed_is_read_back(answers):
    text, expected = "", []
    for query, links in answers:
        text += f"A Google search for '{query}' found {len(links)} results:\n\n## Web Results\n"
        for i, (title, url, body) in enumerate(links, start=1):
            text += "\n".join([f"{i}. [{title}]({url})", "", *body, ""])
        pages = [{"title": t.strip(), "url": u, "snippet": "\n".join(line.strip() for line in body)} for t, u, body in links]
        expected.append({"query": query.strip(), "web_page_info_list": pages})
    assert parse_search_text(text) == expected


# ------------------------------------------------------------------------------------------------------------ raw records


def test_a_raw_record_worked_by_hand():
    loose = "<tool_call>{name: 'Search', arguments: {queries: 'a',}}</tool_call> done"
    record = raw("Where?", "Let me see. " + think("I <summary>look</summary>.") + loose, PRINTED,
                 think("read") + call("visit", {"urls": "u", "goal": ["g", "h"], "depth": 2}), "  a page about Web Results\n\n",
                 "just text", observation("of the skipped turn"), answer_of(" Rome "))
    out, reason, counts = clean(record, "System.")
    assert reason is None and counts["unreadable_tool_turns_removed"] == 1
    results = json.dumps(parse_search_text(PRINTED), ensure_ascii=False)
    assert contents(out) == ["System.", "Where?", search_turn("a", thought="I look."), observation(results),
                             visit_turn("u", goal="g", thought="read"), observation("a page about Web Results"),
                             answer_of("Rome")]
    assert out["question"] == "Where?" and out["gt"] == "Rome"


def test_a_page_that_prints_search_results_is_not_converted():
    record = raw("Where?", visit_turn("u"), PRINTED, answer_of())
    assert contents(clean(record)[0])[3] == observation(PRINTED.strip())


def test_a_search_result_in_an_unknown_layout_is_kept_as_it_is():
    record = raw("Where?", search_turn("a"), "Web Results: none today", answer_of())
    assert contents(clean(record)[0])[3] == observation("Web Results: none today")


def test_an_observation_is_never_given_to_another_turn():
    record = raw("Where?", search_turn("a"), observation(), answer_of())
    record["messages"][2:2] = [{"role": "assistant", "content": "unreadable"}]      # so the observation is this one's
    assert clean(record)[1] == "bad_role_at_3"


def test_a_second_observation_of_one_turn_goes_and_is_counted():
    record = raw("Where?", search_turn("a"), observation("1"), answer_of())
    record["messages"].insert(3, {"role": "user", "content": observation("2")})
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [search_turn("a"), observation("1"), answer_of()]
    assert counts["unreadable_tool_response_turns_removed"] == 1


def test_a_system_message_in_a_raw_record_is_its_prompt_and_not_its_question():
    record = raw("Where?", answer_of())
    record["messages"].insert(0, {"role": "system", "content": "Own."})
    assert contents(clean(record, prompt_mode="row")[0]) == ["Own.", "Where?", answer_of()]


@pytest.mark.parametrize("change", [
    lambda messages: messages.clear(), lambda messages: messages.pop(),
    lambda messages: messages.append({"role": "user", "content": "thanks"}),
    lambda messages: messages.insert(1, {"role": "tool", "content": "x"}),
    lambda messages: messages.insert(1, {"role": "user", "content": None}),
    lambda messages: messages.__setitem__(0, {"role": "user", "content": " "}), lambda messages: messages.__setitem__(1, "text"),
])
def test_a_raw_record_without_a_usable_conversation_is_dropped(change):
    record = raw("Where?", search_turn("a"), observation(), answer_of())
    change(record["messages"])
    assert clean(record)[:2] == (None, "raw_clean_failed")


@pytest.mark.parametrize("content", [
    "", call("search", {"query": ["a"]}), think("x"), think(" ") + call("search", {"query": ["a"]}),
    think("x") + "<tool_call>{</tool_call>",
    think("x") + call("search", {"query": 3}), think("x") + call("visit", {"url": ["u"]}),
    think("x") + call("visit", {"url": ["u"], "goal": [3]}),
    think("x") + '<tool_call>["search"]</tool_call>', think("x") + '<tool_call>{"name": "search", "arguments": "a"}</tool_call>',
])
def test_turns_that_cannot_be_read(content):
    assert tool_turn(content) == (None, "")


def test_code_behind_a_call_is_pruned_by_the_name_of_its_tool():
    body = '{"name": "PythonInterpreter", "arguments": {}}\n<code>print("</answer>")</code>'
    python = think("x") + f"<tool_call>\n{body}\n</tool_call>"
    out, reason, counts = clean(raw("Where?", python, observation("1"), answer_of()))
    assert reason is None and len(out["messages"]) == 3 and counts["pruned_tool_name_counts/PythonInterpreter"] == 1


@pytest.mark.parametrize(("content", "expected"), [
    (answer_of("Rome"), answer_of("Rome")),
    (think("t") + "<answer>a</answer> or <answer>b</answer>", answer_of("b", "t")),
    (think("t") + "<answer>a</answer> or <answer>b", answer_of("a", "t")),
    (think("t") + "<answer>x <answer>a</answer></answer>", answer_of("a", "t")),
    (think("t") + "<summary>s</summary><answer>a</answer>", answer_of("a", "t\n\ns")),
    (think("t") + "<answer><summary>s</summary></answer>", answer_of("s", "t")),
    (think("t <summary>s</summary>") + "<summary>s</summary><answer>a</answer>", answer_of("a", "t s")),
    (think("so <answer>a</answer>"), answer_of("a", "so a")),
    ("<THINK>t</Think><Answer>a</ANSWER>", answer_of("a", "t")),
    (think("t"), None), ("<answer>a</answer>", None), (think("t") + "<answer> </answer>", None),
    (think("") + "<answer>a</answer>", None),
])
def test_the_final_turn(content, expected):
    assert answer_turn(content) == expected
    if expected:
        assert answer_turn(expected) == expected


# ----------------------------------------------------------------------------------------------------------------- blocks


pieces = st.lists(st.sampled_from(["<answer>", "</answer>", "<ANSWER>", "a", "b ", "<think>"]), max_size=10).map("".join)


@given(pieces)
def test_blocks_are_cut_where_they_stand(text):
    found = all_blocks(text, "answer")
    assert [text[b.start + 8:b.end - 9] for b in found] == [b.body for b in found]
    assert first_block(text, "answer") == (found[0] if found else None)
    assert sum(b.end - b.start for b in found) + len(without_blocks(text, "answer")) == len(text)
    inner = innermost_last(text, "answer")
    assert (inner is None) == (not found)
    assert inner is None or ("<answer>" not in inner.lower() and "</answer>" not in inner)


def test_hostile_text_takes_linear_time():
    text = "<answer>" * 200_000
    assert answer_turn(think("t") + text) is None and all_blocks(text, "answer") == []
    assert parse_search_text("## Web Results\n" + "1. [" * 100_000) is None
