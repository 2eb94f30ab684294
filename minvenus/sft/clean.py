"""Cleans one trajectory so that it can be trained on. Three forms are read:

    raw      {meta: {question, answer}, messages, system_prompt?}      message 0 is the question
    clean    {question, messages, gt}          system, user, assistant, user, ..., assistant
    rollout  {format: "minvenus rollout ..", question, answers, messages, termination, ..}
             a line of eval.py's results.jsonl or infer.py's trajectory.json; treated as raw

    1. normalise  a raw conversation gets the form of a clean one; a turn without a readable call
                  goes, with its observation
    2. prune      a turn that calls a tool other than search and visit goes, with its observation
    3. rewrite    a turn that fails the strict checker gets the form of rewrite.py, or goes if that
                  is impossible
    4. dedup      a turn that repeats an earlier call goes; the goal of a visit does not count

A record whose messages have another order or lack their tags is dropped, with the name of the
fault. A record that comes out goes through again unchanged. The turns add up, over all records
whose messages can be read: turns_in = unreadable + pruned + duplicate + kept + dropped with their
record.

docs/cleaning.md lists where this differs from the released script, and why. This file reads no
files and judges no answers.
"""

from collections import Counter
from itertools import pairwise
from typing import Any, Literal, TypeGuard

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import ALLOWED_ARGS
from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.sft import rewrite
from minvenus.text.tokenizer import whole_characters

PromptMode = Literal["template", "row"]
REMOVALS = ("unreadable", "pruned", "duplicate")       # why a turn may go


class Fault(Exception):
    """Why a record is dropped: the name of its first fault."""


def clean(record: dict, system_prompt: str = SYSTEM_PROMPT, prompt_mode: PromptMode = "template",
          ) -> tuple[dict | None, str | None, Counter]:
    """(clean record, None, counts), or (None, reason for dropping it, counts).

    The input is not changed. prompt_mode "row" keeps a record's own system prompt. A name in
    `counts` with a "/" counts by what follows it: pruned_tool_name_counts/PythonInterpreter."""
    counts: Counter = Counter()
    result = reason = None
    try:
        result = clean_record(record, system_prompt, prompt_mode, counts)
    except Fault as fault:
        reason = str(fault)
    removed = sum(counts[f"{why}_tool_turns_removed"] for why in REMOVALS)
    counts["turns_kept" if result else "turns_dropped"] = counts["turns_in"] - removed
    return result, reason, +counts


def clean_record(record: dict, system_prompt: str, prompt_mode: PromptMode,
                 counts: Counter) -> dict:
    question, truth, raw = question_and_truth(record)
    if not (is_text(question) and is_text(truth)):
        raise Fault("missing_question_or_gt")
    if not str(record.get("termination", "answered")).startswith("answered"):
        raise Fault("not_answered")

    messages = read_messages(record, system_prompt, prompt_mode)
    if raw:
        messages = normalised(messages, counts)
    counts["turns_in"] = agent_turns(messages) + counts["unreadable_tool_turns_removed"]
    check_order(messages)
    return {
        "question": whole_characters(question),
        "messages": clean_messages(messages, counts),
        "gt": whole_characters(truth),
    }


# ------------------------------------------------------------------------------- reading a record


def question_and_truth(record: dict) -> tuple[Any, Any, bool]:
    """(the question, its true answer, whether the messages are raw), all as the record has them."""
    if str(record.get("format")).startswith("minvenus rollout"):
        answers = map(str, record.get("answers") or [])
        return record.get("question"), ALIAS_MARK.join(answers), True
    meta = record.get("meta")
    if isinstance(meta, dict) and "gt" not in record:
        return meta.get("question"), meta.get("answer"), True
    return record.get("question"), record.get("gt"), False


def is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def read_messages(record: dict, system_prompt: str, prompt_mode: PromptMode) -> list[dict]:
    """The messages with role and content only, a system message first."""
    listed = record.get("messages")
    if not isinstance(listed, list):
        listed = []
    row_prompt = record.get("system_prompt")
    if listed and isinstance(listed[0], dict) and listed[0].get("role") == "system":
        row_prompt = listed[0].get("content")
        listed = listed[1:]
    if prompt_mode == "row" and is_text(row_prompt):
        system_prompt = row_prompt

    messages = []
    for i, message in enumerate([{"role": "system", "content": system_prompt}, *listed]):
        if not isinstance(message, dict):
            raise Fault("non_dict_message")
        content = message.get("content")
        if not isinstance(content, str):
            raise Fault(f"non_str_content_at_{i}")
        messages.append({"role": message.get("role"), "content": whole_characters(content)})
    return messages


