"""What a turn of the model means: one strict format check for the penalty, one forgiving parser for the loop.

    tool turn    <think> thought </think> <tool_call> {"name": ..., "arguments": {...}} </tool_call>
    final turn   <think> thought </think> <answer> answer </answer>

A turn's text starts with the `<think>` that ends the generation prompt, so callers prepend it, and it has no end-of-turn token.

`format_error` gives the first broken rule, or None. `parse_turn` reads what can be understood, so some turns run
and are penalised all the same. The two agree in one direction: a turn that passes the check is an answer, a call, or a call of
which the parser can say why no tool would take it. This file knows the names and arguments of the tools, not what they do, and
no tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from minvenus.text.json_repair import LenientJSONError, loads
from minvenus.types import Kind, Turn

THINK_TAG = re.compile(r"</?think>")
ALLOWED_ARGS = {"search": ("query",), "visit": ("url", "goal")}    # every one is required; others are dropped


# ------------------------------------------------------------------------------------------------------ the strict check


def is_well_formed(text: str, final: bool) -> bool:
    return format_error(text, final) is None


def format_error(text: str, final: bool) -> str | None:
    """The first rule that a turn breaks, as a sentence, or None for a well-formed turn. `final`: it is the rollout's last turn.

    Tool and argument names are free, as in the released checker. Three choices differ from it: a PythonInterpreter body with
    `<code>` is no exception, because there is no such tool here; a `<tool_response>` is refused everywhere, because its tokens
    stay in our stream, where the released loop cut them out before it checked; and the tool's name must be a string.
    """
    if not text.strip():
        return "The turn is blank."
    if "<tool_response>" in text:
        return "The turn contains <tool_response>, which only the environment writes."
    error = thought_error(text)
    if error:
        return error
    if final:
        if has_tag(text, "tool_call"):
            return "The last turn must be an answer, but it contains a tool_call tag."
        return block_error(text, "answer")
    if has_tag(text, "answer"):
        return "A turn before the last contains an answer tag."
    return block_error(text, "tool_call") or read_call(find_block(text, "tool_call") or "")[1]


def thought_error(text: str) -> str | None:
    opened, closed = text.count("<think>"), text.count("</think>")
    if not opened:
        return "The turn has no <think>."
    if opened != closed:
        return f"The think tags do not balance: {opened} <think>, {closed} </think>."
    tags = THINK_TAG.findall(text)
    if tags != ["<think>", "</think>"] * opened:
        return "The think tags do not alternate: each <think> must be closed before the next one opens."
    if text[:text.index("<think>")].strip():
        return "There is text before the first <think>."
    return None


def block_error(text: str, tag: str) -> str | None:
    """The turn needs exactly one block of this tag behind its thought, and nothing else there."""
    open_tag, close_tag = f"<{tag}>", f"</{tag}>"
    opened, closed = text.count(open_tag), text.count(close_tag)
    if (opened, closed) != (1, 1):
        return f"The turn needs exactly one {open_tag} and one {close_tag}, and has {opened} and {closed}."
    tail = text[after_thought(text):]
    start, end = tail.find(open_tag), tail.find(close_tag)
    if start < 0 or end < 0:
        return f"The {tag} block must come after the last </think>."
    if end < start:
        return f"{close_tag} comes before {open_tag}."
    if tail[:start].strip():
        return f"There is text between </think> and {open_tag}."
    if tail[end + len(close_tag):].strip():
        return f"There is text after {close_tag}."
    if not tail[start + len(open_tag):end].strip():
        return f"The {tag} block is empty."
    return None


def read_call(body: str) -> tuple[dict, str | None]:
    """The call in the body of a tool_call block, and the first reason why it is none."""
    try:
        call = loads(body)
    except LenientJSONError as error:
        return {}, f"The tool call is not JSON: {error}."
    if not isinstance(call, dict):
        return {}, "The tool call must be one JSON object."
    for key, kind, spelled in (("name", str, "a string"), ("arguments", dict, "an object")):
        if key not in call:
            return {}, f'The tool call has no "{key}".'
        if not isinstance(call[key], kind):
            return {}, f'"{key}" of the tool call must be {spelled}.'
    return call, None


# ------------------------------------------------------------------------------------------------------------ the parser


@dataclass(frozen=True)
class ParsedTurn:
    """What the loop should do with a turn. Exactly one of a call, an answer and an error.

    An error that still names a `tool` is a readable call that cannot be run: unknown tool or bad arguments. Its kind is "none",
    so that a visit which never fetched anything is not counted as one.
    """

    kind: Kind
    thought: str                       # all up to the last </think>, without the tags
    tool: str | None = None            # as the model wrote it
    arguments: dict | None = None      # {"query": [...]} or {"url": [...], "goal": "..."}; of kinds search and visit only
    answer: str | None = None          # stripped and not empty; of kind answer only
    error: str | None = None           # of kind none only: what is wrong and how to fix it, in words for the model


def parse_turn(text: str) -> ParsedTurn:
    """Read one generated turn. Never raises.

    1. Everything from the first `<tool_response>` on is dropped: the model invented it, so nothing in it is a call or an answer.
    2. A `</think>` before any `<think>` gets the prompt's `<think>` in front. A thought that is never closed ends with the turn.
    3. The whole turn is searched, the thought included. A complete answer and a complete call together are an error, also when
       one of them is only mentioned in the thought. Otherwise the first block behind the last `</think>` counts; if there is
       none, the first one inside the thought, so a call in a thought that was left open is run (and the turn is penalised).
    4. Of nested openings the innermost counts: `<answer> a summary <answer> Rome </answer>` answers Rome.
    5. The tool must be search or visit, with all its arguments. A string for `query` or `url` becomes a list; unknown arguments
       are dropped. The executor can rely on this.
    """
    text = text.split("<tool_response>", 1)[0]
    first_open, first_close = text.find("<think>"), text.find("</think>")
    if first_close >= 0 and not 0 <= first_open < first_close:
        text = "<think>" + text
    elif first_open < 0:
        return ParsedTurn("none", "", error="The turn has no thought. Start with <think>, close it with </think>, then write one "
                                            "<tool_call> or one <answer>.")
    answer, call = find_block(text, "answer"), find_block(text, "tool_call")
    thought = THINK_TAG.sub("", text[:after_thought(text)]).strip()
    if answer is not None and call is not None:
        return ParsedTurn("none", thought, error="The turn has both an <answer> and a <tool_call>. Write only one of them, and "
                                                 "do not mention the other's tags in the thought.")
    if answer is not None:
        return parsed_answer(thought, answer)
    if call is not None:
        return parsed_call(thought, call)
    return ParsedTurn("none", thought, error=incomplete(text))


def final_answer(turns: Sequence[Turn]) -> str | None:
    """The text to grade: the answer in the last turn's own words, or None. Observations and earlier turns are never read."""
    return parse_turn(turns[-1].text).answer if turns else None


