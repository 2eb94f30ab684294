"""Limits of live tools, and when to try again: after 429, 5xx and timeouts only, with jittered waits, until a total deadline.

Before attempt i + 1 the wait is  backoff * 2^i * U(0.5, 1.5),  or Retry-After if that is longer. A server that asks for a longer
wait than `longest_wait`, or than the time that is left, is not asked again: asking early would be rude, waiting would stall the
run. Deadlines are values of time.monotonic(). Knows no HTTP client.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from minvenus.config import ConfigError
from minvenus.tools.base import ToolFailure

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    seconds: float = 120.0            # one whole call of a tool: all its URLs, attempts and waits
    read_seconds: float = 20.0        # one connection, one wait for more bytes
    tries: int = 3                    # attempts per request
    backoff: float = 0.5              # seconds before the second attempt, doubled each time
    longest_wait: float = 15.0        # seconds that a Retry-After may ask for
    response_bytes: int = 4_000_000   # of a body, decompressed; a page is cut there, an endpoint's reply is refused
    page_chars: int = 200_000         # of a page's text that the extraction reads

    def __post_init__(self):
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name} must be greater than 0, got {value}")


class Again(ToolFailure):
    """A failure that may pass: worth another attempt."""

    def __init__(self, kind: str, message: str, wait: float = 0.0):
        super().__init__(kind, message)
        self.wait = wait              # seconds that the server asked for


class Rejected(ToolFailure):
    """A status that will not change by asking again."""

    def __init__(self, status: int, who: str):
        super().__init__("http", f"{who} answered with HTTP status {status}")
        self.status = status


def remaining(deadline: float) -> float:
    """Seconds until the deadline; raises when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise ToolFailure("timeout", "the time for this call is used up")
    return left


def retrying(attempt: Callable[[], T], limits: Limits, deadline: float) -> T:
    chance = random.Random()          # its own: jitter must not disturb the seeded generators of a run
    for i in range(limits.tries):
        remaining(deadline)
        try:
            return attempt()
        except Again as failure:
            wait = max(limits.backoff * 2 ** i * chance.uniform(0.5, 1.5), failure.wait)
            if i + 1 == limits.tries or failure.wait > limits.longest_wait or time.monotonic() + wait >= deadline:
                raise
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def check_status(status: int, retry_after: str | None, who: str) -> None:
    """Raise for every status but 2xx, as the kind of failure that it is."""
    if 200 <= status < 300:
        return
    if status == 429 or status >= 500:
        raise Again("http", f"{who} answered with HTTP status {status}", wait_asked(retry_after))
    raise Rejected(status, who)


def wait_asked(retry_after: str | None) -> float:
    """Seconds of a Retry-After header, which is a number or a date; 0 for none or nonsense."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
