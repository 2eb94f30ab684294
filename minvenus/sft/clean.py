"""Cleans one trajectory, raw or clean, so that it can be trained on.

    raw    {meta: {question, answer}, messages, system_prompt?}     message 0 is the question; no system message
    clean  {question, messages, gt}                                 system, user, assistant, user, ..., assistant
    other forms, such as our own rollouts, become raw first         (formats.py)

    1. prune    a turn with a call of a tool other than search and visit goes, with its observation
    2. rewrite  every raw turn, and every clean one that fails the strict checker, gets the form of rewrite.py, or goes
                if that is impossible
    3. dedup    a turn that repeats an earlier call goes; the goal of a visit does not count
    4. validate roles, tags and order; a record that fails is dropped, with the name of the fault

A record that comes out goes through again unchanged. The turns add up, over all records whose messages can be read:
turns_in = unreadable + pruned + duplicate + kept + dropped with their record.

docs/cleaning.md lists where this differs from the released script, and why. This file reads no files and judges no
answers.
"""

from collections import Counter
from itertools import pairwise
from typing import Literal

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import ALLOWED_ARGS, parse_turn, whole_characters
from minvenus.sft import rewrite
from minvenus.sft.formats import as_raw
from minvenus.text.chat import CLOSE, OPEN

PromptMode = Literal["template", "row"]
COPIES = {"<=50": 1, "51-100": 2, ">100": 5}         # bucket of turns -> how often a trajectory is written


def clean(record: dict, system_prompt: str = SYSTEM_PROMPT,
          prompt_mode: PromptMode = "template") -> tuple[dict | None, str | None, Counter]:
    """(clean record, None, counts), or (None, reason for dropping it, counts). The input is not changed.

    prompt_mode "row" keeps a record's own system prompt. A name in `counts` with a "/" counts by what follows it,
    such as pruned_tool_name_counts/PythonInterpreter."""
    counts: Counter = Counter()
    record = as_raw(record)
    raw = isinstance(record.get("meta"), dict) and "gt" not in record
    source = record["meta"] if raw else record
    question, gt = source.get("question"), source.get("answer" if raw else "gt")
    if not (isinstance(question, str) and question.strip() and isinstance(gt, str) and gt.strip()):
        return None, "missing_question_or_gt", counts
    if not str(record.get("termination", "answered")).startswith("answered"):
        return None, "not_answered", counts
    messages, reason = read_messages(record, system_prompt, prompt_mode)
    if raw:
        messages = paired(messages, counts)
        reason = None if messages else "raw_clean_failed"
    if reason:
        return None, reason, counts
    counts["turns_in"] = agent_turns(messages) + counts["unreadable_tool_turns_removed"]
    messages = clean_messages(messages, raw, counts)
    reason = validate(messages)
    counts["turns_dropped" if reason else "turns_kept"] = agent_turns(messages)
    if reason:
        return None, reason, +counts
    counts.update(f"tools_after_cleaning/{parse_turn(turn['content']).kind}" for turn in messages[2:-1:2])
    return {"question": whole_characters(question), "messages": messages, "gt": whole_characters(gt)}, None, +counts


def copies(turns: int) -> int:
    """How often a trajectory is written: long ones are rare and hard, so the model sees them more often. `turns` are
    agent messages, the answer included."""
    if turns < 1:
        raise ValueError(f"a trajectory has at least one turn, got {turns}")
    return COPIES[bucket(turns)]


def bucket(turns: int) -> str:
    return "<=50" if turns <= 50 else "51-100" if turns <= 100 else ">100"


# ------------------------------------------------------------------------------------------------------------- messages


def read_messages(record: dict, system_prompt: str, prompt_mode: PromptMode) -> tuple[list[dict], str | None]:
    """(the messages with role and content only, a system message first; None), or (nothing, the name of a fault)."""
    found = record.get("messages")
    found = found if isinstance(found, list) else []
    own_prompt = record.get("system_prompt")
    if found and isinstance(found[0], dict) and found[0].get("role") == "system":
        own_prompt = found[0].get("content")
        found = found[1:]
    if prompt_mode == "row" and isinstance(own_prompt, str) and own_prompt.strip():
        system_prompt = own_prompt
    messages = []
    for i, message in enumerate([{"role": "system", "content": system_prompt}, *found]):
        if not isinstance(message, dict):
            return [], "non_dict_message"
        if not isinstance(message.get("content"), str):
            return [], f"non_str_content_at_{i}"
        messages.append({"role": message.get("role"), "content": whole_characters(message["content"])})
    return messages, None


