"""The one client for services that a user configures: OpenAI-compatible models, live search, the page reader.

    judge = Endpoint.from_environment("JUDGE", "judge endpoint")       JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY
    judge.chat([{"role": "user", "content": "..."}], temperature=0)    the text of the reply
    judge.complete([1, 2, 3], max_tokens=100)                          the first choice of a completion, with its "text"
    judge.post("/path", {...})                                         the JSON object of the reply

Every failure is a ToolError. Connection errors, timeouts, HTTP 429 and 5xx are tried again; the wait before attempt
i + 2 is min(BACKOFF * 2^i, LONGEST_WAIT) * U(0.5, 1.5), or the server's Retry-After if that is longer, and never
exceeds the deadline.

A key is read from the environment for each request and kept nowhere. Replies and errors never contain it, even if
the server echoes it, as it is or escaped. A redirect is an error, since it would carry the key to another host.
"""

import base64
import json
import math
import os
import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

import requests

from minvenus.config import ConfigError, check_address
from minvenus.tools.base import ToolError, in_thread

BACKOFF, LONGEST_WAIT = 0.5, 8.0  # seconds
MAX_BYTES = 4_000_000            # of a reply, decompressed
SHORTEST_SECRET = 8              # shorter keys ("EMPTY") are placeholders, and removing them would damage replies
TOO_LONG = re.compile(r"context[ _]?(length|size|window|limit)|max_model_len|\btoo (long|many (input )?tokens)"
                      r"|longer than the|`inputs` (tokens|must have less)", re.IGNORECASE)


def setting(variable: str) -> str:
    """A value of the environment, "" if it is not set."""
    return os.environ.get(variable, "").strip()


