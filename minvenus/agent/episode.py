"""One rollout while it grows: its token stream, its turns, and the rule for what the model gets to see next.

    R = max_turn_tokens + 1         room of a turn: what may be sampled, and an im_end for a turn that was cut
    N                               the context notice as an observation

A turn that is not the last starts only where R + N + R tokens are left. So whatever it writes, the notice and a full last turn
still fit: every rollout that meets the limit gets its chance to answer, and none is ever longer than max_context. An observation
that leaves less is shown with the notice behind it if R fits after both, else the notice takes its place, and the next turn is
the last. This is decided before anything is appended. The turn limit works alike: before the last allowed turn its notice stands
behind the observation.

Neither a policy nor a tool is known here.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Literal

from minvenus.agent.policy import Written
from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import ParsedTurn, is_well_formed
from minvenus.config import ConfigError
from minvenus.text.chat import Stream, observation_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.cassette import call_key
from minvenus.types import Question, Rollout, Turn

TAIL, TIMES = 50, 5                 # a text is repetitive if its last TAIL characters occur more than TIMES times


@dataclass(frozen=True)
class Budget:
    """What a rollout may use."""

    max_turns: int                              # turns of the model, the last one included
    max_context: int                            # tokens of the whole rollout, prompt and last turn included
    max_turn_tokens: int                        # tokens sampled in one turn
    max_observation_tokens: int = 8192          # longer results of tools are cut, and say so
    seconds: float | None = None                # wall clock of a rollout from its first turn on; None = no limit
    tool_seconds: float = 150.0                 # wall clock of one tool call
    tool_threads: int = 16                      # tool calls at once; 0 = in the loop's own thread (see calls.py)
    retries: int = 0                            # more attempts at a turn that cannot be read, repeats itself or a call; 0 in RL

    def __post_init__(self):
        for name, least in (("max_turns", 1), ("max_context", 1), ("max_turn_tokens", 1), ("max_observation_tokens", 64),
                            ("tool_threads", 0), ("retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.tool_seconds > 0 or (self.seconds is not None and not self.seconds > 0):
            raise ConfigError(f"tool_seconds and seconds must be greater than 0, got {self.tool_seconds} and {self.seconds}")


@dataclass(eq=False)
class Episode:
    """The state of one rollout."""

    question: Question
    stream: Stream
    tools: object
    system: str
    budget: Budget
    notices: Notices
    notice_size: int                            # N: tokens of the context notice, counted once for all episodes
    max_turns: int
    turns: list[Turn] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)          # as long as stream.ids
    executed: set[str] = field(default_factory=set)                     # keys of calls, for the duplicate check
    discarded: list[str] = field(default_factory=list)                  # reasons, of the present turn
    last: Literal["token_limit", "max_steps"] | None = None             # the present turn is the last one, and why
    told: bool = False                                                  # and the model has been told
    started: float = field(default_factory=time.monotonic)
    turn_started: float = 0.0

    def __post_init__(self):
        self.last = "max_steps" if self.max_turns == 1 else None
        least = len(self.stream.ids) + self.turn_room + (0 if self.last else self.reserve)
        if least > self.budget.max_context:
            raise ConfigError(f"question {self.question.id!r}: the prompt has {len(self.stream.ids)} tokens and turns may have "
                              f"{self.budget.max_turn_tokens}, so max_context must be at least {least}, not "
                              f"{self.budget.max_context}; or allow fewer tokens per turn")
        self._align()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.stream.tokenizer

    @property
    def turn_room(self) -> int:
        return self.budget.max_turn_tokens + 1

    @property
    def reserve(self) -> int:
        return self.notice_size + self.turn_room

    def size(self, observation: str) -> int:
        return size_of(self.tokenizer, observation)

    def seconds_left(self) -> float:
        return float("inf") if self.budget.seconds is None else self.started + self.budget.seconds - time.monotonic()

    # ------------------------------------------------------------------------------------------------------ what is added

    def add_turn(self, written: Written, text: str, parsed: ParsedTurn) -> None:
        """Append what the policy wrote. A call in the last turn is not run, so that turn is no search and no visit."""
        start, end = self.stream.add_turn(written.tokens or [self.tokenizer.im_end])       # nothing at all: a closed, blank turn
        if written.logprobs is None or not written.tokens:
            self.stream.sampled[start:end] = [False] * (end - start)
        else:
            self.logprobs += written.logprobs
        self._align()
        call = None if self.last or parsed.arguments is None else {"name": parsed.tool, "arguments": parsed.arguments}
        kind = parsed.kind if call or parsed.kind == "answer" else "none"
        final = kind == "answer" or self.last is not None
        self.turns.append(Turn(kind, start, end, text, call, malformed=not is_well_formed(text, final), discarded=self.discarded,
                               seconds=time.monotonic() - self.turn_started))
        self.discarded = []

    def add_observation(self, text: str, error: str | None, seconds: float) -> None:
        shown, self.last, self.told = self.fit(text)
        self.stream.add_observation(shown)
        self._align()
        self.turns[-1] = replace(self.turns[-1], observation=shown, tool_error=error, tool_seconds=seconds)

    def fit(self, observation: str) -> tuple[str, Literal["token_limit", "max_steps"] | None, bool]:
        """What to show in answer to the newest turn; whether the next turn is the last one, and why; and whether that is told."""
        left = self.budget.max_context - len(self.stream.ids)
        if len(self.turns) + 1 == self.max_turns:
            notice = self.notices.last_turn
            shown = observation if notice is None else behind(observation, notice)
            if self.size(shown) + self.turn_room <= left:
                return shown, "max_steps", notice is not None
        elif self.size(observation) + self.turn_room + self.reserve <= left:
            return observation, None, False
        shown = behind(observation, self.notices.context)
        if self.size(shown) + self.turn_room > left:
            shown = self.notices.context
        return shown, "token_limit", True

    def _align(self) -> None:
        self.logprobs += [None] * (len(self.stream.ids) - len(self.logprobs))

    # ---------------------------------------------------------------------------------------------------------- its end

    def termination(self, answered: bool) -> str:
        """How the rollout ends with its newest turn."""
        if self.last == "token_limit":
            return "answered_token_limit" if answered else "token_limit_no_answer"
        if answered:
            return "answered_max_steps" if self.told else "answered"
        return "max_steps"

    def rollout(self, termination: str, error: str | None = None) -> Rollout:
        last = self.turns[-1]
        turns = [*self.turns[:-1], replace(last, malformed=not is_well_formed(last.text, final=True))]
        return Rollout(self.question, self.stream.ids, self.stream.sampled, self.logprobs, turns, termination,
                       self.system, error, time.monotonic() - self.started)


# ------------------------------------------------------------------------------------------------------------- pure parts


def size_of(tokenizer: Tokenizer, observation: str) -> int:
    """Tokens between a turn and the next one, if this is what the model is shown."""
    return len(observation_ids(tokenizer, observation))


def behind(observation: str, notice: str) -> str:
    return f"{observation}\n\n{notice}"


def turn_text(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """A turn as the parser wants it: with the <think> of the generation prompt, without the id that ended it."""
    ended = bool(tokens) and tokens[-1] in tokenizer.stop_ids
    return "<think>\n" + tokenizer.decode(tokens[:-1] if ended else tokens)


def is_repetitive(text: str) -> bool:
    return text.count(text[-TAIL:]) > TIMES


def objection(text: str, parsed: ParsedTurn, executed: set[str]) -> str | None:
    """Why inference would rather have another attempt at a turn."""
    if is_repetitive(text):
        return "repetition"
    if parsed.error is not None:
        return "malformed"
    if parsed.tool is not None and parsed.arguments is not None and call_key(parsed.tool, parsed.arguments) in executed:
        return "duplicate"
    return None
