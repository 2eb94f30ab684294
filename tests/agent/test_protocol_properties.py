"""The strict format check and the parser, on tag soup, on built and damaged turns, and on released
trajectories."""

import json
import re
import time
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.agent.protocol import format_error, parse_turn
from tests.agent.test_protocol import ONE_BLOCK, SEARCH, THOUGHTS
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

plain = st.text(alphabet="ab <>/{}\"'\n東", max_size=12)
thoughts = st.lists(plain, min_size=1, max_size=3).map(
    lambda parts: " ".join(f"<think>{part}</think>" for part in parts)
)
gaps = st.sampled_from(["", " ", "\n", "\n\n"])
names = st.sampled_from(["search", "visit", "python", ""])
strings = st.text(
    st.characters(exclude_characters="<")
)  # a tag inside the JSON is a tag all the same
json_values = st.none() | st.integers() | strings | st.lists(strings, max_size=2)
arguments = st.dictionaries(st.sampled_from(["query", "url", "goal", "k"]), json_values)
calls = st.fixed_dictionaries({"name": names, "arguments": arguments})
tool_turns = st.tuples(thoughts, gaps, calls.map(json.dumps), gaps).map(
    lambda p: f"{p[0]}{p[1]}<tool_call>{p[3]}{p[2]}{p[1]}</tool_call>{p[3]}"
)
final_turns = st.tuples(thoughts, gaps, plain.filter(str.strip), gaps).map(
    lambda p: f"{p[0]}{p[1]}<answer>{p[2]}</answer>{p[3]}"
)


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
    return parsed


@given(soup)
def test_no_tag_soup_raises_and_check_and_parser_agree(text):
    check_parse(text)


@example("<think>hm</think>", "<answer>Paris</answer><tool_response>")
@given(soup | tool_turns | final_turns, soup)
def test_nothing_after_a_tool_response_tag_is_ever_read(text, tail):
    assert parse_turn(text + "<tool_response>" + tail) == parse_turn(text)
    for final in (False, True):  # the tokens stay in the stream
        assert format_error(text + "<tool_response>" + tail, final)


@given(tool_turns, final_turns)
def test_built_turns_pass_and_parse(call, answer):
    assert format_error(call, final=False) is None and format_error(answer, final=True) is None
    check_parse(call)
    assert check_parse(answer).answer == answer.split("<answer>")[1].split("</answer>")[0].strip()


@given(tool_turns | final_turns, st.data())
def test_one_edit_of_a_well_formed_turn_breaks_the_right_rule(turn, data):
    """A tag more or less, wherever it stands."""
    tag = data.draw(st.sampled_from([*re.finditer("</?(think|tool_call|answer)>", turn)]))
    for edited in (turn[: tag.start()], turn[: tag.end()] + tag[0]):
        edited += turn[tag.end() :]
        error = format_error(edited, final="<answer>" in turn)
        assert (THOUGHTS if "think" in tag[0] else ONE_BLOCK) in error
        check_parse(edited)


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
    *calls, answer = [parse_turn(text) for text in turns]
    search, visit = COUNTS[name]
    assert Counter(turn.kind for turn in calls) == {"search": search, "visit": visit}
    for text, turn in zip(turns, calls, strict=False):
        raw = json.loads(text.split("<tool_call>")[1].split("</tool_call>")[0])
        assert turn.call == raw and format_error(text, final=False) is None
    nested = name == "sft_0001"  # it has an <answer> inside the <answer>
    assert bool(format_error(turns[-1], final=True)) == nested
    assert "<answer>" not in answer.answer
