r"""One turn or observation of any text, rewritten in the form that is trained on.

    call      <think>\n{thought}\n</think>\n<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>
    answer    <think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>

Turns are read with their tags in lower case (`lower_tags`). Nothing here raises on any text, and
everything takes linear time: a non-greedy regex would take quadratic time on many openings without
a close.
"""

import json
import re

from minvenus.agent.protocol import ALLOWED_ARGS, format_error, parse_turn, read_call
from minvenus.text.messages import CLOSE, OPEN, ChatError, split_turn
from minvenus.text.tokenizer import whole_characters

TAG = re.compile(r"</?(think|answer|summary|tool_call|tool_response)>", re.IGNORECASE)
WRAPPER = re.compile("</?tool_response>", re.IGNORECASE)

# The keys under which a call may list its queries or addresses: the first that holds any counts.
QUERY_KEYS = ("query", "queries")
ADDRESS_KEYS = ("url", "urls", "uri", "uris", "link", "links", "page", "pages")
TARGET_KEYS = {"search": QUERY_KEYS, "visit": ADDRESS_KEYS + QUERY_KEYS}


# ------------------------------------------------------------------------------------------ blocks


def lower_tags(text: str) -> str:
    return TAG.sub(lambda tag: tag[0].lower(), text)


def without_tags(text: str) -> str:
    return TAG.sub("", text).strip()


def blocks(text: str, tag: str) -> list[str]:
    """What stands between `<tag>` and `</tag>`; of nested openings the innermost counts."""
    bodies = []
    for part in text.split(f"<{tag}>")[1:]:
        body, closed, _ = part.partition(f"</{tag}>")
        if closed:
            bodies.append(body)
    return bodies


def first_thought(text: str) -> tuple[str, str]:
    """(the first thought of a turn, the text after it), both empty if there is none."""
    _, _, opened = text.partition("<think>")
    thought, closed, rest = opened.partition("</think>")
    return (without_tags(thought), rest) if closed else ("", "")


# ------------------------------------------------------------------------------------------- turns


def call_turn(text: str) -> str | None:
    """The first thought and the first call of a turn; None if it lacks one or cannot be run."""
    thought, _ = first_thought(text)
    call = canonical_call(first_call(text))
    turn = f"<think>\n{thought}\n</think>\n<tool_call>\n{call}\n</tool_call>"
    return turn if is_trainable(turn, final=False) else None


def first_call_turn(text: str) -> str | None:
    """A raw turn reduced to its first thought and call, as by `call_turn`. A turn whose first call
    is to a tool that is not ours stays as it is, to be pruned by the tool's name."""
    call = first_call(text)
    if call and tool_of(call) not in ALLOWED_ARGS:
        return text
    return call_turn(text)


def answer_turn(text: str) -> str | None:
    """The thought and the last answer of a final turn, or None if it lacks one of them.

    Summaries after the thought move into it, unless it has them already."""
    thought, rest = first_thought(text)
    thoughts = [thought]

    before, *parts = rest.split("<summary>")
    outside = before + "".join(part.rpartition("</summary>")[2] for part in parts)
    answer = last_answer(outside)
    if answer:
        summaries = map(without_tags, blocks(rest, "summary"))
        thoughts += [summary for summary in summaries if summary not in thought]
    else:                                  # the answer is a summary, or stands before the thought
        answer = last_answer(text)

    thought = "\n\n".join(filter(None, thoughts))
    turn = f"<think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>"
    return turn if is_trainable(turn, final=True) else None


def last_answer(text: str) -> str:
    answers = blocks(text, "answer")
    return without_tags(answers[-1]) if answers else ""


def is_trainable(text: str, final: bool) -> bool:
    """Whether a turn passes the strict checker, can be rendered without loss, and can be run."""
    if format_error(text, final):
        return False
    try:
        split_turn(text, 0)
    except ChatError:
        return False
    kind = parse_turn(text).kind
    return kind == "answer" if final else kind in ALLOWED_ARGS


# ------------------------------------------------------------------------------------------- calls


def read_calls(text: str) -> list[dict]:
    """The calls of a turn, without the `<code>` after their JSON; {} for one that cannot be read.

    Those in the thought count only if there are no others: a thought may mention a call."""
    _, rest = first_thought(text)
    bodies = blocks(rest, "tool_call") or blocks(text, "tool_call")
    return [read_call(body.partition("<code>")[0])[0] for body in bodies]


def first_call(text: str) -> dict:
    calls = read_calls(text)
    return calls[0] if calls else {}


def tool_of(call: dict) -> str:
    return call.get("name", "").strip().lower()


def targets(call: dict) -> list[str]:
    """The queries of a search, the addresses of a visit; blank ones are left out."""
    for key in TARGET_KEYS.get(tool_of(call), ()):
        value = call["arguments"].get(key)
        items = value if isinstance(value, list) else [value]
        texts = [item for item in items if isinstance(item, str) and item.strip()]
        if texts:
            return texts
    return []


def canonical_call(call: dict) -> str:
    """A search or visit as JSON, with the argument names of our tools."""
    tool = tool_of(call)
    arguments: dict = {"query": targets(call)}
    if tool == "visit":
        goal = call["arguments"].get("goal")
        if isinstance(goal, list) and goal:
            goal = goal[0]
        arguments = {"url": targets(call), "goal": goal}
    text = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return whole_characters(text)


# ------------------------------------------------------------------------------------ observations


def wrapped_observation(text: str) -> str:
    """A tool's text in its wrapper; text around an old wrapper moves inside."""
    return OPEN + WRAPPER.sub("", text).strip() + CLOSE


def is_wrapped(text: str) -> bool:
    return text.startswith(OPEN) and text.endswith(CLOSE) and len(text) >= len(OPEN + CLOSE)
