"""What every tool set shares: typed results, one text format, the token cap, and the count of errors.

A tool set is any object with these two methods (and a close() if it holds something open):

    search(queries: list[str]) -> ToolResult
    visit(urls: list[str], goal: str) -> ToolResult

A result is a text, or an error of a fixed kind whose text begins with "ERROR: " and is shown to the model like any other
observation. Partial failure: of several queries or URLs some may fail; the text then says so in their place, and the result is an
error only if all of them failed, of the first one's kind.

    search text    [{"query": q, "web_page_info_list": [{"title", "url", "snippet"}, ...]}, ...]      JSON, one line
                   a query that failed has an empty list and one more key, "error"
    visit text     The useful information in URL for user goal GOAL as follows: / Evidence in page: / Summary:
                   several URLs are divided by a line of seven "="; one that failed is a line "ERROR: URL: reason"

Pages are not trusted and not cleaned: a protocol tag in them stays text, because the token stream encodes every observation as
ordinary ids. Nothing here knows a network, a file or a model.
"""

import json
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from minvenus.config import ConfigError

TOOLS = ("search", "visit")
ERRORS = ("timeout", "http", "refused", "empty", "bad_arguments", "unknown_tool")
FAULTS = ("timeout", "http")      # the tool or the world failed; the other kinds are the model's doing, or an honest "nothing"
MAX_ITEMS = 10                    # queries or URLs in one call
SHOWN = 200                       # characters of a query or URL that an error repeats


