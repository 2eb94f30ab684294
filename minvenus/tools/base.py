"""What all tool sets share: the records of a call, its threads and deadline, the failure guard.

A tool set is an object with these two methods, and a close() if it holds something open:

    search(query, deadline) -> list[SearchHit], or a Text
    visit(url, goal, deadline) -> Extract, or a Text

Each takes one query or one page, raises a ToolError if that fails, and gives up at the deadline,
which is a value of time.monotonic(). A call of the model has one or several of them:

    run_tool(tools, "search", {"query": ["a", "b"]})

gives a ToolResult: data, which agent/observation.py writes as the model knows it. Pages are not
trusted and not cleaned: a protocol tag in a page stays text, because the token stream encodes
observations as ordinary ids.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace

from minvenus.config import ConfigError

# Kinds of errors: timeout, http, page, refused, empty, bad_arguments.
FAULTS = ("timeout", "http")      # a service failed; the others are about the page or the call
MAX_ITEMS = 10                    # queries or URLs in one call
SOFT_SHARE = 0.95                 # of a call's seconds after which a tool gives up by itself
NO_RESULTS = "no results; try other words"


# ---------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class SearchHit:
    title: str
    url: str
    snippet: str
    date: str = ""                # of the page; "" = not known
    source: str = ""


@dataclass(frozen=True)
class Extract:
    """What a page says about the goal."""

    evidence: str
    summary: str


@dataclass(frozen=True)
class Text:
    """A text that every model sees as it is; `error` is its kind of error, if it is one."""

    text: str
    error: str | None = None


@dataclass(frozen=True)
class Failure:
    error: str                    # the kind
    reason: str                   # for the model


Content = list[SearchHit] | Extract | Text | Failure


@dataclass(frozen=True)
class ToolResult:
    """What a call gave: an entry for each query or URL, in order, or one failure of the whole."""

    name: str                     # search or visit
    goal: str = ""                # of a visit
    entries: list[tuple[str, Content]] = field(default_factory=list)
    failure: Failure | None = None
    seconds: float = 0.0          # from the call to its result, where a ToolRunner made it

    @property
    def error(self) -> str | None:
        """The kind of error of the call, None if one of its entries has a result. If a service
        failed for one entry, that is the kind, whatever is wrong with the others."""
        if self.failure:
            return self.failure.error
        kinds = [getattr(content, "error", None) for _, content in self.entries]
        if None in kinds:
            return None
        faults = [kind for kind in kinds if kind in FAULTS]
        return (faults or kinds)[0]

    @property
    def fault(self) -> str | None:
        """Which tool failed how, for the failure guard; None if no service failed."""
        return f"{self.name} {self.error}" if self.error in FAULTS else None


class ToolError(Exception):
    """A query, page or request that failed. The message is for the model and holds no secret."""

    def __init__(self, kind: str, message: str, status: int | None = None, wait: float = 0.0):
        super().__init__(message)
        self.kind = kind
        self.status = status      # of the HTTP reply; None if there was none
        self.wait = wait          # seconds that the server asks for before another attempt


# ------------------------------------------------------------------------------------------ calls


def run_tool(tools, name: str, arguments: dict, seconds: float = math.inf) -> ToolResult:
    """Run a parsed call, {"query": [...]} or {"url": [...], "goal": "..."}: one entry after the
    other, in this thread.

    ToolErrors become failures of their entries. Any other exception fails the whole call and shows
    its class only, since its text may hold a key. A ConfigError passes: a run that is set up
    wrongly (no key, no recording) must stop."""
    items = arguments["query" if name == "search" else "url"]
    if len(items) > MAX_ITEMS:
        reason = f"{name} takes at most {MAX_ITEMS} entries in a call, got {len(items)}"
        return ToolResult(name, failure=Failure("bad_arguments", reason))

    deadline = time.monotonic() + seconds
    goal = arguments.get("goal", "")
    entries: list[tuple[str, Content]] = []
    for item in items:
        try:
            if name == "search":
                content = tools.search(item, deadline)
            else:
                content = tools.visit(item, goal, deadline)
        except ConfigError:
            raise
        except ToolError as error:
            content = Failure(error.kind, str(error))
        except Exception as error:
            reason = f"{name} failed ({type(error).__name__})"
            return ToolResult(name, failure=Failure("http", reason))
        entries.append((item, content))
    return ToolResult(name, goal, entries)


class Call:
    """A function in a daemon thread of its own, with a deadline that holds whatever it waits for.

    Not a ThreadPoolExecutor: it joins its threads when the interpreter exits, so one tool that
    hangs would keep the process alive for ever. A call that is late, or whose result nobody wants
    any more, is left alone: its thread ends with the process."""

    def __init__(self, name: str, seconds: float, function: Callable, *arguments):
        self.name = name
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.future: Future = Future()

        def run() -> None:
            try:
                self.future.set_result(function(*arguments))
            except BaseException as error:
                self.future.set_exception(error)

        threading.Thread(target=run, name=name, daemon=True).start()

    def done(self) -> bool:
        return self.future.done() or time.monotonic() >= self.deadline

    def result(self):
        """What the function returns or raises; at the deadline a ToolError."""
        wait([self.future], timeout=max(0.0, self.deadline - time.monotonic()))
        if not self.future.done():
            raise ToolError("timeout", f"the {self.name} did not answer in time")
        return self.future.result()


def first_done(calls: Iterable[Call]) -> list[Call]:
    """Wait until one of these calls is done; those that are."""
    calls = list(calls)
    left = min(call.deadline for call in calls) - time.monotonic()
    futures = [call.future for call in calls]
    wait(futures, timeout=max(0.0, left), return_when=FIRST_COMPLETED)
    return [call for call in calls if call.done()]


class ToolRunner:
    """Runs the calls of many rollouts, one at a time of each.

    threads    calls that run at once, others wait; None = in this thread, for tools that cannot
               hang
    seconds    for one call, from its start. Shortly before that the entries that are there become
               the result, and the others timeouts. If the tools hang, the whole call is a timeout
    guard      counts the calls in which a service failed
    """

    def __init__(self, threads: int | None, seconds: float, guard: "FailureGuard"):
        self.threads = threads
        self.seconds = seconds
        self.guard = guard
        self.running: dict[object, Call] = {}

    def poll(self, rollout: object, tools, name: str, arguments: dict) -> ToolResult | None:
        """The result of a rollout's call; None while it runs or waits for a thread."""
        started = time.monotonic()
        if self.threads is None:
            result = run_tool(tools, name, arguments)
        else:
            if rollout not in self.running:
                if len(self.running) >= self.threads:
                    return None
                self.running[rollout] = Call(f"tool {name}", self.seconds, run_tool, tools, name,
                                             arguments, SOFT_SHARE * self.seconds)
            call = self.running[rollout]
            if not call.done():
                return None
            self.drop(rollout)
            started = call.started
            try:
                result = call.result()        # raises what must stop the run: ConfigError
            except ToolError as error:
                result = ToolResult(name, failure=Failure(error.kind, str(error)))

        self.guard.add(result.fault)
        return replace(result, seconds=time.monotonic() - started)

    def drop(self, rollout: object) -> None:
        """Nobody wants the result of this rollout's call any more."""
        self.running.pop(rollout, None)


# ---------------------------------------------------------------------------------- many failures


class TooManyFailures(ConfigError):
    """So many calls fail that the remaining results mean nothing; the message has the numbers."""


class FailureGuard:
    """Stops a run when, of the last `window` calls, more than the share `limit` failed.

    A service that fails from the start is noticed after limit * window failures, before the window
    is full."""

    def __init__(self, what: str = "tool calls", window: int = 50, limit: float = 0.5):
        self.what = what
        self.window = window
        self.limit = limit
        self._recent: deque[str | None] = deque(maxlen=window)

    def add(self, failure: str | None) -> None:
        """Count one call; `failure` says why it failed, None if it did not."""
        self._recent.append(failure)
        reasons = Counter(reason for reason in self._recent if reason is not None)
        failures = reasons.total()
        if failures / self.window > self.limit:
            listed = "; ".join(f"{n} times: {reason}" for reason, n in reasons.most_common(3))
            raise TooManyFailures(
                f"{failures} of the last {len(self._recent)} {self.what} failed, more than the "
                f"share {self.limit:g} of {self.window}, so the rest cannot be relied on: check "
                f"the network, the keys and the endpoints. {listed}")
