r"""Cleans one trajectory, raw or clean, so that it can be trained on.

    raw    {meta: {question, answer}, messages, system_prompt?}     message 0 is the question; no system message
    clean  {question, messages, gt}                                 system, user, assistant, user, ..., assistant

    1. raw      every turn is rewritten as `<think>\n..\n</think>\n<tool_call>\n{json}\n</tool_call>` (or `<answer>`)
    2. prune    a turn with a call of a tool other than search and visit goes, with its observation
    3. repair   a turn that fails the strict checker is rewritten as in 1; if that is impossible, it goes
    4. dedup    a turn that repeats an earlier call goes; the goal of a visit does not count
    5. validate roles, tags and order; a record that fails is dropped, with the name of the fault

A record that comes out goes through again unchanged. The turns add up, over all records that step 1 can read:
turns_in = unreadable + pruned + duplicate + kept + dropped with their record.

Where this differs from the released script, and why:

    released script                                     here                        because
    raw message 0 is the question, whatever its role    a system message before     it is a prompt
                                                        it is the row's prompt
    an observation goes to the last call that was       a call and the message      an unreadable call's observation
    kept; two calls in a row drop the record            after it stay together,     would answer another one; the
                                                        or both go                  record itself is good
    a text with "Web Results" becomes a list of         only after a search, and    a page that says so would become an
    results                                             only if some can be read    empty list
    first call of the turn                              first call after the        the thought may mention a call
                                                        thought, else as there
    answer and summary tags leave the thought           all five tags do            they would become control tokens
    text after the first <answer>; a summary is         text after the last one;    nested answers fail the strict check
    copied into the thought                             a summary moves, once
    `Search` stays as it is                             `search`                    the agent's loop runs no other name
    blank queries and goals stay                        blank queries leave the     the loop refuses such a call
                                                        call; a call without any,
                                                        or a blank goal, goes
    visit of `uri`, `link`, `page`, `query`: raw turn   becomes `url`               the address is there
    goes, clean turn stays
    a PythonInterpreter call with arguments is skipped  counted as pruned           every removed turn has a reason
    clean records: other faults that the validation     repaired as raw turns are,  token streams are built from strict
    does not see stay (two calls, text outside tags)    counted                     turns only
    clean records: text around a tool_response stays    moves inside                the template would take it for a new
                                                                                    question and drop earlier thoughts
    clean records: an empty last thought stays          dropped                     it cannot be rendered
    a record may end with an observation                dropped                     nothing answers it

This file reads no files and judges no answers.
"""

from collections import Counter
from typing import Literal

from minvenus.agent.prompt import SYSTEM_PROMPT
from minvenus.agent.protocol import parse_turn, whole_characters
from minvenus.sft.turns import (
    ALLOWED_TOOLS,
    answer_turn,
    blocks,
    call_turn,
    calls,
    is_trainable,
    targets,
    tool_of,
    wrapped_observation,
)
from minvenus.text.chat import CLOSE, OPEN

PromptMode = Literal["template", "row"]
COPIES = {"<=50": 1, "51-100": 2, ">100": 5}         # bucket of turns -> how often a trajectory is written


def clean(record: dict, system_prompt: str = SYSTEM_PROMPT,
          prompt_mode: PromptMode = "template") -> tuple[dict | None, str | None, Counter]:
    """(clean record, None, counts), or (None, reason for dropping it, counts). The input is not changed.

    prompt_mode "row" keeps a record's own system prompt. A name in `counts` with a "/" counts by what follows it,
    such as pruned_tool_name_counts/PythonInterpreter."""
    counts: Counter = Counter()
    raw = isinstance(record.get("meta"), dict) and "gt" not in record
    source = record["meta"] if raw else record
    question, gt = source.get("question"), source.get("answer" if raw else "gt")
    if not (isinstance(question, str) and question.strip() and isinstance(gt, str) and gt.strip()):
        return None, "missing_question_or_gt", counts
    messages, own_prompt = plain_messages(record)
    if raw:
        messages = raw_messages(messages, counts)
        if not messages:
            return None, "raw_clean_failed", counts
    counts["rows_normalized"] = 1
    counts["turns_in"] = agent_turns(messages) + counts["unreadable_tool_turns_removed"]
    messages = remove_duplicates(repair(prune_tools(messages, counts), counts), counts)
    prompt = own_prompt if own_prompt and prompt_mode == "row" else system_prompt
    messages = [{"role": "system", "content": prompt}, *messages]
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


def plain_messages(record: dict) -> tuple[list, str | None]:
    """The messages after the system message, with role and content only, and the record's own system prompt, if any.
    Anything odd stays for `validate` to name."""
    found = record.get("messages")
    messages = []
    for message in found if isinstance(found, list) else []:
        if isinstance(message, dict):
            content = message.get("content")
            message = {"role": message.get("role"),
                       "content": whole_characters(content) if isinstance(content, str) else content}
        messages.append(message)
    prompt = record.get("system_prompt")
    if messages and role(messages[0]) == "system":
        prompt = messages.pop(0)["content"]
    return messages, whole_characters(prompt) if isinstance(prompt, str) and prompt.strip() else None


def role(message) -> str | None:
    return message.get("role") if isinstance(message, dict) else None


def text_of(message) -> str:
    """The content of a message; empty for anything that is not a message with a text."""
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


def is_wrapped(text: str) -> bool:
    return text.startswith(OPEN) and text.endswith(CLOSE) and len(text) >= len(OPEN) + len(CLOSE)


