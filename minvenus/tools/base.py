"""What all tool sets share: results and errors, the text formats, the token cap, threads, the guard against failures.

A tool set is an object with these two methods, and a close() if it holds something open:

    search(queries: list[str]) -> ToolResult
    visit(urls: list[str], goal: str) -> ToolResult

    search text    [{"query": q, "web_page_info_list": [{"title", "url", "snippet"}, ...]}, ...]      JSON, one line
                   a failed query has an empty list and one more key, "error"
    visit text     The useful information in URL for user goal GOAL as follows: / Evidence in page: / Summary:
                   a line of seven "=" between URLs; a failed URL is a line "ERROR: URL: reason"

Models that were trained on other texts of failures see those instead (ResultFormat).

A call is an error only if all of its queries or URLs fail. If a service failed for one of them, the error is of that
kind, whatever is wrong with the others. Pages are not trusted and
not cleaned: a protocol tag in a page stays text, because the token stream encodes observations as ordinary ids.
"""

import json
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial

from minvenus.config import ConfigError, check
from minvenus.text.json_repair import whole_characters

# Kinds of errors: timeout, http, page, refused, empty, bad_arguments.
FAULTS = ("timeout", "http")      # a service failed; the others are about the page or the call that the model chose
MAX_ITEMS = 10                    # queries or URLs in one call
PIECE = 4096                      # characters of a long text that are counted together
WORD_START = re.compile("(?<=[a-z,.;]) (?=[A-Za-z])")       # tokens never reach across it
PAGE = ("The useful information in {url} for user goal {goal} as follows: \n\n"
        "Evidence in page: \n{evidence}\n\nSummary: \n{summary}\n\n")


@dataclass(frozen=True)
class ResultFormat:
    """How results are shown, where models differ: a part of what a model was trained to read (agent/prompt.py)."""

    dates: bool = False                            # before a snippet the page's date and source, where they are known
    failed_queries: bool = True                    # queries without a result are listed, with the reason
    unread_page: str = "ERROR: {url}: {error}"     # in the place of a page; {goal} stands for the goal
    failed_call: str = "ERROR: {error}"            # of a call that failed as a whole

    def __post_init__(self):
        check(self)


PLAIN = ResultFormat()


@dataclass(frozen=True)
class ToolResult:
    """The text that the model sees, and the kind of error if it is one; an error begins with "ERROR: "."""

    text: str
    error: str | None = None
    render: Callable[[ResultFormat], str] | None = field(default=None, compare=False)   # the text in another format

    def __post_init__(self):
        object.__setattr__(self, "text", whole_characters(self.text))


class ToolError(Exception):
    """A query, page or request that failed. The message is for the model and must hold no secret."""

    def __init__(self, kind: str, message: str, status: int | None = None, wait: float = 0.0):
        super().__init__(message)
        self.kind = kind
        self.status = status          # of the HTTP reply; None if there was none
        self.wait = wait              # seconds that the server asks for before another attempt


def run_tool(tools, name: str, arguments: dict, shown: ResultFormat = PLAIN) -> ToolResult:
    """Run a call that agent/protocol.py has parsed: {"query": [...]} or {"url": [...], "goal": "..."}.

    Exceptions become typed errors; an unforeseen one shows its class only, since its text may hold a key. A
    ConfigError passes: a run that is set up wrongly (no key, no recording) must stop."""
    items = arguments["query" if name == "search" else "url"]
    try:
        if len(items) > MAX_ITEMS:
            raise ToolError("bad_arguments", f"{name} takes at most {MAX_ITEMS} entries in a call, got {len(items)}")
        result = tools.search(items) if name == "search" else tools.visit(items, arguments["goal"])
        text = result.render(shown) if result.render else result.text
        return ToolResult(text, result.error) if text.strip() else ToolResult("ERROR: empty tool result", "empty")
    except ConfigError:
        raise
    except ToolError as error:
        return ToolResult(filled(shown.failed_call, error=str(error)), error.kind)
    except Exception as error:
        return ToolResult(filled(shown.failed_call, error=f"{name} failed ({type(error).__name__})"), "http")


