r"""One turn or observation of any text, rewritten in the form that is trained on; the calls in it.

    call      <think>\n{thought}\n</think>\n<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>
    answer    <think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>

Tags are found in upper and lower case. Nothing here raises on any text, and everything takes linear time.
"""

import json
import re
from typing import NamedTuple

from minvenus.agent.protocol import ALLOWED_ARGS, is_well_formed, parse_turn, read_call, whole_characters
from minvenus.sft.search_text import parse_search_text
from minvenus.text.chat import CLOSE, OPEN, ChatError, split_turn

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


def first_thought(content: str) -> tuple[str, str]:
    """(the first thought of a turn, the text after it), both empty if there is none."""
    found = blocks(content, "think")
    return (without_tags(found[0].body), content[found[0].end:]) if found else ("", "")


# --------------------------------------------------------------------------------------------------- rewritten messages


def call_turn(content: str) -> str | None:
    """The first thought and the first call of a turn, or None if it lacks either or the call cannot be run. A call of
    another tool than ours is kept, so that it can be pruned by its name."""
    thought, _ = first_thought(content)
    call = next(iter(calls(content)), None)
    if not call:
        return None
    text = f"<think>\n{thought}\n</think>\n<tool_call>\n{canonical_call(call)}\n</tool_call>"
    return text if tool_of(call) not in ALLOWED_ARGS or is_trainable(text, final=False) else None


def answer_turn(content: str) -> str | None:
    """The thought and the last answer of a final turn, or None if it lacks either. Summaries after the thought move
    into it, unless it has them already."""
    thought, rest = first_thought(content)
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
    return kind == "answer" if final else kind in ALLOWED_ARGS


# ---------------------------------------------------------------------------------------------------------------- calls


def calls(content: str) -> list[dict | None]:
    """The calls of a turn, without the `<code>` after their JSON; None for one that cannot be read. Those in the
    thought count only if there are no others: it may mention a call."""
    _, rest = first_thought(content)
    found = blocks(rest, "tool_call") or blocks(content, "tool_call")
    return [read_call(block.body.split("<code>", 1)[0])[0] or None for block in found]


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
