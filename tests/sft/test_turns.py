"""Turns and observations as they come, raw or in clean records, and what cleaning makes of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.sft.clean import clean
from minvenus.sft.turns import answer_turn, blocks, without_blocks
from tests.sft.conversations import (
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

PAGE = {"title": "T", "url": "http://t", "snippet": "text"}


def turns_of(content, make):
    """The agent's turns of a record with this one turn before the answer."""
    out, reason, counts = clean(make("Where?", content, observation(), answer_of()))
    assert reason is None
    return contents(out)[2:-1:2], counts


# ---------------------------------------------------------------------------------------------------------- raw records


def test_a_raw_record_worked_by_hand():
    loose = "<tool_call>{name: 'Search', arguments: {queries: 'a',}}</tool_call> done"
    printed = "A Google search for 'a' found 1 results:\n\n## Web Results\n1. [T](http://t)\nDate published: 2020\ntext"
    record = raw("Where?", "Let me see. " + think("I <summary>look</summary>.") + loose, printed,
                 think("read") + call("visit", {"urls": "u", "goal": ["g", "h"], "depth": 2}),
                 "  a page about Web Results\n\n",
                 "just text", observation("of the skipped turn"), answer_of(" Rome "))
    out, reason, counts = clean(record, "System.")
    assert reason is None
    assert counts["unreadable_tool_turns_removed"] == counts["unreadable_tool_response_turns_removed"] == 1
    results = json.dumps([{"query": "a", "web_page_info_list": [PAGE]}])
    assert contents(out) == ["System.", "Where?", search_turn("a", thought="I look."), observation(results),
                             visit_turn("u", goal="g", thought="read"), observation("a page about Web Results"),
                             answer_of("Rome")]
    assert out["question"] == "Where?" and out["gt"] == "Rome"


def test_a_raw_turn_gets_the_canonical_form_and_a_good_clean_turn_keeps_its_own():
    compact = '<think>x</think><tool_call>{"name":"search","arguments":{"query":["a"]}}</tool_call>'
    assert turns_of(compact, raw)[0] == [search_turn("a", thought="x")]
    assert turns_of(compact, conversation)[0] == [compact]


def test_an_observation_is_never_given_to_another_turn_and_a_call_without_one_goes():
    record = raw("Where?", visit_turn("u"), observation("of u"), search_turn("a"), observation("lost"), answer_of())
    record["messages"].insert(4, {"role": "assistant", "content": "unreadable"})      # so the observation is this one's
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [visit_turn("u"), observation("of u"), answer_of()]
    assert counts["unreadable_tool_turns_removed"] == 2 and counts["unreadable_tool_response_turns_removed"] == 1
    at_the_end = raw("Where?", *MIDDLE, answer_of())
    at_the_end["messages"].insert(3, {"role": "assistant", "content": visit_turn("u")})
    out, _, counts = clean(at_the_end)
    assert contents(out)[2:] == [*MIDDLE, answer_of()] and counts["turns_in"] == 3


MIDDLE = (search_turn("a"), observation("1"))


def test_a_second_observation_of_one_turn_goes_and_is_counted():
    record = raw("Where?", *MIDDLE, answer_of())
    record["messages"].insert(3, {"role": "user", "content": observation("2")})
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [*MIDDLE, answer_of()]
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
    lambda messages: messages.__setitem__(1, "text"),
])
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
@pytest.mark.parametrize(("turn", "kept"), [
    (think("x") + call(" Search ", {"query": ["a"]}), search_turn("a", thought="x")),
    (think("x") + call("search", {"query": ["a", "", " "]}), search_turn("a", thought="x")),
    (think("x") + call("search", {"query": ["a", 3]}), search_turn("a", thought="x")),
    (think("x") + call("visit", {"url": "u", "urls": ["wrong"], "goal": ["g", "h"]}),
     visit_turn("u", goal="g", thought="x")),
    (think("x") + call("visit", {"links": ["u"], "goal": "g"}), visit_turn("u", goal="g", thought="x")),
    (think("x") + call("search", {"query": ["a"]}) + call("search", {"query": ["b"]}), search_turn("a", thought="x")),
    (think("x") + think("y") + call("search", {"query": ["a"]}), search_turn("a", thought="x")),
    ("Hm. " + search_turn("a 東京") + " Done.", search_turn("a 東京")),
    (call("search", {"query": ["a"]}) + think("x"), search_turn("a", thought="x")),
    (think("x <tool_response> y") + call("search", {"query": ["a"]}), search_turn("a", thought="x  y")),
    ("<THINK>x</Think><Tool_Call>{name: 'search', arguments: {query: 'a',}}</TOOL_CALL>",
     search_turn("a", thought="x")),
    (think("x") + call("search", {"query": [" "]}), None),
    (think("x") + call("search", {"query": 3}), None),
    (think("x") + call("visit", {"url": ["u"]}), None),
    (think("x") + call("visit", {"url": ["u"], "goal": " "}), None),
    (think("x") + call("visit", {"url": ["u"], "goal": [3]}), None),
    (think("x") + call("search", {"query": ["<answer>"]}), None),
    (think(" ") + call("search", {"query": ["a"]}), None),
    (think("x") + "<tool_call>{</tool_call>", None),
    (think("x") + '<tool_call>["search"]</tool_call>', None),
    (think("x") + '<tool_call>{"name": "search", "arguments": "a"}</tool_call>', None),
])
def test_a_turn_is_repaired_or_goes_and_never_takes_its_record_with_it(turn, kept, make):
    turns, counts = turns_of(turn, make)
    assert turns == ([kept] if kept else [])
    assert counts["unreadable_tool_turns_removed"] == counts["unreadable_tool_response_turns_removed"] == (not kept)
    assert counts["calls_repaired"] == (make is conversation and kept is not None)