def filled(frame: str, **values: str) -> str:
    """The frame with the value of every {name}; what a value spells stays as it is."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), frame)


def call_key(name: str, arguments: dict) -> str:
    """One spelling of a call, to find it again."""
    return json.dumps({"name": name, "arguments": arguments}, sort_keys=True, separators=(",", ":"))


def search_each(queries: list[str], search_one: Callable[[str], list[dict]]) -> ToolResult:
    """One search per query. `search_one(query)` returns [{"title", "url", "snippet"}, ...], perhaps with a "date" and a
    "source", or raises ToolError."""
    found: list[tuple[str, list[dict] | ToolError]] = []
    for query in queries:
        try:
            found.append((query, search_one(query) or ToolError("empty", "no results; try other words")))
        except ToolError as error:
            found.append((query, error))
    render = partial(search_text, found)
    return ToolResult(render(PLAIN), error_of([pages for _, pages in found]), render)


def search_text(found: list[tuple[str, list[dict] | ToolError]], shown: ResultFormat) -> str:
    entries: list[dict] = []
    reasons = []
    for query, pages in found:
        if not isinstance(pages, ToolError):
            entries.append({"query": query, "web_page_info_list": [shown_page(page, shown.dates) for page in pages]})
        elif shown.failed_queries:
            entries.append({"query": query, "web_page_info_list": [], "error": str(pages)})
            reasons.append(f"search for {query!r}: {pages}")
    if reasons and len(reasons) == len(found):
        return "ERROR: " + "\n".join(reasons)
    return json.dumps(entries, ensure_ascii=False)


def shown_page(page: dict, dates: bool) -> dict:
    lines = [page["snippet"]]
    for name, words in (("source", "Source"), ("date", "Date published")):
        if dates and page.get(name):
            lines.insert(0, f"{words}: {page[name]}")
    return {"title": page["title"], "url": page["url"], "snippet": "\n".join(filter(None, lines))}


def visit_each(urls: list[str], goal: str, visit_one: Callable[[str], list[str]]) -> ToolResult:
    """One visit per URL. `visit_one(url)` returns [evidence, summary] or raises ToolError."""
    found: list[tuple[str, list[str] | ToolError]] = []
    for url in urls:
        try:
            found.append((url, visit_one(url)))
        except ToolError as error:
            found.append((url, error))
    render = partial(visit_text, found, goal)
    return ToolResult(render(PLAIN), error_of([page for _, page in found]), render)


def error_of(results: Sequence[list | ToolError]) -> str | None:
    """The kind of error of a call with these results."""
    kinds = [result.kind for result in results if isinstance(result, ToolError)]
    if len(kinds) < len(results):
        return None
    return next((kind for kind in kinds if kind in FAULTS), kinds[0])


def visit_text(found: list[tuple[str, list[str] | ToolError]], goal: str, shown: ResultFormat) -> str:
    texts = []
    for url, page in found:
        if isinstance(page, ToolError):
            texts.append(filled(shown.unread_page, url=url, goal=goal, error=str(page)))
        else:
            texts.append(filled(PAGE, url=url, goal=goal, evidence=page[0], summary=page[1]))
    return "\n=======\n".join(texts).strip()


def cap_text(text: str, count: Callable[[str], int], limit: int) -> str:
    """The text if it has at most `limit` tokens; else the longest prefix of whole characters that fits together
    with the mark "[cut: 1,234 of 5,678 characters shown]". `count` gives the tokens of a text. The mark itself must
    fit: settings ask for at least 64 tokens.

    A long text is counted piece by piece, and no further than it is shown. Pieces begin where a word does, so their
    tokens are those of the whole; a line of a million blanks may be cut some tokens off the limit."""
    def cut_at(end: int, start: int = 0) -> str:
        return f"{text[start:end]}\n[cut: {end:,} of {len(text):,} characters shown]"

    short = 16 * limit                                # characters that may be counted in one go
    if len(text) <= short and count(text) <= limit:
        return text
    count = cache(count)                              # the pieces of a run of blanks are all the same
    mark = count(cut_at(len(text), start=len(text)))
    start, room = 0, limit                            # the piece in which the text is cut, the tokens that it may have
    while True:
        end = piece_end(text, start)
        tokens = count(text[start:end])
        if end == len(text) or tokens + mark > room:
            break
        start, room = end, room - tokens
    if end == len(text) > short and tokens <= room:
        return text
    ends = range(start + 1, min(end + PIECE, len(text)))
    end = start + bisect_right(ends, room, key=lambda end: count(cut_at(end, start)))
    if 0 < start < end <= short:                      # where a word was cut, the whole may have other tokens
        ends = range(end + 1, min(end + 4 * max(0, limit - count(cut_at(end))), len(text)))
        end += bisect_right(ends, limit, key=lambda end: count(cut_at(end)))
        while (excess := count(cut_at(end)) - limit) > 0:
            end -= excess
    return cut_at(end)


def piece_end(text: str, start: int) -> int:
    """Where to end a piece that starts here: before the last word that starts in it, else after PIECE characters."""
    piece = text[start:start + PIECE]
    if start + PIECE >= len(text):
        return len(text)
    return start + max((match.start() for match in WORD_START.finditer(piece, 1)), default=PIECE)


def in_thread(name: str, function: Callable, *arguments) -> Future:
    """Call the function in a daemon thread of its own; the future gets its result or its exception.

    Not a ThreadPoolExecutor: it joins its threads when the interpreter exits, so one tool that hangs would keep
    the process alive for ever. A caller that no longer wants a result drops the future."""
    future: Future = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


class TooManyFailures(ConfigError):
    """So many calls fail that the remaining results mean nothing; the message has the numbers."""


class FailureGuard:
    """Stops a run when, of the last `window` calls, more than the share `limit` failed. Safe under threads.

    A service that fails from the start is noticed after limit * window failures, before the window is full."""

    def __init__(self, what: str = "tool calls", window: int = 50, limit: float = 0.5):
        self.what, self.window, self.limit = what, window, limit
        self._calls: list[str | None] = []

    def add(self, failure: str | None) -> None:
        """Count one call; `failure` says why it failed, None if it did not."""
        self._calls.append(failure)
        recent = self._calls[-self.window:]
        reasons = Counter(reason for reason in recent if reason is not None)
        if reasons.total() / self.window > self.limit:
            listed = "; ".join(f"{n} times: {reason}" for reason, n in reasons.most_common(3))
            raise TooManyFailures(f"{reasons.total()} of the last {len(recent)} {self.what} failed, more than the "
                                  f"share {self.limit:g} of {self.window}, so the rest cannot be relied on: check the "
                                  f"network, the keys and the endpoints. {listed}")
