"""What may become an id in whose text, and which message lists are refused: each by its index and its rule."""

import re

import pytest

from minvenus.experiments.tiny_tokenizer import NOT_SPECIAL, SPECIAL
from minvenus.text.chat import ChatError, Stream, stream, turn_ids
from minvenus.text.tokenizer import TAGS

GOOD = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "<think>\na\n</think>\n<tool_call>\n{}\n</tool_call>"},
    {"role": "user", "content": "<tool_response>\npage\n</tool_response>"},
    {"role": "assistant", "content": "<think>\nb\n</think>\n<answer>\nc\n</answer>"},
]
BROKEN = {
    "message 0 must have the role 'system'": GOOD[1:],
    "message 2 must have the role 'assistant'": [*GOOD[:2], GOOD[3], GOOD[4]],
    "message 3 must have the role 'user'": [*GOOD[:3], {"role": "tool", "content": "x"}],
    "message 4 is missing": GOOD[:4],
    "message 2 is missing": GOOD[:2],
    "message 0 is missing": [],
    "message 1 must be a dict": [GOOD[0], {"role": "user"}, *GOOD[2:]],
    "message 1 must be the question": [GOOD[0], GOOD[3], GOOD[4]],
}
BAD_TURNS = {
    "one <think>...</think>, it has 0 <think> and 0": "<answer>c</answer>",
    "has 1 <think> and 0": "<think>a",
    "has 2 <think> and 2": "<think>a</think><think>b</think>c",
    "empty thought": "<think>\n \n</think>\nc",
    "must begin with <think>, it begins 'Hm": "Hm <think>a</think>b",
    "must begin with <think>, it begins '</": "</think><think>",
}
BAD_OBSERVATIONS = [
    "page",
    "<tool_response>\npage\n</tool_response>\n",
    "<tool_response>\npage\n</tool_response> ok",
    " <tool_response>\npage\n</tool_response>",
    "<tool_response>page</tool_response>",
    "<tool_response>\n</tool_response>",
]


def test_tags_are_ids_in_system_and_assistant_text_and_control_tokens_nowhere(tiny):
    spelled = "".join(SPECIAL + NOT_SPECIAL)
    tags = [tiny.added[tag] for tag in TAGS]
    prompt = Stream(tiny, spelled, spelled).ids
    assert sorted(i for i in prompt if i in tags) == sorted(
        [*tags, tiny.think]
    )  # the system's six, and the generation prompt's
    assert [prompt.count(i) for i in (tiny.im_start, tiny.im_end, tiny.end_of_text)] == [3, 2, 0]
    turn = turn_ids(tiny, "a<|im_end|>b", "<tool_call><|im_start|></tool_call>")
    assert [i for i in turn if i in tiny.spelling] == [tiny.think_end, tiny.tool_call, tiny.tool_call_end, tiny.im_end]


@pytest.mark.parametrize("message", BROKEN)
def test_messages_out_of_order_are_refused_by_index(tiny, message):
    with pytest.raises(ChatError, match=re.escape(message)):
        stream(BROKEN[message], tiny)


@pytest.mark.parametrize("message", BAD_TURNS)
def test_a_turn_that_the_template_would_rewrite_is_refused(tiny, message):
    with pytest.raises(ChatError, match="message 4.*" + re.escape(message)):
        stream([*GOOD[:4], {"role": "assistant", "content": BAD_TURNS[message]}], tiny)


@pytest.mark.parametrize("content", BAD_OBSERVATIONS)
def test_an_observation_without_its_exact_wrapper_is_refused(tiny, content):
    with pytest.raises(ChatError, match=r"message 3 must be .*tool_response"):
        stream([*GOOD[:3], {"role": "user", "content": content}, GOOD[4]], tiny)


def test_a_page_that_spells_the_wrapper_s_end_is_taken_whole(tiny):
    page = "one</tool_response>\n\n</tool_response>two"
    ids, _, _ = stream(
        [*GOOD[:3], {"role": "user", "content": f"<tool_response>\n{page}\n</tool_response>"}, GOOD[4]], tiny
    )
    first, last = ids.index(tiny.tool_response), ids.index(tiny.tool_response_end)
    assert tiny.decode(ids[first + 1:last]) == f"\n{page}\n" and ids.count(tiny.tool_response_end) == 1
