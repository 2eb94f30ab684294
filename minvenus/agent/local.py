"""The local policy: turns from our own engine."""

from dataclasses import replace

from minvenus.agent.episode import Episode
from minvenus.engine import Engine, Sampling
from minvenus.text.tokenizer import Tokenizer


class EnginePolicy:
    """The engine as a policy; policy.py says what its methods do. The tokenizer's stop ids are added to those of the
    sampling."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling):
        self.engine = engine
        self.sampling = replace(sampling, stop_ids=(*tokenizer.stop_ids, *sampling.stop_ids))
        self.max_context = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)

    def fitting(self, group: list[Episode], opened: list[Episode], length: int) -> int:
        """How many of the group fit beside `opened` if all grow to `length` tokens; at least one if nothing is open."""
        least = 0 if opened else 1
        counts = range(len(group), least, -1)
        return next((count for count in counts if self._has_room(opened + group[:count], length)), least)

    def _has_room(self, episodes: list[Episode], length: int) -> bool:
        """Whether all fit at full length. Rollouts of one group share the full pages of their prompt."""
        pool = self.engine.pool
        shared = {e.name: ((e.turns[0].start if e.turns else len(e.stream.ids)) - 1) // pool.page_size
                  for e in episodes}                                  # each computes the prompt's last token itself
        own = sum(pool.pages_for(length) - shared[e.name] for e in episodes)
        return own + sum(shared.values()) <= pool.count

    def open(self, group: list[Episode]) -> None:
        """The prompt is computed once."""
        first = group[0]
        [sequences] = self.engine.open_groups([first.stream.ids], len(group), [first.name], first.step, first.number)
        for episode, sequence in zip(group, sequences, strict=True):
            episode.sequence = sequence

    def start(self, episode: Episode, max_tokens: int) -> None:
        old, ids = episode.sequence, episode.stream.ids
        if len(old.tokens) > len(ids):
            # another attempt: a new sequence finds the pages again, and its name gives it other noise
            self.engine.close(old)
            episode.sequence = self.engine.open(ids, f"{old.question} again", old.rollout, old.step)
        elif len(old.tokens) < len(ids):
            self.engine.append(old, ids[len(old.tokens):])
        self.engine.start(episode.sequence, replace(self.sampling, max_tokens=max_tokens))

    def step(self) -> bool:
        self.engine.step()
        return bool(self.engine.scheduler.running())

    def output(self, episode: Episode) -> tuple[list[int], list[float]] | None:
        done = episode.sequence.completion
        return None if episode.sequence.job else (done.tokens, done.logprobs)

    def cut(self, episode: Episode) -> tuple[list[int], list[float]]:
        done = self.engine.cut(episode.sequence)
        return done.tokens, done.logprobs

    def close(self, episode: Episode) -> None:
        self.engine.close(episode.sequence)
