"""A policy behind an OpenAI-compatible completion endpoint (vLLM, llama.cpp, ...): POST BASE/completions, answered as a stream.

The prompt is the token stream itself: as ids where the tokenizer is the served model's own, else as text. In a text the server
would read control tokens that a web page spells, so their spellings are broken up there.

What comes back is text. Its ids here are made by the tokenizer and may differ from those the model sampled, and there are no
log-probs, so nothing counts as sampled: such rollouts are for inference and evaluation, never for training. Token counts, and
with them max_context, are as good as the tokenizer.

The key is read from POLICY_API_KEY at the moment of the call. Retries, timeouts and what errors may say: as in tools/endpoint.py.
A stream that breaks off is asked for again as a whole. Each turn has a thread of its own, a daemon; `cut` shuts its connection.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import requests

from minvenus.agent.policy import Post, Written
from minvenus.agent.protocol import whole_characters
from minvenus.config import ConfigError
from minvenus.engine import Sampling
from minvenus.text.tokenizer import Tokenizer, splitter
from minvenus.tools.base import ToolFailure
from minvenus.tools.endpoint import Service
from minvenus.tools.html_text import content_type
from minvenus.tools.retry import Again, Limits, check_status, remaining, retrying

STOP = ["<tool_response>"]                    # only the environment writes this
LIMITS = Limits(seconds=3600.0, read_seconds=300.0, response_bytes=64_000_000)


@dataclass(eq=False)
class RemoteTurn:
    """A turn on its way. `text` has what has come of it."""

    post: Post
    text: str = ""
    unwanted: threading.Event = field(default_factory=threading.Event)
    response: requests.Response | None = None
    thread: threading.Thread | None = None


@dataclass(eq=False)
class RemoteHandle:
    turn: RemoteTurn | None = None


class RemotePolicy:
    room = None

    def __init__(self, tokenizer: Tokenizer, base: str, model: str, sampling: Sampling, send_ids: bool, limits: Limits = LIMITS):
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"--api-base must begin with http:// or https://, got {base[:60]!r}")
        # The address comes from a flag, which stands where the others have a variable: errors then name the flag.
        self.service = Service("completion endpoint", "--api-base", "POLICY_API_KEY", base)
        self.tokenizer, self.model, self.sampling, self.send_ids, self.limits = tokenizer, model, sampling, send_ids, limits

    def open(self, prompts_Q: list[list[int]], n: int, names_Q: list[str]) -> list[list[RemoteHandle]]:
        return [[RemoteHandle() for _ in range(n)] for _ in prompts_Q]

    def start(self, handle: RemoteHandle, ids: list[int], max_tokens: int, post: Post) -> None:
        handle.turn = turn = RemoteTurn(post)
        body = self.body(list(ids), max_tokens)
        turn.thread = threading.Thread(target=self._work, args=(turn, body), name="completion", daemon=True)
        turn.thread.start()

    def step(self) -> bool:
        return False                          # all work is done elsewhere

    def cut(self, handle: RemoteHandle) -> Written:
        assert handle.turn is not None
        give_up(handle.turn)
        return self.written(handle.turn.text)

    def close(self, handle: RemoteHandle) -> None:
        if handle.turn is not None and handle.turn.thread is not None:
            give_up(handle.turn)
            handle.turn.thread.join(0.2)      # where no reply has begun there is nothing to shut: it ends with its timeout
            handle.turn = None

    def check_trainable(self) -> None:
        raise ConfigError("a policy behind an endpoint cannot be trained: it gives no log-probs of the tokens it sampled")

    def body(self, ids: list[int], max_tokens: int) -> dict:
        s = self.sampling
        body = {"model": self.model, "prompt": ids if self.send_ids else safe_text(self.tokenizer, ids), "max_tokens": max_tokens,
                "temperature": s.temperature, "top_p": s.top_p, "presence_penalty": s.presence_penalty, "stop": STOP,
                "stream": True}
        return body if s.top_k is None else body | {"top_k": s.top_k}       # not in OpenAI's own interface, so only if it is set

    def written(self, text: str, error: str | None = None) -> Written:
        for spelled in ("<|im_end|>", "<|endoftext|>"):                     # some servers spell the token that ended the turn
            text = text.split(spelled, 1)[0]
        return Written(self.tokenizer.encode_tagged(whole_characters(text)), error=error)

    # ------------------------------------------------------------------------------------------- in the turn's own thread

    def _work(self, turn: RemoteTurn, body: dict) -> None:
        try:
            deadline = time.monotonic() + self.limits.seconds
            retrying(lambda: self._attempt(turn, body, deadline), self.limits, deadline)
            turn.post(self.written(turn.text))
        except ToolFailure as failure:
            turn.post(self.written(turn.text, str(failure)))
        except BaseException as error:        # such as a key with a line break in it: the run must stop
            turn.post(error)

    def _attempt(self, turn: RemoteTurn, body: dict, deadline: float) -> None:
        if turn.unwanted.is_set():
            return
        if turn.text:
            turn.post("\n[the connection was lost: the turn begins again]\n")
            turn.text = ""
        for piece in self._pieces(turn, body, deadline):
            if turn.unwanted.is_set():
                return
            turn.text += piece
            turn.post(piece)

    def _pieces(self, turn: RemoteTurn, body: dict, deadline: float) -> Iterator[str]:
        """The text as it arrives. What the HTTP library raises becomes an error without its words, which may hold a header."""
        service, wait = self.service, min(self.limits.read_seconds, remaining(deadline))
        url, auth = service.url() + "/completions", service.authorise()
        try:
            with requests.Session() as session, session.post(url, json=body, auth=auth, stream=True, allow_redirects=False,
                                                             timeout=(wait, wait)) as response:
                turn.response = response
                self._check(response)
                kind, _ = content_type(response.headers.get("Content-Type"))
                yield from read_reply(response, kind, self.limits, lambda: remaining(deadline))
            return
        except (ToolFailure, GeneratorExit):
            raise
        except Exception as error:
            name = type(error).__name__
        if "timeout" in name.lower() or turn.text:
            raise Again("timeout", "the completion endpoint did not go on in time")
        raise ToolFailure("http", f"the completion endpoint cannot be reached ({name}): check --api-base")

    def _check(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (401, 403):
            raise ToolFailure("http", f"the completion endpoint refused the key (HTTP status {status}): check "
                                      f"{self.service.key_variable}")
        if status in (400, 404):
            raise ToolFailure("http", f"the completion endpoint answered with HTTP status {status}: check --api-base (it usually "
                                      "ends in /v1), --api-model, and that the model has room for --max-context tokens")
        check_status(status, response.headers.get("Retry-After"), "the completion endpoint")


def give_up(turn: RemoteTurn) -> None:
    """Wake the thread that reads: nobody wants the rest."""
    turn.unwanted.set()
    try:
        if turn.response is not None:
            turn.response.raw.shutdown()
    except Exception:                         # already over
        return


def safe_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The rendering of a stream in which only its own added tokens are spelled: "<|im_end|>" in a page becomes "< |im_end|>"."""
    at_added = splitter(tokenizer.added)
    parts = []
    for added, run in groupby(ids, tokenizer.spelling.__contains__):
        text = tokenizer.decode(list(run))
        parts.append(text if added else at_added.sub(lambda match: match[0][0] + " " + match[0][1:], text))
    return "".join(parts)


