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

What a rollout's limits are and what it is shown: observation.py. Threads and deadlines of tools:
ToolRunner (tools/base.py).

The loop has one thread and no lock: between two steps of the writer it polls tool calls and time
limits. A rollout's random numbers depend on neither room nor timing; its log-probs do, in their
last bits: both decide which rollouts share a step. Without tool_threads, and with the same pages
and number of torch's threads, a run is reproducible to the last bit.
"""

import time
from collections.abc import Callable, Iterator

from minvenus.agent.episode import Episode
from minvenus.agent.observation import Limits, cap_text, filled, result_text
from minvenus.agent.prompt import AgentFormat
from minvenus.agent.protocol import ParsedTurn, parse_turn, retry_reason
from minvenus.text.chat import Stream
from minvenus.tools.base import FailureGuard, ToolError, ToolRunner
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
        self.writer = writer
        self.tokenizer = writer.tokenizer
        self.format = agent_format
        self.limits = Limits(self.tokenizer, agent_format, writer.max_context)
        self.system = self.limits.system
        self.tools = ToolRunner(tool_threads, tool_seconds, guard or FailureGuard())
        self.max_malformed = max_malformed
        self.watch: Callable[[str, Episode], None] = lambda event, episode: None
        self.waiting: list[list[Episode]] = []        # groups, or the rest of one
        self.open: list[Episode] = []                 # opened by the writer and not closed yet

    def __enter__(self) -> "RolloutLoop":
        return self

    def __exit__(self, *_) -> None:
        """Close and forget all rollouts. Results of tools that still run are dropped."""
        for episode in self.open:
            self.tools.drop(episode)
            self.writer.close(episode)
        self.waiting, self.open = [], []

    @property
    def running(self) -> list[Episode]:
        return [episode for episode in self.open if episode.rollout is None]

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.open if episode.rollout]

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
            group.append(
                Episode(question, tools_for(question), stream, max_turns, name, number, step))
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
                if self.ended:
                    yield self.ended
                self._close_ended()

    def step(self) -> list[Episode]:
        """Advance every rollout a little; close and return those that ended."""
        self._advance()
        return self._close_ended()

    def cut_all(self, error: str) -> None:
        """End every rollout where it is, with termination "error"; one that waits for room, before
        its first turn."""
        unopened = [episode for group in self.waiting for episode in group]
        self.waiting = []
        for episode in self.running + unopened:
            self._cut(episode, "error", error)

    # ------------------------------------------------------------------------------------- a step

    def _advance(self) -> None:
        """One step of all open rollouts: each goes on as far as it can without waiting."""
        self._open_waiting()
        self._start_turns()
        if not self.writer.step():                    # a token of every turn
            time.sleep(IDLE_SECONDS)
        self._read_turns()
        self._run_calls()
        self._end_late()

    def _open_waiting(self) -> None:
        """Open all rollouts that have room now; those of one group share their prompt."""
        while self.waiting:
            group = self.waiting.pop(0)
            count = self.writer.fitting(group, self.open, self.format.max_context)
            ready, rest = group[:count], group[count:]
            if ready:
                self.writer.open(ready)
            for episode in ready:
                episode.started = time.monotonic()
            self.open += ready
            if rest:
                self.waiting.insert(0, rest)
                return

    def _start_turns(self) -> None:
        for episode in self.running:
            if episode.stream.needs_turn and not episode.writing:
                self.writer.start(episode, self.limits.turn_room(episode))
                episode.writing = True
                episode.turn_started = time.monotonic()

    def _read_turns(self) -> None:
        """Go on after the turns that are written, or cannot be written."""
        for episode in self.running:
            if not episode.writing:
                continue
            try:
                is_written = self.writer.finished(episode)
            except ToolError as error:                # only an endpoint raises it
                self._turn_failed(episode, error)
            else:
                if is_written:
                    self._read_turn(episode)

    def _run_calls(self) -> None:
        """Run the tools, or start them while threads are free, and show the results that are
        there."""
        frames = self.format.notices.results
        limit = self.format.max_observation_tokens
        for episode in self.running:
            call = episode.call
            if call:
                result = self.tools.poll(episode, episode.tools, **call)
                if result:
                    text = cap_text(result_text(result, frames), self.tokenizer, limit)
                    self._show(episode, text, result.error, result.seconds)

    def _end_late(self) -> None:
        limit = self.format.time_limit
        for episode in self.running:
            if limit and time.monotonic() - episode.started >= limit:
                self._cut(episode, "timeout")

    def _close_ended(self) -> list[Episode]:
        """Close and return the rollouts that have ended."""
        ended = self.ended
        for episode in ended:
            self.writer.close(episode)
        self.open = self.running
        return ended

    # -------------------------------------------------------------------------------- after a turn

    def _read_turn(self, episode: Episode) -> None:
        """Add the turn that is written, or throw it away if another attempt may be better."""
        text = episode.stream.written_text()
        parsed = parse_turn(text)
        episode.writing = False

        problem = retry_reason(text, parsed, episode.turns)
        if problem and len(episode.discarded) < self.format.retries:
            self.writer.discard(episode)
            episode.discarded.append(problem)
            self.watch("discarded", episode)
        else:
            self._add_turn(episode, text, parsed)

    def _add_turn(self, episode: Episode, text: str, parsed: ParsedTurn) -> None:
        """Add the turn. Then end the rollout, or show what is wrong with the turn; a call is left
        to _run_calls."""
        forced = episode.forced_by is not None or episode.max_turns == 1
        last = forced or parsed.kind == "answer"
        episode.end_turn(text, parsed, self.writer.samples, last)
        self.watch("turn", episode)

        if last:
            self._end(episode, episode.termination())
        elif 0 < self.max_malformed <= episode.unreadable:
            self._end(episode, "malformed")
        elif parsed.error:
            text = filled(self.format.notices.malformed, error=parsed.error)
            self._show(episode, text, "bad_arguments" if parsed.tool else None)

    def _show(self, episode: Episode, observation: str, error: str | None,
              seconds: float = 0.0) -> None:
        """Show what came back to the newest turn, with a notice if the next turn is the last.
        `error` is the kind of error of its call."""
        text, episode.forced_by = self.limits.with_notice(episode, observation)
        episode.add_observation(text, error, seconds)
        self.watch("observation", episode)

    def _turn_failed(self, episode: Episode, error: ToolError) -> None:
        """An endpoint wrote no turn. If it had room for the question, but has none for the newest
        observation, the notice is shown instead, once; any other error ends the rollout."""
        notice = self.format.notices.context
        if not is_too_long(error) or not episode.turns:
            self._cut(episode, "error", str(error))
        elif episode.turns[-1].observation == notice:
            self._cut(episode, "token_limit_no_answer")
        else:
            episode.replace_observation(notice)
            episode.forced_by = "token_limit"
            episode.writing = False                   # the turn begins again
            self.watch("observation", episode)

    # ------------------------------------------------------------------------------------ the end

    def _cut(self, episode: Episode, termination: str, error: str | None = None) -> None:
        """End a rollout where it is. The partial turn is its last one; it may be blank. The result
        of a tool that still runs is dropped."""
        self.tools.drop(episode)
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
