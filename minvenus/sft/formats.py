"""Trajectories in other forms, made into the raw records that clean.py takes; raw and clean ones stay as they are.

    rollout    {"format": "minvenus rollout ...", question, answers, messages, termination, ...}
               trajectory.json of infer.py, results.jsonl of eval.py
    batch      {"format": "minvenus credit ...", "rollout": {...}, ...}     RUN/rollouts/step-*.jsonl of train_igpo.py
    OpenAI     {"messages": [...]} with "tool_calls", and their results in messages of the role "tool"; optionally
               question, and the true answer as gt, answer or answers

In the OpenAI form a thought is in "reasoning_content" or "reasoning", or is the text beside a call; the last message
is the answer. Several calls in one message become a turn each. Only the first one has a thought, so the others go in
the cleaning, with their observations, and are counted. A record without a true answer gets types.UNKNOWN.
"""

import json

from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.sft.rewrite import first_thought, lower_tags, without_tags
from minvenus.types import UNKNOWN


def as_raw(record: dict) -> dict:
    """The record in the raw form, or as it is if it has none of these forms. Never raises."""
    if isinstance(record.get("rollout"), dict):
        record = record["rollout"]
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return record
    if not str(record.get("format")).startswith("minvenus "):
        if not any(message.get("tool_calls") for message in messages):
            return record
        messages = from_openai(messages)
    meta = record["meta"] if isinstance(record.get("meta"), dict) else record
    asked = [message.get("content") for message in messages if message.get("role") == "user"]
    kept = {key: record[key] for key in ("system_prompt", "termination") if key in record}
    return kept | {"meta": {"question": meta.get("question") or next(iter(asked), ""), "answer": true_answer(meta)},
                   "messages": messages}


def true_answer(source: dict) -> str:
    for key in ("gt", "answer", "answers"):
        found = source.get(key)
        listed = [item for item in (found if isinstance(found, list) else [found]) if isinstance(item, str)]
        if listed:
            return ALIAS_MARK.join(listed)
    return UNKNOWN


# --------------------------------------------------------------------------------------------------------- OpenAI


def from_openai(messages: list[dict]) -> list[dict]:
    """The conversation with thoughts, calls and the answer in tags, every result after its call."""
    made: list[dict] = []
    first = 0                                                # of the newest calls
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            first = len(made)
            made += call_turns(message) or [answer_turn(message, final=i == len(messages) - 1)]
            continue
        place = len(made)
        if role == "tool":
            role, wanted = "user", message.get("tool_call_id") or ""
            calls = [k for k in range(first, len(made)) if made[k].get("id") == wanted]
            if calls:
                made[calls[0]].pop("id")                     # the next result without an id is that of the next call
                place = calls[0] + 1
        made.insert(place, {"role": "system" if role == "developer" else role, "content": text_of(message)})
    return made


def call_turns(message: dict) -> list[dict]:
    """A turn for each call, with the id of the call; only the first one has the thought."""
    thought = "\n\n".join(filter(None, [reasoning_of(message), without_tags(text_of(message))]))
    listed = message.get("tool_calls")
    turns = []
    for call in listed if isinstance(listed, list) else []:
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")                # JSON in a string, in some files the object itself
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        body = f'{{"name": {json.dumps(function.get("name"), ensure_ascii=False)}, "arguments": {arguments}}}'
        turns.append({"role": "assistant", "id": call.get("id") or "",
                      "content": f"<think>\n{thought}\n</think>\n<tool_call>\n{body}\n</tool_call>"})
        thought = ""
    return turns


def answer_turn(message: dict, final: bool) -> dict:
    """A message without a call. The last one is the answer, whether it has tags or not."""
    text = lower_tags(text_of(message))
    if reasoning_of(message):
        text = f"<think>\n{reasoning_of(message)}\n</think>\n{text}"
    thought, rest = first_thought(text)
    if final and "<answer>" not in text and rest.strip():
        text = f"<think>\n{thought}\n</think>\n<answer>\n{rest.strip()}\n</answer>"
    return {"role": "assistant", "content": text}


def reasoning_of(message: dict) -> str:
    found = message.get("reasoning_content") or message.get("reasoning")
    return without_tags(found) if isinstance(found, str) else ""


def text_of(message: dict) -> str:
    """The content: a text, a list of parts of which some are texts, or nothing."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
