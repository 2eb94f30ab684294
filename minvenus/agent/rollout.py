"""The turn loop: many rollouts at once, the same for training, evaluation and inference.

    write a turn -> parse it -> an answer: the rollout ends
                             -> a call: run the tool, show the result, write the next turn
                             -> neither: show what is wrong with it, write the next turn

    with RolloutLoop(writer, agent_format) as loop:
        loop.add(question, tools_for, n=8)
        for episodes in loop.run():         # they have ended, and their pages are still there
            ...

Rollouts are opened in their order, and only while the writer has room for all open ones at the
length that it expects of them (max_context, if nothing else is said). Otherwise they would lose
their pages to each other, and be computed again in every turn. An open rollout has its pages until
the caller has scored it, but scoring others may take those of one that waits for a tool, and where
rollouts grow longer than expected the youngest waits until there is room again.

The loop has one thread and no lock: between two steps of the writer it polls tool calls and time
limits. A rollout's random numbers depend on neither room nor timing; its log-probs do, in their
last bits: both decide which rollouts share a step. Without tool_threads, and with the same pages
and number of torch's threads, a run is reproducible to the last bit.
"""

import time
from collections.abc import Callable, Iterator

from minvenus.agent.episode import Episode
from minvenus.agent.limits import Limits
from minvenus.agent.observation import filled, observe
from minvenus.agent.prompt import AgentFormat
from minvenus.agent.protocol import ParsedTurn, parse_turn, retry_reason
from minvenus.config import ConfigError
from minvenus.text.chat import Stream
from minvenus.tools.base import FAULTS, FailureGuard, ToolError, ToolResult, run_tool, start_tool
from minvenus.tools.endpoint import is_too_long
from minvenus.types import Question

IDLE_SECONDS = 0.005               # between two looks at tools and clocks while nothing is computed


