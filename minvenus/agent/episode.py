"""One rollout while it grows: its token stream, its turns, its limits, and what the model is shown next.

    R = max_turn_tokens + 1    tokens of a turn: what may be sampled, and the im_end of a turn that was cut
    N                          tokens of the context notice, shown as an observation

A turn that is not the last starts only where R + N + R tokens are left. So whatever it writes, the notice and a full
last turn still fit: every rollout that meets the context limit gets a chance to answer, and none is ever longer than
max_context. If an observation leaves less, the notice is shown after it where R still fits after both, else in its
place, and the next turn is the last. This is decided before anything is appended. Before the last turn that max_turns
allows, another notice is shown after the observation.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import ParsedTurn, is_well_formed
from minvenus.config import ConfigError, check
from minvenus.text.chat import Stream, observation_ids
from minvenus.types import Question, Rollout, Turn


@dataclass(frozen=True)
class Limits:
    max_turns: int                        # turns of the model, the last one included
    max_context: int                      # tokens of the whole rollout, prompt and last turn included
    max_turn_tokens: int                  # tokens sampled in one turn
    max_observation_tokens: int = 8192    # longer tool results are cut, and say so
    time_limit: float | None = None       # seconds of a rollout from its start; None = no limit
    tool_seconds: float = 150.0           # for one tool call that runs in a thread
    tool_threads: int | None = 16         # tool calls at once; None = in the loop's thread, for tools that cannot hang
    retries: int = 0                      # new attempts at a malformed, repetitive or duplicate turn; 0 in training

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class TurnOutput:
    """A turn as the policy wrote it."""

    tokens: list[int]
    logprobs: list[float] | None = None   # None = the ids were made from text, so they do not count as sampled
    error: str | None = None              # why the turn could not be written to its end: the rollout is over


@dataclass(eq=False)
class ToolCall:
    """A call that runs in a thread, or waits for a free one."""

    name: str
    arguments: dict
    started: float                        # when it was made; once it runs, when it began to run
    future: Future | None = None          # None = it waits


@dataclass(eq=False)
class Episode:
    question: Question
    stream: Stream
    tools: object
    system: str
    notices: Notices
    limits: Limits
    turns: list[Turn] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)    # as long as stream.ids
    calls_made: set[str] = field(default_factory=set)             # keys of executed calls, to find duplicates
    discarded: list[str] = field(default_factory=list)            # why attempts at the current turn were thrown away
    is_last: bool = False                                         # the current turn is the last one
    forced_by: str | None = None                                  # the notice that announced it: token_limit, max_steps
    notice_tokens: int = 0                                        # N
    sequence: Any = None                                          # of a local policy: the engine's, while it is open
    writing: bool = False                                         # the policy is writing a turn
    output: TurnOutput | None = None                              # the turn that the policy has written
    call: ToolCall | None = None                                  # the tool call whose result it waits for
    started: float = field(default_factory=time.monotonic)
    turn_started: float = field(default_factory=time.monotonic)
    rollout: Rollout | None = None                                # None until the rollout has ended

    def __post_init__(self):
        self.is_last = self.limits.max_turns == 1
        self.notice_tokens = self.observation_tokens(self.notices.context)
        self._pad_logprobs()
        reserve = 0 if self.is_last else self.notice_tokens + self.turn_tokens
        needed = len(self.stream.ids) + self.turn_tokens + reserve
        if needed > self.limits.max_context:
            raise ConfigError(f"question {self.question.id!r}: the prompt has {len(self.stream.ids)} tokens and turns "
                              f"may have {self.limits.max_turn_tokens}, so max_context must be at least {needed}, not "
                              f"{self.limits.max_context}; or allow fewer tokens per turn")

    @property
    def turn_tokens(self) -> int:
        """R"""
        return self.limits.max_turn_tokens + 1

    def add_turn(self, output: TurnOutput, text: str, parsed: ParsedTurn) -> None:
        """Append what the policy wrote. A call in the last turn is not run, so that turn is no search and no visit."""
        tokens = output.tokens or [self.stream.tokenizer.im_end]      # nothing was written: a blank turn, closed
        start, end = self.stream.add_turn(tokens)
        if output.tokens and output.logprobs is not None:
            self.logprobs += output.logprobs
        else:
            self.stream.sampled[start:end] = [False] * (end - start)
        self._pad_logprobs()
        call = None
        if parsed.arguments is not None and not self.is_last:
            call = {"name": parsed.tool, "arguments": parsed.arguments}
        kind = parsed.kind if call or parsed.kind == "answer" else "none"
        self.turns.append(Turn(kind, start, end, text, call, malformed=not is_well_formed(text, final=False),
                               discarded=self.discarded, seconds=time.monotonic() - self.turn_started))
        self.discarded = []

    def add_observation(self, text: str, error: str | None, seconds: float) -> None:
        """Append what the model is shown in answer to the newest turn."""
        shown, self.is_last, self.forced_by = self.fit(text)
        self.stream.add_observation(shown)
        self._pad_logprobs()
        self.turns[-1] = replace(self.turns[-1], observation=shown, tool_error=error, tool_seconds=seconds)

    def fit(self, observation: str) -> tuple[str, bool, str | None]:
        """(the text to show, whether the next turn is the last one, which notice the text contains)."""
        left = self.limits.max_context - len(self.stream.ids)
        if len(self.turns) + 1 == self.limits.max_turns:
            shown = f"{observation}\n\n{self.notices.last_turn}"
            if self.observation_tokens(shown) + self.turn_tokens <= left:
                return shown, True, "max_steps"
        elif self.observation_tokens(observation) + self.turn_tokens + self.notice_tokens + self.turn_tokens <= left:
            return observation, False, None
        shown = f"{observation}\n\n{self.notices.context}"
        if self.observation_tokens(shown) + self.turn_tokens > left:
            shown = self.notices.context
        return shown, True, "token_limit"

    def observation_tokens(self, text: str) -> int:
        """How many tokens are appended when the model is shown this text."""
        return len(observation_ids(self.stream.tokenizer, text))

    def finish(self, termination: str | None = None, error: str | None = None) -> None:
        """Make the record. Without a given termination, the newest turn and the notices decide."""
        last = self.turns[-1]
        if termination is None and last.kind == "answer":
            termination = f"answered_{self.forced_by}" if self.forced_by else "answered"
        elif termination is None:
            termination = "token_limit_no_answer" if self.forced_by == "token_limit" else "max_steps"
        turns = [*self.turns[:-1], replace(last, malformed=not is_well_formed(last.text, final=True))]
        self.rollout = Rollout(self.question, self.stream.ids, self.stream.sampled, self.logprobs, turns, termination,
                               system=self.system, error=error, seconds=time.monotonic() - self.started)

    def _pad_logprobs(self) -> None:
        self.logprobs += [None] * (len(self.stream.ids) - len(self.logprobs))
