"""A saved rollout: nothing is lost, the messages render to the tokens, and what is not a rollout is
refused."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minvenus.agent.record import messages, rollout_from_json, rollout_to_json
from minvenus.config import ConfigError
from tests.agent.scripted import (
    BROKEN,
    TOKENIZER,
    Tools,
    answer,
    budget,
    run,
    search,
    visit,
)

TURNS = [search(), visit(), BROKEN, "no tags at all", [5, 300, 7], answer("a </answer> <answer> b")]


def render(listed):
    return "\n".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>" for m in listed)


@example([search(), answer()], "", 6)
@given(
    st.lists(st.sampled_from(TURNS), min_size=1, max_size=5),
    st.text(max_size=30),
    st.integers(1, 6),
)
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_a_rollout_comes_back_exactly_and_its_messages_render_to_its_tokens(turns, page, max_turns):
    tools = Tools(lambda queries: page, lambda urls, goal: "<tool_response>\n" + page)
    rollout = run(turns, budget(max_turns, max_new_tokens=25), tools)
    assert rollout_from_json(json.loads(json.dumps(rollout_to_json(rollout)))) == rollout
    rendered = TOKENIZER.decode(
        TOKENIZER.encode(render(messages(rollout)))
    )  # in the tokenizer's normal form
    assert rendered == TOKENIZER.decode(rollout.tokens)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "not a saved rollout"),
        ({"tokens": [1]}, "cannot be read"),
        ({"logprobs": [0.5]}, "shorter"),
        ({"sampled": [9999] * 40}, "cannot be read"),
        ({"turns": []}, "cannot be read"),
        ({"messages": []}, "cannot be read"),
        ({"messages": [{"content": None}] * 5}, "cannot be read"),
        ({"termination": "bored"}, "termination must be one of"),
        ({"turns": [{}]}, "cannot be read"),
    ],
)
def test_a_damaged_record_is_refused_with_the_reason(change, words):
    record = rollout_to_json(run([search(), answer()])) | change
    with pytest.raises(ConfigError, match=words):
        rollout_from_json(record)


def test_every_field_of_a_rollout_is_in_its_record():
    """A field that is added to the types and forgotten here would be lost in silence: change each
    and look."""
    rollout = run([search(), answer()])
    older = rollout_to_json(rollout)
    del older["pages"]
    assert rollout_from_json(older) == rollout
    turn = replace(
        rollout.turns[0], tool_error="http", discarded=["duplicate"], seconds=1.5, tool_seconds=2.5
    )
    changed = replace(
        rollout,
        question=replace(rollout.question, pages=["Peru", "Brazil"]),
        logprobs=[0.0 if sampled else None for sampled in rollout.sampled],
        turns=[turn, rollout.turns[1]],
        system="other",
        error="why",
        seconds=9.0,
        termination="error",
    )
    assert rollout_from_json(json.loads(json.dumps(rollout_to_json(changed)))) == changed
