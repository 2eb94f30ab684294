"""The one client for services that a user configures: models, live search, the page reader.

    judge = Endpoint.from_environment("JUDGE", "judge endpoint")
    judge.chat([{"role": "user", "content": "..."}], temperature=0)      the text of the reply
    judge.complete([1, 2, 3], max_tokens=100)                            the text of the reply
    judge.post("/path", {...})                                           the reply's JSON object

Every failure is a ToolError. Connection errors, timeouts, HTTP 429 and 5xx are tried again; the
wait before attempt i + 1 is min(BACKOFF * 2^(i-1), LONGEST_WAIT) * U(0.5, 1.5), or the server's
Retry-After if that is longer, and never exceeds the deadline. (urllib3's Retry knows neither a
deadline nor a reply that breaks off in its body.)

A request runs in its caller's thread and gives up at its deadline while it waits for bytes. The
look-up of a name, and headers that come byte by byte, can take longer. So whoever makes requests
does it in a `Call` (base.py), whose deadline holds whatever the server does.

A key is read from the environment for each request and kept nowhere. Replies and errors never
contain it, even if the server echoes it, as it is or escaped. A redirect is an error, since it
would carry the key to another host.
"""

import json
import math
import os
import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass

import requests

from minvenus.config import ConfigError, check_address
from minvenus.tools.base import ToolError

BACKOFF = 0.5                    # seconds before the second attempt
LONGEST_WAIT = 8.0
MAX_BYTES = 4_000_000            # of a reply, decompressed
BLOCK_BYTES = 65536
SHORTEST_SECRET = 8              # shorter keys ("EMPTY") are placeholders, no secrets
TOO_LONG = re.compile(
    r"context[ _]?(length|size|window|limit)|max_model_len|\btoo (long|many (input )?tokens)"
    r"|longer than the|`inputs` (tokens|must have less)", re.IGNORECASE)


def environment(variable: str) -> str:
    """A value of the environment, "" if it is not set."""
    return os.environ.get(variable, "").strip()


