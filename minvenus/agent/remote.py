"""A policy at an OpenAI-compatible completion endpoint (vLLM, llama.cpp, ...): POST BASE/completions.

The prompt is the token stream itself: as ids where the tokenizer is the served model's own, else as text. In a text the
server would read control tokens that a web page spells, so their spellings are broken up there.

What comes back is text. Its ids are made by our tokenizer and may differ from those that the model sampled, and there
are no log-probs. So nothing counts as sampled: such rollouts are for inference and evaluation, never for training.
Token counts, and with them max_context, are as good as the tokenizer.

Each turn is one request in a thread of its own. A turn that is cut before its reply was read is blank. The key is read
from POLICY_API_KEY for each request; retries, deadlines and errors are those of tools/endpoint.py.
"""

from concurrent.futures import Future
from itertools import groupby
from typing import Any

from minvenus.agent.rollout import Episode
from minvenus.engine import Sampling
from minvenus.text.json_repair import whole_characters
from minvenus.text.tokenizer import Tokenizer, splitter
from minvenus.tools.base import ToolError, in_thread
from minvenus.tools.endpoint import Endpoint

SECONDS = 3600.0                  # for one turn
HINT = ". Check --api-base (it usually ends in /v1), --api-model, and that the model has room for --max-context tokens"


class RemotePolicy:
    """`send_ids`: prompts are sent as ids, which needs the served model's tokenizer."""

    max_context: int | None = None

    def __init__(self, tokenizer: Tokenizer, base: str, model: str, sampling: Sampling, send_ids: bool):
        self.endpoint = Endpoint("completion endpoint", base, "POLICY_API_KEY", model, url_source="--api-base",
                                 seconds=SECONDS, read_seconds=SECONDS)
        self.tokenizer, self.sampling, self.send_ids = tokenizer, sampling, send_ids
        self.replies: dict[Episode, Future] = {}

    def open(self, group: list[Episode], name: str, step: int | None) -> None:
        """Every request has the whole prompt, so there is nothing to prepare."""

    def start(self, episode: Episode, max_tokens: int) -> None:
        self.replies[episode] = in_thread("completion", self._complete, list(episode.stream.ids), max_tokens)

    def step(self) -> bool:
        return False

    def output(self, episode: Episode) -> tuple[list[int], None] | None:
        reply = self.replies[episode]
        return (reply.result(), None) if reply.done() else None

    def cut(self, episode: Episode) -> tuple[list[int], None]:
        return [], None

    def close(self, episode: Episode) -> None:
        self.replies.pop(episode, None)

    def _complete(self, ids: list[int], max_tokens: int) -> list[int]:
        """The ids of the reply to one request, in the turn's own thread."""
        s = self.sampling
        settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": s.temperature, "top_p": s.top_p,
                                    "presence_penalty": s.presence_penalty,
                                    "stop": ["<tool_response>"]}                  # only the environment writes this
        if s.top_k is not None:                      # not in OpenAI's own interface, so only if it is set
            settings["top_k"] = s.top_k
        prompt = ids if self.send_ids else safe_text(self.tokenizer, ids)
        try:
            text = self.endpoint.complete(prompt, **settings)["text"]
        except ToolError as error:
            raise ToolError(error.kind, f"{error}{HINT if error.status in (400, 404) else ''}") from None
        for spelled in ("<|im_end|>", "<|endoftext|>"):     # some servers spell the token that ended the turn
            text = text.split(spelled, 1)[0]
        return self.tokenizer.encode_tagged(whole_characters(text))


def safe_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a stream in which only its own added tokens are spelled: a page's "<|im_end|>" becomes
    "< |im_end|>"."""
    at_added = splitter(tokenizer.added)
    parts = []
    for added, run in groupby(ids, tokenizer.spelling.__contains__):
        text = tokenizer.decode(list(run))
        parts.append(text if added else at_added.sub(lambda match: match[0][0] + " " + match[0][1:], text))
    return "".join(parts)