def parsed_answer(thought: str, body: str) -> ParsedTurn:
    if not body.strip():
        return ParsedTurn("none", thought, error="The <answer> is empty. Write the final answer between <answer> and </answer>.")
    return ParsedTurn("answer", thought, answer=body.strip())


def parsed_call(thought: str, body: str) -> ParsedTurn:
    call, error = read_call(body)
    if error:
        return ParsedTurn("none", thought, error=error + ' Write {"name": "search" or "visit", "arguments": {...}} between '
                                                         "<tool_call> and </tool_call>.")
    name = whole_characters(call["name"])
    if name not in ALLOWED_ARGS:
        return ParsedTurn("none", thought, name, error=f"There is no tool {name[:40]!r}. The tools are search and visit.")
    arguments, error = checked_arguments(name, call["arguments"])
    if error:
        return ParsedTurn("none", thought, name, error=error)
    return ParsedTurn(cast(Kind, name), thought, name, arguments)


def checked_arguments(name: str, raw: dict) -> tuple[dict, str | None]:
    """The tool's own arguments in their canonical types, or what is wrong with them."""
    arguments = {}
    for key in ALLOWED_ARGS[name]:
        value = raw.get(key)
        items = value if isinstance(value, list) and key != "goal" else [value]
        if not items or not all(isinstance(item, str) and item.strip() for item in items):
            needed = "a non-empty string" if key == "goal" else "a list of non-empty strings"
            return {}, f'{name} needs "{key}", {needed}.'
        whole = [whole_characters(str(item)) for item in items]
        arguments[key] = whole[0] if key == "goal" else whole
    return arguments, None


def incomplete(text: str) -> str:
    if text.rfind("<think>") > text.rfind("</think>"):
        return "The thought is not closed. Close it with </think>, then write one <tool_call> or one <answer>."
    for tag in ("answer", "tool_call"):
        if has_tag(text[after_thought(text):], tag):
            return f"The {tag} block is not complete. Write it as <{tag}>...</{tag}> after </think>."
    return "The turn has neither a <tool_call> nor an <answer>. Write one of them after </think>."


# ------------------------------------------------------------------------------------------------------------------ text


def has_tag(text: str, tag: str) -> bool:
    return f"<{tag}>" in text or f"</{tag}>" in text


def after_thought(text: str) -> int:
    """The position behind the last `</think>`; the end of the text if a thought is still open there."""
    last = text.rfind("</think>")
    return len(text) if text.rfind("<think>") > last else last + len("</think>")


def find_block(text: str, tag: str) -> str | None:
    """The body of the first block behind the thought, else of the first one in it; no block reaches across that border.
    Plain `find`, because a non-greedy regex takes quadratic time on many openings without a close."""
    border = after_thought(text)
    for part in (text[border:], text[:border]):
        start = part.find(f"<{tag}>")
        end = part.find(f"</{tag}>", start) if start >= 0 else -1
        if end >= 0:
            return part[part.rfind(f"<{tag}>", start, end) + len(tag) + 2:end]
    return None


def whole_characters(text: str) -> str:
    """Replace lone halves of surrogate pairs (JSON can spell them, UTF-8 cannot), so that a tool can encode what it gets."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
