"""The strict format check and the parser, on tag soup and on released trajectories."""

import json
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.protocol import format_error, parse_turn
from tests.agent.test_protocol import SEARCH
from tests.text.conftest import real_messages

TAGS = [
    f"<{slash}{tag}>"
    for tag in ("think", "tool_call", "answer", "tool_response")
    for slash in ("", "/")
]
TEXT = [
    "",
    " ",
    "\n",
    "hm",
    "<",
    ">",
    "{",
    "}",
    '"',
    "'",
    ",",
    SEARCH,
    "Rome",
    '{"name": "x", "arguments": {}}',
    "<|im_end|>",
]
soup = st.lists(st.sampled_from(TAGS + TEXT), max_size=14).map("".join) | st.text()


def check_parse(text):
    """For every text: exactly one of a call, an answer and an error; and what passes the strict
    check can be used."""
    parsed = parse_turn(text)
    assert (parsed.kind == "none") == (parsed.error is not None)
    assert (parsed.kind == "answer") == (parsed.answer is not None)
    assert (parsed.kind in ("search", "visit")) == (parsed.arguments is not None)
    if parsed.arguments is not None:
        assert parsed.tool == parsed.kind
        assert (
            list(parsed.arguments) == {"search": ["query"], "visit": ["url", "goal"]}[parsed.kind]
        )
    if not format_error(text, final=False):
        assert parsed.kind in ("search", "visit") or parsed.tool is not None
    if not format_error(text, final=True):
        assert parsed.kind == "answer"
    assert format_error(text, final=False) or format_error(text, final=True)


@given(soup)
def test_no_tag_soup_raises_and_check_and_parser_agree(text):
    check_parse(text)


@given(soup, soup)
def test_nothing_after_a_tool_response_tag_is_ever_read(text, tail):
    assert parse_turn(text + "<tool_response>" + tail) == parse_turn(text)
    assert format_error(text + "<tool_response>" + tail, final=True)


@pytest.mark.parametrize(
    "piece",
    [*TAGS, "<think></think>", "<think><answer>", "<tool_call>{", "</think><tool_call>'\\", "<"],
)
@pytest.mark.parametrize(
    "start", ["", "<think>", "<think></think><tool_call>", "<think></think><answer>"]
)
def test_a_hundred_kilobytes_of_tags_take_linear_time(start, piece):
    text = start + piece * (100_000 // len(piece))
    begin = time.process_time()
    for ending in ("", "</tool_call>"):
        check_parse(text + ending)
    assert time.process_time() - begin < 2.0  # linear: under 0.1 s; quadratic: minutes


# -------------------------------------------------------------------------------- real trajectories

COUNTS = {
    "sft_0000": (12, 12),
    "sft_0001": (13, 4),
    "sft_0007": (36, 7),
    "rl_0000": (44, 8),
    "rl_0008": (81, 7),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_turn_of_the_released_trajectories_is_classified(name):
    turns = [
        message["content"] for message in real_messages(name) if message["role"] == "assistant"
    ]
    parsed = [parse_turn(text) for text in turns]
    search, visit = COUNTS[name]
    assert Counter(turn.kind for turn in parsed) == {"search": search, "visit": visit, "answer": 1}
    assert parsed[-1].kind == "answer" and len(turns) == search + visit + 1
    assert all(text.startswith("<think>\n") == name.startswith("sft") for text in turns)
    for text, turn in zip(turns[:-1], parsed, strict=False):
        raw = json.loads(text.split("<tool_call>")[1].split("</tool_call>")[0])  # strict JSON
        assert turn.arguments == raw["arguments"] and turn.tool == raw["name"]
        assert (
            len(turn.arguments.get("query", []) + turn.arguments.get("url", [])) == 1
        )  # one query or one URL
        assert format_error(text, final=False) is None
    assert (not format_error(turns[-1], final=True)) == (name != "sft_0001"), (
        "it has an <answer> inside the <answer>"
    )
    assert "<answer>" not in parsed[-1].answer
