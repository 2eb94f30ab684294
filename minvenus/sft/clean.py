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
    5. validate   roles, tags and order; a record that fails is dropped, with the name of the fault

A record that comes out goes through again unchanged. The turns add up, over all records whose
messages can be read: turns_in = unreadable + pruned + duplicate + kept + dropped with their record.

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
from minvenus.text.json_repair import whole_characters

PromptMode = Literal["template", "row"]


def clean(record: dict, system_prompt: str = SYSTEM_PROMPT, prompt_mode: PromptMode = "template",
          ) -> tuple[dict | None, str | None, Counter]:
    """(clean record, None, counts), or (None, reason for dropping it, counts).

    The input is not changed. prompt_mode "row" keeps a record's own system prompt. A name in
    `counts` with a "/" counts by what follows it: pruned_tool_name_counts/PythonInterpreter."""
    counts: Counter = Counter()
    question, truth, raw = question_and_truth(record)
    if not (is_text(question) and is_text(truth)):
        return None, "missing_question_or_gt", counts
    if not str(record.get("termination", "answered")).startswith("answered"):
        return None, "not_answered", counts

    messages, fault = read_messages(record, system_prompt, prompt_mode)
    if raw:
        messages = normalised(messages, counts)
        fault = None if messages else "raw_clean_failed"
    if fault:
        return None, fault, counts

    counts["turns_in"] = agent_turns(messages) + counts["unreadable_tool_turns_removed"]
    messages = clean_messages(messages, counts)
    fault = validate(messages)
    counts["turns_dropped" if fault else "turns_kept"] = agent_turns(messages)
    if fault:
        return None, fault, +counts

    result = {
        "question": whole_characters(question),
        "messages": messages,
        "gt": whole_characters(truth),
    }
    return result, None, +counts


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


def read_messages(record: dict, system_prompt: str, prompt_mode: PromptMode,
                  ) -> tuple[list[dict], str | None]:
    """(the messages with role and content only, a system message first; None), or (nothing, the
    name of a fault)."""
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
            return [], "non_dict_message"
        content = message.get("content")
        if not isinstance(content, str):
            return [], f"non_str_content_at_{i}"
        messages.append({"role": message.get("role"), "content": whole_characters(content)})
    return messages, None


def agent_turns(messages: list[dict]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def normalised(messages: list[dict], counts: Counter) -> list[dict]:
    """A raw conversation in the form of a clean one: system prompt, question, pairs of a turn and
    its observation, answer. Empty if the record cannot be used at all.

    A message without a partner goes; so does a turn without a readable call, with its observation.
    """
    if len(messages) < 3:
        return []
    system, question, *middle, last = messages
    answer = rewrite.answer_turn(rewrite.lower_tags(last["content"]))
    if answer is None or any(message["role"] not in ("user", "assistant") for message in middle):
        return []

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
    """The messages without the turns that go and the observations after them, which are counted."""
    cleaned = messages[:2]
    signatures: set[tuple] = set()               # of the calls so far
    removal = None                               # why the turn before this message went, if it did
    last = len(messages) - 1
    for i, message in enumerate(messages[2:], start=2):
        role, text = message["role"], message["content"]
        if role == "assistant":
            text, removal = clean_turn(text, i == last, counts)
            signature = signature_of(text)
            if signature and not removal:
                removal = "duplicate" if signature in signatures else None
                signatures.add(signature)
            if removal:
                counts[f"{removal}_tool_turns_removed"] += 1
                continue
        elif role == "user":
            if removal and "<tool_response>" in text:
                counts[f"{removal}_tool_response_turns_removed"] += 1
                continue
            if not (user_fault(text, i) or rewrite.is_wrapped(text)):
                text = rewrite.wrapped_observation(text)
        cleaned.append({"role": role, "content": text})
    return cleaned


def clean_turn(text: str, final: bool, counts: Counter) -> tuple[str, str | None]:
    """(the turn as it is trained on, why it goes or None).

    A turn that the validation refuses stays as it is, so that the fault gets its name."""
    lowered = rewrite.lower_tags(text)
    calls = rewrite.read_calls(lowered)
    others = [call["name"] for call in calls if call and rewrite.tool_of(call) not in ALLOWED_ARGS]
    if others:
        counts.update(f"pruned_tool_name_counts/{name}" for name in others)
        return text, "pruned"

    if turn_fault(lowered, final) or rewrite.is_trainable(text, final):
        return text, None
    if final:
        return rewrite.answer_turn(lowered) or text, None
    turn = rewrite.call_turn(lowered)
    return (turn, None) if turn else (text, "unreadable")


def signature_of(text: str) -> tuple | None:
    """The tool of a turn's call and its queries or addresses; None if there are none."""
    call = rewrite.first_call(rewrite.lower_tags(text))
    texts = {target.strip() for target in rewrite.targets(call)}
    return (rewrite.tool_of(call), frozenset(texts)) if texts else None


# -------------------------------------------------------------------------------------- validation


def validate(messages: list[dict]) -> str | None:
    """The name of the first fault, in the order of the messages; None if there is none."""
    if len(messages) < 3:
        return "too_short"
    last = len(messages) - 1
    for i, message in enumerate(messages[1:], start=1):
        content = message["content"]
        if message["role"] != ("user" if i % 2 else "assistant"):
            return f"bad_role_at_{i}"
        if i % 2:
            fault = user_fault(content, i)
        else:
            fault = turn_fault(rewrite.lower_tags(content), i == last)
        if fault:
            return fault

    if last % 2:
        return "last_message_not_assistant"
    if not rewrite.is_trainable(messages[last]["content"], final=True):
        return "final_answer_unusable"
    return None


def user_fault(content: str, i: int) -> str | None:
    if i == 1:
        return "first_user_contains_tool_response" if "<tool_response>" in content else None
    if "<tool_response>" not in content or "</tool_response>" not in content:
        return f"user_missing_tool_response_at_{i}"
    return None


def turn_fault(text: str, final: bool) -> str | None:
    has_call = bool(rewrite.blocks(text, "tool_call"))
    has_answer = bool(rewrite.blocks(text, "answer"))
    if not rewrite.blocks(text, "think"):
        return "assistant_missing_think"
    if final:
        if not has_answer:
            return "final_assistant_missing_answer"
        return "final_assistant_contains_tool" if has_call else None
    if not has_call:
        return "assistant_missing_tool_call"
    return "assistant_tool_turn_contains_answer" if has_answer else None
