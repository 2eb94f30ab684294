"""The one client for services that a user configures: OpenAI-compatible models, live search, the page reader.

    judge = Endpoint.from_environment("JUDGE", "judge endpoint")       JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY
    judge.chat([{"role": "user", "content": "..."}], temperature=0)    the text of the reply
    judge.complete([1, 2, 3], max_tokens=100)                          the first choice: {"text": ..., ...}
    judge.post("/path", {...})                                         the JSON object of the reply
    reader.get_text("/path")                                           a reply of type text/*

Every failure is an EndpointError. Connection errors, timeouts, HTTP 429 and 5xx are tried again; the wait
before attempt i + 1 is backoff * 2^i * U(0.5, 1.5), or the server's Retry-After if that is longer. There is no
further attempt if the wait would exceed `longest_wait` or the deadline.

A key is read from the environment for each request and kept nowhere. Replies and errors never contain it, even
if the server echoes it. A redirect is an error, since it would carry the key to another host. Proxies of the
environment are used.
"""

import json
import os
import random
import threading
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import requests

from minvenus.config import ConfigError
from minvenus.tools.base import ToolError

SHORTEST_SECRET = 8      # shorter keys ("EMPTY") are placeholders, and removing them would damage replies


class EndpointError(ToolError):
    """A request that failed for good. The message holds no key."""

    def __init__(self, kind: str, message: str, status: int | None = None, wait: float | None = None):
        super().__init__(kind, message)
        self.status = status          # HTTP status of the reply; None if there was no reply
        self.wait = wait              # seconds that the server wants us to wait; None if another attempt is useless


def setting(variable: str) -> str:
    """A value of the environment, "" if it is not set."""
    return os.environ.get(variable, "").strip()


