r"""One turn or observation of any text, rewritten in the form that is trained on; the calls in it.

    call      <think>\n{thought}\n</think>\n<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>
    answer    <think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>

Tags are found in upper and lower case. Nothing here raises on any text, and everything takes linear time.
"""

import json
import re
from typing import NamedTuple

from minvenus.agent.protocol import ALLOWED_ARGS, is_well_formed, parse_turn, whole_characters
from minvenus.sft.search_text import parse_search_text
from minvenus.text.chat import CLOSE, OPEN, ChatError, split_turn
from minvenus.text.json_repair import LenientJSONError, loads

ALLOWED_TOOLS = tuple(ALLOWED_ARGS)
# The keys under which a call may list its queries or addresses; the first one that holds any counts.
TARGET_KEYS = {"search": ("query", "queries"),
               "visit": ("url", "urls", "uri", "uris", "link", "links", "page", "pages", "query", "queries")}
TAG = re.compile(r"<(/?)(think|answer|summary|tool_call|tool_response)>", re.IGNORECASE)


# --------------------------------------------------------------------------------------------------------------- blocks


class Block(NamedTuple):
    start: int          # of the opening tag
    end: int            # after the closing tag
    body: str


def blocks(text: str, name: str) -> list[Block]:
    """All `<name>..</name>`, each from an opening tag to the first closing tag after it. A non-greedy regex would take
    quadratic time on many openings without a close."""
    found = []
    opening = None
    for tag in TAG.finditer(text):
        if tag[2].lower() != name:
            continue
        if not tag[1]:
            opening = opening or tag
        elif opening:
            found.append(Block(opening.start(), tag.end(), text[opening.end():tag.start()]))
            opening = None
    return found


def without_blocks(text: str, name: str) -> str:
    kept = ""
    end = 0
    for block in blocks(text, name):
        kept += text[end:block.start]
        end = block.end
    return kept + text[end:]


def without_tags(text: str) -> str:
    return TAG.sub("", text).strip()


# --------------------------------------------------------------------------------------------------- rewritten messages


def call_turn(content: str) -> str | None:
    """The first thought and the first call of a turn, or None if it lacks either or the call cannot be run. A call of
    another tool than ours is kept, so that it can be pruned by its name."""
    think = next(iter(blocks(content, "think")), None)
    found = think and (blocks(content[think.end:], "tool_call") or blocks(content, "tool_call"))
    call = read_call(found[0].body) if found else None
    if not think or not call:
        return None
    text = f"<think>\n{without_tags(think.body)}\n</think>\n<tool_call>\n{canonical_call(call)}\n</tool_call>"
    return text if tool_of(call) not in ALLOWED_TOOLS or is_trainable(text, final=False) else None


def answer_turn(content: str) -> str | None:
    """The thought and the last answer of a final turn, or None if it lacks either. Summaries after the thought move
    into it, unless it has them already."""
    think = next(iter(blocks(content, "think")), None)
    if not think:
        return None
    rest = content[think.end:]
    thought = without_tags(think.body)
    summaries = [without_tags(block.body) for block in blocks(rest, "summary")]
    answer = last_answer(without_blocks(rest, "summary"))
    if not answer:                                           # it is a summary, or does not stand after the thought
        answer, summaries = last_answer(content), []
    parts = [thought, *(summary for summary in summaries if summary not in thought)]
    text = "<think>\n" + "\n\n".join(filter(None, parts)) + f"\n</think>\n<answer>\n{answer}\n</answer>"
    return text if is_trainable(text, final=True) else None


def last_answer(text: str) -> str:
    """The text after the last `<answer>` that is closed: b of `<answer> a <answer> b </answer>`. Empty if there is
    none."""
    found = blocks(text, "answer")
    return without_tags(re.split("<answer>", found[-1].body, flags=re.IGNORECASE)[-1]) if found else ""


def wrapped_observation(content: str, searched: bool = False) -> str:
    """A tool's text in its wrapper; the printed results of a search as JSON."""
    text = re.sub("</?tool_response>", "", content, flags=re.IGNORECASE).strip()
    results = parse_search_text(text) if searched and "Web Results" in text else None
    return OPEN + (json.dumps(results, ensure_ascii=False) if results else text) + CLOSE


def is_trainable(text: str, final: bool) -> bool:
    """Whether a turn passes the strict checker, can be rendered without loss, and can be run."""
    if not is_well_formed(text, final):
        return False
    try:
        split_turn(text, 0)
    except ChatError:
        return False
    kind = parse_turn(text).kind
    return kind == "answer" if final else kind in ALLOWED_TOOLS


# ---------------------------------------------------------------------------------------------------------------- calls


def calls(content: str) -> list[dict]:
    """All calls of a turn that can be read."""
    return [call for block in blocks(content, "tool_call") if (call := read_call(block.body))]


def read_call(body: str) -> dict | None:
    """The name and the arguments in a tool_call body, without the `<code>` after them."""
    try:
        call = loads(body.split("<code>", 1)[0])
    except LenientJSONError:
        return None
    usable = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return {"name": call["name"], "arguments": call["arguments"]} if usable else None


def tool_of(call: dict) -> str:
    return call["name"].strip().lower()


def targets(call: dict) -> list[str]:
    """The queries of a search, the addresses of a visit; blank ones are left out."""
    for key in TARGET_KEYS.get(tool_of(call), ()):
        value = call["arguments"].get(key)
        items = value if isinstance(value, list) else [value]
        found = [item for item in items if isinstance(item, str) and item.strip()]
        if found:
            return found
    return []


def canonical_call(call: dict) -> str:
    """A call as JSON, with the argument names of our tools."""
    tool, arguments = tool_of(call), call["arguments"]
    if tool == "search":
        call = {"name": tool, "arguments": {"query": targets(call)}}
    elif tool == "visit":
        goal = arguments.get("goal")
        goal = goal[0] if isinstance(goal, list) and goal else goal
        call = {"name": tool, "arguments": {"url": targets(call), "goal": goal}}
    return whole_characters(json.dumps(call, ensure_ascii=False))