def agent_turns(messages: list[dict]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def normalised(messages: list[dict], counts: Counter) -> list[dict]:
    """A raw conversation in the form of a clean one: system prompt, question, pairs of a turn and
    its observation, answer.

    A message without a partner goes; so does a turn without a readable call, with its observation.
    """
    if len(messages) < 3:
        raise Fault("raw_clean_failed")
    system, question, *middle, last = messages
    answer = rewrite.answer_turn(rewrite.lower_tags(last["content"]))
    if answer is None or any(message["role"] not in ("user", "assistant") for message in middle):
        raise Fault("raw_clean_failed")

    pairs = []
    for turn, following in pairwise(middle):
        if (turn["role"], following["role"]) == ("assistant", "user"):
            text = rewrite.first_call_turn(rewrite.lower_tags(turn["content"]))
            observation = rewrite.wrapped_observation(following["content"])
            if text:
                pairs += [turn | {"content": text}, following | {"content": observation}]
    turns = agent_turns(middle)
    observations = len(middle) - turns
    counts["unreadable_tool_turns_removed"] = turns - len(pairs) // 2
    counts["unreadable_tool_response_turns_removed"] = observations - len(pairs) // 2
    answered = {"role": "assistant", "content": answer}
    return [system, question | {"role": "user"}, *pairs, answered]


# ------------------------------------------------------------------------ prune, rewrite and dedup


def clean_messages(messages: list[dict], counts: Counter) -> list[dict]:
    """The messages as they are trained on. A turn that goes takes its observation with it, and both
    are counted."""
    cleaned = messages[:2]
    signatures = set()                           # of the calls so far
    for i in range(2, len(messages) - 1, 2):
        turn, removal = clean_turn(messages[i]["content"], counts)
        signature = signature_of(turn)
        if not removal and signature in signatures:
            removal = "duplicate"
        if removal:
            counts[f"{removal}_tool_turns_removed"] += 1
            counts[f"{removal}_tool_response_turns_removed"] += 1
            continue
        signatures.add(signature)
        observation = messages[i + 1]["content"]
        if "<tool_response>" not in observation or "</tool_response>" not in observation:
            raise Fault(f"user_missing_tool_response_at_{i + 1}")
        if not rewrite.is_wrapped(observation):
            observation = rewrite.wrapped_observation(observation)
        cleaned.append({"role": "assistant", "content": turn})
        cleaned.append({"role": "user", "content": observation})
    cleaned.append({"role": "assistant", "content": clean_answer(messages[-1]["content"])})
    return cleaned


def clean_turn(text: str, counts: Counter) -> tuple[str, str | None]:
    """(a turn with a call as it is trained on, why it goes or None)."""
    lowered = rewrite.lower_tags(text)
    calls = rewrite.read_calls(lowered)
    others = [call["name"] for call in calls if call and rewrite.tool_of(call) not in ALLOWED_ARGS]
    if others:
        counts.update(f"pruned_tool_name_counts/{name}" for name in others)
        return text, "pruned"
    check_tags(lowered, final=False)
    if rewrite.is_trainable(text, final=False):
        return text, None
    turn = rewrite.call_turn(lowered)
    return (turn, None) if turn else (text, "unreadable")


def clean_answer(text: str) -> str:
    """The last turn as it is trained on."""
    lowered = rewrite.lower_tags(text)
    check_tags(lowered, final=True)
    if rewrite.is_trainable(text, final=True):
        return text
    answer = rewrite.answer_turn(lowered)
    if answer is None:
        raise Fault("final_answer_unusable")
    return answer


def signature_of(text: str) -> tuple | None:
    """The tool of a turn's call and its queries or addresses; None if there are none."""
    call = rewrite.first_call(rewrite.lower_tags(text))
    texts = {target.strip() for target in rewrite.targets(call)}
    return (rewrite.tool_of(call), frozenset(texts)) if texts else None


# -------------------------------------------------------------------------------------- validation


def check_order(messages: list[dict]) -> None:
    """System prompt, question, turn, observation, ..., answer."""
    if len(messages) < 3:
        raise Fault("too_short")
    for i, message in enumerate(messages[1:], start=1):
        if message["role"] != ("user" if i % 2 else "assistant"):
            raise Fault(f"bad_role_at_{i}")
    if len(messages) % 2 == 0:
        raise Fault("last_message_not_assistant")
    if "<tool_response>" in messages[1]["content"]:
        raise Fault("first_user_contains_tool_response")


def check_tags(text: str, final: bool) -> None:
    """A turn thinks, then it calls or, at the end, answers."""
    thought, call, answer = (rewrite.blocks(text, tag) for tag in ("think", "tool_call", "answer"))
    faults = {
        "assistant_missing_think": not thought,
        "final_assistant_missing_answer": final and not answer,
        "final_assistant_contains_tool": final and call,
        "assistant_missing_tool_call": not final and not call,
        "assistant_tool_turn_contains_answer": not final and answer,
    }
    for name, is_fault in faults.items():
        if is_fault:
            raise Fault(name)
