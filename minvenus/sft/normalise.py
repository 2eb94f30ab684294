r"""One record, raw or clean, to {question, messages, gt} with plain messages.

    raw    {meta: {question, answer}, messages, system_prompt?}     no system message; message 0 is the question
    clean  {question, messages, gt}                                 the system message is replaced or added, wrappers are tidied

A raw agent turn becomes `<think>\n..\n</think>\n<tool_call>\n{json}\n</tool_call>`, a raw final turn `..<answer>\n..\n</answer>`.
A raw turn that cannot be read is left out together with its observation, and counted. Whether the result is a valid trajectory
is decided later, in clean.py. Four choices differ from the released script: a system message at the start of a raw record is
its prompt and not its question; an observation belongs to the message just before it, or to none; it is read as search results
only if it answers a search; of nested answers the innermost counts.
"""

import json
from collections import Counter
from typing import Literal

from minvenus.agent.protocol import checked_arguments, whole_characters
from minvenus.sft.blocks import all_blocks, first_block, innermost_last, without_blocks, without_tags
from minvenus.sft.search_text import parse_search_text
from minvenus.text.chat import CLOSE, OPEN
from minvenus.text.json_repair import LenientJSONError, loads

PromptMode = Literal["template", "row"]
RAW_FAILED = "raw_clean_failed"
SAME_ARGUMENT = {"search": {"queries": "query"}, "visit": {"urls": "url"}}     # spelling in raw data -> ours


def normalise(record: dict, system_prompt: str, prompt_mode: PromptMode) -> tuple[dict | None, str | None, Counter]:
    """(record, None, counts), or (None, why it is dropped, counts). The input is not changed."""
    raw = isinstance(record.get("meta"), dict) and "gt" not in record
    source = record["meta"] if raw else record
    question, gt = source.get("question"), source.get("answer" if raw else "gt")
    if not (isinstance(question, str) and question.strip() and isinstance(gt, str) and gt.strip()):
        return None, "missing_question_or_gt", Counter()
    messages = record.get("messages")
    messages = [plain(message) for message in messages] if isinstance(messages, list) else []
    own_prompt = record.get("system_prompt")
    if messages and role(messages[0]) == "system":
        own_prompt = messages.pop(0)["content"]
    messages, counts = normalise_raw(messages) if raw else tidy_wrappers(messages)
    if messages is None:
        return None, RAW_FAILED, counts
    if prompt_mode == "row" and isinstance(own_prompt, str) and own_prompt.strip():
        system_prompt = encodable(own_prompt)
    messages = [{"role": "system", "content": system_prompt}, *messages]
    return {"question": encodable(question), "messages": messages, "gt": encodable(gt)}, None, counts


def plain(message):
    """Role and content only, the text free of halves of surrogate pairs; anything odd stays for the validator to name."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    return {"role": message.get("role"), "content": encodable(content) if isinstance(content, str) else content}


def encodable(text: str) -> str:
    """The same text, but for what no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return whole_characters(text)
    return text


def role(message) -> str | None:
    return message.get("role") if isinstance(message, dict) else None


def text_of(message) -> str:
    """The content of a message; empty for anything that is not a message with a text."""
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


# ------------------------------------------------------------------------------------------------------------- raw input


def normalise_raw(messages: list) -> tuple[list[dict] | None, Counter]:
    """Question, turns and observations, the final answer. None when the row cannot be used at all."""
    counts: Counter = Counter()
    usable = len(messages) >= 2 and all(isinstance(message, dict) and isinstance(message["content"], str) for message in messages)
    if not usable or any(message["role"] not in ("user", "assistant") for message in messages[1:-1]):
        return None, counts
    final = answer_turn(messages[-1]["content"])
    if final is None or not messages[0]["content"].strip():
        return None, counts
    kept = [{"role": "user", "content": messages[0]["content"]}]
    tool = ""                                                # that was called in the message just before; "" = nothing was kept
    for message in messages[1:-1]:
        if message["role"] == "user":
            if tool:
                kept.append({"role": "user", "content": wrapped_observation(message["content"], tool)})
            else:                                            # the observation of a turn that was left out, or a second one
                counts["unreadable_tool_response_turns_removed"] += 1
            tool = ""
            continue
        turn, tool = tool_turn(message["content"])
        if turn is None:
            counts["unreadable_tool_turns_removed"] += 1
        else:
            kept.append({"role": "assistant", "content": turn})
    return [*kept, {"role": "assistant", "content": final}], counts


