"""The format of a turn: a strict check for the format penalty, and a forgiving parser for the loop.

    tool turn    <think> thought </think>
                 <tool_call> {"name": ..., "arguments": {...}} </tool_call>
    final turn   <think> thought </think>
                 <answer> answer </answer>

The text of a turn starts with the `<think>` that ends the generation prompt, so callers prepend it.
It has no end-of-turn token.

`parse_turn` reads what can be understood, so some malformed turns are executed and penalised all
the same. The reverse cannot happen: a turn that passes the check is an answer, a call, or a call
that no tool takes, with a reason.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from minvenus.text import json_repair
from minvenus.text.tokenizer import whole_characters
from minvenus.types import Kind, Turn

THINK_TAG = re.compile(r"</?think>")
# all of them are required; others are dropped
ALLOWED_ARGS = {"search": ("query",), "visit": ("url", "goal")}
# a text is repetitive if its last 50 characters occur more than 5 times
REPEATED_TAIL = 50
REPEATS = 5

NO_THOUGHT = ("The turn has no thought. Start with <think>, close it with </think>, then write one "
              "<tool_call> or one <answer>.")
BOTH = ("The turn has both an <answer> and a <tool_call>. Write only one of them, and do not "
        "mention the other's tags in the thought.")
NEITHER = ("The turn has no complete <tool_call> and no complete <answer> with a text. Close the "
           "thought with </think>, then write one of them.")
NO_CALL = 'The tool call must be {"name": "search" or "visit", "arguments": {...}}.'


# -------------------------------------------------------------------------------- the strict check


def format_error(text: str, final: bool) -> str | None:
    """The first rule that a turn breaks, as a sentence; None for a well-formed turn. `final`: the
    rollout's last turn.

    Tool and argument names are free, as in the released checker. Three choices differ from it:
    there is no exception for `<code>` of a PythonInterpreter, a tool that is not here;
    `<tool_response>` is refused everywhere, because its tokens stay in our stream, where the
    released loop cut them out; and the tool's name must be a string.
    """
    tag, other = ("answer", "tool_call") if final else ("tool_call", "answer")
    if "<tool_response>" in text:
        return "The turn contains <tool_response>, which only the environment writes."
    if re.search(f"</?{other}>", text):
        place = "The last turn must be an answer, but it" if final else "A turn before the last"
        return f"{place} has a tag of {other}."

    tags = THINK_TAG.findall(text)
    if not tags or tags != ["<think>", "</think>"] * (len(tags) // 2):
        return "The turn needs <think>...</think>, each thought closed before the next one opens."
    if text[:text.index("<think>")].strip():
        return "There is text before the first <think>."

    rest = text[after_thought(text):].strip()
    once = text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1
    if not once or not rest.startswith(f"<{tag}>") or not rest.endswith(f"</{tag}>"):
        return (f"The turn needs exactly one <{tag}>...</{tag}>, and nothing else after the last "
                "</think>.")
    body = find_block(text, tag) or ""
    if final:
        return None if body.strip() else "The answer is empty."
    _, error = read_call(body)
    return error


# -------------------------------------------------------------------------------------- the parser


@dataclass(frozen=True)
class ParsedTurn:
    """What the loop should do with a turn: exactly one of a call, an answer and an error.

    An error with a `tool` is a readable call that cannot be run, for its tool or its arguments. It
    is of kind "none": a visit that was never run does not count as a visit, one that failed does.
    """

    kind: Kind
    thought: str                       # everything up to the last </think>, without the tags
    tool: str | None = None            # as the model wrote it
    arguments: dict | None = None      # {"query": [...]} or {"url": [...], "goal": "..."}
    answer: str | None = None          # stripped and not empty; of kind answer only
    error: str | None = None           # of kind none only: what is wrong, in words for the model

    @property
    def call(self) -> dict | None:
        return {"name": self.tool, "arguments": self.arguments} if self.arguments else None


def parse_turn(text: str) -> ParsedTurn:
    """Read one generated turn. Never raises.

    1. Everything from the first `<tool_response>` on is dropped: the model invented it.
    2. The first `<think>` may be missing, since the prompt has it. A thought that is never closed
       ends with the turn.
    3. The whole turn is searched, the thought included. A complete answer and a complete call
       together are an error. Otherwise the first block after the last `</think>` counts; if there
       is none, the first one inside the thought. So a call in a thought that was left open is run,
       and the turn is penalised.
    4. Of nested openings the innermost counts: `<answer> a summary <answer> Rome </answer>` answers
       Rome.
    5. The tool must be search or visit, with all its arguments. A string for `query` or `url`
       becomes a list; unknown arguments are dropped. Tools rely on this.
    """
    text = text.split("<tool_response>", 1)[0]
    if not THINK_TAG.search(text):
        return ParsedTurn("none", "", error=NO_THOUGHT)

    thought = THINK_TAG.sub("", text[:after_thought(text)]).strip()
    answer = find_block(text, "answer")
    call = find_block(text, "tool_call")
    if answer is not None and call is not None:
        return ParsedTurn("none", thought, error=BOTH)
    if call is not None:
        return parse_call(thought, call)
    if answer and answer.strip():
        return ParsedTurn("answer", thought, answer=answer.strip())
    return ParsedTurn("none", thought, error=NEITHER)


def final_answer(turns: Sequence[Turn]) -> str | None:
    """The text to grade: the answer in the last turn's own words, or None. Observations are never
    read."""
    return parse_turn(turns[-1].text).answer if turns else None


def parse_call(thought: str, body: str) -> ParsedTurn:
    call, error = read_call(body)
    if error:
        return ParsedTurn("none", thought, error=error)
    name = whole_characters(call["name"])
    if name not in ALLOWED_ARGS:
        error = f"There is no tool {name[:40]!r}. The tools are search and visit."
        return ParsedTurn("none", thought, name, error=error)

    arguments: dict[str, str | list[str]] = {}
    for key in ALLOWED_ARGS[name]:
        value = call["arguments"].get(key)
        items = value if isinstance(value, list) and key != "goal" else [value]
        if not items or not all(isinstance(item, str) and item.strip() for item in items):
            needed = "a non-empty string" if key == "goal" else "a list of non-empty strings"
            return ParsedTurn("none", thought, name, error=f'{name} needs "{key}", {needed}.')
        texts = [whole_characters(item) for item in items]
        arguments[key] = texts[0] if key == "goal" else texts
    return ParsedTurn(cast(Kind, name), thought, name, arguments)


def retry_reason(text: str, parsed: ParsedTurn, turns: Sequence[Turn]) -> str | None:
    """Why inference makes another attempt at a turn that comes after `turns`; None = it is fine."""
    if text.count(text[-REPEATED_TAIL:]) > REPEATS:
        return "repetition"
    if parsed.error is not None:
        return "malformed"
    if parsed.call and parsed.call in [turn.tool for turn in turns]:
        return "duplicate"
    return None


# ---------------------------------------------------------------------------------- shared by both


def read_call(body: str) -> tuple[dict, str | None]:
    """(the JSON object in a tool_call block, None), or ({}, why it is no call)."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        try:
            call = json_repair.loads(body)
        except ValueError:
            return {}, f"The tool call is not JSON: {error}."
    match call:
        case {"name": str(), "arguments": dict()}:
            return call, None
    return {}, NO_CALL


def after_thought(text: str) -> int:
    """The position after the last `</think>`; the end of the text if a thought is still open."""
    last = text.rfind("</think>")
    return len(text) if text.rfind("<think>") > last else last + len("</think>")


def find_block(text: str, tag: str) -> str | None:
    """The body of the first block after the thought, else of the first one in it; no block reaches
    across that border. Plain `find`, because a non-greedy regex takes quadratic time on many
    openings without a close."""
    border = after_thought(text)
    for part in (text[border:], text[:border]):
        start = part.find(f"<{tag}>")
        end = part.find(f"</{tag}>", start) if start >= 0 else -1
        if end >= 0:
            innermost = part.rfind(f"<{tag}>", start, end)
            return part[innermost + len(tag) + 2:end]
    return None
