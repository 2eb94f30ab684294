"""A sequence and its job: the records that scheduler, runner and engine share.

A sequence is one append-only list of tokens. Its block table says how many of them are computed. The last token of a
sequence that waits for its next turn is not: running it gives the distribution of the next token. A sequence without
a block table is complete, too: its tokens are computed again when it has a job.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minvenus.engine.sampler import Noise, Sampling


@dataclass(frozen=True)
class Completion:
    """One turn as it was sampled."""

    tokens: list[int]                  # with the stop id, if one was drawn
    logprobs: list[float]              # plain softmax at the sampling temperature: what a trainer computes again
    stop: int | None                   # the stop id that ended the turn; None = cut at max_tokens


@dataclass(eq=False, slots=True)
class Generation:
    """Job: sample a turn. It wants the hidden state of the sequence's last token, again and again."""

    sampling: Sampling
    written: Tensor | None = None      # [V], 1.0 at ids of this turn; only with a presence penalty
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, token: int, logprob: float) -> Completion | None:
        """Keep a token that was drawn; returns the completion if it ends the turn."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.written is not None:
            self.written[token] = 1.0
        stop = token if token in self.sampling.stop_ids else None
        if stop is None and len(self.tokens) < self.sampling.max_tokens:
            return None
        return Completion(self.tokens, self.logprobs, stop)


@dataclass(eq=False, slots=True)
class Scoring:
    """Job: log-probs of given tokens. It wants the hidden state before each of them."""

    temperature: float
    source: "Sequence"                 # the sequence whose pages hold the prefix
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Prefill:
    """Job: compute keys and values. It wants no hidden state."""


@dataclass(eq=False, slots=True)
class Sequence:
    number: int                        # order of opening: smaller is older
    tokens: list[int]
    question: int | str                # (seed, step, question, rollout) name the random numbers of a sequence
    rollout: int
    step: int | None                   # of training
    noise: Noise
    block_table: Any = None            # BlockTable; None = nothing is computed
    job: Any = None                    # Generation, Scoring or Prefill; None = idle
    goal: int = 0                      # the job needs this many tokens computed (a Generation: before its next draw)
    output_from: int = 0               # the job wants the hidden states of the tokens from here to the goal
    prefilled_at: int = -1             # last step in which it was prefilled
    closed: bool = False
    completion: Any = None             # Completion of the last turn; None = there is none, or one is being sampled

    @property
    def num_computed(self) -> int:
        return self.block_table.num_computed if self.block_table else 0

    @property
    def decoding(self) -> bool:
        """One token is missing before the next draw."""
        table = self.block_table
        return type(self.job) is Generation and table is not None and table.num_computed + 1 == self.goal

    def outputs(self, count: int) -> int:
        """How many of the next `count` tokens, always the last ones, give a hidden state that the job wants."""
        start = self.num_computed
        return max(0, start + count - max(start, self.output_from))
