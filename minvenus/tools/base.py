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
kind, whatever is wrong with the others. Pages are not trusted and not cleaned: a protocol tag in a page stays text,
because the token stream encodes observations as ordinary ids.
"""

import json
import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from minvenus.config import ConfigError, check
from minvenus.text.json_repair import whole_characters
from minvenus.text.tokenizer import Tokenizer

# Kinds of errors: timeout, http, page, refused, empty, bad_arguments.
FAULTS = ("timeout", "http")      # a service failed; the others are about the page or the call that the model chose
MAX_ITEMS = 10                    # queries or URLs in one call
MOST_CHARACTERS = 16              # per token of a result: blanks and rules have many in one
PIECE = 65536                     # characters of a long text that are counted together
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
        text = whole_characters(result.render(shown) if result.render else result.text)
        return ToolResult(text, result.error) if text.strip() else ToolResult("ERROR: empty tool result", "empty")
    except ConfigError:
        raise
    except ToolError as error:
        kind, reason = error.kind, str(error)
    except Exception as error:
        kind, reason = "http", f"{name} failed ({type(error).__name__})"
    return ToolResult(whole_characters(filled(shown.failed_call, error=reason)), kind)


def filled(frame: str, **values: str) -> str:
    """The frame with the value of every {name}; what a value spells stays as it is."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), frame)


Found = list[tuple[str, list | ToolError]]      # per query its pages, per URL [evidence, summary]; or the failure


def search_each(queries: list[str], search_one: Callable[[str], list[dict]]) -> ToolResult:
    """One search per query. `search_one(query)` returns [{"title", "url", "snippet"}, ...], perhaps with a "date" and a
    "source", or raises ToolError."""
    return each(queries, lambda query: search_one(query) or nothing_found(), search_text)


def nothing_found() -> NoReturn:
    raise ToolError("empty", "no results; try other words")


def visit_each(urls: list[str], goal: str, visit_one: Callable[[str], list[str]]) -> ToolResult:
    """One visit per URL. `visit_one(url)` returns [evidence, summary] or raises ToolError."""
    return each(urls, visit_one, partial(visit_text, goal=goal))


def each(items: list[str], call: Callable[[str], list], text_of: Callable[[Found, ResultFormat], str]) -> ToolResult:
    found: Found = []
    for item in items:
        try:
            found.append((item, call(item)))
        except ToolError as error:
            found.append((item, error))
    kinds = [result.kind for _, result in found if isinstance(result, ToolError)]
    error_kind = None
    if len(kinds) == len(found):
        error_kind = next((kind for kind in kinds if kind in FAULTS), kinds[0])
    return ToolResult(text_of(found, PLAIN), error_kind, partial(text_of, found))


def search_text(found: Found, shown: ResultFormat) -> str:
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


def visit_text(found: Found, shown: ResultFormat, goal: str) -> str:
    texts = []
    for url, page in found:
        if isinstance(page, ToolError):
            texts.append(filled(shown.unread_page, url=url, goal=goal, error=str(page)))
        else:
            texts.append(filled(PAGE, url=url, goal=goal, evidence=page[0], summary=page[1]))
    return "\n=======\n".join(texts).strip()


def cap_text(text: str, tokenizer: Tokenizer, limit: int) -> str:
    """The text if it has at most `limit` tokens, and not more than MOST_CHARACTERS for each; else a prefix of whole
    characters, a few tokens short of the limit, and the mark "[cut: 1,234 of 5,678 characters shown]". The mark itself
    must fit: settings ask for at least 64 tokens. A long text is counted piece by piece, and hardly further than it is
    shown; a word between two pieces may count double."""
    def cut_at(end: int) -> str:
        return f"{text[:end]}\n[cut: {end:,} of {len(text):,} characters shown]"

    longest = min(len(text), MOST_CHARACTERS * limit)
    starts: list[int] = []                                    # of the tokens
    for begin in range(0, longest, PIECE):
        piece = text[begin:min(begin + PIECE, longest)]
        starts += [begin + start for _, start, _ in tokenizer.untrusted_offsets(piece)]
        if len(starts) > limit:
            break
    if len(starts) <= limit and longest == len(text):
        return text
    mark = cut_at(len(text))[len(text):]
    room = limit - len(tokenizer.encode_untrusted(mark))
    end = starts[room] if room < len(starts) else longest     # where the first token begins that has no room
    while (excess := len(tokenizer.encode_untrusted(cut_at(end))) - limit) > 0:       # a word that is cut may have more
        end -= excess
    return cut_at(end)


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
        self._recent: deque[str | None] = deque(maxlen=window)

    def add(self, failure: str | None) -> None:
        """Count one call; `failure` says why it failed, None if it did not."""
        self._recent.append(failure)
        reasons = Counter(reason for reason in self._recent.copy() if reason is not None)
        if reasons.total() / self.window > self.limit:
            listed = "; ".join(f"{n} times: {reason}" for reason, n in reasons.most_common(3))
            raise TooManyFailures(f"{reasons.total()} of the last {len(self._recent)} {self.what} failed, more than "
                                  f"the share {self.limit:g} of {self.window}, so the rest cannot be relied on: check "
                                  f"the network, the keys and the endpoints. {listed}")
