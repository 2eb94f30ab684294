"""A policy at an OpenAI-compatible completion endpoint (vLLM, llama.cpp, ...): POST BASE/completions.

The prompt is the token stream itself: as ids where the tokenizer is the served model's own, else as text. In a text the server
would read control tokens that a web page spells, so their spellings are broken up there.

What comes back is text. Its ids are made by our tokenizer and may differ from those that the model sampled, and there are no
log-probs, so nothing counts as sampled: such rollouts are for inference and evaluation, never for training. Token counts, and
with them max_context, are as good as the tokenizer.

The key is read from POLICY_API_KEY at the moment of the call. Each turn is one request in a thread of its own. A turn that is
cut before its reply has come is blank.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby

from minvenus.agent.episode import TurnOutput
from minvenus.agent.protocol import whole_characters
from minvenus.agent.threads import in_thread
from minvenus.config import ConfigError
from minvenus.engine import Sampling
from minvenus.text.tokenizer import Tokenizer, splitter
from minvenus.tools.base import ToolFailure
from minvenus.tools.endpoint import Service, as_json, ask
from minvenus.tools.retry import Limits

STOP = ["<tool_response>"]                    # only the environment writes this
LIMITS = Limits(seconds=3600.0, read_seconds=300.0, response_bytes=64_000_000)


@dataclass(eq=False)
class RemoteHandle:
    future: Future | None = None              # the turn that is being written
    output: TurnOutput | None = None


class RemotePolicy:
    """send_ids: the prompt is sent as ids, which needs the served model's own tokenizer."""

    max_context = None

    def __init__(self, tokenizer: Tokenizer, base: str, model: str, sampling: Sampling, send_ids: bool, limits: Limits = LIMITS):
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"--api-base must begin with http:// or https://, got {base[:60]!r}")
        self.service = Service("completion endpoint", "--api-base", "POLICY_API_KEY", base)
        self.tokenizer, self.model, self.sampling, self.send_ids, self.limits = tokenizer, model, sampling, send_ids, limits
        self.writing: list[RemoteHandle] = []

    def open(self, prompts_Q: list[list[int]], n: int, names_Q: list[str], step: int | None = None) -> list[list[RemoteHandle]]:
        return [[RemoteHandle() for _ in range(n)] for _ in prompts_Q]

    def start(self, handle: RemoteHandle, ids: list[int], max_tokens: int) -> None:
        handle.output = None
        handle.future = in_thread("completion", self._complete, self.request(ids, max_tokens))
        self.writing.append(handle)

    def step(self) -> bool:
        for handle in [h for h in self.writing if h.future.done()]:
            self.writing.remove(handle)
            handle.output = handle.future.result()        # raises what stops the run, such as a key that cannot be one
        return False

    def futures(self) -> list[Future]:
        return [handle.future for handle in self.writing]

    def cut(self, handle: RemoteHandle) -> TurnOutput:
        self.close(handle)
        return TurnOutput([])

    def discard_turn(self, handle: RemoteHandle, ids: list[int]) -> None:
        """Nothing of the turn is kept here."""

    def close(self, handle: RemoteHandle) -> None:
        if handle in self.writing:
            self.writing.remove(handle)

    def check_trainable(self) -> None:
        raise ConfigError("a policy at an endpoint cannot be trained: it gives no log-probs of the tokens it sampled")

    def request(self, ids: list[int], max_tokens: int) -> dict:
        s = self.sampling
        prompt = list(ids) if self.send_ids else safe_text(self.tokenizer, ids)
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": s.temperature, "top_p": s.top_p,
                "presence_penalty": s.presence_penalty, "stop": STOP}
        return body if s.top_k is None else body | {"top_k": s.top_k}       # not in OpenAI's own interface, so only if it is set

    def _complete(self, body: dict) -> TurnOutput:
        """In the turn's own thread."""
        try:
            data = ask(self.service, "/completions", self.limits, time.monotonic() + self.limits.seconds, body)
            text = completion_text(as_json(data, self.service))
        except ToolFailure as failure:
            return TurnOutput([], error=str(failure))
        for spelled in ("<|im_end|>", "<|endoftext|>"):                     # some servers spell the token that ended the turn
            text = text.split(spelled, 1)[0]
        return TurnOutput(self.tokenizer.encode_tagged(whole_characters(text)))


def completion_text(reply: dict) -> str:
    if "error" in reply:
        raise ToolFailure("http", "the completion endpoint reported an error instead of text")
    try:
        text = reply["choices"][0]["text"]
    except (TypeError, KeyError, IndexError):
        text = None
    if not isinstance(text, str):
        raise ToolFailure("http", 'the completion endpoint sent no "choices" with a "text": it must offer /completions')
    return text


def safe_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The rendering of a stream in which only its own added tokens are spelled: "<|im_end|>" in a page becomes "< |im_end|>"."""
    at_added = splitter(tokenizer.added)
    parts = []
    for added, run in groupby(ids, tokenizer.spelling.__contains__):
        text = tokenizer.decode(list(run))
        parts.append(text if added else at_added.sub(lambda match: match[0][0] + " " + match[0][1:], text))
    return "".join(parts)