def agent_turns(messages: list) -> int:
    return sum(role(message) == "assistant" for message in messages)


def raw_messages(messages: list, counts: Counter) -> list[dict]:
    """The question, pairs of call and observation, the answer; nothing if the row cannot be used at all."""
    texts = all(isinstance(message, dict) and isinstance(message["content"], str) for message in messages)
    if len(messages) < 2 or not texts or any(role(message) not in ("user", "assistant") for message in messages[1:-1]):
        return []
    answer = answer_turn(messages[-1]["content"])
    if answer is None:
        return []
    kept = [{"role": "user", "content": messages[0]["content"]}]
    call = None                                              # the last turn, if it waits for its observation
    for message in messages[1:-1]:
        if message["role"] == "assistant":
            counts["unreadable_tool_turns_removed"] += call is not None
            call = call_turn(message["content"])
            counts["unreadable_tool_turns_removed"] += call is None
        elif call is None:
            counts["unreadable_tool_response_turns_removed"] += 1
        else:
            searched = "search" in map(tool_of, calls(call))
            kept += [{"role": "assistant", "content": call},
                     {"role": "user", "content": wrapped_observation(message["content"], searched)}]
            call = None
    counts["unreadable_tool_turns_removed"] += call is not None
    return [*kept, {"role": "assistant", "content": answer}]


# -------------------------------------------------------------------------------------------------------- whole records


def prune_tools(messages: list, counts: Counter) -> list:
    """Without the turns that call a tool which does not exist here."""
    unwanted = set()
    for i, message in enumerate(messages):
        for call in calls(text_of(message)) if role(message) == "assistant" else ():
            if tool_of(call) not in ALLOWED_TOOLS:
                unwanted.add(i)
                counts[f"pruned_tool_name_counts/{call['name']}"] += 1
    return without_turns(messages, unwanted, "pruned", counts)


def repair(messages: list, counts: Counter) -> list:
    """Turns and observations that pass the validation but cannot be trained on are rewritten. Others stay as they
    are: `validate` names the fault."""
    repaired = list(messages)
    unwanted = set()
    for i, message in enumerate(messages[1:], start=1):
        text, final = text_of(message), i == len(messages) - 1
        if role(message) == "user" and not user_fault(text, i + 1) and not is_wrapped(text):
            repaired[i] = {"role": "user", "content": wrapped_observation(text)}
            counts["wrappers_repaired"] += 1
        if role(message) == "assistant" and not turn_fault(text, final) and not is_trainable(text, final):
            turn = answer_turn(text) if final else call_turn(text)
            if turn:
                repaired[i] = {"role": "assistant", "content": turn}
                counts["answers_repaired" if final else "calls_repaired"] += 1
            elif not final:
                unwanted.add(i)
    return without_turns(repaired, unwanted, "unreadable", counts)


def remove_duplicates(messages: list, counts: Counter) -> list:
    """Without the turns that repeat a call: the same tool with the same set of queries or addresses."""
    seen: set[tuple] = set()
    unwanted = set()
    for i, message in enumerate(messages):
        found = calls(text_of(message)) if role(message) == "assistant" else []
        names = targets(found[0]) if found else []
        if not names:
            continue
        signature = (tool_of(found[0]), *sorted({name.strip() for name in names}))
        if signature in seen:
            unwanted.add(i)
        seen.add(signature)
    return without_turns(messages, unwanted, "duplicate", counts)


def without_turns(messages: list, unwanted: set[int], why: str, counts: Counter) -> list:
    """The messages without these turns and the observations directly after them, counted."""
    kept = []
    after_unwanted = False
    for i, message in enumerate(messages):
        if i in unwanted:
            after_unwanted = True
            counts[f"{why}_tool_turns_removed"] += 1
        elif after_unwanted and role(message) == "user" and "<tool_response>" in text_of(message):
            counts[f"{why}_tool_response_turns_removed"] += 1
        else:
            after_unwanted = False
            kept.append(message)
    return kept


def validate(messages: list) -> str | None:
    """The name of the first rule that a trajectory breaks, or None."""
    if len(messages) < 3:
        return "too_short"
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            return "non_dict_message"
        if i and role(message) != ("user" if i % 2 else "assistant"):
            return f"bad_role_at_{i}"
        if not isinstance(message.get("content"), str):
            return f"non_str_content_at_{i}"
    for i, message in enumerate(messages[1:], start=1):
        content, final = message["content"], i == len(messages) - 1
        error = user_fault(content, i) if i % 2 else turn_fault(content, final)
        if error:
            return error
    if len(messages) % 2 == 0:
        return "last_message_not_assistant"
    return None if is_trainable(messages[-1]["content"], final=True) else "final_answer_unusable"


def user_fault(content: str, i: int) -> str | None:
    if i == 1:
        return "first_user_contains_tool_response" if "<tool_response>" in content else None
    both = "<tool_response>" in content and "</tool_response>" in content
    return None if both else f"user_missing_tool_response_at_{i}"


def turn_fault(content: str, final: bool) -> str | None:
    has_call, has_answer = bool(blocks(content, "tool_call")), bool(blocks(content, "answer"))
    if not blocks(content, "think"):
        return "assistant_missing_think"
    if final:
        if not has_answer:
            return "final_assistant_missing_answer"
        return "final_assistant_contains_tool" if has_call else None
    if not has_call:
        return "assistant_missing_tool_call"
    return "assistant_tool_turn_contains_answer" if has_answer else None