def temperature(variable: str, default: str = "none") -> dict[str, float]:
    """{"temperature": x} as this variable says, for requests; {} for none, since some models refuse any."""
    text = setting(variable) or default
    if text.lower() == "none":
        return {}
    with suppress(ValueError):
        if 0 <= float(text) <= 2:
            return {"temperature": float(text)}
    raise ConfigError(f"{variable} must be none or a number from 0 to 2, got {text!r}")


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
    attempts: int = 5                 # as the released system has for its model and its search
    cancelled: Event = field(default_factory=Event)        # once it is set, nothing is tried again

    def __post_init__(self):
        check_address(self.base_url, self.url_source, self.key_variable)
        self.key()

    @classmethod
    def from_environment(cls, prefix: str, name: str, **limits) -> "Endpoint":
        """An OpenAI-compatible endpoint from PREFIX_BASE_URL, PREFIX_MODEL and PREFIX_API_KEY."""
        url, model = setting(f"{prefix}_BASE_URL"), setting(f"{prefix}_MODEL")
        if not url:
            raise ConfigError(f"the {name} needs {prefix}_BASE_URL and {prefix}_MODEL in the environment, and "
                              f"{prefix}_API_KEY if it asks for a key")
        endpoint = cls(name, url, f"{prefix}_API_KEY", model, url_source=f"{prefix}_BASE_URL", **limits)
        if not model:
            raise ConfigError(f"{prefix}_MODEL must name the model, as the {name} calls it")
        return endpoint

    def key(self) -> str:
        key = setting(self.key_variable)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{self.key_variable} has characters that no key has: check for line breaks and quotes")
        return key

    def chat(self, messages: list[dict], deadline: float = math.inf, **settings) -> str:
        reply = self.post("/chat/completions", {"model": self.model, "messages": messages} | settings, deadline)
        match reply:
            case {"choices": [{"message": {"content": str()}, "finish_reason": "length"}, *_]}:      # half a thought
                problem = "cut its reply off: raise the server's limit of new tokens"
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                return text
            case _:
                problem = "sent no 'content' in its first choice"
        raise ToolError("http", f"the {self.name} {problem}", 200)

    def complete(self, prompt: str | list[int], **settings) -> dict:
        reply = self.post("/completions", {"model": self.model, "prompt": prompt} | settings)
        match reply:
            case {"choices": [{"text": str()} as choice, *_]}:
                return choice
        raise ToolError("http", f"the {self.name} sent no 'text' in its first choice", 200)

    def post(self, path: str, body: dict, deadline: float = math.inf) -> dict:
        """The JSON object of the reply."""
        data = self.request(path, body, deadline)
        with suppress(ValueError, RecursionError):
            value = json.loads(data)
            if isinstance(value, dict) and not value.get("error"):
                return value
        raise ToolError("http", f"the {self.name} did not answer with a JSON object of results{reason(data)}", 200)

    def request(self, path: str, body: dict | None, deadline: float = math.inf) -> bytes:
        """The reply to a POST of the body, or to a GET if there is none. It has `seconds`, or less if the `deadline`, a
        value of time.monotonic(), comes first."""
        deadline = min(deadline, time.monotonic() + self.seconds)
        jitter = random.Random()      # its own generator, so that waits do not disturb the seeded ones of a run
        attempt = 0
        while True:
            try:
                return self._attempt(path, body, deadline)
            except ToolError as error:
                wait = max(min(BACKOFF * 2 ** attempt, LONGEST_WAIT) * jitter.uniform(0.5, 1.5), error.wait)
                attempt += 1
                passing = error.status is None or error.status == 429 or error.status >= 500
                if not passing or attempt == self.attempts or time.monotonic() + wait >= deadline:
                    raise
                if self.cancelled.wait(wait):
                    raise

    def _attempt(self, path: str, body: dict | None, deadline: float) -> bytes:
        """One attempt, in a thread that is abandoned at the deadline: the name look-up and the headers of a reply have
        no total time limit that could be set."""
        key = self.key()
        try:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            reply = in_thread("request", self._exchange, path, body, key, deadline).result(left)
        except Exception as error:    # of requests or of the library below it; the text may hold the key
            problem = type(error).__name__
            if "timeout" in problem.lower():
                raise ToolError("timeout", f"the {self.name} did not answer in time") from None
            raise ToolError("http", f"the {self.name} cannot be reached ({problem}): check {self.url_source}") from None
        status, retry_after, data = reply
        if len(data) > MAX_BYTES:
            raise ToolError("http", f"the {self.name} sent more than {MAX_BYTES:,} bytes", status)
        if len(key) >= SHORTEST_SECRET:
            data = spellings(key).sub(b"[key]", data)
        if 200 <= status < 300:
            return data
        hint = f" (check {self.key_variable})" if status in (401, 403) else ""
        if status < 400:
            hint = f" (a redirect: check {self.url_source})"
        raise ToolError("http", f"the {self.name} answered with HTTP status {status}{hint}{reason(data)}", status,
                        wait=float(retry_after) if retry_after.isdecimal() else 0.0)

    def _exchange(self, path: str, body: dict | None, key: str, deadline: float) -> tuple[int, str, bytes]:
        """(status, Retry-After, body) of the reply, of which not much more than MAX_BYTES is read."""
        headers = {self.key_header: f"Bearer {key}" if self.key_header == "Authorization" else key} if key else {}
        session = requests.Session()
        session.auth = lambda request: request           # no password from a .netrc file
        session.get_redirect_target = lambda _: None     # type: ignore   # follow none, read none whole
        data = bytearray()
        with session, session.request(
                "GET" if body is None else "POST", self.base_url.rstrip("/") + path, json=body, headers=headers,
                timeout=max(0.01, min(self.read_seconds, deadline - time.monotonic())), stream=True) as response:
            while len(data) <= MAX_BYTES and (block := response.raw.read1(65536, decode_content=True)):
                data += block                            # read1 does not wait for all of the 65536
                if time.monotonic() > deadline:
                    raise TimeoutError
            return response.status_code, response.headers.get("Retry-After", ""), bytes(data)


def spellings(key: str) -> re.Pattern[bytes]:
    """A key as it is, with characters escaped as in JSON, URLs or HTML, or in base64 together with other text."""
    characters = []
    for c in key:
        code, plain = ord(c), re.escape(c)
        characters.append(rf"(?:\\?{plain}|\\u00{code:02x}|%{code:02x}|&#(?:{code}|x{code:x});)")
    found = [f"(?i:{''.join(characters)})"]
    for before in range(3):           # bytes of other text in the group of three in which the key begins
        encoded = base64.b64encode(bytes(before) + key.encode()).decode()
        own = encoded[-(-before * 8 // 6):(before + len(key)) * 8 // 6]         # what the key alone decides
        found.append(own.replace("+", "[+-]").replace("/", r"\\?[/_]"))
    return re.compile("|".join(found).encode())


def reason(data: bytes) -> str:
    """The beginning of an error reply as ": ..." in one line; "" if it is a web page or empty."""
    text = data[:4000].decode("utf-8", "replace")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())   # no control codes for the terminal
    return f": {text[:200]}" if text and not text.startswith("<") else ""


def is_too_long(error: ToolError) -> bool:
    """Whether the server says that the prompt does not fit its model's context. There is no common code for that, so
    the words count: those of vLLM, SGLang, llama.cpp, TGI and OpenAI."""
    return error.status == 413 or (error.status in (200, 400, 422) and TOO_LONG.search(str(error)) is not None)