@dataclass(frozen=True)
class Endpoint:
    name: str                         # in words, for errors
    base_url: str
    key_variable: str                 # the environment variable that holds the key; without a value no key is sent
    model: str = ""
    url_source: str = ""              # the flag or variable that set base_url: errors name it instead of the address
    key_header: str = "Authorization"
    seconds: float = 120.0            # one request, with all its attempts and waits
    read_seconds: float = 60.0        # one connection, one wait for more bytes
    attempts: int = 3
    backoff: float = 0.5              # seconds before the second attempt, doubled each time
    longest_wait: float = 15.0        # longest Retry-After that is obeyed
    max_bytes: int = 4_000_000        # of a reply, decompressed

    def __post_init__(self):
        try:
            parts = urlsplit(self.base_url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{self.url_source} must begin with http:// or https://")
        if "@" in parts.netloc:
            raise ConfigError(f"{self.url_source} must not contain a user name or password: put the key into "
                              f"{self.key_variable}")
        self.key()

    @classmethod
    def from_environment(cls, prefix: str, name: str, **limits) -> "Endpoint":
        """An OpenAI-compatible endpoint from PREFIX_BASE_URL, PREFIX_MODEL and PREFIX_API_KEY."""
        url, model = setting(f"{prefix}_BASE_URL"), setting(f"{prefix}_MODEL")
        endpoint = cls(name, url, f"{prefix}_API_KEY", model, url_source=f"{prefix}_BASE_URL", **limits)
        if not model:
            raise ConfigError(f"{prefix}_MODEL must name the model, as the {name} calls it")
        return endpoint

    def key(self) -> str:
        key = setting(self.key_variable)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{self.key_variable} has characters that no key has: check for line breaks and quotes")
        return key

    # ------------------------------------------------------------------------------------------------------ requests

    def chat(self, messages: list[dict], deadline: float | None = None, **settings) -> str:
        """The text of a chat completion, "" if the reply has none."""
        reply = self.post("/chat/completions", {"model": self.model, "messages": messages} | settings, deadline)
        try:
            content = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            content = None
        return content if isinstance(content, str) else ""

    def complete(self, prompt: str | list[int], deadline: float | None = None, **settings) -> dict:
        """The first choice of a completion; its "text" is a string."""
        reply = self.post("/completions", {"model": self.model, "prompt": prompt} | settings, deadline)
        try:
            choice = reply["choices"][0]
            if isinstance(choice["text"], str):
                return choice
        except (KeyError, IndexError, TypeError):
            pass
        raise EndpointError("http", f'the {self.name} sent no "choices" with a "text": it must offer /completions')

    def post(self, path: str, body: dict, deadline: float | None = None) -> dict:
        """The JSON object of the reply. `deadline` is a value of time.monotonic(); without one it is `seconds`
        from now."""
        _, data = self._request(path, body, deadline)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise EndpointError("http", f"the {self.name} did not answer with a JSON object")
        if value.get("error"):
            raise EndpointError("http", f"the {self.name} reported an error{reason(data)}")
        return value

    def get_text(self, path: str, deadline: float | None = None) -> str:
        content_type, data = self._request(path, None, deadline)
        if not content_type.startswith("text/"):
            raise EndpointError("refused", f"the {self.name} sent {content_type[:100] or 'no content type'}, not text")
        return data.decode("utf-8", "replace")

    # ------------------------------------------------------------------------------------------- attempts and errors

    def _request(self, path: str, body: dict | None, deadline: float | None) -> tuple[str, bytes]:
        """(content type, bytes) of a reply with status 2xx."""
        if deadline is None:
            deadline = time.monotonic() + self.seconds
        jitter = random.Random()      # its own generator, so that waits do not disturb the seeded ones of a run
        for attempt in range(self.attempts):
            try:
                return self._attempt(self.base_url.rstrip("/") + path, body, self.key(), deadline)
            except EndpointError as error:
                if error.wait is None or error.wait > self.longest_wait or attempt + 1 == self.attempts:
                    raise
                wait = max(self.backoff * 2 ** attempt * jitter.uniform(0.5, 1.5), error.wait)
                if time.monotonic() + wait >= deadline:
                    raise
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str, body: dict | None, key: str, deadline: float) -> tuple[str, bytes]:
        """One attempt in a thread of its own, which is abandoned at the deadline: the name look-up and the
        headers of a reply have no total time limit that could be set."""
        outcome: list[tuple[str, bytes] | EndpointError] = []

        def work() -> None:
            try:
                outcome.append(self._exchange(url, body, key, deadline))
            except EndpointError as error:
                outcome.append(error)

        left = deadline - time.monotonic()
        if left > 0:
            thread = threading.Thread(target=work, name="request", daemon=True)
            thread.start()
            thread.join(left)
        if not outcome:
            raise EndpointError("timeout", f"the {self.name} did not answer in time")
        if isinstance(outcome[0], EndpointError):
            raise outcome[0]
        return outcome[0]

    def _exchange(self, url: str, body: dict | None, key: str, deadline: float) -> tuple[str, bytes]:
        def authorise(request):       # given as `auth`, it also keeps requests from reading a .netrc file
            if key:
                request.headers[self.key_header] = f"Bearer {key}" if self.key_header == "Authorization" else key
            return request

        timeout = max(0.01, min(self.read_seconds, deadline - time.monotonic()))
        try:
            with requests.Session() as session, session.request(
                    "GET" if body is None else "POST", url, json=body, auth=authorise, timeout=timeout, stream=True,
                    allow_redirects=False) as response:
                data = self._read(response, deadline)
            problem = None
        except EndpointError:
            raise
        except Exception as error:    # of requests or of the library below it; the text may hold the key
            problem = type(error).__name__
        if problem is not None:       # raised here and not above, so that the original is not even chained
            if "timeout" in problem.lower():
                raise EndpointError("timeout", f"the {self.name} did not answer in time", wait=0.0)
            message = f"the {self.name} cannot be reached ({problem}): check {self.url_source}"
            raise EndpointError("http", message, wait=0.0)
        if len(key) >= SHORTEST_SECRET:
            data = data.replace(key.encode(), b"[key]")
        self._check_status(response, data)
        return response.headers.get("Content-Type", "").strip().lower(), data

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        data = bytearray()
        while block := response.raw.read1(65536, decode_content=True):       # does not wait for all of them
            data += block
            if len(data) > self.max_bytes:
                raise EndpointError("http", f"the {self.name} sent more than {self.max_bytes:,} bytes")
            if time.monotonic() > deadline:
                raise EndpointError("timeout", f"the {self.name} did not answer in time")
        return bytes(data)

    def _check_status(self, response: requests.Response, data: bytes) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        message = f"the {self.name} answered with HTTP status {status}"
        if status in (401, 403):
            message = f"the {self.name} refused the key (HTTP status {status}): check {self.key_variable}"
        wait = wait_asked(response.headers.get("Retry-After")) if status == 429 or status >= 500 else None
        raise EndpointError("http", message + reason(data), status, wait)


def reason(data: bytes) -> str:
    """What an error reply says about its cause, ": ..." in one short line; "" if that is a web page or nothing."""
    text = data.decode("utf-8", "replace")
    try:
        value = json.loads(text)
        error = value.get("error", value)
        text = error if isinstance(error, str) else str(error.get("message", ""))
    except (ValueError, AttributeError, RecursionError):
        pass
    text = " ".join(text.split())
    return f": {text[:200]}" if text and not text.startswith("<") else ""


def wait_asked(retry_after: str | None) -> float:
    """Seconds of a Retry-After header, which is a number or a date; 0 for none or nonsense."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
