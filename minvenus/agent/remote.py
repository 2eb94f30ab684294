"""A policy at an OpenAI-compatible completion endpoint (vLLM, llama.cpp, ...): POST BASE/completions.

The prompt is the token stream itself: as ids where the tokenizer is the served model's own, else as text. In a text the server
would read control tokens that a web page spells, so their spellings are broken up there.

What comes back is text. Its ids are made by our tokenizer and may differ from those that the model sampled, and there are no
log-probs, so nothing counts as sampled: such rollouts are for inference and evaluation, never for training. Token counts, and
with them max_context, are as good as the tokenizer.

The key is read from POLICY_API_KEY for each request. Retries, deadlines and errors: tools/endpoint.py. Each turn is one request in a thread of its own. A turn that is
cut before its reply has come is blank.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby

from minvenus.agent.episode import TurnOutput
from minvenus.agent.protocol import whole_characters
from minvenus.agent.threads import in_thread
from minvenus.config import ConfigError
from minvenus.engine import Sampling
from minvenus.text.tokenizer import Tokenizer, splitter
from minvenus.tools.endpoint import Endpoint, EndpointError

STOP = ["<tool_response>"]                    # only the environment writes this
LIMITS = {"seconds": 3600.0, "read_seconds": 3600.0, "max_bytes": 64_000_000}


@dataclass(eq=False)
class RemoteHandle:
    future: Future | None = None              # the turn that is being written
    output: TurnOutput | None = None


class RemotePolicy:
    """send_ids: the prompt is sent as ids, which needs the served model's own tokenizer."""

    max_context = None

    def __init__(self, tokenizer: Tokenizer, base: str, model: str, sampling: Sampling, send_ids: bool, **limits):
        self.endpoint = Endpoint("completion endpoint", base, "POLICY_API_KEY", model, url_source="--api-base", **LIMITS | limits)
        self.tokenizer, self.sampling, self.send_ids = tokenizer, sampling, send_ids
        self.writing: list[RemoteHandle] = []

    def open(self, prompts_Q: list[list[int]], n: int, names_Q: list[str], step: int | None = None) -> list[list[RemoteHandle]]:
        return [[RemoteHandle() for _ in range(n)] for _ in prompts_Q]

    def start(self, handle: RemoteHandle, ids: list[int], max_tokens: int) -> None:
        handle.output = None
        handle.future = in_thread("completion", self._complete, list(ids), max_tokens)
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

    def settings(self, max_tokens: int) -> dict:
        s = self.sampling
        settings = {"max_tokens": max_tokens, "temperature": s.temperature, "top_p": s.top_p,
                    "presence_penalty": s.presence_penalty, "stop": STOP}
        return settings if s.top_k is None else settings | {"top_k": s.top_k}     # not in OpenAI's own interface, so only if set

    def _complete(self, ids: list[int], max_tokens: int) -> TurnOutput:
        """In the turn's own thread."""
        try:
            prompt = ids if self.send_ids else safe_text(self.tokenizer, ids)
            text = self.endpoint.complete(prompt, **self.settings(max_tokens))["text"]
        except EndpointError as error:
            hint = "" if error.status not in (400, 404) else (
                ". Check --api-base (it usually ends in /v1), --api-model, and that the model has room for --max-context tokens")
            return TurnOutput([], error=f"{error}{hint}")
        for spelled in ("<|im_end|>", "<|endoftext|>"):                     # some servers spell the token that ended the turn
            text = text.split(spelled, 1)[0]
        return TurnOutput(self.tokenizer.encode_tagged(whole_characters(text)))


def safe_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The rendering of a stream in which only its own added tokens are spelled: "<|im_end|>" in a page becomes "< |im_end|>"."""
    at_added = splitter(tokenizer.added)
    parts = []
    for added, run in groupby(ids, tokenizer.spelling.__contains__):
        text = tokenizer.decode(list(run))
        parts.append(text if added else at_added.sub(lambda match: match[0][0] + " " + match[0][1:], text))
    return "".join(parts)
