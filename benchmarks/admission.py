"""Rollouts that are admitted by the length that is expected of them: how many run at once, and how
much is computed twice. Counts, no timings, so a small version is a test.

Lengths are log-normal: the median is a quarter of the limit, sigma 0.6, cut at the limit. A random
model writes turns that nobody can read, and the loop answers with a notice, until a rollout has as
many turns as its length needs. Truths are scored on the pages of ended rollouts, as in training.
"""

import math
import random
from statistics import mean

from minvenus.agent.episode import Episode
from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, Notices
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model.qwen3 import Qwen3
from minvenus.text.chat import Stream, observation_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.types import Question

TOKENIZER = Tokenizer.tiny()
PAGE, TURN, GROUP = 16, 24, 4
NOTICE = "ERROR: this is no call."
TRUTH = TOKENIZER.encode_untrusted("a black cat")
PROMPT = len(Stream(TOKENIZER, "Answer.", "0?").ids)
PAIR = TURN + 1 + len(observation_ids(TOKENIZER, NOTICE))  # tokens of a turn and its notice
CONFIG = ModelConfig(
    16, 24, 1, 2, 1, head_dim=8, vocab_size=TOKENIZER.size, max_position_embeddings=100_000
)
MODEL = Qwen3(CONFIG, seed=0).requires_grad_(False)


class Rollouts:
    """The rollouts of groups of four, and what they took. `pool` is the room of the cache, in
    rollouts of full length."""

    def __init__(self, count: int, limit: int, pool: float, expected: int | None = None):
        self.engine = Engine(MODEL, round(pool * -(-limit // PAGE)), PAGE)
        self.open: list[int] = []  # how many in each step in which others waited
        self.waits: dict[object, int] = {}  # steps since an open rollout got a token
        self.longest_wait = self.steps = 0

        writer = LocalWriter(self.engine, TOKENIZER, Sampling(TURN), expected)
        agent_format = AgentFormat(
            system="Answer.",
            notices=Notices(malformed=NOTICE),
            max_context=limit,
            max_new_tokens=TURN,
            retries=0,
        )
        with RolloutLoop(writer, agent_format, tool_threads=None) as loop:
            writer.step = lambda: self.step(loop)
            episodes = []
            for group in range(count // GROUP):
                question = Question(f"q{group}", f"{group}?", ["cat"])
                episodes += loop.add(question, lambda question: None, GROUP)
            for episode, turns in zip(episodes, turns_of(count, limit), strict=True):
                episode.max_turns = turns
            for ended in loop.run():
                self.score(ended)
        self.tokens = [episode.rollout.tokens for episode in episodes]
        counters = self.engine.counters()
        self.computed = counters.rolled_out + counters.scored

    def step(self, loop: RolloutLoop) -> bool:
        self.steps += 1
        if loop.waiting:
            self.open.append(len(loop.running))
        lengths = {episode: len(episode.stream.ids) for episode in loop.running}
        self.engine.step()
        for episode, length in lengths.items():
            grew = len(episode.stream.ids) > length
            self.waits[episode] = 0 if grew else self.waits.get(episode, 0) + 1
        self.longest_wait = max(self.longest_wait, *self.waits.values())
        return True

    def score(self, episodes: list[Episode]) -> None:
        requests = []
        for episode in episodes:
            lengths = [turn.start for turn in episode.rollout.turns]
            requests.append((episode.sequence, lengths, TRUTH))
        self.engine.score_many(requests)

    @property
    def at_once(self) -> float:
        return mean(self.open)


def turns_of(count: int, limit: int) -> list[int]:
    """Turns of each rollout; where its length is beyond the limit, more than there is room for."""
    draw = random.Random(0)
    lengths = [draw.lognormvariate(math.log(limit / 4), 0.6) for _ in range(count)]
    return [max(1, round((length - PROMPT) / PAIR)) for length in lengths]
