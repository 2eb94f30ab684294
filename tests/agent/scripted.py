"""For the tests of the loop: the real engine with a real (random) model, made to draw the tokens of a script.

Only the draw is replaced. Prefill, cache, scheduling, log-probs and everything of the loop are the shipped code.
"""

import re
import time

import torch

from minvenus.agent.policy import EnginePolicy
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.engine.sampler import Draws
from minvenus.model.qwen3 import Qwen3
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolResult
from minvenus.types import Question

TOKENIZER = Tokenizer.tiny()
CONFIG = ModelConfig(16, 24, 1, 2, 1, head_dim=8, vocab_size=TOKENIZER.size + 3, rope_theta=100.0, max_position_embeddings=40_000)
MODEL = Qwen3(CONFIG, seed=0).requires_grad_(False)
SYSTEM = "Search and visit."
QUESTION = Question("q", "Pet of Bob?", ["cat"])


def search(query="Bob", thought="Start."):
    return f'{thought}\n</think>\n\n<tool_call>\n{{"name":"search","arguments":{{"query":["{query}"]}}}}\n</tool_call>'


def visit(url="Bob", thought="Open."):
    return f'{thought}\n</think>\n\n<tool_call>\n{{"name":"visit","arguments":{{"url":["{url}"],"goal":"pet"}}}}\n</tool_call>'


def answer(text="cat", thought="Answer."):
    return f"{thought}\n</think>\n\n<answer>\n{text}\n</answer>"


def ids_of(turn) -> list[int]:
    """The ids of a scripted turn: a text ends with im_end, a list is taken as it is."""
    return turn if isinstance(turn, list) else [*TOKENIZER.encode_tagged(turn), TOKENIZER.im_end]


def engine_for(script, pages=1200, page_size=32, model=MODEL, **options) -> Engine:
    """An engine that writes script(name, turn, attempt) as turn number `turn` of the rollout `name` ("0/q/0": seed, question,
    rollout). Where a script ends early, its last token is repeated."""
    engine = Engine(model, pages=pages, page_size=page_size, vocab_limit=TOKENIZER.size, **options)
    wanted, attempts = {}, {}

    def draw(sequences, logits):
        logprobs = logits.float().log_softmax(dim=-1)
        tokens = []
        for sequence in sequences:
            done = sequence.job.tokens
            if not done:
                name = re.sub(r" attempt \d+", "", sequence.noise._key)
                number = (sequence.tokens.count(TOKENIZER.im_start) - 3) // 2
                attempts[name, number] = attempts.get((name, number), -1) + 1
                wanted[sequence] = ids_of(script(name, number, attempts[name, number]))
            turn = wanted[sequence]
            tokens.append(turn[min(len(done), len(turn) - 1)])
        picked = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
        return Draws(tokens, picked, picked)

    engine.stepper._sample = draw
    return engine


def policy_for(script, sampling=None, show=False, **options) -> EnginePolicy:
    """`script` may also be the list of turns of every rollout."""
    turns = script if callable(script) else lambda name, turn, attempt: script[min(turn, len(script) - 1)]
    return EnginePolicy(engine_for(turns, **options), TOKENIZER, sampling or Sampling(1), show)


class Tools:
    """Answers by function; `seen` has every call."""

    def __init__(self, search=lambda queries: "Bob sings", visit=lambda urls, goal: "Bob\ncat."):
        self._search, self._visit, self.seen = search, visit, []

    def search(self, queries):
        self.seen.append(("search", queries))
        return as_result(self._search(queries))

    def visit(self, urls, goal):
        self.seen.append(("visit", urls, goal))
        return as_result(self._visit(urls, goal))


def as_result(value):
    return value if isinstance(value, ToolResult) else ToolResult(value)


def sleeper(seconds, text="slow"):
    def run(*_):
        time.sleep(seconds)
        return text
    return run
