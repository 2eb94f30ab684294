"""Trajectories of our own and of OpenAI-compatible servers as training data."""

import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minvenus.agent.record import rollout_to_json
from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.igpo.recipes import Recipe
from minvenus.report.saved import path_of, save_batch
from minvenus.sft.__main__ import CleanConfig, run
from minvenus.sft.clean import clean
from minvenus.sft.dataset import encode, load, read_records
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Question
from tests.agent.scripted import answer, search, visit
from tests.report.examples import rollout, saved_batch
from tests.sft.conversations import answer_of, contents, observation, search_turn, visit_turn
from tests.sft.test_command import read, write

ASKED = Question("q1", "Which pet?", ["cat", "a cat"])
NOT_RUN = "what?\n</think>\n<tool_call>\n{}\n</tool_call>"
OWN = [search("Bob"), NOT_RUN, visit("Bob"), answer("cat")]


# ----------------------------------------------------------------------------------------------------------- our own


def test_a_rollout_is_training_data_without_its_unreadable_turns():
    out, reason, counts = clean(
        rollout_to_json(rollout(OWN, ["[]", "ERROR: not JSON", "a page"], ASKED))
    )
    assert (
        reason is None and out["question"] == "Which pet?" and out["gt"] == f"cat{ALIAS_MARK}a cat"
    )
    assert contents(out)[3::2] == [observation("[]"), observation("a page")]
    assert [
        json.loads(turn.split("<tool_call>\n")[1].split("\n</tool_call>")[0])["name"]
        for turn in contents(out)[2:-1:2]
    ] == ["search", "visit"]
    assert (
        counts["turns_in"] == 4
        and counts["unreadable_tool_turns_removed"] == 1
        and counts["turns_kept"] == 3
    )
    assert clean(out)[0] == out and encode(out, Tokenizer.tiny()).trained


def test_a_rollout_that_did_not_answer_is_dropped_with_its_own_reason():
    assert clean(rollout_to_json(rollout([search(), search("Al")], question=ASKED)))[:2] == (
        None,
        "not_answered",
    )


def test_a_training_batch_is_read_as_its_rollouts(tmp_path):
    rollouts = [rollout(OWN, question=ASKED), rollout([search(), answer("dog")], question=ASKED)]
    save_batch(tmp_path, saved_batch(rollouts, [0, 0], [1.0, 0.0], Recipe.paper(), step=3))
    stats = run(
        CleanConfig(str(path_of(tmp_path, 3)), str(tmp_path / "out.jsonl"), correct="exact_match")
    )
    assert stats["rows"] == {
        "source": 2,
        "bad_lines": 0,
        "stage2_valid": 2,
        "stage3_correct": 1,
        "final_resampled": 1,
    }
    assert len(load(read_records(tmp_path / "out.jsonl"), Tokenizer.tiny(), 9999)[0]) == 1


# ------------------------------------------------------------------------------------------------------------ OpenAI


def calls(*made, content=None, **more):
    listed = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(made)
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed} | more


def result(text, number=0):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


SEARCH = calls(("search", '{"query": ["a"]}'), reasoning_content="I look.")
VISIT = calls(("visit", {"url": "https://b.org", "goal": "know"}), content="I read.")
LAST = {"role": "assistant", "content": "Rome", "reasoning_content": "Enough."}


def openai(*messages, **more):
    return {
        "messages": [
            {"role": "system", "content": "Be good."},
            {"role": "user", "content": "Where?"},
            *messages,
        ]
    } | more


def test_calls_and_results_of_the_openai_form_worked_by_hand():
    record = openai(
        SEARCH,
        result("found"),
        VISIT,
        result("a page"),
        LAST,
        gt="Rome",
        tools=[{"type": "function"}],
    )
    before = copy.deepcopy(record)
    out, reason, counts = clean(record, prompt_mode="row")
    assert (
        record == before and reason is None and out["gt"] == "Rome" and out["question"] == "Where?"
    )
    assert contents(out) == [
        "Be good.",
        "Where?",
        search_turn("a", thought="I look."),
        observation("found"),
        visit_turn("https://b.org", thought="I read."),
        observation("a page"),
        answer_of(),
    ]
    assert counts["turns_kept"] == 3 and clean(out, prompt_mode="row")[0] == out


@pytest.mark.parametrize(
    ("last", "thought", "text"),
    [
        (LAST, "Enough.", "Rome"),
        (
            {"role": "assistant", "content": "<think>So.</think>\n\nRome, in Italy"},
            "So.",
            "Rome, in Italy",
        ),
        (
            {"role": "assistant", "content": "<answer>Rome</answer>", "reasoning": "So."},
            "So.",
            "Rome",
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Rome"}, {"text": "in Italy"}],
                "reasoning": "A </think> B",
                "tool_calls": None,
            },
            "A  B",
            "Rome\nin Italy",
        ),
    ],
)
def test_the_answer_may_have_tags_or_none(last, thought, text):
    out, reason, _ = clean(openai(SEARCH, result("x"), last))
    assert reason is None and contents(out)[-1] == answer_of(text, thought)


