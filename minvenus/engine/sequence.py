"""A sequence and the job it has: the records that scheduler and engine share. No tensors of the cache, no pages, no model here.

A sequence is one append-only list of tokens. Its table says how many of them are computed; the last token of a sequence that
waits for its next turn never is, because running it is what gives the distribution of the next one. A sequence without a table is
as good as any other: its tokens are computed again when it has work to do.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minvenus.engine.sampler import Sampling


@dataclass(frozen=True)
class Completion:
    """One turn as it was sampled."""

    tokens: list[int]                  # the stop id included, if one was drawn
    logprobs: list[float]              # plain softmax at the sampling temperature: what a trainer computes again
    stop: int | None                   # the stop id that ended the turn; None = cut at max_tokens


@dataclass(eq=False, slots=True)
class Turn:
    """A turn being sampled."""

    sampling: Sampling
    written: Tensor | None = None      # [V], 1.0 at ids of this turn; only with a presence penalty
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Scoring:
    """Log-probs of tokens that are given: of every token behind position `first`."""

    first: int
    temperature: float
    source: "Sequence"                 # whose pages hold the prefix
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Prefill:
    """Keys and values only."""


@dataclass(eq=False, slots=True)
class Sequence:
    number: int                        # order of opening: the smaller, the older
    tokens: list[int]
    question: int | str = ""           # with seed, step and rollout, the name of the sequence's random numbers
    rollout: int = 0
    step: int | None = None            # of training; None = outside of it
    noise: Any = None                  # Noise; None = never sampled from
    table: Any = None                  # Table; None = nothing is computed
    job: Any = None                    # Turn, Scoring or Prefill; None = idle
    goal: int = 0                      # tokens to be computed before the job is done, or before its next token is drawn
    served: int = -1                   # last step in which it was prefilled
    closed: bool = False
    completion: Any = None             # Completion of the last turn; None = there was none, or one is being sampled

    @property
    def pending(self) -> int:
        return self.goal - (self.table.length if self.table else 0)

    def asked(self, count: int) -> int:
        """Of the next `count` tokens, how many of the last ones give a hidden state that the job wants to see."""
        end = (self.table.length if self.table else 0) + count
        if type(self.job) is Turn:
            return 1 if end == self.goal else 0
        return min(count, max(0, end - self.job.first)) if type(self.job) is Scoring else 0

    @property
    def reusable(self) -> int:
        """How many tokens may come from the cache. At least one is left to run: what a job wants to know hangs on it."""
        return self.job.first if isinstance(self.job, Scoring) else self.goal - 1
