r"""One turn or observation of any text, rewritten in the form that is trained on.

    call      <think>\n{thought}\n</think>\n<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>
    answer    <think>\n{thought}\n</think>\n<answer>\n{answer}\n</answer>

    A Google search for 'who's who' found 2 results:        [{"query": "who's who",
                                                              "web_page_info_list": [
    ## Web Results
    1. [A [nested] title](https://a.org/x_(y))         ->      {"title": "A [nested] title",
    Date published: 2020-01-01                                  "url": "https://a.org/x_(y)",
    Source: a.org                                               "snippet": "Source: a.org\nsome text"},
    some text                                                  ...]}]

Turns are read with their tags in lower case (`lower_tags`). Nothing here raises on any text, and everything takes
linear time: a non-greedy regex would take quadratic time on many openings without a close.
"""

import json
import re

from minvenus.agent.protocol import (
    ALLOWED_ARGS,
    is_well_formed,
    parse_turn,
    read_call,
    whole_characters,
)
from minvenus.text.chat import CLOSE, OPEN, ChatError, split_turn

# The keys under which a call may list its queries or addresses; the first one that holds any counts.
TARGET_KEYS = {"search": ("query", "queries"),
               "visit": ("url", "urls", "uri", "uris", "link", "links", "page", "pages", "query", "queries")}
TAG = re.compile(r"</?(think|answer|summary|tool_call|tool_response)>", re.IGNORECASE)

HEADER = re.compile(r"\s*A Google search for (.*) found (?:about )?[\d,]+ results?\b.*", re.IGNORECASE)
RESULTS = re.compile(r"[\W\d]*Web Results[\W\d]*", re.IGNORECASE)      # "## Web Results", "**Web results (10)**:"
NUMBERED = re.compile(r"\s*\d+\.\s*(?=\[)")
DATE = re.compile(r"\s*Date (?:published|updated)\s*:", re.IGNORECASE)
BETWEEN_QUERIES = "======="                                  # the line that separates the answers to several queries
BRACKETS, PARENTHESES = re.compile(r"[\[\]]"), re.compile(r"[()]")


# --------------------------------------------------------------------------------------------------------------- blocks


def lower_tags(text: str) -> str:
    return TAG.sub(lambda tag: tag[0].lower(), text)


def without_tags(text: str) -> str:
    return TAG.sub("", text).strip()


def bodies(text: str, tag: str) -> list[str]:
    """What stands between `<tag>` and `</tag>`; of nested openings the innermost counts."""
    parts = [part.partition(f"</{tag}>") for part in text.split(f"<{tag}>")[1:]]
    return [body for body, closed, _ in parts if closed]


def first_thought(text: str) -> tuple[str, str]:
    """(the first thought of a turn, the text after it), both empty if there is none."""
    thought, closed, rest = text.partition("<think>")[2].partition("</think>")
    return (without_tags(thought), rest) if closed else ("", "")


# ---------------------------------------------------------------------------------------------------------------- turns


def call_turn(text: str) -> str | None:
    """The first thought and the first call of a turn, or None if it lacks either or the call cannot be run."""
    thought, _ = first_thought(text)
    call = next(iter(calls(text)), None)
    if not call:
        return None
    turn = f"<think>\n{thought}\n</think>\n<tool_call>\n{canonical_call(call)}\n</tool_call>"
    return turn if is_trainable(turn, final=False) else None


def answer_turn(text: str) -> str | None:
    """The thought and the last answer of a final turn, or None if it lacks either. Summaries after the thought move
    into it, unless it has them already."""
    thought, rest = first_thought(text)
    summaries = [without_tags(body) for body in bodies(rest, "summary")]
    parts = rest.split("<summary>")
    outside = parts[0] + "".join(part.rpartition("</summary>")[2] for part in parts[1:])
    answer = last_answer(outside)
    if not answer:                                           # it is a summary, or does not stand after the thought
        answer, summaries = last_answer(text), []
    thoughts = [thought, *(summary for summary in summaries if summary not in thought)]
    turn = "<think>\n" + "\n\n".join(filter(None, thoughts)) + f"\n</think>\n<answer>\n{answer}\n</answer>"
    return turn if is_trainable(turn, final=True) else None