@dataclass(frozen=True)
class ToolResult:
    """What the model gets to see, and the kind of error if it is one. The text is always valid Unicode: a page may spell half a
    surrogate pair in JSON, which no UTF-8 can hold, so that half becomes U+FFFD here."""

    text: str
    error: str | None = None

    def __post_init__(self):
        if self.error is not None and self.error not in ERRORS:
            raise ValueError(f"the kind of an error must be one of {', '.join(ERRORS)}; got {self.error!r}")
        object.__setattr__(self, "text", self.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


class ToolFailure(Exception):
    """Raised inside a tool for one query or URL. The message is for the model and must hold no secret."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def failed(kind: str, message: str) -> ToolResult:
    return ToolResult(f"ERROR: {message}", kind)


# ------------------------------------------------------------------------------------------------------------- dispatch


def run_tool(tools, name: str, arguments: dict) -> ToolResult:
    """Call a tool by name. Whatever goes wrong in it becomes a typed error; of an unforeseen exception only the class is shown,
    since its text may hold a key. Two things pass through: a ConfigError, because a run that is set up wrongly (no key, no
    recording) must stop, and what is no Exception (Ctrl-C)."""
    if name not in TOOLS:
        return failed("unknown_tool", f"there is no tool {str(name)[:40]!r}; the tools are {' and '.join(TOOLS)}")
    try:
        if name == "search":
            result = tools.search(strings(arguments, "query"))
        else:
            result = tools.visit(strings(arguments, "url"), goal_of(arguments))
    except ToolFailure as failure:
        return failed(failure.kind, str(failure))
    except ConfigError:
        raise
    except TimeoutError:
        return failed("timeout", f"{name} timed out")
    except Exception as error:
        return failed("http", f"{name} failed ({type(error).__name__})")
    return result if result.text.strip() else failed("empty", f"{name} returned nothing")


def strings(arguments: dict, key: str) -> list[str]:
    """The list of strings under a key; a bare string counts as a list of one."""
    value = arguments.get(key) if isinstance(arguments, dict) else None
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise ToolFailure("bad_arguments", f'"{key}" must be a list of non-empty strings')
    if len(items) > MAX_ITEMS:
        raise ToolFailure("bad_arguments", f'"{key}" has {len(items)} entries, at most {MAX_ITEMS} are allowed')
    return items


def goal_of(arguments: dict) -> str:
    goal = arguments.get("goal")
    if not isinstance(goal, str) or not goal.strip():
        raise ToolFailure("bad_arguments", '"goal" must be a non-empty string')
    return goal


# --------------------------------------------------------------------------------------------------------- text formats


def search_each(queries: list[str], search_one: Callable[[str], list[dict]]) -> ToolResult:
    """One search per query. `search_one(query)` returns [{"title", "url", "snippet"}, ...] or raises ToolFailure."""
    entries: list[dict] = []
    failures: list[ToolFailure] = []
    for query in queries:
        try:
            pages = [{key: page[key] for key in ("title", "url", "snippet")} for page in search_one(query)]
            if not pages:
                raise ToolFailure("empty", "no results; try other words")
            entries.append({"query": query, "web_page_info_list": pages})
        except ToolFailure as failure:
            failures.append(failure)
            entries.append({"query": query, "web_page_info_list": [], "error": str(failure)})
    if len(failures) == len(queries):
        return failed(failures[0].kind, "\n".join(f"search for {e['query'][:SHOWN]!r}: {e['error']}" for e in entries))
    return ToolResult(json.dumps(entries, ensure_ascii=False))


def visit_each(urls: list[str], goal: str, visit_one: Callable[[str], tuple[str, str]]) -> ToolResult:
    """One visit per URL. `visit_one(url)` returns (evidence, summary) or raises ToolFailure."""
    texts: list[str] = []
    failures: list[ToolFailure] = []
    for url in urls:
        try:
            texts.append(visit_text(url, goal, *visit_one(url)))
        except ToolFailure as failure:
            failures.append(failure)
            texts.append(f"ERROR: {url[:SHOWN]}: {failure}")
    return ToolResult("\n=======\n".join(texts).strip(), failures[0].kind if len(failures) == len(urls) else None)


def visit_text(url: str, goal: str, evidence: str, summary: str) -> str:
    return (f"The useful information in {url} for user goal {goal} as follows: \n\n"
            f"Evidence in page: \n{evidence}\n\nSummary: \n{summary}\n\n")


def cap_text(text: str, count: Callable[[str], int], limit: int) -> str:
    """The text if it has at most `limit` tokens; else its longest prefix of whole characters that fits together with the mark
    "[cut: 1,234 of 5,678 tokens shown]". `count` gives the tokens of a text: lambda t: len(tokenizer.encode_untrusted(t))."""
    total = count(text)
    if total <= limit:
        return text

    def cut_at(end: int) -> str:
        return f"{text[:end]}\n[cut: {count(text[:end]):,} of {total:,} tokens shown]"

    low, high = 0, len(text)                          # cut_at(low) fits, cut_at(high) does not
    if count(cut_at(low)) > limit:
        raise ConfigError(f"a cap of {limit} tokens has no room for the mark {cut_at(low).strip()!r}; raise it")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(cut_at(middle)) <= limit else (low, middle)
    return cut_at(low)


# -------------------------------------------------------------------------------------------------------- error counts


class ToolErrorRate(RuntimeError):
    """Too many calls fail for the results to mean anything; the message has the numbers."""


class ToolCounters:
    """Calls and errors by tool and kind, safe under threads. `add` raises ToolErrorRate when, of the last `window` calls, more
    than the share `limit` were FAULTS. An empty search or a refused address never stops a run: the model can cause those."""

    def __init__(self, window: int = 50, limit: float = 0.5):
        if window < 1 or not 0 <= limit <= 1:
            raise ConfigError(f"need window >= 1 and a limit in [0, 1], got {window} and {limit}")
        self.window, self.limit = window, limit
        self._recent: deque[tuple[str, str | None]] = deque(maxlen=window)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, result: ToolResult) -> None:
        tool = name if name in TOOLS else "other"     # names are the model's invention: do not let them fill the table
        with self._lock:
            self._counts[tool, "calls"] += 1
            if result.error is not None:
                self._counts[tool, result.error] += 1
            self._recent.append((tool, result.error))
            faults = Counter((tool, kind) for tool, kind in self._recent if kind in FAULTS)
            full = len(self._recent) == self.window
        if full and faults.total() / self.window > self.limit:
            listed = ", ".join(f"{tool} {kind} {n}" for (tool, kind), n in faults.most_common())
            raise ToolErrorRate(f"{faults.total()} of the last {self.window} tool calls failed ({listed}), more than the share "
                                f"{self.limit:g} that is allowed: check the network, the keys and the endpoints")

    def totals(self) -> dict[str, dict[str, int]]:
        """{"search": {"calls": 12, "timeout": 1}, ...}: only what happened."""
        with self._lock:
            counts = sorted(self._counts.items())
        return {tool: {kind: n for (t, kind), n in counts if t == tool} for tool in sorted({t for (t, _), _ in counts})}