def test_of_several_calls_in_a_message_the_first_stays_with_its_own_result_and_the_others_are_counted():
    both = calls(("search", '{"query": ["a"]}'), ("search", '{"query": ["b"]}'), content="Two.")
    out, _, counts = clean(openai(both, result("of b", 1), result("of a", 0), LAST))
    assert contents(out)[2:4] == [search_turn("a", thought="Two."), observation("of a")]
    assert (
        counts["unreadable_tool_turns_removed"]
        == counts["unreadable_tool_response_turns_removed"]
        == 1
    )
    for message in both["tool_calls"], [first := result("of a"), second := result("of b")]:
        for item in message:  # without ids their order counts
            item.pop("id", None)
            item.pop("tool_call_id", None)
    assert contents(clean(openai(both, first, second, LAST))[0]) == contents(out)


def test_a_call_without_a_result_and_a_result_without_a_call_go():
    out, _, counts = clean(openai(SEARCH, VISIT, result("a page"), result("of nothing", 7), LAST))
    assert contents(out)[2:-1] == [
        visit_turn("https://b.org", thought="I read."),
        observation("a page"),
    ]
    assert (
        counts["unreadable_tool_turns_removed"]
        == counts["unreadable_tool_response_turns_removed"]
        == 1
    )


def test_other_tools_broken_arguments_and_missing_thoughts_cost_a_turn_and_not_the_record():
    turns = [
        calls(("python", "{}"), content="I compute."),
        calls(("search", '{"query": '), content="Broken."),
        calls(("search", '{"query": ["no thought"]}')),
        SEARCH,
    ]
    out, reason, counts = clean(openai(*(m for turn in turns for m in (turn, result("x"))), LAST))
    assert (
        reason is None
        and len(out["messages"]) == 5
        and counts["pruned_tool_name_counts/python"] == 1
    )
    assert counts["unreadable_tool_turns_removed"] == 2 and counts["turns_in"] == 5


@pytest.mark.parametrize(
    ("more", "gt"),
    [
        ({"gt": "A", "answer": "B"}, "A"),
        ({"answer": "A", "question": "Other?"}, "A"),
        ({"answers": ["A", "B"]}, f"A{ALIAS_MARK}B"),
        ({"meta": {"question": "Other?", "answer": "A"}}, "A"),
        ({}, "(unknown)"),
    ],
)
def test_the_true_answer_stands_where_it_may(more, gt):
    out, _, _ = clean(openai(SEARCH, result("x"), LAST, **more))
    assert out["gt"] == gt and out["question"] == (
        "Other?" if "question" in more or "meta" in more else "Where?"
    )


def test_without_a_true_answer_a_record_can_be_trained_on_but_not_be_found_correct(tmp_path):
    turns = (SEARCH, result("x"), LAST)
    source = write(tmp_path / "in.jsonl", [openai(*turns), openai(*turns, gt="Rome")])
    run(CleanConfig(source, str(tmp_path / "out.jsonl")))
    assert len(read(tmp_path / "out.jsonl")) == 2
    stats = run(CleanConfig(source, str(tmp_path / "out.jsonl"), correct="exact_match"))
    assert stats["drop_reasons"] == {"no_true_answer": 1} and len(read(tmp_path / "out.jsonl")) == 1


junk = (
    st.none()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.none() | st.text(max_size=3), max_size=2)
)
functions = st.fixed_dictionaries(
    {}, optional={"name": junk, "arguments": junk | st.just({"query": ["a"]})}
)
odd_calls = st.lists(
    junk | st.fixed_dictionaries({}, optional={"id": junk, "function": junk | functions}),
    max_size=3,
)
odd = st.fixed_dictionaries(
    {"role": st.sampled_from(["assistant", "tool", "user", "developer", None])},
    optional={
        "content": junk | st.lists(st.fixed_dictionaries({"text": junk}), max_size=2),
        "tool_calls": junk | odd_calls,
        "tool_call_id": junk,
        "reasoning": junk,
        "reasoning_content": junk,
    },
)
good = st.sampled_from([SEARCH, VISIT, LAST, result("x")])


@given(
    st.lists(good | odd | junk, max_size=8),
    st.dictionaries(
        st.sampled_from(
            ["gt", "answer", "answers", "question", "meta", "rollout", "tokens", "termination"]
        ),
        junk,
    ),
)
@example(
    [{"role": "tool", "tool_call_id": None}, {"role": "assistant", "tool_calls": 3}, {"role": []}],
    {},
)
def test_no_record_of_this_form_raises_and_what_comes_out_can_be_trained_on(messages, more):
    record = openai(*messages, **more)
    out, reason, counts = clean(record)
    assert (out is None) == (reason is not None)
    gone = sum(
        counts[f"{why}_turns_removed"]
        for why in ("unreadable_tool", "pruned_tool", "duplicate_tool")
    )
    assert counts["turns_in"] == gone + counts["turns_kept"] + counts["turns_dropped"]
    if out:
        assert encode(out, Tokenizer.tiny()).trained and clean(out)[0] == out
