"""Policies: what writes the turns. The loop uses these methods, of the local engine and of a remote endpoint (remote.py) alike:

    open(prompts_Q, n, names_Q, step)       n handles for each prompt
    start(handle, ids, max_tokens)          begin a turn after `ids`, the whole stream so far
    step() -> bool                          do some work; False if there is none to do in this thread
    futures()                               of the turns that are written in other threads
    cut(handle) -> TurnOutput               end its turn now; returns the partial turn
    discard_turn(handle, ids)               throw the finished turn away; `ids` is the stream before it
    close(handle)                           free what it holds

`handle.output` is the TurnOutput of a turn that has ended, None while it is being written. `max_context` is the largest number
of tokens that a sequence may have, None if unknown. `check_trainable` raises where log-probs would be missing or wrong.

Log-probs are under the plain softmax at the sampling temperature over the whole vocabulary, which is what a trainer computes
again. With top-p below 1 tokens are drawn from another distribution; their log-probs here are still the plain ones.
"""

from concurrent.futures import Future
from dataclasses import dataclass, replace

from minvenus.agent.episode import TurnOutput
from minvenus.config import ConfigError
from minvenus.engine import Engine, Sampling, Sequence
from minvenus.engine.sequence import Turn
from minvenus.text.tokenizer import Tokenizer


@dataclass(eq=False)
class EngineHandle:
    """One rollout in the engine."""

    sequence: Sequence
    name: str                                   # of the question
    discarded: int = 0                          # turns thrown away so far
    output: TurnOutput | None = None


class EnginePolicy:
    """Turns from the local engine. The max_tokens of `sampling` is replaced turn by turn; its stop_ids come on top of the
    tokenizer's."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling):
        self.engine, self.sampling = engine, sampling
        self.stop_ids = (*tokenizer.stop_ids, *sampling.stop_ids)
        self.max_context = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)
        self.writing: dict[Sequence, EngineHandle] = {}

    def open(self, prompts_Q: list[list[int]], n: int, names_Q: list[str], step: int | None = None) -> list[list[EngineHandle]]:
        """Each prompt is computed once for its n rollouts. (engine seed, step, name, rollout) decide what is sampled."""
        groups = self.engine.open_groups(prompts_Q, n, [*names_Q], step)
        return [[EngineHandle(s, name) for s in group] for name, group in zip(names_Q, groups, strict=True)]

    def start(self, handle: EngineHandle, ids: list[int], max_tokens: int) -> None:
        handle.output = None
        new = ids[len(handle.sequence.tokens):]
        if new:
            self.engine.append(handle.sequence, new)
        self.engine.start(handle.sequence, replace(self.sampling, max_tokens=max_tokens, stop_ids=self.stop_ids))
        self.writing[handle.sequence] = handle

    def step(self) -> bool:
        for sequence in self.engine.step():
            done = sequence.completion
            assert done is not None
            self.writing.pop(sequence).output = TurnOutput(done.tokens, done.logprobs)
        return bool(self.writing)

    def futures(self) -> list[Future]:
        return []

    def cut(self, handle: EngineHandle) -> TurnOutput:
        del self.writing[handle.sequence]
        turn = handle.sequence.job
        assert isinstance(turn, Turn)
        output = TurnOutput(list(turn.tokens), list(turn.logprobs))
        self._reopen(handle, list(handle.sequence.tokens))
        return output

    def discard_turn(self, handle: EngineHandle, ids: list[int]) -> None:
        handle.discarded += 1                   # gives the next attempt other noise, or the same turn would come again
        self._reopen(handle, ids)

    def close(self, handle: EngineHandle) -> None:
        self.writing.pop(handle.sequence, None)
        self.engine.close(handle.sequence)

    def check_trainable(self) -> None:
        s = self.sampling
        plain = {"top_k": None, "presence_penalty": 0.0, "stop_ids": ()}
        wrong = [f"{name} {getattr(s, name)}" for name, value in plain.items() if getattr(s, name) != value]
        if s.temperature == 0:
            wrong.append("temperature 0")
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: for inference only, because the log-probs of such turns are not those of the "
                              "policy that is trained")

    def _reopen(self, handle: EngineHandle, ids: list[int]) -> None:
        """A fresh sequence with these tokens; it finds its full pages again."""
        old = handle.sequence
        self.engine.close(old)
        handle.sequence = self.engine.open(ids, f"{handle.name} attempt {handle.discarded}", old.rollout, old.step)
