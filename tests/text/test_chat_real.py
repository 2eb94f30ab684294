"""The stream against the chat template's literal rendering, on five real trajectories with the real tokenizer.

The renderer below is from the published template, apart from chat.py. A rendering ends with one "\\n" after the last
<|im_end|>; the stream stops at that <|im_end|>, so the comparisons leave the final "\\n" out. All
five are in NFC already, else decoding would give their NFC form back.
"""

import re

from minvenus.text.chat import stream
from tests.text.conftest import library


def literal_rendering(messages):
    """The chat template of Qwen3-Thinking-2507 with tools=None, its rule for old thoughts included."""
    def is_observation(content):
        return content.startswith("<tool_response>") and content.endswith("</tool_response>")

    last_query = max(i for i, m in enumerate(messages) if m["role"] == "user" and not is_observation(m["content"]))
    out = ""
    for i, message in enumerate(messages):
        content = message["content"]
        out += "<|im_start|>" + message["role"] + "\n"
        if message["role"] == "assistant":
            reasoning = ""
            if "</think>" in content:
                reasoning = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
                content = content.split("</think>")[-1].lstrip("\n")
            if i > last_query and (i == len(messages) - 1 or reasoning):
                out += "<think>\n" + reasoning + "\n</think>\n\n"
        out += content + "<|im_end|>\n"
    return out


def test_ids_and_mask_are_those_of_the_rendering_encoded_in_one_go(trajectory, qwen):
    rendering = literal_rendering(trajectory)
    assert rendering.count("<|im_end|>") == len(trajectory)  # no page spells one, so one-shot encoding is right
    assert not re.search(r"<think>\n\s*[\r\n]", rendering)               # where our cut would differ: not in this data
    ids, sampled, spans = stream(trajectory, qwen)
    assert ids == library(qwen).encode(rendering.removesuffix("\n"), add_special_tokens=False).ids
    assert qwen.decode(ids) + "\n" == rendering
    turns = re.findall(r"<\|im_start\|>assistant\n<think>\n(.*?<\|im_end\|>)", rendering, re.DOTALL)
    assert [qwen.decode(ids[start:end]) for start, end in spans] == turns
    assert [i for i, chosen in enumerate(sampled) if chosen] == [i for start, end in spans for i in range(start, end)]


def test_a_blank_line_that_opens_a_thought_stays_behind_the_cut(qwen):
    """The one difference from one-shot encoding: "\\n \\n" is one token there, half of it supplied and half of it
    sampled."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "<think> \nso</think>\n\nx"}]
    ids, _, [(start, end)] = stream(messages, qwen)
    assert qwen.decode(ids) + "\n" == literal_rendering(messages)
    assert qwen.decode(ids[start - 2:start]) == "<think>\n" and qwen.decode(ids[start:end]).startswith(" \nso")
    assert ids != library(qwen).encode(literal_rendering(messages).removesuffix("\n"), add_special_tokens=False).ids
