"""What the turn loop (rollout.py) works on: the limits of a rollout, and a rollout while it grows."""

import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from minvenus.text.chat import Stream
from minvenus.types import Question, Rollout, Turn


@dataclass(frozen=True)
class Limits:
    max_turns: int                        # turns of the model, the last one included
    max_context: int                      # tokens of the whole rollout, prompt and last turn included
    max_turn_tokens: int                  # tokens sampled in one turn
    max_observation_tokens: int = 8192    # longer tool results are cut, and say so
    time_limit: float = math.inf          # seconds of a rollout from its start
    tool_seconds: float = 450.0           # for one tool call that runs in a thread
    tool_threads: int | None = 16         # tool calls at once; None = in the loop's thread, for tools that cannot hang
    retries: int = 0                      # new attempts at a malformed, repetitive or duplicate turn; 0 in training
    answer_from: float = math.inf         # a longer context makes the next turn the last, though there is room
    last_turn_tokens: int | None = None   # kept free for the last turn, which may write more if it can; None = as any
    max_malformed: int = 0                # so many turns in a row that cannot be read or run end a rollout; 0 = never


@dataclass(eq=False)
class Episode:
    """One rollout while it grows. (seed of the policy, step, name, number) decide what is sampled."""

    question: Question
    tools: object
    stream: Stream
    max_turns: int
    name: str                            # of its group
    number: int                          # in its group
    step: int | None = None              # of training
    turns: list[Turn] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)           # of the sampled tokens
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
    answer_logprobs: Any = None          # of the true answer before each turn, where a caller scores it
