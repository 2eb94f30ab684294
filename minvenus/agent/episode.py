"""A rollout while it grows: the turn loop (rollout.py) adds turns and observations, and ends it.

One trajectory has four objects. The Episode grows turn by turn; its Stream (text/chat.py) has the
tokens, its Sequence (engine/) the pages of the cache; at its end it becomes a Rollout (types.py),
the record that is scored, graded and trained.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

from minvenus.agent.protocol import ParsedTurn, format_error
from minvenus.text.chat import Stream
from minvenus.types import Question, Rollout, Turn


@dataclass(eq=False)
class Episode:
    """A rollout in progress. (seed of the engine, step, name, number) determine what is sampled."""

    question: Question
    tools: object
    stream: Stream                       # its tokens: the engine appends to the same list
    max_turns: int
    name: str                            # of its group
    number: int                          # in its group
    step: int | None = None              # of training

    turns: list[Turn] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)  # why attempts at this turn were thrown away
    forced_by: str | None = None         # the limit that makes the next turn the last
    unreadable: int = 0                  # how many turns in a row could not be read or run
    rollout: Rollout | None = None       # None until it has ended

    sequence: Any = None                 # the engine's, while it is open; None at an endpoint
    writing: bool = False                # a turn is being written

    started: float = field(default_factory=time.monotonic)         # when it was opened
    turn_started: float = field(default_factory=time.monotonic)
    group: int = 0                       # of training: the number of its question in the step

    @property
    def call(self) -> dict | None:
        """The call of the newest turn, as long as its result is not there."""
        return None if self.stream.needs_turn else self.turns[-1].tool

    def end_turn(self, text: str, parsed: ParsedTurn, sampled: bool, last: bool) -> None:
        """Add the turn that is written. `sampled`: its ids are those that the policy chose. With
        `last` its call is not run, so the turn is no search and no visit."""
        start, end = self.stream.end_turn(sampled)
        call = None if last else parsed.call
        kind = parsed.kind
        if call is None and kind != "answer":
            kind = "none"
        seconds = time.monotonic() - self.turn_started
        turn = Turn(kind, start, end, text, call, discarded=self.discarded, seconds=seconds)
        self.turns.append(turn)
        self.discarded = []
        self.unreadable = self.unreadable + 1 if kind == "none" else 0

    def add_observation(self, text: str, error: str | None, seconds: float) -> None:
        """Append what came back to the newest turn, and the prompt of the next one."""
        self.stream.add_observation(text)
        newest = self.turns[-1]
        self.turns[-1] = replace(newest, observation=text, tool_error=error, tool_seconds=seconds)

    def replace_observation(self, text: str) -> None:
        """Show this in place of the newest observation, which the model has not seen."""
        newest = self.turns[-1]
        self.stream.remove_observation()
        self.add_observation(text, newest.tool_error, newest.tool_seconds)

    def termination(self) -> str:
        """How a rollout ends that nothing has cut."""
        if self.turns[-1].kind == "answer":
            return f"answered_{self.forced_by}" if self.forced_by else "answered"
        return "token_limit_no_answer" if self.forced_by == "token_limit" else "max_steps"

    def end(self, termination: str, error: str | None, system: str, check_last: bool) -> None:
        """Make the record. With `check_last` the format of the last turn counts, too: one that was
        cut by the time limit is malformed."""
        turns = []
        for turn in self.turns:
            last = turn is self.turns[-1]
            malformed = format_error(turn.text, final=last) is not None
            turns.append(replace(turn, malformed=malformed and (check_last or not last)))

        stream = self.stream
        logprobs: list[float | None] = [None] * len(stream.ids)
        places = [i for i, sampled in enumerate(stream.sampled) if sampled]
        for place, logprob in zip(places, stream.logprobs, strict=True):
            logprobs[place] = logprob

        seconds = time.monotonic() - self.started
        self.rollout = Rollout(self.question, stream.ids, stream.sampled, logprobs, turns,
                               termination, system, error, seconds)
