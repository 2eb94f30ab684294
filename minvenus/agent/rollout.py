"""The turn loop: many rollouts at once on one policy, the same for training, evaluation and inference.

    write a turn -> parse it -> an answer: the rollout ends
                             -> a call: run the tool in a thread, show the result, write the next turn
                             -> neither: show what is wrong with it, write the next turn

    with RolloutLoop(policy, tokenizer, limits, system=..., notices=...) as loop:
        episodes = loop.add(question, tools_for, n=8)
        loop.run()                                  # or step() after step(), with more add() in between
        rollouts = [episode.rollout for episode in episodes]

The loop has one thread and needs no lock: between two steps of the policy it looks at the futures of tool calls and at
the clocks. While one rollout waits for its tool the others go on. A rollout can be cut at any moment; it keeps the
partial turn as its last.

A tool call that is not back in time becomes a timeout error, and its result is dropped. Its thread ends with the
process at the latest, and does not count among the calls at once. Without tool_threads tools run in the loop's own
thread, and a run is reproducible to the last bit. With threads, the time that tools take decides which rollouts share a
step of the engine, and sums in batches of another size differ in their last bits.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from minvenus.agent.episode import Episode, Limits, ToolCall, TurnOutput
from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import ALLOWED_ARGS, ParsedTurn, parse_turn
from minvenus.config import ConfigError
from minvenus.text.chat import Stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FAULTS, FailureGuard, ToolResult, call_key, cap_text, in_thread, run_tool
from minvenus.types import Question

IDLE_SECONDS = 0.005               # between two looks at futures and clocks while nothing is computed here
REPEATED_TAIL, REPEATS = 50, 5     # a text is repetitive if its last 50 characters occur more than 5 times

# watch(event, episode): "turn" after a turn was written, "observation" after it was answered,
# "discarded" after an attempt at a turn was thrown away, "end" when episode.rollout is there
Watch = Callable[[str, Episode], None]


class RolloutLoop:
    """Rollouts of one policy.

    system, notices   what the model is told besides the question
    guard             raises TooManyFailures when too many tool calls fail
    keep_open         keep sequences open until the end of the `with`, to be scored; else each ends with its rollout
    """

    def __init__(self, policy, tokenizer: Tokenizer, limits: Limits, *, system: str, notices: Notices,
                 guard: FailureGuard | None = None, watch: Watch | None = None, keep_open: bool = False):
        if policy.max_context is not None and limits.max_context > policy.max_context:
            raise ConfigError(f"max_context {limits.max_context} is more than the {policy.max_context} tokens that the "
                              "model and the cache have room for: lower it, or raise the number of pages")
        self.policy, self.tokenizer, self.limits = policy, tokenizer, limits
        self.system, self.notices = system, notices
        self.guard = guard or FailureGuard()
        self.watch = watch or (lambda event, episode: None)
        self.keep_open = keep_open
        self.running: list[Episode] = []
        self.ended: list[Episode] = []                             # those that are kept open

    def __enter__(self) -> "RolloutLoop":
        return self

    def __exit__(self, *_) -> None:
        """Close all sequences and forget all rollouts. Results of tools that still run are dropped."""
        for episode in [*self.running, *self.ended]:
            if episode.rollout is None or self.keep_open:
                self.policy.close(episode)
        self.running, self.ended = [], []

    # ------------------------------------------------------------------------------------------ what callers use

    def add(self, question: Question, tools_for: Callable[[Question], object], n: int = 1, *, name: str | None = None,
            step: int | None = None, max_turns: int | None = None) -> list[Episode]:
        """n rollouts of a question on one shared prompt, each with its own tools from `tools_for`. They start with the
        next step(). The engine's seed, `step`, `name` (default: the question's id) and the number in the group decide
        what is sampled, so a name must not come twice in a step."""
        limits = replace(self.limits, max_turns=max_turns or self.limits.max_turns)
        group = []
        for _ in range(n):
            stream = Stream(self.tokenizer, self.system, question.text)
            group.append(Episode(question, stream, tools_for(question), self.system, self.notices, limits))
        self.policy.open(group, name or question.id, step)
        self.running += group
        return group

    def step(self) -> list[Episode]:
        """Advance every rollout a little; returns those that ended. The loop forgets them unless they are kept open."""
        for episode in self.running:
            if not (episode.turns or episode.writing or episode.rollout):
                self._start_turn(episode)
        busy = self.policy.step()
        written = [episode for episode in self.running if episode.writing and episode.output is not None]
        for episode in written:
            self._read_turn(episode)
        if not busy and not written:
            time.sleep(IDLE_SECONDS)
        self._check_calls()
        limit = self.limits.time_limit
        for episode in self.running:
            if limit is not None and episode.rollout is None and time.monotonic() >= episode.started + limit:
                self._cut(episode, "timeout")
        ended = [episode for episode in self.running if episode.rollout]
        self.running = [episode for episode in self.running if not episode.rollout]
        if self.keep_open:
            self.ended += ended
        return ended

    def run(self, stop: object = False) -> None:
        """Step until all rollouts have ended. Once `stop` is true, every rollout is cut where it is."""
        while self.running:
            self.step()
            if stop:
                self.cut_all("stopped by the user")

    def cut_all(self, error: str) -> None:
        """End every rollout where it is, with termination "error"."""
        for episode in self.running:
            if episode.rollout is None:
                self._cut(episode, "error", error)

    # -------------------------------------------------------------------------------------------------- one turn

    def _start_turn(self, episode: Episode) -> None:
        episode.writing, episode.turn_started = True, time.monotonic()
        self.policy.start(episode)

    def _read_turn(self, episode: Episode) -> None:
        """Keep the turn or discard it; then end the rollout, run the tool, or show what is wrong."""
        output, episode.output, episode.writing = episode.output, None, False
        assert output is not None
        text = turn_text(self.tokenizer, output.tokens)
        parsed = parse_turn(text)
        problem = None if output.error else retry_reason(text, parsed, episode.calls_made)
        if problem and len(episode.discarded) < self.limits.retries:
            episode.discarded.append(problem)
            self.watch("discarded", episode)
            self._start_turn(episode)
            return
        episode.add_turn(output, text, parsed)
        self.watch("turn", episode)
        if output.error:
            self._end(episode, "error", output.error)
        elif parsed.kind == "answer" or episode.is_last:
            self._end(episode)
        elif parsed.tool and parsed.arguments:
            self._call_tool(episode, parsed.tool, parsed.arguments)
        else:
            text = episode.notices.malformed.replace("{error}", parsed.error or "")
            kind = None
            if parsed.tool is not None:                       # a call that no tool takes is a tool error
                kind = "bad_arguments" if parsed.tool in ALLOWED_ARGS else "unknown_tool"
            self._show(episode, text, kind, 0.0)

    def _show(self, episode: Episode, text: str, error: str | None, seconds: float) -> None:
        episode.add_observation(text, error, seconds)
        self.watch("observation", episode)
        self._start_turn(episode)

    # ------------------------------------------------------------------------------------------------ tool calls

    def _call_tool(self, episode: Episode, name: str, arguments: dict) -> None:
        episode.calls_made.add(call_key(name, arguments))
        episode.call = ToolCall(name, arguments, time.monotonic())
        if self.limits.tool_threads is None:
            self._finish_call(episode, self._run_tool(episode.tools, episode.call))

    def _run_tool(self, tools: object, call: ToolCall) -> ToolResult:
        """The tool's result, cut to its limit of tokens. Runs in a thread, so it changes nothing of the loop."""
        result = run_tool(tools, call.name, call.arguments)
        text = cap_text(result.text, lambda text: len(self.tokenizer.encode_untrusted(text)),
                        self.limits.max_observation_tokens)
        return ToolResult(text, result.error)

    def _check_calls(self) -> None:
        """Take the results that are there, give up on calls that take too long, start calls while threads are free."""
        for episode in self.running:
            call = episode.call
            if call is None or call.future is None:
                continue
            if call.future.done():
                self._finish_call(episode, call.future.result())      # raises what stops the run, such as a ConfigError
            elif time.monotonic() >= call.started + self.limits.tool_seconds:
                message = f"ERROR: {call.name} did not return within {self.limits.tool_seconds:g} seconds"
                self._finish_call(episode, ToolResult(message, "timeout"))
        calls = [(episode.call, episode.tools) for episode in self.running if episode.call]
        waiting = sorted([pair for pair in calls if pair[0].future is None], key=lambda pair: pair[0].started)
        free = (self.limits.tool_threads or 0) - (len(calls) - len(waiting))
        for call, tools in waiting[:max(0, free)]:
            call.started = time.monotonic()
            call.future = in_thread(f"tool {call.name}", self._run_tool, tools, call)

    def _finish_call(self, episode: Episode, result: ToolResult) -> None:
        call, episode.call = episode.call, None
        assert call is not None
        self.guard.add(f"{call.name} {result.error}" if result.error in FAULTS else None)
        self._show(episode, result.text, result.error, time.monotonic() - call.started)

    # -------------------------------------------------------------------------------------- the end of a rollout

    def _cut(self, episode: Episode, termination: str, error: str | None = None) -> None:
        episode.call = None                              # the result of a tool that still runs is dropped
        if episode.stream.awaits_turn:                   # the partial turn is the last one; it may be blank
            output = episode.output or (self.policy.cut(episode) if episode.writing else TurnOutput([]))
            episode.writing = False
            episode.is_last = True                       # so that a call in the partial turn does not count as executed
            text = turn_text(self.tokenizer, output.tokens)
            episode.add_turn(output, text, parse_turn(text))
            self.watch("turn", episode)
        self._end(episode, termination, error)

    def _end(self, episode: Episode, termination: str | None = None, error: str | None = None) -> None:
        episode.finish(termination, error)
        if not self.keep_open:
            self.policy.close(episode)
        self.watch("end", episode)


def turn_text(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """A turn as the parser wants it: with the <think> of the generation prompt, without the id that ended it."""
    ended = bool(tokens) and tokens[-1] in tokenizer.stop_ids
    return "<think>\n" + tokenizer.decode(tokens[:-1] if ended else tokens)


def retry_reason(text: str, parsed: ParsedTurn, calls_made: set[str]) -> str | None:
    """Why inference makes another attempt at a turn; None = the turn is fine."""
    if text.count(text[-REPEATED_TAIL:]) > REPEATS:
        return "repetition"
    if parsed.error is not None:
        return "malformed"
    if parsed.tool and parsed.arguments and call_key(parsed.tool, parsed.arguments) in calls_made:
        return "duplicate"
    return None
