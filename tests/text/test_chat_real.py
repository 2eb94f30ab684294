"""The stream against the chat template's literal rendering, on five real trajectories with the real tokenizer.

The renderer below is from the published template, apart from chat.py. A rendering ends with one "\\n" after the last
<|im_end|>; the stream stops at that <|im_end|>, so the comparisons leave the final "\\n" out. All
five are in NFC already, else decoding would give their NFC form back.
"""

import re

import pytest
import tokenizers

from minvenus.text.chat import stream


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


@pytest.fixture(scope="module")
def library(qwen):
    """The tokenizers library on the same file: one-shot encoding, nothing of ours in it."""
    return tokenizers.Tokenizer.from_file(str(qwen.files["tokenizer.json"]))


@pytest.fixture(scope="module")
def built(trajectory, qwen):
    return stream(trajectory, qwen)


def test_ids_equal_one_shot_encoding_of_the_rendering_and_decode_to_it(trajectory, built, library, qwen):
    rendering = literal_rendering(trajectory)
    assert rendering.count("<|im_end|>") == len(trajectory)  # no page spells one, so one-shot encoding is right
    assert not re.search(r"<think>\n\s*[\r\n]", rendering)               # where our cut would differ: not in this data
    assert built[0] == library.encode(rendering.removesuffix("\n"), add_special_tokens=False).ids
    assert qwen.decode(built[0]) + "\n" == rendering


def test_the_mask_covers_thought_body_and_end_of_turn_and_nothing_else(trajectory, built, qwen):
    ids, sampled, spans = built
    turns = [m["content"] for m in trajectory if m["role"] == "assistant"]
    assert len(spans) == len(turns)
    for (start, end), content in zip(spans, turns, strict=True):
        thought, body = content.split("</think>")
        expected = thought.replace("<think>", "").strip("\n") + "\n</think>\n\n" + body.lstrip("\n") + "<|im_end|>"
        assert qwen.decode(ids[start:end]) == expected
        assert all(sampled[start:end])
        assert qwen.decode(ids[start - 7:start]) == "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert sum(sampled) == sum(end - start for start, end in spans)


def test_both_newline_forms_after_a_thought_give_the_same_stream(trajectory, built, qwen):
    """SFT data has one newline after </think>, RL data two; SFT thoughts begin with a newline, RL thoughts do not."""
    other = [dict(m) for m in trajectory]
    for message in other:
        if message["role"] == "assistant":
            thought, body = message["content"].removeprefix("<think>").split("</think>")
            one = "</think>\n" if body.startswith("\n\n") else "</think>\n\n"
            edge = "" if thought.startswith("\n") else "\n"
            message["content"] = "<think>" + edge + thought.strip("\n") + edge + one + body.lstrip("\n")
    assert other != trajectory
    assert stream(other, qwen) == built


def test_a_blank_line_that_opens_a_thought_stays_behind_the_cut(qwen, library):
    """The one difference from one-shot encoding: "\\n \\n" is one token there, half of it supplied and half of it
    sampled."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "<think> \nso</think>\n\nx"}]
    ids, _, [(start, end)] = stream(messages, qwen)
    assert qwen.decode(ids) + "\n" == literal_rendering(messages)
    assert qwen.decode(ids[start - 2:start]) == "<think>\n" and qwen.decode(ids[start:end]).startswith(" \nso")
    assert ids != library.encode(literal_rendering(messages).removesuffix("\n"), add_special_tokens=False).ids
