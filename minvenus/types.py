"""The records that every part uses: a question, a turn, a rollout, a scored sample, its rewards.

A rollout is one append-only token stream. Ids and log-probs are kept exactly as they were
sampled; text is for display.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

Kind = Literal["search", "visit", "answer", "none"]  # none: no answer, and no call that ran
KINDS: tuple[str, ...] = get_args(Kind)
UNKNOWN = "(unknown)"                 # in place of a true answer that is not known
PerTurn = list[float | None]          # a number for each turn, None where a turn has none

TERMINATIONS = (
    "answered",
    "answered_token_limit",           # in the last turn that the context had room for
    "answered_max_steps",             # in the last turn that was allowed
    "token_limit_no_answer",          # the same without an answer
    "max_steps",
    "malformed",                      # too many turns in a row that could not be read
    "timeout",
    "error",                          # of a service or of the run, not of the model
)


@dataclass(frozen=True)
class Question:
    """A question and every accepted spelling of its answer; the first is the truth."""

    id: str
    text: str
    answers: list[str]
    source: str | None = None         # the part of an evaluation that it belongs to: its data set
    pages: list[str] | None = None    # addresses of the right pages in order, where they are known

    def __post_init__(self):
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.answers or not all(answer.strip() for answer in self.answers):
            raise ValueError(f"question {self.id!r} needs at least one non-blank answer, "
                             f"got {self.answers!r}")


@dataclass(frozen=True)
class Turn:
    """One output of the model and what came back.

    `tokens[start:end]` of the rollout is what the model wrote, with the closing end-of-turn token;
    `tokens[:turns[t].start]` is the context before turn t.
    """

    kind: Kind
    start: int
    end: int
    text: str
    tool: dict | None = None          # {"name": ..., "arguments": {...}} as it was executed
    observation: str | None = None    # what came back, as the model saw it; None for the last turn
    malformed: bool = False           # failed the strict format check
    tool_error: str | None = None     # the kind of error that came back, if one did
    discarded: list[str] = field(default_factory=list)    # why earlier attempts were thrown away
    seconds: float = 0.0              # of sampling, which is batched: other rollouts' work is in it
    tool_seconds: float = 0.0         # from the call of the tool to its result

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"turn kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 <= self.start < self.end:
            raise ValueError(f"a turn needs 0 <= start < end, got {self.start}:{self.end}")


@dataclass(frozen=True)
class Rollout:
    """One trajectory of the agent. All per-token lists have the length of `tokens`."""

    question: Question
    tokens: list[int]                 # prompt, then all that the model or a tool produced
    sampled: list[bool]               # True where the policy chose the token
    logprobs: list[float | None]      # of a sampled token, when it was sampled; None elsewhere
    turns: list[Turn]
    termination: str
    system: str = ""                  # the system prompt
    error: str | None = None          # of termination "error": what happened
    seconds: float = 0.0              # from its opening to its end

    def __post_init__(self):
        if not len(self.tokens) == len(self.sampled) == len(self.logprobs):
            raise ValueError(f"lengths differ: tokens {len(self.tokens)}, "
                             f"sampled {len(self.sampled)}, logprobs {len(self.logprobs)}")
        if self.termination not in TERMINATIONS:
            raise ValueError(f"termination must be one of {', '.join(TERMINATIONS)}, "
                             f"got {self.termination!r}")
        if self.sampled != [logprob is not None for logprob in self.logprobs]:
            raise ValueError("exactly the sampled tokens have a log-prob")

        if not self.turns:
            raise ValueError("a rollout has at least one turn")
        end = 0
        inside = 0                    # sampled tokens that lie in a turn
        for t, turn in enumerate(self.turns):
            if turn.start < end or turn.end > len(self.tokens):
                raise ValueError(f"turn {t} covers {turn.start}:{turn.end}: before the end of the "
                                 f"last one ({end}) or past the {len(self.tokens)} tokens")
            end = turn.end
            inside += sum(self.sampled[turn.start:turn.end])
        if inside != sum(self.sampled):
            raise ValueError(f"{sum(self.sampled) - inside} sampled tokens lie outside every turn")

    @property
    def kinds(self) -> list[str]:
        return [turn.kind for turn in self.turns]

    @property
    def malformed(self) -> list[bool]:
        return [turn.malformed for turn in self.turns]


@dataclass(frozen=True)
class Sample:
    """A rollout and what was measured of it: all that its credit is computed from."""

    rollout: Rollout
    truth_logprobs: list[list[float] | None]   # of the truth's tokens before each turn, if scored
    outcome: float | None                      # the score of the answer; None until it is graded
    group: int                                 # the same for all rollouts of a question
    number: int = 0                            # of the rollout in its group

    def __post_init__(self):
        if len(self.truth_logprobs) != len(self.rollout.turns):
            raise ValueError(f"one entry per turn: turns {len(self.rollout.turns)}, "
                             f"truth_logprobs {len(self.truth_logprobs)}")


@dataclass(frozen=True)
class TurnRewards:
    """Rewards of one rollout. A turn without a reward is None; 0.0 is a reward like any other."""

    turns: PerTurn                        # of the turns before the last
    outcome: float                        # the reward of the last turn
    penalties: list[bool] | None = None   # which of `turns` are format penalties; None = none

    def __post_init__(self):
        if self.penalties is not None and len(self.penalties) != len(self.turns):
            raise ValueError(f"lengths differ: turns {len(self.turns)}, "
                             f"penalties {len(self.penalties)}")

    def is_penalty(self) -> list[bool]:
        return [False] * len(self.turns) if self.penalties is None else self.penalties