class RolloutLoop:
    """Rollouts by one writer (policy.py).

    agent_format    system prompt, notices and limits
    tool_threads    tool calls at once; None = in the loop's thread, for tools that cannot hang
    tool_seconds    for one call that runs in threads
    max_malformed   a rollout ends after this many unreadable turns in a row; 0 = never
    guard           raises TooManyFailures when too many tool calls fail

    `watch` may be set to a function watch(event, episode). The events: "turn" and "observation"
    after one was added, "discarded" after an attempt at a turn was thrown away, "end" when
    episode.rollout is set.
    """

    def __init__(self, writer, agent_format: AgentFormat, *, tool_threads: int | None = 16,
                 tool_seconds: float = 450.0, max_malformed: int = 0,
                 guard: FailureGuard | None = None):
        if writer.max_context is not None and agent_format.max_context > writer.max_context:
            raise ConfigError(
                f"max_context {agent_format.max_context} is more than the {writer.max_context} "
                "tokens that the model and the cache have room for: lower it, or raise the number "
                "of pages")
        self.writer = writer
        self.tokenizer = writer.tokenizer
        self.format = agent_format
        self.system = agent_format.prompt
        self.limits = Limits(self.tokenizer, agent_format)
        self.tool_threads = tool_threads
        self.tool_seconds = tool_seconds
        self.max_malformed = max_malformed
        self.guard = guard or FailureGuard()
        self.watch: Callable[[str, Episode], None] = lambda event, episode: None
        self.waiting: list[list[Episode]] = []        # groups, or the rest of one
        self.open: list[Episode] = []                 # opened by the writer and not closed yet

    def __enter__(self) -> "RolloutLoop":
        return self

    def __exit__(self, *_) -> None:
        """Close and forget all rollouts. Results of tools that still run are dropped."""
        for episode in self.open:
            self.writer.close(episode)
        self.waiting, self.open = [], []

    @property
    def running(self) -> list[Episode]:
        return [episode for episode in self.open if episode.rollout is None]

    def add(self, question: Question, tools_for: Callable[[Question], object], n: int = 1, *,
            name: str | None = None, step: int | None = None,
            max_turns: int | None = None) -> list[Episode]:
        """n rollouts of a question on one shared prompt, each with the tools of `tools_for`. They
        start with the next step, or when there is room.

        The engine's seed, `step`, `name` (default: the question's id) and the number in the group
        decide what is sampled, so a name must not come twice in a step.
        """
        name = name or question.id
        max_turns = max_turns or self.format.max_turns
        self.limits.check_room(question, max_turns)

        group = []
        for number in range(n):
            stream = Stream(self.tokenizer, self.system, question.text)
            tools = tools_for(question)
            group.append(Episode(question, tools, stream, max_turns, name, number, step))
        self.waiting.append(group)
        self._open_waiting()
        return group

    def run(self, stop: object = False) -> Iterator[list[Episode]]:
        """Step until all rollouts have ended, and yield those that have. Their pages are valid
        until the next iteration. While some rollouts wait for room, ended ones are yielded at once;
        otherwise all together.

        Once `stop` is true, all are cut where they are. It may be a list that a signal handler
        appends to.
        """
        while self.running or self.waiting:
            self._advance()
            if stop:
                self.cut_all("stopped by the user")
            if self.waiting or not self.running:
                ended = [episode for episode in self.open if episode.rollout]
                if ended:
                    yield ended
                self._close_ended()

    def step(self) -> list[Episode]:
        """Advance every rollout a little; close and return those that ended."""
        ended = self._advance()
        self._close_ended()
        return ended

    def cut_all(self, error: str) -> None:
        """End every rollout where it is, with termination "error"; one that waits for room, before
        its first turn."""
        unopened = [episode for group in self.waiting for episode in group]
        self.waiting = []
        for episode in self.running + unopened:
            self._cut(episode, "error", error)

    # ------------------------------------------------------------------------------------- a step

    def _advance(self) -> list[Episode]:
        """Advance every rollout a little; return those that ended."""
        self._open_waiting()
        running = self.running
        for episode in running:
            if episode.stream.needs_turn and not episode.writing:
                self.writer.start(episode, self.limits.turn_room(episode))
                episode.writing = True
                episode.turn_started = time.monotonic()

        busy = self.writer.step()
        for episode in running:
            if episode.writing and self._read_turn(episode):
                busy = True
        if not busy:
            time.sleep(IDLE_SECONDS)

        self._run_calls(running)
        limit = self.format.time_limit
        for episode in running:
            if limit and episode.rollout is None and time.monotonic() - episode.started >= limit:
                self._cut(episode, "timeout")
        return [episode for episode in running if episode.rollout]

    def _open_waiting(self) -> None:
        """Open all rollouts that have room now; those of one group share their prompt."""
        while self.waiting:
            group = self.waiting.pop(0)
            count = self.writer.fitting(group, self.open, self.format.max_context)
            if count:
                self.writer.open(group[:count])
            for episode in group[:count]:
                episode.started = time.monotonic()
            self.open += group[:count]
            if count < len(group):
                self.waiting.insert(0, group[count:])
                return

    def _close_ended(self) -> None:
        for episode in self.open:
            if episode.rollout:
                self.writer.close(episode)
        self.open = self.running

    # -------------------------------------------------------------------- a turn that was written

    def _read_turn(self, episode: Episode) -> bool:
        """Handle the turn if it is written, or cannot be written; else return False."""
        try:
            if not self.writer.finished(episode):
                return False
        except ToolError as error:                    # only an endpoint raises it
            if is_too_long(error) and episode.turns:
                self._context_is_full(episode)
            else:
                self._cut(episode, "error", str(error))
            return True

        episode.writing = False
        text = episode.stream.written_text()
        parsed = parse_turn(text)
        problem = retry_reason(text, parsed, episode.turns)
        if problem and len(episode.discarded) < self.format.retries:
            self.writer.discard(episode)
            episode.discarded.append(problem)
            self.watch("discarded", episode)
        else:
            self._add_turn(episode, text, parsed)
        return True

    def _add_turn(self, episode: Episode, text: str, parsed: ParsedTurn) -> None:
        """Add the turn. Then end the rollout, note the call to run, or show what is wrong."""
        forced = episode.forced_by is not None or episode.max_turns == 1
        last = forced or parsed.kind == "answer"
        episode.end_turn(text, parsed, self.writer.samples, last)
        self.watch("turn", episode)

        if last:
            self._end(episode, episode.termination())
        elif parsed.call:
            episode.call = parsed.call
        elif 0 < self.max_malformed <= episode.unreadable_turns():
            self._end(episode, "malformed")
        else:
            reason = filled(self.format.notices.malformed, error=parsed.error or "")
            self._show(episode, reason, "bad_arguments" if parsed.tool else None)

    # ---------------------------------------------------------------------- calls and observations

    def _run_calls(self, running: list[Episode]) -> None:
        """Show the results that are there, and start calls while threads are free."""
        calling = [episode for episode in running if episode.call]
        busy = sum(episode.running_call is not None for episode in calling)
        for episode in calling:
            name, arguments = episode.call["name"], episode.call["arguments"]
            if self.tool_threads is None:
                episode.call_started = time.monotonic()
                self._finish_call(episode, run_tool(episode.tools, name, arguments))
            elif episode.running_call is None:
                if busy < self.tool_threads:
                    busy += 1
                    episode.call_started = time.monotonic()
                    episode.running_call = start_tool(
                        episode.tools, name, arguments, self.tool_seconds)
            elif episode.running_call.done():
                # raises what must stop the run: ConfigError
                self._finish_call(episode, episode.running_call.result())

    def _finish_call(self, episode: Episode, result: ToolResult) -> None:
        episode.call = episode.running_call = None
        failed = result.error in FAULTS
        self.guard.add(f"{result.name} {result.error}" if failed else None)

        limit = self.format.max_observation_tokens
        seconds = time.monotonic() - episode.call_started
        observation = observe(result, self.format.notices.results, self.tokenizer, limit)
        self._show(episode, observation.text, observation.error, seconds)

    def _show(self, episode: Episode, text: str, error: str | None, seconds: float = 0.0) -> None:
        """Show the observation of the newest turn, with a notice if the next turn is the last."""
        shown, episode.forced_by = self.limits.with_notice(episode, text)
        episode.add_observation(shown, error, seconds)
        self.watch("observation", episode)

    def _context_is_full(self, episode: Episode) -> None:
        """An endpoint took less than max_context tokens: the notice replaces the newest, unseen
        observation, and the next turn is the last. If that is too long too, the rollout ends."""
        turn = episode.turns[-1]
        notice = self.format.notices.context
        if turn.observation == notice:
            self._cut(episode, "token_limit_no_answer")
            return
        episode.writing = False
        episode.forced_by = "token_limit"
        episode.stream.remove_observation()
        episode.add_observation(notice, turn.tool_error, turn.tool_seconds)
        self.watch("observation", episode)

    # ------------------------------------------------------------------------------------ the end

    def _cut(self, episode: Episode, termination: str, error: str | None = None) -> None:
        """End a rollout where it is. The partial turn is its last one; it may be blank. The result
        of a tool that still runs is dropped."""
        if episode.writing:
            self.writer.cut(episode)
        if episode.stream.needs_turn:
            text = episode.stream.written_text()
            episode.end_turn(text, parse_turn(text), self.writer.samples, last=True)
            self.watch("turn", episode)
        # where the run or an endpoint failed, the last turn says nothing about the model's format
        self._end(episode, termination, error, check_last=termination == "timeout")

    def _end(self, episode: Episode, termination: str, error: str | None = None,
             check_last: bool = True) -> None:
        episode.end(termination, error, self.system, check_last)
        self.watch("end", episode)