@pytest.mark.parametrize("arguments", [{"queries": ["wrong"], "query": "a"}, {"query": ["a"], "queries": ["wrong"]},
                                       {"queries": ["a"], "query": []}, {"queries": "a", "query": None}])
def test_query_wins_over_queries_whatever_their_order(arguments):
    assert turns_of(think("x") + call("search", arguments), raw)[0] == [search_turn("a", thought="x")]


@pytest.mark.parametrize("turn", ["", "no tags", call("search", {"query": ["a"]}), think("x"), "<think>open",
                                  think("x") + call("search", {"query": ["a"]}) + "<answer>x</answer>"])
def test_what_the_validation_drops_in_a_clean_record_is_one_turn_in_a_raw_one(turn):
    assert turns_of(turn, raw)[0] == ([search_turn("a", thought="x")] if "<answer>" in turn else [])
    assert clean(conversation("Where?", turn, observation(), answer_of()))[1].startswith("assistant_")


def test_a_call_that_the_thought_mentions_is_not_the_call():
    mentioned = f"<think>not {call('search', {'query': ['b']})}</think>" + call("search", {"query": ["a"]})
    kept, _ = turns_of(mentioned, raw)
    assert len(kept) == 1 and kept[0].endswith(call("search", {"query": ["a"]}))
    inside = f"<think>so {call('search', {'query': ['b']})}</think>"
    assert turns_of(inside, raw)[0][0].endswith(call("search", {"query": ["b"]}))


@pytest.mark.parametrize("wrapped", [observation("x") + "\n", "<tool_response>x</tool_response>",
                                     "<tool_response>\nx</tool_response>"])
def test_a_wrapper_is_made_exact(wrapped):
    out, _, counts = clean(conversation("Q", search_turn("a"), wrapped, answer_of()))
    assert contents(out)[3] == observation("x") and counts["wrappers_repaired"] == 1


def test_text_around_a_wrapper_moves_inside_and_a_lost_wrapper_is_not_guessed():
    out, _, _ = clean(conversation("Q", search_turn("a"), "see " + observation("x"), answer_of()))
    assert contents(out)[3] == observation("see \nx")
    assert clean(conversation("Q", search_turn("a"), "x", answer_of()))[1] == "user_missing_tool_response_at_3"


# -------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(("content", "expected"), [
    (answer_of("Rome"), answer_of("Rome")),
    (think("t") + "<answer>a</answer> or <answer>b</answer>", answer_of("b", "t")),
    (think("t") + "<answer>a</answer> or <answer>b", answer_of("a", "t")),
    (think("t") + "<answer>x <answer>a</answer></answer>", answer_of("a", "t")),
    (think("t") + "<summary>s</summary><answer>a</answer>", answer_of("a", "t\n\ns")),
    (think("t") + "<answer>s</answer><summary>s</summary>", answer_of("s", "t\n\ns")),
    (think("t") + "<answer><summary>s</summary></answer>", answer_of("s", "t")),
    (think("t <summary>s</summary>") + "<summary>s</summary><answer>a</answer>", answer_of("a", "t s")),
    (think("so <answer>a</answer>"), answer_of("a", "so a")),
    ("<answer>a</answer>" + think("t"), answer_of("a", "t")),
    (answer_of("a") + call("search", {"query": ["b"]}), answer_of("a")),
    ("<THINK>t</Think><Answer>a</ANSWER>", answer_of("a", "t")),
    (think("t"), None), ("<answer>a</answer>", None), (think("t") + "<answer> </answer>", None),
    (think("") + "<answer>a</answer>", None),
])
def test_the_final_turn(content, expected):
    out, reason, _ = clean(raw("Where?", content))
    assert (out and contents(out)[-1]) == expected and reason == (None if expected else "raw_clean_failed")


# --------------------------------------------------------------------------------------------------------------- blocks


pieces = st.lists(st.sampled_from(["<answer>", "</answer>", "<ANSWER>", "a", "b ", "<think>"]),
                  max_size=10).map("".join)


@given(pieces)
def test_blocks_are_cut_where_they_stand(text):
    found = blocks(text, "answer")
    assert [text[b.start + 8:b.end - 9] for b in found] == [b.body for b in found]
    assert sum(b.end - b.start for b in found) + len(without_blocks(text, "answer")) == len(text)
    assert all("</answer>" not in b.body for b in found)


def test_hostile_text_takes_linear_time():
    text = "<answer>" * 200_000
    assert answer_turn(think("t") + text) is None and blocks(text, "answer") == []
    record = raw("Where?", search_turn("a"), "## Web Results\n" + "1. [" * 100_000, answer_of())
    assert clean(record)[1] is None