def tool_turn(content: str) -> tuple[str | None, str]:
    """(canonical text, tool name) of a raw turn with a thought and a call; (None, "") if it lacks either."""
    think = first_block(content, "think")
    call = first_block(content, "tool_call", think.end) if think else None
    thought = without_tags(think.body).strip() if think else ""
    if not thought or call is None:
        return None, ""
    body, name = canonical_call(call.body)
    return (f"<think>\n{thought}\n</think>\n<tool_call>\n{body}\n</tool_call>", name) if body else (None, "")


def canonical_call(body: str) -> tuple[str, str]:
    """(JSON, name) of a call. Any tool but ours is passed on as it is: the next stage removes it and counts it by its name."""
    call = read_call(body)
    if call is None:
        return "", ""
    name, arguments = call["name"].strip().lower(), call["arguments"]
    if name not in SAME_ARGUMENT:
        return body.strip(), call["name"]
    renamed = {SAME_ARGUMENT[name].get(key, key): value for key, value in arguments.items()}
    goal = renamed.get("goal")
    if isinstance(goal, list) and goal:
        renamed["goal"] = goal[0]
    arguments, error = checked_arguments(name, renamed)
    return ("", "") if error else (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False), name)


def read_call(body: str) -> dict | None:
    """The call of a tool_call body, what follows `<code>` aside, or None if it has no name and arguments."""
    try:
        call = loads(body.split("<code>", 1)[0])
    except LenientJSONError:
        return None
    usable = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return call if usable else None


def answer_turn(content: str) -> str | None:
    """The canonical text of a final turn, or None without a thought or an answer. Summaries move into the thought, unless they
    are there already; the answer is what follows the last `<answer>`."""
    think = first_block(content, "think")
    if think is None:
        return None
    rest = content[think.end:]
    summaries = [without_tags(block.body).strip() for block in all_blocks(rest, "summary")]
    answer = innermost_last(without_blocks(rest, "summary"), "answer")
    if not (answer or "").strip():                           # the answer is a summary, or stands in the thought
        answer, summaries = innermost_last(rest, "answer") or innermost_last(think.body, "answer"), []
    thought = without_tags(think.body).strip()
    thought = "\n\n".join(part for part in (thought, *(s for s in summaries if s not in thought)) if part)
    answer = without_tags(answer or "").strip()
    return f"<think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>" if thought and answer else None


def wrapped_observation(content: str, tool: str) -> str:
    """What a tool returned, in its wrapper; a search engine's text as JSON. A page that mentions Web Results stays as it is."""
    text = content.strip().removeprefix("<tool_response>").removesuffix("</tool_response>").strip()
    if tool == "search" and "Web Results" in text:
        results = parse_search_text(text)
        text = text if results is None else json.dumps(results, ensure_ascii=False)
    return OPEN + text + CLOSE


# ----------------------------------------------------------------------------------------------------------- clean input


def tidy_wrappers(messages: list) -> tuple[list, Counter]:
    """Put stray white space around a tool_response wrapper right. The chat template takes an observation with a newline behind
    its wrapper for a new question, and drops every earlier thought."""
    counts: Counter = Counter()
    tidy = []
    for message in messages:
        content = text_of(message)
        text = content.strip()
        exact = content.startswith(OPEN) and content.endswith(CLOSE) and len(content) >= len(OPEN) + len(CLOSE)
        if role(message) == "user" and not exact and text.startswith("<tool_response>") and text.endswith("</tool_response>"):
            counts["wrappers_tidied"] += 1
            message = {"role": "user", "content": wrapped_observation(content, "")}
        tidy.append(message)
    return tidy, counts
