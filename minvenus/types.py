"""The records that every part uses: a question, a turn, a rollout, a scored sample, its rewards.

A rollout is one append-only token stream. Ids and log-probs are kept exactly as they were
sampled; text is for display.
"""

import operator
import sys
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

Kind = Literal["search", "visit", "answer", "none"]
KINDS: tuple[str, ...] = get_args(Kind)
UNKNOWN = "(unknown)"                 # in place of a truth that nobody has given
PerTurn = list[float | None]          # a number for each turn, None where a turn has none

TERMINATIONS = ("answered", "answered_token_limit", "answered_max_steps",
                "token_limit_no_answer", "max_steps", "malformed", "timeout", "error")


@dataclass(frozen=True)
class Question:
    """A question and every accepted spelling of its answer; the first is the truth."""

    id: str
    text: str
    answers: list[str]
    source: str | None = None         # the part of an evaluation that it belongs to: its data set

    def __post_init__(self):
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.answers or not all(answer.strip() for answer in self.answers):
            raise ValueError(f"question {self.id!r} needs at least one non-blank answer, "
                             f"got {self.answers!r}")


@dataclass(frozen=True)
class Turn:
    """One output of the model and what came back.

    `tokens[start:end]` of the rollout is what the model wrote, with the closing end-of-turn token.
    So `tokens[:turns[t].start]` is the context before turn t.
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
    seconds: float = 0.0              # of sampling, other rollouts' work included
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
    sampled: list[bool]               # True where the policy chose the token, also an end of turn
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
        for i, (sampled, logprob) in enumerate(zip(self.sampled, self.logprobs, strict=True)):
            if sampled != (logprob is not None):
                raise ValueError(f"token {i}: sampled is {sampled}, log-prob is {logprob}; "
                                 "only sampled tokens have one")

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


# ------------------------------------------------------------------------------------ settings

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}
LIMITS = {
    "least": ("of at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("of at most", operator.le),
    "below": ("below", operator.lt),
}


class ConfigError(ValueError):
    """A setting or a file that cannot be used; the message says what would be valid."""


def setting(default: Any, help: str, heading: str | None = None, **limits: float) -> Any:
    """A field of a settings dataclass: its default and its help text.

    `heading` begins a new group of flags. `limits` bound a number: least=1 (at least), above=0,
    most=1 (at most), below=1.
    """
    return field(default=default, metadata={"help": help, "heading": heading, "limits": limits})


def check_settings(settings) -> None:
    """Raise a ConfigError unless every field has its type, one of its choices, and its limits."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        limits = f.metadata.get("limits", {})
        if not (has_type(value, f.type) and is_within(value, limits)):
            raise ConfigError(f"{f.name} must be {in_words(f.type, limits)}, got {value!r}")


def has_type(value, kind: Any) -> bool:
    """Whether a value, perhaps from a JSON file, has this type. True is no number, 3 is a float,
    NaN is not."""
    if get_origin(kind) in (Union, UnionType):
        return any(has_type(value, choice) for choice in get_args(kind))
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return value in choices and type(value) is type(choices[0])
    if get_origin(kind) is list:
        return type(value) is list and all(has_type(item, get_args(kind)[0]) for item in value)
    if get_origin(kind) is tuple:
        return type(value) is tuple and len(value) == len(get_args(kind))
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if kind in WORDS:
        return type(value) is kind
    return isinstance(value, kind)


def is_within(value, limits: dict[str, float]) -> bool:
    return value is None or all(LIMITS[name][1](value, limit) for name, limit in limits.items())


def in_words(kind: Any, limits: dict[str, float]) -> str:
    """A type and its limits for a message: "a whole number of at least 1 or none"."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(in_words(choice, limits) for choice in get_args(kind))
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is list:
        return f"a list, each {in_words(get_args(kind)[0], limits)}"
    words = WORDS.get(kind, str(kind))
    if kind in (int, float) and limits:
        bounds = [f"{LIMITS[name][0]} {limit:g}" for name, limit in limits.items()]
        words += " " + " and ".join(bounds)
    return words
