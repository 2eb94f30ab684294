"""A rollout while it grows: the turn loop (rollout.py) adds a turn, its observation, the next turn, and ends it."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from minvenus.agent.protocol import ParsedTurn, is_well_formed
from minvenus.text.chat import Stream
from minvenus.types import Question, Rollout, Turn


@dataclass(eq=False)
class Episode:
    """A rollout while it grows. (seed of the policy, step, name, number) decide what is sampled."""

    question: Question
    tools: object
    stream: Stream
    max_turns: int
    name: str                            # of its group
    number: int                          # in its group
    step: int | None = None              # of training
    turns: list[Turn] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)            # why attempts at the current turn were thrown away
    forced_by: str | None = None         # the limit that makes the next turn the last: token_limit, max_steps
    sequence: Any = None                 # the engine's sequence, while it is open; None at an endpoint
    writing: bool = False                # the policy is writing a turn
    call: dict | None = None             # the tool call of the newest turn, until its result is there
    result: Future | None = None         # of the call's thread; None while it waits for a free one
    call_started: float = 0.0
    started: float = field(default_factory=time.monotonic)        # when it was opened
    turn_started: float = field(default_factory=time.monotonic)
    rollout: Rollout | None = None       # None until the rollout has ended
    group: int = 0                       # of training: the number of its question in the step

    def end_turn(self, text: str, parsed: ParsedTurn, sampled: bool, last: bool) -> None:
        """Add the turn that is written. `sampled`: its ids are those that the policy chose. With
        `last` its call is not run, so the turn is no search and no visit."""
        start, end = self.stream.end_turn(sampled)
        call = None if last else parsed.call
        kind = parsed.kind if call or parsed.kind == "answer" else "none"
        seconds = time.monotonic() - self.turn_started
        self.turns.append(Turn(kind, start, end, text, call, discarded=self.discarded, seconds=seconds))
        self.discarded = []

    def add_observation(self, text: str, error: str | None, seconds: float) -> None:
        """Append what came back to the newest turn, and the prompt of the next one."""
        self.stream.add_observation(text)
        self.turns[-1] = replace(self.turns[-1], observation=text, tool_error=error, tool_seconds=seconds)

    def end(self, termination: str, error: str | None, system: str, cut_off: bool) -> None:
        """Make the record. `cut_off`: the run or an endpoint failed, so the last turn says nothing about the model's
        format. One that was cut by the time limit counts as malformed."""
        turns = []
        for turn in self.turns:
            last = turn is self.turns[-1]
            malformed = not is_well_formed(turn.text, final=last) and not (last and cut_off)
            turns.append(replace(turn, malformed=malformed))
        logprobs: list[float | None] = [None] * len(self.stream.ids)
        places = [i for i, sampled in enumerate(self.stream.sampled) if sampled]
        for place, logprob in zip(places, self.stream.logprobs, strict=True):
            logprobs[place] = logprob
        self.rollout = Rollout(self.question, self.stream.ids, self.stream.sampled, logprobs, turns, termination,
                               system, error, seconds=time.monotonic() - self.started)