def last_answer(text: str) -> str:
    found = bodies(text, "answer")
    return without_tags(found[-1]) if found else ""


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


def calls(text: str) -> list[dict | None]:
    """The calls of a turn, without the `<code>` after their JSON; None for one that cannot be read. Those in the
    thought count only if there are no others: it may mention a call."""
    found = bodies(first_thought(text)[1], "tool_call") or bodies(text, "tool_call")
    return [read_call(body.split("<code>", 1)[0])[0] or None for body in found]


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
    """A search or visit as JSON, with the argument names of our tools."""
    arguments: dict = {"query": targets(call)}
    if tool_of(call) == "visit":
        goal = call["arguments"].get("goal")
        arguments = {"url": targets(call), "goal": goal[0] if isinstance(goal, list) and goal else goal}
    return whole_characters(json.dumps({"name": tool_of(call), "arguments": arguments}, ensure_ascii=False))


# --------------------------------------------------------------------------------------------------------- observations


def wrapped_observation(text: str, searched: bool) -> str:
    """A tool's text in its wrapper; the printed results of a search as JSON."""
    text = re.sub("</?tool_response>", "", text, flags=re.IGNORECASE).strip()
    results = parse_search_text(text) if searched and "Web Results" in text else None
    return OPEN + (json.dumps(results, ensure_ascii=False) if results else text) + CLOSE


def parse_search_text(text: str) -> list[dict] | None:
    """The results of each query, one element per header line; None if the text has neither a header line nor a result,
    so that nothing would be left."""
    sections: list[tuple[str, list[str]]] = [("", [])]       # (query, lines), the first before any header line
    for line in text.split("\n"):
        header = HEADER.fullmatch(line)
        if header:
            query = header[1].strip()
            quoted = len(query) >= 2 and query[0] == query[-1] and query[0] in "'\""
            sections.append((query[1:-1].strip() if quoted else query, []))
        else:
            sections[-1][1].append(line)
    found = [{"query": query, "web_page_info_list": search_results(lines)} for query, lines in sections]
    return found[1:] or (found if found[0]["web_page_info_list"] else None)


def search_results(lines: list[str]) -> list[dict]:
    """The numbered results after the line `## Web Results`, or all if there is none. Those without a title or an
    address are left out."""
    begin = next((i + 1 for i, line in enumerate(lines) if RESULTS.fullmatch(line)), 0)
    results: list[dict] = []
    for line in lines[begin:]:
        link = read_link(line)
        if link:
            title, url, line = link
            results.append({"title": title, "url": url, "snippet": []})
        line = line.strip()
        if results and line and line != BETWEEN_QUERIES:
            shown = results[-1]["snippet"]
            if shown or not DATE.match(line):
                shown.append(line)
    return [found | {"snippet": "\n".join(found["snippet"])} for found in results if found["title"] and found["url"]]


def read_link(line: str) -> tuple[str, str, str] | None:
    """(title, url, the rest) of a line `N. [title](url) rest`, or None. Brackets and parentheses are counted, because
    both occur inside titles and addresses."""
    number = NUMBERED.match(line) if "](" in line else None
    if not number:
        return None
    opened = number.end()
    middle = closing(line, opened, BRACKETS)
    if not line.startswith("(", middle + 1):                 # a bracket of the title never closes, or too early
        middle = line.find("](", opened)
    end = closing(line, middle + 1, PARENTHESES)
    if end < 0:
        return None
    return line[opened + 1:middle].strip(), line[middle + 2:end].strip(), line[end + 1:]


def closing(line: str, start: int, pair: re.Pattern) -> int:
    """Where the bracket that opens at `start` closes, inner pairs skipped; -1 if it never does."""
    depth = 0
    for match in pair.finditer(line, start):
        depth += 1 if match[0] in "([" else -1
        if depth == 0:
            return match.start()
    return -1
