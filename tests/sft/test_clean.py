"""Cleaning of whole records: each rule on a case worked by hand, then properties over random conversations."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import is_well_formed, parse_turn
from minvenus.sft.clean import clean, copies
from minvenus.sft.dataset import encode
from minvenus.text.tokenizer import Tokenizer
from tests.sft.conversations import (
    answer_of,
    call,
    contents,
    conversation,
    observation,
    raw,
    records,
    search_turn,
    think,
    visit_turn,
)

PYTHON = think("compute") + call("PythonInterpreter", {})
TINY = Tokenizer.tiny()
TOOLS = ("search", "visit")


# ------------------------------------------------------------------------------------------------------- worked by hand


def test_a_good_record_changes_only_in_its_system_prompt():
    record = conversation(
        "Where?", search_turn("a"), observation(), visit_turn("u"), observation(), answer_of()
    )
    before = copy.deepcopy(record)
    out, reason, counts = clean(record)
    assert record == before, "the input is not changed"
    assert (
        reason is None
        and contents(out)[1:] == contents(record)[1:]
        and contents(out)[0] == SYSTEM_PROMPT
    )
    assert counts == {
        "turns_in": 3,
        "turns_kept": 3,
        "tools_after_cleaning/search": 1,
        "tools_after_cleaning/visit": 1,
    }


def test_the_system_prompt_is_replaced_added_or_kept():
    record = conversation("Where?", answer_of())
    assert contents(clean(record, "Mine.")[0])[0] == "Mine."
    assert contents(clean(record, "Mine.", prompt_mode="row")[0])[0] == "Be good."
    without = record | {"messages": record["messages"][1:]}
    assert contents(clean(without, "Mine.", prompt_mode="row")[0])[0] == "Mine."
    own = raw("Where?", answer_of()) | {"system_prompt": "Row's own."}
    assert contents(clean(own, "Mine.", prompt_mode="row")[0])[0] == "Row's own."
    assert contents(clean(own, "Mine.")[0])[0] == "Mine."
    own["messages"].insert(
        0, {"role": "system", "content": "Own."}
    )  # a prompt, and not the question
    assert contents(clean(own, prompt_mode="row")[0]) == ["Own.", "Where?", answer_of()]


def test_a_turn_with_a_tool_that_does_not_exist_goes_with_its_observation():
    record = conversation(
        "Where?", PYTHON, observation("1"), search_turn("a"), observation("2"), answer_of()
    )
    out, reason, counts = clean(record)
    assert reason is None and contents(out)[2:] == [search_turn("a"), observation("2"), answer_of()]
    assert counts == {
        "turns_in": 3,
        "turns_kept": 2,
        "pruned_tool_turns_removed": 1,
        "pruned_tool_response_turns_removed": 1,
        "pruned_tool_name_counts/PythonInterpreter": 1,
        "tools_after_cleaning/search": 1,
    }


def test_one_wrong_call_among_several_removes_a_clean_turn_and_is_ignored_in_a_raw_one():
    both = think("two") + call("search", {"query": ["a"]}) + call("google_maps", {"q": 1})
    out, _, counts = clean(conversation("Where?", both, observation(), answer_of()))
    assert len(out["messages"]) == 3 and counts["pruned_tool_name_counts/google_maps"] == 1
    assert contents(clean(raw("Where?", both, observation(), answer_of()))[0])[2] == search_turn(
        "a", thought="two"
    )


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (search_turn("a"), search_turn("a", thought="again"), True),
        (
            search_turn("a", "b"),
            search_turn("b", " a ", "b"),
            True,
        ),  # order, repeats and blanks do not matter
        (search_turn("a", "b"), search_turn("a"), False),
        (search_turn("a"), search_turn("A"), False),  # case does
        (
            visit_turn("u", goal="one"),
            visit_turn("u", goal="two"),
            True,
        ),  # the goal of a visit does not
        (search_turn("u"), visit_turn("u"), False),
        (search_turn("a"), think("x") + call("Search", {"query": ["a", " "]}), True),
        *(
            (visit_turn("u"), think("x") + call("Visit", arguments | {"goal": "g"}), True)
            for arguments in (
                {"url": "u"},
                {"urls": ["u"]},
                {"links": ["u", "u"]},
                {"page": " u "},
                {"query": "u"},
                {"url": [], "uri": "u"},
            )
        ),
    ],
)
def test_what_counts_as_a_duplicate(first, second, same):
    record = conversation("Where?", first, observation("1"), second, observation("2"), answer_of())
    out, _, counts = clean(record)
    assert counts["duplicate_tool_turns_removed"] == same
    assert contents(out)[2:] == [
        first,
        observation("1"),
        *([] if same else [second, observation("2")]),
        answer_of(),
    ]


MIDDLE = (search_turn("a"), observation())
GOOD = conversation("Where?", *MIDDLE, answer_of())["messages"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (GOOD, None),
        (GOOD[1:], None),  # a system prompt is added
        (
            conversation("Q", *MIDDLE, think("x") + "<answer>a <answer>b</answer>")["messages"],
            None,
        ),  # is repaired
        (GOOD[:2], "too_short"),
        ([*GOOD[:2], "text", *GOOD[3:]], "non_dict_message"),
        ([*GOOD[:2], GOOD[3], *GOOD[3:]], "bad_role_at_2"),
        ([*GOOD[:3], {"role": "tool", "content": "x"}, GOOD[4]], "bad_role_at_3"),
        ([*GOOD[:3], {"role": "user", "content": None}, GOOD[4]], "non_str_content_at_3"),
        (
            conversation(observation(), *MIDDLE, answer_of())["messages"],
            "first_user_contains_tool_response",
        ),
        (
            conversation("Q", search_turn("a"), "bare", answer_of())["messages"],
            "user_missing_tool_response_at_3",
        ),
        (
            conversation("Q", "no thought", observation(), answer_of())["messages"],
            "assistant_missing_think",
        ),
        (conversation("Q", *MIDDLE, think("x"))["messages"], "final_assistant_missing_answer"),
        (
            conversation("Q", *MIDDLE, search_turn("b"))["messages"],
            "final_assistant_missing_answer",
        ),
        (
            conversation("Q", *MIDDLE, answer_of() + call("search", {}))["messages"],
            "final_assistant_contains_tool",
        ),
        (
            conversation("Q", think("x"), observation(), answer_of())["messages"],
            "assistant_missing_tool_call",
        ),
        (
            conversation("Q", search_turn("a") + "<answer>x</answer>", observation(), answer_of())[
                "messages"
            ],
            "assistant_tool_turn_contains_answer",
        ),
        (conversation("Q", *MIDDLE)["messages"], "last_message_not_assistant"),
        (
            conversation("Q", PYTHON, "bare", answer_of())["messages"],
            "bad_role_at_2",
        ),  # is it its observation?
        (
            conversation("Q", *MIDDLE, think(" ") + "<answer>a</answer>")["messages"],
            "final_answer_unusable",
        ),
    ],
)
def test_every_fault_has_its_name(messages, reason):
    assert clean({"question": "Q", "messages": messages, "gt": "x"})[1] == reason


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"messages": GOOD},
        {"question": "Q", "messages": GOOD, "gt": " "},
        {"question": 3, "messages": GOOD, "gt": "x"},
        {"meta": {"question": "Q"}, "messages": GOOD},
        {"meta": "Q", "messages": GOOD},
        {"question": "Q", "messages": GOOD, "gt": ["x"]},
    ],
)
def test_a_record_without_question_or_truth_is_dropped(record):
    assert clean(record) == (None, "missing_question_or_gt", {})


def test_halves_of_surrogate_pairs_are_replaced_everywhere():
    escaped = (
        think("x")
        + '<tool_call>{"name": "search", "arguments": {"query": ["a\\ud83d"]}}</tool_call>'
    )
    record = raw("Where \ud83d?", escaped, observation("\udc00"), answer_of("Ro\ud83dme"))
    record["meta"]["answer"] = "\ud83d"
    out, _, _ = clean(record)
    assert (out["question"], out["gt"]) == ("Where \ufffd?", "\ufffd")
    assert contents(out)[1:] == [
        "Where \ufffd?",
        search_turn("a\ufffd", thought="x"),
        observation("\ufffd"),
        answer_of("Ro\ufffdme"),
    ]


def test_long_trajectories_are_written_more_often():
    assert [copies(turns) for turns in (1, 50, 51, 100, 101, 400)] == [1, 1, 2, 2, 5, 5]
    assert 3_720 * copies(50) + 4_400 * copies(100) + 1_245 * copies(101) == 18_745, (
        "the paper's numbers"
    )
    with pytest.raises(ValueError, match="got 0"):
        copies(0)


# ----------------------------------------------------------------------------------------------------------- properties


@given(records(), st.sampled_from(["template", "row"]))
def test_what_comes_out_can_be_trained_on_and_goes_through_again_unchanged(record, mode):
    before = copy.deepcopy(record)
    out, reason, counts = clean(record, prompt_mode=mode)
    assert record == before and (out is None) == (reason is not None)
    if out is None:
        return
    again, reason, more = clean(out, prompt_mode=mode)
    assert (again, reason) == (out, None) and more["turns_in"] == more["turns_kept"]
    assert list(out) == ["question", "messages", "gt"]
    turns = [message["content"] for message in out["messages"][2::2]]
    assert all(is_well_formed(turn, final=i == len(turns) - 1) for i, turn in enumerate(turns))
    kinds = [parse_turn(turn).kind for turn in turns]
    assert kinds[-1] == "answer" and set(kinds[:-1]) <= set(TOOLS)
    assert all(counts[f"tools_after_cleaning/{name}"] == kinds.count(name) for name in TOOLS)
    one = encode(out, TINY)
    assert int((one.tokens[one.sampled] == TINY.im_end).sum()) == len(turns)
    assert one.tokens[-1] == TINY.im_end and one.sampled[-1]


@given(records())
def test_every_turn_of_the_input_is_accounted_for(record):
    out, reason, counts = clean(record)
    gone = sum(
        counts[f"{why}_turns_removed"]
        for why in ("unreadable_tool", "pruned_tool", "duplicate_tool")
    )
    assert counts["turns_in"] == gone + counts["turns_kept"] + counts["turns_dropped"]
    assert counts["turns_kept"] == (0 if out is None else len(out["messages"]) // 2)
    unread = ("missing_question_or_gt", "raw_clean_failed", "non_dict_message", "non_str_content")
    if not str(reason).startswith(unread) and isinstance(record.get("messages"), list):
        roles = [m.get("role") if isinstance(m, dict) else None for m in record["messages"]]
        roles = roles[1:] if roles[:1] == ["system"] else roles
        raw_input = "meta" in record  # its first message is the question and its last the answer
        assert counts["turns_in"] == (
            roles[1:-1].count("assistant") + 1 if raw_input else roles.count("assistant")
        )
    assert all(count > 0 for count in counts.values())


@given(records())
def test_first_occurrences_stay_with_their_observations_and_repeats_go_with_theirs(record):
    record["messages"] = [m for m in record.get("messages") or [] if isinstance(m, dict)]
    for i, message in enumerate(
        record["messages"]
    ):  # numbers tell which observation belongs to which turn
        if message.get("role") == "user" and i > 1:
            message["content"] = observation(f"number {i}")
        if message.get("role") == "assistant":
            message["content"] = message["content"].replace("<think>", f"<think> turn {i}. ", 1)
    out, _, counts = clean(record)
    if out is None:
        return
    made = []
    for turn, following in zip(out["messages"][2:-1:2], out["messages"][3::2], strict=True):
        parsed = parse_turn(turn["content"])
        made.append(
            (
                parsed.tool,
                *sorted({target.strip() for target in next(iter(parsed.arguments.values()))}),
            )
        )
        number = int(following["content"].split()[2])
        assert turn["content"].removeprefix("<think>").strip().startswith(f"turn {number - 1}.")
    assert len(set(made)) == len(made)
    removed = sum(count for name, count in counts.items() if name.endswith("_removed"))
    given = [message for message in record["messages"] if message.get("role") != "system"]
    assert len(given) == len(out["messages"]) - 1 + removed


# ---------------------------------------------------------------------------------------------------- real trajectories

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "trajectories"
TURNS = {"sft_0000": 25, "sft_0001": 18, "sft_0007": 44}


def trajectory(name):
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the trajectory is not at {path}")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", ["clean", "raw"])
@pytest.mark.parametrize("name", TURNS)
def test_real_trajectories_pass_with_all_their_turns_and_one_nested_answer_is_repaired(name, form):
    record = given = trajectory(name)
    if form == "raw":
        given = {
            "meta": {"question": record["question"], "answer": record["gt"]},
            "messages": record["messages"][1:],
        }
    out, reason, counts = clean(given, prompt_mode="row")
    assert reason is None and counts["turns_in"] == counts["turns_kept"] == TURNS[name]
    assert out["messages"][1:-1] == record["messages"][1:-1]
    assert form == "raw" or out["messages"][0] == record["messages"][0], "the row's own prompt"
    last, final = record["messages"][-1]["content"], out["messages"][-1]["content"]
    assert counts["messages_repaired"] == (last != final) == (name == "sft_0001")
    if last != final:  # a summary that was in the thought already
        assert not is_well_formed(last, final=True) and is_well_formed(final, final=True)
        assert final.endswith(f"</think>\n<answer>\n**{record['gt']}**\n</answer>")
        assert final.split("</think>")[0].strip() == last.split("</think>")[0].strip()


def test_the_one_duplicate_call_of_a_rollout_is_found():
    messages = trajectory("rl_0008")["messages"]
    out, reason, counts = clean({"question": "Q", "messages": messages, "gt": "x"})
    assert reason is None and len(out["messages"]) == len(messages) - 2
    assert (
        counts["duplicate_tool_turns_removed"]
        == counts["duplicate_tool_response_turns_removed"]
        == 1
    )
    assert clean(trajectory("rl_0008"))[1] == "missing_question_or_gt"