def temperature(variable: str, default: str = "none") -> dict[str, float]:
    """{"temperature": x} as this variable says; {} for none, since some models refuse any."""
    text = environment(variable) or default
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
    key_variable: str                 # of the environment; without a value no key is sent
    model: str = ""
    url_source: str = ""              # the flag or variable of base_url: errors name it instead
    key_header: str = "Authorization"
    seconds: float = 120.0            # one request, with all its attempts and waits
    read_seconds: float = 60.0        # one connection, one wait for more bytes
    attempts: int = 5                 # as the released system has for its model and its search

    def __post_init__(self):
        check_address(self.base_url, self.url_source, self.key_variable)
        self.key()

    @classmethod
    def from_environment(cls, prefix: str, name: str, **limits) -> "Endpoint":
        """An OpenAI-compatible endpoint from PREFIX_BASE_URL, PREFIX_MODEL and PREFIX_API_KEY."""
        url_source, key_variable = f"{prefix}_BASE_URL", f"{prefix}_API_KEY"
        url, model = environment(url_source), environment(f"{prefix}_MODEL")
        if not url or not model:
            raise ConfigError(f"the {name} needs {url_source} and {prefix}_MODEL in the "
                              f"environment, and {key_variable} if it asks for a key")
        return cls(name, url, key_variable, model, url_source, **limits)

    def key(self) -> str:
        key = environment(self.key_variable)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{self.key_variable} has characters that no key has: check for line "
                              "breaks and quotes")
        return key

    def chat(self, messages: list[dict], deadline: float = math.inf, **settings) -> str:
        body = {"model": self.model, "messages": messages} | settings
        reply = self.post("/chat/completions", body, deadline)
        match reply:
            case {"choices": [{"message": {"content": str()}, "finish_reason": "length"}, *_]}:
                problem = "cut its reply off: raise the server's limit of new tokens"
            case {"choices": [{"message": {"content": str(text)}}, *_]}:
                return text
            case _:
                problem = "sent no 'content' in its first choice"
        raise ToolError("http", f"the {self.name} {problem}", 200)

    def complete(self, prompt: str | list[int], **settings) -> str:
        reply = self.post("/completions", {"model": self.model, "prompt": prompt} | settings)
        match reply:
            case {"choices": [{"text": str(text)}, *_]}:
                return text
        raise ToolError("http", f"the {self.name} sent no 'text' in its first choice", 200)

    def post(self, path: str, body: dict, deadline: float = math.inf) -> dict:
        """The JSON object of the reply."""
        data = self.request(path, body, deadline)
        with suppress(ValueError, RecursionError):
            value = json.loads(data)
            if isinstance(value, dict) and not value.get("error"):
                return value
        problem = f"did not answer with a JSON object of results{reason(data)}"
        raise ToolError("http", f"the {self.name} {problem}", 200)

    def request(self, path: str, body: dict | None, deadline: float = math.inf) -> bytes:
        """The reply to a POST of the body, or to a GET if there is none. It has `seconds`, or less
        if the `deadline`, a value of time.monotonic(), comes first."""
        deadline = min(deadline, time.monotonic() + self.seconds)
        jitter = random.Random()      # its own: waits must not disturb the numbers of a run
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._attempt(path, body, deadline)
            except ToolError as error:
                backoff = min(BACKOFF * 2 ** (attempt - 1), LONGEST_WAIT)
                wait = max(backoff * jitter.uniform(0.5, 1.5), error.wait)
                passing = error.status is None or error.status == 429 or error.status >= 500
                too_late = time.monotonic() + wait >= deadline
                if not passing or attempt == self.attempts or too_late:
                    raise
                time.sleep(wait)

    def _attempt(self, path: str, body: dict | None, deadline: float) -> bytes:
        key = self.key()
        try:
            status, retry_after, data = self._exchange(path, body, key, deadline)
        except Exception as error:    # of requests or of the library below it; it may hold the key
            problem = type(error).__name__
            if "timeout" in problem.lower():
                raise ToolError("timeout", f"the {self.name} did not answer in time") from None
            raise ToolError("http", f"the {self.name} cannot be reached ({problem}): check "
                                    f"{self.url_source}") from None

        if len(data) > MAX_BYTES:
            raise ToolError("http", f"the {self.name} sent more than {MAX_BYTES:,} bytes", status)
        if len(key) >= SHORTEST_SECRET:
            data = spellings(key).sub(b"[key]", data)
        if 200 <= status < 300:
            return data

        hint = ""
        if status in (401, 403):
            hint = f" (check {self.key_variable})"
        elif status < 400:
            hint = f" (a redirect: check {self.url_source})"
        wait = float(retry_after) if retry_after.isdecimal() else 0.0
        problem = f"answered with HTTP status {status}{hint}{reason(data)}"
        raise ToolError("http", f"the {self.name} {problem}", status, wait)

    def _exchange(
        self, path: str, body: dict | None, key: str, deadline: float
    ) -> tuple[int, str, bytes]:
        """(status, Retry-After, body) of the reply, hardly more than MAX_BYTES of it."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        method = "GET" if body is None else "POST"
        url = self.base_url.rstrip("/") + path
        headers = {}
        if key:
            bearer = self.key_header == "Authorization"
            headers[self.key_header] = f"Bearer {key}" if bearer else key
        timeout = min(self.read_seconds, left)

        with requests.Session() as session:
            session.auth = lambda request: request          # no password from a .netrc file
            # follow no redirect, and do not read one whole
            session.get_redirect_target = lambda response: None    # type: ignore
            with session.request(
                method, url, json=body, headers=headers, timeout=timeout, stream=True
            ) as response:
                data = read_body(response, deadline)
                return response.status_code, response.headers.get("Retry-After", ""), data


def read_body(response: requests.Response, deadline: float) -> bytes:
    """The body, up to the first block beyond MAX_BYTES."""
    data = bytearray()
    while len(data) <= MAX_BYTES:
        block = response.raw.read1(BLOCK_BYTES, decode_content=True)     # at most what is there
        if not block:
            break
        data += block
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(data)


def spellings(key: str) -> re.Pattern[bytes]:
    """A key as it is, or escaped as in JSON, URLs or HTML."""
    characters = []
    for character in key:
        code, plain = ord(character), re.escape(character)
        characters.append(rf"(?:\\?{plain}|\\u00{code:02x}|%{code:02x}|&#(?:{code}|x{code:x});)")
    return re.compile("".join(characters).encode(), re.IGNORECASE)


def reason(data: bytes) -> str:
    """The beginning of an error reply as ": ..." in one line; "" if it is a web page or empty."""
    text = data[:4000].decode("utf-8", "replace")
    printable = "".join(c if c.isprintable() else " " for c in text)     # no codes for the terminal
    line = " ".join(printable.split())
    if not line or line.startswith("<"):
        return ""
    return f": {line[:200]}"


def is_too_long(error: ToolError) -> bool:
    """Whether the server says that the prompt does not fit its model's context. There is no common
    code for that, so the words count: those of vLLM, SGLang, llama.cpp, TGI and OpenAI."""
    if error.status == 413:
        return True
    return error.status in (200, 400, 422) and TOO_LONG.search(str(error)) is not None