# ---------------------------------------------------------------------------------------------------------------- the reply


def read_reply(response: requests.Response, kind: str, limits: Limits, check_time: Callable[[], float]) -> Iterator[str]:
    """Pieces of the completion's text, from server-sent events or from one JSON object."""
    if kind not in ("text/event-stream", "application/json"):
        raise ToolFailure("http", f"the completion endpoint sent {kind[:100] or 'no content type'}, not text/event-stream")
    data, total, whole, ended = bytearray(), 0, False, False       # whole: a reason to end was given; ended: nothing more comes
    while not ended and (block := response.raw.read1(65536, decode_content=True)):
        check_time()
        data += block
        total += len(block)
        if total > limits.response_bytes:
            raise ToolFailure("http", f"the completion endpoint sent more than {limits.response_bytes:,} bytes")
        if kind == "text/event-stream":
            *lines, data = data.split(b"\n")
            for line in lines:
                text, finished, ended = read_event(bytes(line))
                whole = whole or finished
                yield text
                if ended:
                    break
    if kind == "application/json":
        yield text_of(bytes(data))[0]
    elif not (whole or ended):
        raise Again("http", "the completion endpoint broke off in the middle of a turn")


def read_event(line: bytes) -> tuple[str, bool, bool]:
    """Of one line of the stream: its text, whether the text is whole with it, and whether the stream ends. Comments, names and
    blank lines say nothing."""
    field_name, _, value = line.strip().partition(b":")
    if field_name != b"data":
        return "", False, False
    if value.strip() == b"[DONE]":
        return "", True, True
    return *text_of(value), False


def text_of(data: bytes) -> tuple[str, bool]:
    """The text of a completion object, or of a part of one, and whether it is the last part."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ToolFailure("http", "the completion endpoint sent something that is not JSON") from None
    if not isinstance(value, dict) or "error" in value:
        raise ToolFailure("http", "the completion endpoint reported an error instead of text")
    if value.get("choices") == []:            # the usage report at the end of a stream
        return "", False
    try:
        text, reason = value["choices"][0]["text"], value["choices"][0].get("finish_reason")
    except (TypeError, KeyError, IndexError):
        text = reason = None
    if not isinstance(text, str):
        raise ToolFailure("http", 'the completion endpoint sent no "choices" with a "text": it must offer /completions')
    return text, reason is not None
