"""A writer at an OpenAI-compatible completion endpoint (vLLM, SGLang, llama.cpp, ...):
POST BASE/completions.

The prompt is the token stream itself, as ids where the tokenizer is the served model's own. A
server that refuses ids is sent text, in which the control tokens that a web page spells are broken
up (text/untrusted.py).

What comes back is text. Our tokenizer makes ids of it, which may not be those that were sampled,
and there are no log-probs. So nothing counts as sampled: such rollouts are for inference and
evaluation, never for training. If a server calls a prompt too long, its context is full
(rollout.py), unless it is the question alone: that is an error.

Every setting is sent, since servers have defaults of their own. The seed of a request follows from
our seed, the rollout's name and number, the turn and the attempt. Each turn is one request in a
thread of its own, with the retries of tools/endpoint.py and the deadline of tools/base.py. A turn
that is cut before its reply was read is blank. A server that was there and is gone is asked again
for about ten minutes, so that its restart costs no run.
"""

import hashlib
import sys
from dataclasses import replace
from itertools import groupby
from typing import Any

from minvenus.agent.episode import Episode
from minvenus.engine import Sampling
from minvenus.text.tokenizer import Tokenizer, splitter, whole_characters
from minvenus.text.untrusted import break_up
from minvenus.tools.base import Call, ToolError
from minvenus.tools.endpoint import Endpoint, is_too_long

SECONDS = 3600.0                  # for one request
CHARACTERS = 64                   # of a token at most: what is longer is not worth encoding
ALL_TOKENS = 1 << 20              # top_k without a limit: some servers refuse 0, others -1
PATIENT_ATTEMPTS = 80             # of a server that has answered before: it may be started again
REFUSALS = (400, 404, 422, 500, 501)                  # of a request, perhaps for its ids
HINT = (". Check --api-base (it usually ends in /v1), --api-model, and that the model has room for "
        "--max-context tokens")


class RemoteWriter:
    """`send_ids`: prompts are sent as ids, which needs the served model's tokenizer, until the
    server refuses ids."""

    samples = False
    max_context = None                                # not known: a server says "too long"

    def __init__(self, tokenizer: Tokenizer, base: str, model: str, sampling: Sampling,
                 send_ids: bool, seed: int = 0):
        self.endpoint = Endpoint(
            "completion endpoint", base, "POLICY_API_KEY", model,
            url_source="--api-base",
            seconds=SECONDS,
            read_seconds=SECONDS,
        )
        self.tokenizer = tokenizer
        self.stop_ids = [*tokenizer.stop_ids, tokenizer.tool_response]
        self.sampling = sampling
        self.send_ids = send_ids
        self.seed = seed
        self.answered = False                         # the server has answered a request
        self.ids_taken = False                        # ... with ids as the prompt
        self.replies: dict[Episode, Call] = {}

    def fitting(self, group: list[Episode], opened: list[Episode], length: int) -> int:
        return len(group)

    def open(self, group: list[Episode]) -> None:
        """Every request has the whole prompt, so there is nothing to prepare."""

    def start(self, episode: Episode, max_tokens: int) -> None:
        attempt = f"{len(episode.turns)}/{len(episode.discarded)}"
        name = f"{self.seed}/{episode.step}/{episode.name}/{episode.number}/{attempt}"
        digest = hashlib.sha256(name.encode()).digest()
        seed = int.from_bytes(digest[:4]) >> 1        # some servers take 31 bits

        ids = list(episode.stream.ids)
        self.replies[episode] = Call(
            self.endpoint.name, SECONDS, self._complete, ids, max_tokens, seed)

    def step(self) -> bool:
        return False

    def finished(self, episode: Episode) -> bool:
        reply = self.replies[episode]
        if not reply.done():
            return False
        episode.stream.ids += reply.result()
        return True

    def discard(self, episode: Episode) -> None:
        episode.stream.discard_turn()

    def cut(self, episode: Episode) -> None:
        self.close(episode)

    def close(self, episode: Episode) -> None:
        self.replies.pop(episode, None)

    # -------------------------------------------------------------------- in the turn's own thread

    def _complete(self, ids: list[int], max_tokens: int, seed: int) -> list[int]:
        """The ids of a turn. A server that writes more than it was asked for is cut."""
        sampling, tokenizer = self.sampling, self.tokenizer
        settings: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or ALL_TOKENS,
            "min_p": 0.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": seed,
            "stop": [tokenizer.spelling[i] for i in self.stop_ids],
        }
        text = self._reply(ids, settings)[:CHARACTERS * max_tokens]
        for i in tokenizer.stop_ids:                  # some servers spell the id that ended it
            text = text.split(tokenizer.spelling[i], 1)[0]
        return tokenizer.encode_tagged(whole_characters(text))[:max_tokens]

    def _reply(self, ids: list[int], settings: dict[str, Any]) -> str:
        """The reply to the prompt, which is sent as ids, or as text if the server refuses ids."""
        refusal = None
        if self.send_ids:
            try:
                text = self._ask(ids, settings | {"stop_token_ids": self.stop_ids})
                self.ids_taken = True
                return text
            except ToolError as error:
                if self.ids_taken or error.status not in REFUSALS or is_too_long(error):
                    raise
                refusal = error

        text = self._ask(safe_text(self.tokenizer, ids), settings)
        if refusal and self.send_ids:                 # other threads may have said it
            self.send_ids = False
            print("\nprompts are sent as text (--no-prompt-ids does so at once), since the server "
                  f"refuses ids: {refusal}", file=sys.stderr, flush=True)
        return text

    def _ask(self, prompt: list[int] | str, settings: dict[str, Any]) -> str:
        """The text of the reply. A server that has answered before may be gone for a while."""
        endpoint = self.endpoint
        if self.answered:
            endpoint = replace(endpoint, attempts=PATIENT_ATTEMPTS)
        try:
            text = endpoint.complete(prompt, **settings)
        except ToolError as error:
            hint = HINT if error.status in REFUSALS else ""
            raise ToolError(error.kind, f"{error}{hint}", error.status) from None
        self.answered = True
        return text


def safe_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a stream in which only its own added tokens are spelled. In questions and
    observations, which others wrote, the control tokens of all models are broken up; elsewhere
    those of the tokenizer."""
    at_added = splitter(tokenizer.added)
    parts: list[str] = []
    user = False
    for added, run in groupby(ids, tokenizer.spelling.__contains__):
        text = tokenizer.decode(list(run))
        if not added:
            if parts and parts[-1].endswith("<|im_start|>"):
                user = text.startswith("user\n")
            if user:
                text = break_up(text)
            else:
                text = at_added.sub(lambda match: break_up(match[0]), text)
        parts.append(text)
    return "".join(parts)
