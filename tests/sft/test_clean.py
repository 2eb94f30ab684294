"""Cleaning of whole records: each rule on a case worked by hand, then properties over random
conversations."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import format_error, parse_turn
from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.sft.clean import clean
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

PYTHON = think("compute") + call("PythonInterpreter")
TINY = Tokenizer.tiny()
REMOVED = [f"{why}_tool_turns_removed" for why in ("unreadable", "pruned", "duplicate")]


# ----------------------------------------------------------------------------------- worked by hand


def test_a_good_record_changes_only_in_its_system_prompt():
    record = conversation(
        "Where?", search_turn("a"), observation(), visit_turn("u"), observation(), answer_of()
    ) | {"meta": {"source": "elsewhere"}}
    before = copy.deepcopy(record)
    out, reason, counts = clean(record)
    assert record == before, "the input is not changed"
    assert reason is None and contents(out) == [SYSTEM_PROMPT, *contents(record)[1:]]
    assert counts == {"turns_in": 3, "turns_kept": 3}


def test_the_system_prompt_is_replaced_added_or_kept():
    def prompt(record, mode="row"):
        return contents(clean(record, "Mine.", mode)[0])[0]

    record = conversation("Where?", answer_of())
    assert prompt(record, "template") == "Mine." and prompt(record) == "Be good."
    assert prompt(record | {"messages": record["messages"][1:]}) == "Mine."
    row = raw("Where?", answer_of()) | {"system_prompt": "Row's own."}
    assert prompt(row) == "Row's own."
    row["messages"].insert(0, {"role": "system", "content": "Own."})  # a prompt, not the question
    assert contents(clean(row, prompt_mode="row")[0]) == ["Own.", "Where?", answer_of()]


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
    }


def test_one_wrong_call_among_several_removes_a_clean_turn_and_is_ignored_in_a_raw_one():
    both = think("two") + call("search", query=["a"]) + call("maps") + call("python") + call("maps")
    out, _, counts = clean(conversation("Where?", both, observation(), answer_of()))
    assert len(out["messages"]) == 3 and counts["pruned_tool_turns_removed"] == 1
    assert [counts[f"pruned_tool_name_counts/{name}"] for name in ("maps", "python")] == [2, 1]
    out, _, _ = clean(raw("Where?", both, observation(), answer_of()))
    assert contents(out)[2] == search_turn("a", thought="two")


ADDRESSES = [{"links": ["u", "u"]}, {"page": " u "}, {"query": "u"}, {"url": [], "uri": "u"}]
ADDRESSES += [{name: "u"} for name in ("urls", "uris", "link", "pages", "queries")]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (search_turn("a"), search_turn("a", thought="again"), True),
        (search_turn("a", "b"), search_turn("b", " a ", "b"), True),  # order, repeats and blanks
        (search_turn("a", "b"), search_turn("a"), False),
        (search_turn("a"), search_turn("A"), False),
        (visit_turn("u", goal="one"), visit_turn("u", goal="two"), True),
        (search_turn("u"), visit_turn("u"), False),
        (search_turn("a"), think("x") + call("Search", query=["a", " "]), True),
        *(
            (visit_turn("u"), think("x") + call("Visit", **address, goal="g"), True)
            for address in ADDRESSES
        ),
    ],
)
def test_what_counts_as_a_duplicate(first, second, same):
    start = [first, observation("1"), search_turn("between"), observation()]
    record = conversation("Where?", *start, second, observation("2"), answer_of())
    out, _, counts = clean(record)
    assert counts["duplicate_tool_turns_removed"] == same
    rest = [] if same else [second, observation("2")]
    assert contents(out)[2:] == [*start, *rest, answer_of()]


MIDDLE = (search_turn("a"), observation())
GOOD = conversation("Where?", *MIDDLE, answer_of())["messages"]


def of(*texts):
    return conversation(*texts)["messages"]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (GOOD, None),
        (GOOD[1:], None),  # a system prompt is added
        (of("Q", *MIDDLE, think("x") + "<answer>a <answer>b</answer>"), None),  # is repaired
        (GOOD[:2], "too_short"),
        ([*GOOD[:2], "text", *GOOD[3:]], "non_dict_message"),  # raw or clean
        ([*GOOD[:2], GOOD[3], *GOOD[3:]], "bad_role_at_2"),
        ([*GOOD[:3], {"role": "tool", "content": "x"}, GOOD[4]], "bad_role_at_3"),
        ([*GOOD[:3], {"role": "user", "content": None}, GOOD[4]], "non_str_content_at_3"),
        (of(observation(), *MIDDLE, answer_of()), "first_user_contains_tool_response"),
        (of("Q", search_turn("a"), "bare", answer_of()), "user_missing_tool_response_at_3"),
        (of("Q", MIDDLE[0], "<tool_response>", answer_of()), "user_missing_tool_response_at_3"),
        (of("Q", "no thought", observation(), answer_of()), "assistant_missing_think"),
        (of("Q", *MIDDLE, "<THINK>x</THINK>"), "final_assistant_missing_answer"),
        (of("Q", *MIDDLE, answer_of() + call("search")), "final_assistant_contains_tool"),
        (of("Q", think("x"), observation(), answer_of()), "assistant_missing_tool_call"),
        (
            of("Q", search_turn("a") + "<answer>x</answer>", observation(), answer_of()),
            "assistant_tool_turn_contains_answer",
        ),
        (of("Q", *MIDDLE), "last_message_not_assistant"),
        (of("Q", PYTHON, "bare", answer_of()), None),  # goes with the turn before it
        (of("Q", call("python"), observation(), answer_of()), None),  # goes, whatever it lacks
        (of("Q", *MIDDLE, think(" ") + "<answer>a</answer>"), "final_answer_unusable"),
    ],
)
def test_every_fault_has_its_name(messages, reason):
    assert clean({"question": "Q", "messages": messages, "gt": "x"})[1] == reason


ROLLOUT = {"format": "minvenus rollout 2", "question": "Where?", "termination": "answered"}
ROLLOUT |= {"answers": ["Rome", "Roma"], "messages": GOOD}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"question": "Q", "messages": GOOD, "gt": " "},
        {"question": 3, "messages": GOOD, "gt": "x"},
        {"meta": {"question": "Q"}, "messages": GOOD},
        {"meta": "Q", "messages": GOOD},
        *(ROLLOUT | {"answers": answers} for answers in (None, [""])),
    ],
)
def test_a_record_without_question_or_truth_is_dropped(record):
    assert clean(record) == (None, "missing_question_or_gt", {})


def test_a_rollout_of_our_own_is_cleaned_like_a_raw_record_if_it_ended_with_an_answer():
    malformed = (think("What now?"), observation("ERROR"))
    record = ROLLOUT | {"messages": of("Where?", *malformed, *MIDDLE, answer_of())}
    out, reason, counts = clean(record, prompt_mode="row")
    assert reason is None and out["question"] == "Where?" and out["gt"] == f"Rome{ALIAS_MARK}Roma"
    assert contents(out) == ["Be good.", "Where?", *MIDDLE, answer_of()]
    assert counts["turns_in"] == 3 and counts["unreadable_tool_turns_removed"] == 1
    assert clean(record | {"termination": "answered_max_steps"})[1] is None
    for termination in ("max_steps", "error"):
        assert clean(record | {"termination": termination}) == (None, "not_answered", {})


def test_halves_of_surrogate_pairs_are_replaced_everywhere():
    escaped = '<tool_call>{"name": "search", "arguments": {"query": ["a\\ud83d"]}}</tool_call>'
    record = raw(
        "Where \ud83d?", think("x") + escaped, observation("\udc00"), answer_of("Ro\ud83dme")
    )
    record["meta"]["answer"] = "\ud83d"
    out, _, _ = clean(record)
    assert (out["question"], out["gt"]) == ("Where \ufffd?", "\ufffd")
    assert contents(out)[1:] == [
        "Where \ufffd?",
        search_turn("a\ufffd", thought="x"),
        observation("\ufffd"),
        answer_of("Ro\ufffdme"),
    ]


# --------------------------------------------------------------------------------------- properties


@given(records(), st.sampled_from(["template", "row"]))
def test_what_comes_out_can_be_trained_on_and_goes_through_again_unchanged(record, mode):
    before = copy.deepcopy(record)
    out, reason, _ = clean(record, prompt_mode=mode)
    assert record == before and (out is None) == (reason is not None)
    if out is None:
        return
    again, reason, more = clean(out, prompt_mode=mode)
    assert (again, reason) == (out, None) and more["turns_in"] == more["turns_kept"]
    assert list(out) == ["question", "messages", "gt"]
    *turns, answer = contents(out)[2::2]
    assert all(not format_error(turn, final=False) for turn in turns)
    assert not format_error(answer, final=True) and parse_turn(answer).kind == "answer"
    assert {parse_turn(turn).kind for turn in turns} <= {"search", "visit"}
    one = encode(out, TINY)
    assert int((one.tokens[one.sampled] == TINY.im_end).sum()) == len(turns) + 1
    assert one.tokens[-1] == TINY.im_end and one.sampled[-1]


@given(records())
def test_every_turn_of_the_input_is_accounted_for(record):
    out, reason, counts = clean(record)
    removed = sum(counts[name] for name in REMOVED)
    assert counts["turns_in"] == removed + counts["turns_kept"] + counts["turns_dropped"]
    assert counts["turns_kept"] == (0 if out is None else len(out["messages"]) // 2)
    assert all(count > 0 for count in counts.values())

    unread = ("missing_question_or_gt", "raw_clean_failed", "non_dict_message", "non_str_content")
    if str(reason).startswith(unread) or not isinstance(record.get("messages"), list):
        return
    roles = [message["role"] for message in record["messages"]]
    if "meta" in record:  # its first message is the question and its last the answer
        roles = [*roles[1:-1], "assistant"]
    assert counts["turns_in"] == roles.count("assistant")


# -------------------------------------------------------------------------------- real trajectories

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "trajectories"
TURNS = {"sft_0000": 25, "sft_0001": 18, "sft_0007": 44}


@pytest.mark.parametrize("form", ["clean", "raw"])
@pytest.mark.parametrize("name", TURNS)
def test_real_trajectories_pass_with_all_their_turns_and_one_nested_answer_is_repaired(name, form):
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the trajectory is not at {path}")
    record = source = json.loads(path.read_text(encoding="utf-8"))
    if form == "raw":
        meta = {"question": record["question"], "answer": record["gt"]}
        source = {"meta": meta, "messages": record["messages"][1:]}
    out, reason, counts = clean(source, prompt_mode="row")
    assert reason is None and counts["turns_in"] == counts["turns_kept"] == TURNS[name]
    *before, last = contents(record)
    *after, final = contents(out)
    assert after[1:] == before[1:] and (form == "raw" or after[0] == before[0])
    assert (last != final) == (name == "sft_0001")
    if last != final:  # a summary that was in the thought already
        assert format_error(last, final=True) and not format_error(final, final=True)
        assert final.endswith(f"</think>\n<answer>\n**{record['gt']}**\n</answer>")
        assert final.split("</think>")[0].strip() == last.split("</think>")[0].strip()
