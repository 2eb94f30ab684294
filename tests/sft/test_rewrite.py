"""Turns and observations as they come, raw or in clean records, and what cleaning makes of them."""

import pytest

from minvenus.agent.protocol import format_error
from minvenus.sft.clean import clean
from tests.sft.conversations import (
    FINALS,
    INVALID,
    TURNS,
    A,
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

REMOVED = ("unreadable_tool_turns_removed", "unreadable_tool_response_turns_removed")
MIDDLE = (search_turn("a"), observation("1"))


def turns_of(content, make):
    """The agent's turns of a record with this one turn before the answer."""
    out, reason, counts = clean(make("Where?", content, observation(), answer_of()))
    assert reason is None
    return contents(out)[2:-1:2], counts


# ------------------------------------------------------------------------------------- raw records


def test_a_raw_record_worked_by_hand():
    loose = "<tool_call>{name: 'Search', arguments: {queries: 'a',}}</tool_call> done"
    record = raw(
        "Where?",
        "Let me see. " + think("I <summary>look</summary>.") + loose,
        "## Web Results\n1. [T](http://t)\n",
        think("read") + call("visit", urls="u", goal=["g", "h"], depth=2),
        "  a page\n\n",
        "just text",
        observation("of the skipped turn"),
        answer_of(" Rome "),
    )
    record["messages"][0]["role"] = "human"
    record["messages"][-1]["role"] = "gpt"
    out, reason, counts = clean(record, "System.")
    assert reason is None and [counts[name] for name in REMOVED] == [1, 1]
    assert contents(out) == [
        "System.",
        "Where?",
        search_turn("a", thought="I look."),
        observation("## Web Results\n1. [T](http://t)"),
        visit_turn("u", goal="g", thought="read"),
        observation("a page"),
        answer_of("Rome"),
    ]
    assert out["question"] == "Where?" and out["gt"] == "Rome"


def test_a_raw_turn_gets_the_canonical_form_and_a_good_clean_turn_keeps_its_own():
    compact = '<think>x</think><tool_call>{"name":"search","arguments":{"query":["a"]}}</tool_call>'
    assert turns_of(compact, raw)[0] == [search_turn("a", thought="x")]
    assert turns_of(compact, conversation)[0] == [compact]


@pytest.mark.parametrize(
    ("place", "role", "content", "removed", "stays"),
    [
        (2, "assistant", "unreadable", [2, 1], ()),  # it takes the observation, the call has none
        (3, "assistant", visit_turn("u"), [1, 0], MIDDLE),
        (3, "user", observation("2"), [0, 1], MIDDLE),
    ],
)
def test_a_call_and_the_message_after_it_stay_together_or_both_go(
    place, role, content, removed, stays
):
    record = raw("Where?", *MIDDLE, answer_of())
    record["messages"].insert(place, {"role": role, "content": content})
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [*stays, answer_of()]
    assert [counts[name] for name in REMOVED] == removed
    assert counts["turns_in"] == removed[0] + counts["turns_kept"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (1, {"role": "tool", "content": "x"}),
        (4, {"role": "user", "content": "thanks"}),
    ],
)
def test_a_raw_record_without_a_usable_conversation_is_dropped(place, message):
    record = raw("Where?", *MIDDLE, answer_of())
    record["messages"].insert(place, message)
    assert clean(record)[:2] == (None, "raw_clean_failed")
    assert clean(record | {"messages": []})[:2] == (None, "raw_clean_failed")


def test_code_after_a_call_is_pruned_by_the_name_of_its_tool():
    for arguments in ("{}", '{"a": 1}'):
        body = f'{{"name": "PythonInterpreter", "arguments": {arguments}}}\n<code>print("x")</code>'
        turns, counts = turns_of(think("x") + f"<tool_call>\n{body}\n</tool_call>", raw)
        assert turns == [] and counts["pruned_tool_name_counts/PythonInterpreter"] == 1


# -------------------------------------------------- turns, the same way in raw and in clean records


@pytest.mark.parametrize("make", [raw, conversation])
@pytest.mark.parametrize(("turn", "result"), TURNS)
def test_a_turn_is_repaired_or_goes_and_never_takes_its_record_with_it(turn, result, make):
    turns, counts = turns_of(turn, make)
    assert turns == ([result] if result else [])
    assert [counts[name] for name in REMOVED] == [not result] * 2


@pytest.mark.parametrize("turn", INVALID)
def test_what_the_validation_drops_in_a_clean_record_is_one_turn_in_a_raw_one(turn):
    assert turns_of(turn, raw)[0] == ([search_turn("a", thought="x")] if "<answer>" in turn else [])
    reason = clean(conversation("Where?", turn, observation(), answer_of()))[1]
    assert reason.startswith("assistant_")


def test_a_call_that_the_thought_mentions_is_not_the_call():
    b = call("search", query=["b"])
    turns, _ = turns_of(f"<think>not {b}</think>" + A, raw)
    assert len(turns) == 1 and turns[0].endswith(A)
    assert turns_of(f"<think>so {b}</think>", raw)[0][0].endswith(b)


@pytest.mark.parametrize(("content", "expected"), FINALS)
def test_the_final_turn(content, expected):
    out, reason, _ = clean(raw("Where?", search_turn("b"), observation(), content))
    assert (out and contents(out)[-1]) == expected
    assert reason == (None if expected else "raw_clean_failed")
    out, _, _ = clean(conversation("Where?", search_turn("b"), observation(), content))
    if expected and not format_error(content, final=True):
        expected = content
    elif "<tool_call>" in content:
        expected = None
    assert (out and contents(out)[-1]) == expected


@pytest.mark.seconds(20)
def test_hostile_text_takes_linear_time():
    assert clean(raw("Where?", think("t") + "<answer>" * 200_000))[1] == "raw_clean_failed"
    for text in ("<think>" * 100_000, "<tool_call>" * 100_000, "<summary>" * 100_000):
        assert clean(raw("Where?", text, observation(), text + answer_of()))[1] is None


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
    out, _, _ = clean(conversation("Q", search_turn("a"), wrapped, answer_of()))
    assert contents(out)[3] == observation(text)