def agent_turns(messages: list[dict]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def paired(messages: list[dict], counts: Counter) -> list[dict]:
    """A raw conversation as system prompt, question, pairs of turn and observation, answer: what has no partner goes.
    Nothing if the row cannot be used at all."""
    middle = messages[2:-1]
    answer = rewrite.answer_turn(rewrite.lower_tags(messages[-1]["content"])) if len(messages) > 2 else None
    if answer is None or any(message["role"] not in ("user", "assistant") for message in middle):
        return []
    pairs = []
    for turn, following in pairwise(middle):
        if (turn["role"], following["role"]) == ("assistant", "user"):
            pairs += [turn, following]
    counts["unreadable_tool_turns_removed"] = agent_turns(middle) - len(pairs) // 2
    counts["unreadable_tool_response_turns_removed"] = len(middle) - agent_turns(middle) - len(pairs) // 2
    counts["messages_repaired"] += answer != messages[-1]["content"]
    return [messages[0], messages[1] | {"role": "user"}, *pairs, {"role": "assistant", "content": answer}]


def clean_messages(messages: list[dict], raw: bool, counts: Counter) -> list[dict]:
    """Steps 1 to 3: without the turns that go and the observations directly after them. All of it is counted."""
    kept = messages[:2]
    seen: set[tuple] = set()
    removed = None                                           # why the turn before this message went, if it did
    for i, message in enumerate(messages[2:], start=2):
        role, text = message["role"], message["content"]
        if role == "assistant":
            text, removed = clean_turn(text, i == len(messages) - 1, raw, seen, counts)
            if removed:
                counts[f"{removed}_tool_turns_removed"] += 1
                continue
        elif removed and role == "user" and (raw or "<tool_response>" in text):
            counts[f"{removed}_tool_response_turns_removed"] += 1
            continue
        elif role == "user" and (raw or not (user_fault(text, i) or is_wrapped(text))):
            text = rewrite.wrapped_observation(text, parse_turn(kept[-1]["content"]).kind == "search")
        removed = None
        counts["messages_repaired"] += text != message["content"]
        kept.append({"role": role, "content": text})
    return kept


def clean_turn(text: str, final: bool, raw: bool, seen: set[tuple], counts: Counter) -> tuple[str, str | None]:
    """(the turn as it is trained on, why it goes or None). `seen` are the calls before it. A clean turn that the
    validation refuses stays as it is, so that the fault gets its name."""
    lowered = rewrite.lower_tags(text)
    made = rewrite.calls(lowered)[:1 if raw else None]               # only the first one of a raw turn stays
    others = [call["name"] for call in made if call and rewrite.tool_of(call) not in ALLOWED_ARGS]
    if others:
        counts.update(f"pruned_tool_name_counts/{name}" for name in others)
        return text, "pruned"
    if raw or (not turn_fault(lowered, final) and not rewrite.is_trainable(text, final)):
        repaired = rewrite.answer_turn(lowered) if final else rewrite.call_turn(lowered)
        if not repaired and not final:
            return text, "unreadable"
        text = repaired or text
    call = next(iter(made), None)
    if call and rewrite.targets(call):
        signature = (rewrite.tool_of(call), *sorted({target.strip() for target in rewrite.targets(call)}))
        if signature in seen:
            return text, "duplicate"
        seen.add(signature)
    return text, None


# ----------------------------------------------------------------------------------------------------------- validation


def validate(messages: list[dict]) -> str | None:
    """The name of the first rule that a trajectory breaks, or None."""
    if len(messages) < 3:
        return "too_short"
    for i, message in enumerate(messages[1:], start=1):
        if message["role"] != ("user" if i % 2 else "assistant"):
            return f"bad_role_at_{i}"
    for i, message in enumerate(messages[1:], start=1):
        content, final = message["content"], i == len(messages) - 1
        error = user_fault(content, i) if i % 2 else turn_fault(rewrite.lower_tags(content), final)
        if error:
            return error
    if len(messages) % 2 == 0:
        return "last_message_not_assistant"
    return None if rewrite.is_trainable(messages[-1]["content"], final=True) else "final_answer_unusable"


def user_fault(content: str, i: int) -> str | None:
    if i == 1:
        return "first_user_contains_tool_response" if "<tool_response>" in content else None
    both = "<tool_response>" in content and "</tool_response>" in content
    return None if both else f"user_missing_tool_response_at_{i}"


def is_wrapped(text: str) -> bool:
    return text.startswith(OPEN) and text.endswith(CLOSE) and len(text) >= len(OPEN) + len(CLOSE)


def turn_fault(text: str, final: bool) -> str | None:
    has_call, has_answer = bool(rewrite.bodies(text, "tool_call")), bool(rewrite.bodies(text, "answer"))
    if not rewrite.bodies(text, "think"):
        return "assistant_missing_think"
    if final and not has_answer:
        return "final_assistant_missing_answer"
    if final:
        return "final_assistant_contains_tool" if has_call else None
    if not has_call:
        return "assistant_missing_tool_call"
    return "assistant_tool_turn_contains_answer" if has_answer else None
