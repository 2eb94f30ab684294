"""The turn loop: many rollouts at once on one policy, the same for training, evaluation and inference.

    write a turn -> parse it -> an answer: the rollout ends
                             -> a call: run the tool, show the result, write the next turn
                             -> neither: show what is wrong with it, write the next turn

    with RolloutLoop(writer, tokenizer, agent) as loop:
        episodes = loop.add(question, tools_for, n=8)
        for ended in loop.run():                    # or step() after step(), with more add() in between
            ...                                     # these have ended, and their pages are still there

The reserve, so that every rollout that meets the context limit gets a chance to answer:

    R = max_new_tokens + 1     tokens of a turn: what may be sampled, and the im_end of a turn that was cut
    L                          those that are kept free for the last turn: R, or less if last_turn_tokens says so
    N                          tokens of the context notice, shown as an observation

A turn that is not the last starts only where R + N + L tokens are left. So whatever it writes, the notice and a last
turn still fit, and no rollout is ever longer than max_context. If an observation leaves less, or leads beyond
answer_from, the next turn is the last, and the context notice says so: after the observation if both and L fit, else in
its place. Before the last turn that max_turns allows, another notice is shown. With notices.replace, a notice always
takes the observation's place.

Rollouts are opened in their order, and only while the policy has room for all open ones at full length. Otherwise they
would lose their pages to each other, and be computed again from the first token in every turn. Each keeps its pages
until it ends, however long its tools take (only scoring may take those of one that waits); then the next one starts.

The loop has one thread and no lock: between two steps of the policy it polls tool calls and time limits. A rollout's
random numbers depend on neither room nor timing; its log-probs do, in their last bits, because both decide which
rollouts share a step. Without tool_threads, and with the same pages, a run is reproducible to the last bit.
"""

import time
from collections.abc import Callable, Iterator
from itertools import chain

from minvenus.agent.episode import Episode
from minvenus.agent.observation import filled, observe
from minvenus.agent.prompt import AgentFormat
from minvenus.agent.protocol import ParsedTurn, parse_turn, retry_reason
from minvenus.config import ConfigError
from minvenus.text.chat import Stream, observation_ids, prompt_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FAULTS, FailureGuard, ToolCall, ToolError, ToolResult, run_tool
from minvenus.tools.endpoint import is_too_long
from minvenus.types import Question

IDLE_SECONDS = 0.005               # between two looks at futures and clocks while nothing is computed here


class RolloutLoop:
    """Rollouts of one policy.

    agent             what the model is told, and its limits
    tool_threads      tool calls at once; None = in the loop's thread, for tools that cannot hang
    tool_seconds      for one call that runs in a thread
    max_malformed     so many turns in a row that cannot be read or run end a rollout; 0 = never
    guard             raises TooManyFailures when too many tool calls fail
    watch             is called as watch(event, episode): "turn" after a turn was added, "observation" after its
                      observation was, "discarded" after an attempt was thrown away, "end" when episode.rollout is set
    """

    def __init__(self, writer, tokenizer: Tokenizer, agent: AgentFormat, *, tool_threads: int | None = 16,
                 tool_seconds: float = 450.0, max_malformed: int = 0, guard: FailureGuard | None = None,
                 watch: Callable | None = None):
        if writer.max_context is not None and agent.max_context > writer.max_context:
            raise ConfigError(f"max_context {agent.max_context} is more than the {writer.max_context} tokens that the "
                              "model and the cache have room for: lower it, or raise the number of pages")
        self.writer, self.tokenizer, self.agent, self.system = writer, tokenizer, agent, agent.prompt
        self.tool_threads, self.tool_seconds, self.max_malformed = tool_threads, tool_seconds, max_malformed
        self.guard = guard or FailureGuard()
        self.watch = watch or (lambda event, episode: None)
        self.waiting: list[list[Episode]] = []        # groups, or the rest of one
        self.open: list[Episode] = []                 # opened by the policy and not closed yet
        self.turn_tokens = agent.max_new_tokens + 1                                                         # R
        self.last_tokens = min(self.turn_tokens, (agent.last_turn_tokens or agent.max_new_tokens) + 1)      # L
        self.notice_tokens = self._observation_tokens(agent.notices.context)                                # N
        self.answer_from = agent.answer_from or agent.max_context

    def __enter__(self) -> "RolloutLoop":
        return self

    def __exit__(self, *_) -> None:
        """Close all sequences and forget all rollouts. Results of tools that still run are dropped."""
        for episode in self.open:
            self.writer.close(episode)
        self.waiting, self.open = [], []

    @property
    def running(self) -> list[Episode]:
        return [episode for episode in self.open if episode.rollout is None]

    def add(self, question: Question, tools_for: Callable[[Question], object], n: int = 1, *, name: str | None = None,
            step: int | None = None, max_turns: int | None = None) -> list[Episode]:
        """n rollouts of a question on one shared prompt, each with the tools of `tools_for`. They start with the
        next step(), or when there is room. The engine's seed, `step`, `name` (default: the question's id) and the
        number in the group decide what is sampled, so a name must not come twice in a step."""
        max_turns = max_turns or self.agent.max_turns
        self.check_room(question, max_turns)
        group = [Episode(question, tools_for(question), Stream(self.tokenizer, self.system, question.text), max_turns,
                         name or question.id, number, step) for number in range(n)]
        self.waiting.append(group)
        self._open_waiting()
        return group

    def check_room(self, question: Question, max_turns: int) -> None:
        """Refuse a question whose prompt leaves no room for its first turn and the reserve."""
        prompt = len(prompt_ids(self.tokenizer, self.system, question.text))
        needed = prompt + self.turn_tokens + (self.notice_tokens + self.last_tokens if max_turns > 1 else 0)
        if needed > self.agent.max_context:
            raise ConfigError(f"question {question.id!r}: with its prompt of {prompt} tokens max_context must be at "
                              f"least {needed}, not {self.agent.max_context} (the server may have room for no more);"
                              " or allow fewer tokens per turn")

    def run(self, stop: object = False) -> Iterator[list[Episode]]:
        """Step until all rollouts have ended, and yield those that have. They are open, with their
        pages, until the next ones are asked for. While others wait for room these come as soon as
        they end, else all together at the end.

        Once `stop` is true (a signal fills a list), all are cut where they are."""
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

    def _advance(self) -> list[Episode]:
        """Advance every rollout a little; return those that ended."""
        self._open_waiting()
        running = self.running
        for episode in running:                               # write
            if episode.stream.awaits_turn and not episode.writing:
                room = self.agent.max_context - len(episode.stream.ids) - 1
                self.writer.start(episode, min(self.agent.max_new_tokens, room))
                episode.writing, episode.turn_started = True, time.monotonic()
        busy = self.writer.step()
        for episode in running:                               # parse
            if episode.writing:
                busy |= self._read_turn(episode)
        if not busy:
            time.sleep(IDLE_SECONDS)
        self._run_calls(running)                              # run tools, show their results
        for episode in running:
            late = self.agent.time_limit and time.monotonic() - episode.started >= self.agent.time_limit
            if late and episode.rollout is None:
                self._cut(episode, "timeout")
        return [episode for episode in running if episode.rollout]

    def _close_ended(self) -> None:
        for episode in self.open:
            if episode.rollout:
                self.writer.close(episode)
        self.open = self.running

    def cut_all(self, error: str) -> None:
        """End every rollout where it is, with termination "error"; one that waits, before its first turn."""
        waiting, self.waiting = self.waiting, []
        for episode in chain(self.running, *waiting):
            self._cut(episode, "error", error)

    def _open_waiting(self) -> None:
        """Open all rollouts that have room now."""
        while self.waiting:
            group = self.waiting[0]
            count = self.writer.fitting(group, self.open, self.agent.max_context)
            if count == 0:
                break
            self.writer.open(group[:count])                   # together: they share their prompt
            for episode in group[:count]:
                episode.started = time.monotonic()
            self.open += group[:count]
            self.waiting[:1] = [group[count:]] if group[count:] else []

    # ------------------------------------------------- a turn that was written: parse it, run its call, show the result

    def _read_turn(self, episode: Episode) -> bool:
        """Handle a turn if it is written, else False: discard it, or add it and end, run its call, show the error."""
        try:
            finished = self.writer.finished(episode)
        except ToolError as error:                            # only an endpoint raises it
            if is_too_long(error) and episode.turns:
                self._context_is_full(episode)
            else:
                self._cut(episode, "error", str(error))
            return True
        if not finished:
            return False
        episode.writing = False
        text, parsed = self._parse(episode)
        problem = retry_reason(text, parsed, episode.turns)
        if problem and len(episode.discarded) < self.agent.retries:
            self.writer.discard(episode)
            episode.discarded.append(problem)                 # the next step() starts another attempt
            self.watch("discarded", episode)
            return True
        last = parsed.kind == "answer" or episode.forced_by is not None or episode.max_turns == 1
        episode.end_turn(text, parsed, self.writer.samples, last)
        self.watch("turn", episode)
        most = self.max_malformed                             # 0 = any number
        if last:
            self._end(episode)
        elif parsed.call:
            episode.call = parsed.call                        # _run_calls() runs it and shows the result
        elif most and [turn.kind for turn in episode.turns[-most:]] == ["none"] * most:
            self._end(episode, "malformed")
        else:
            message = filled(self.agent.notices.malformed, error=parsed.error or "")
            self._show(episode, message, "bad_arguments" if parsed.tool else None)
        return True

    def _parse(self, episode: Episode) -> tuple[str, ParsedTurn]:
        """A turn as the parser wants it: with the <think> of the generation prompt, without the id that ended it."""
        tokens = [i for i in episode.stream.written if i not in self.tokenizer.stop_ids]
        text = "<think>\n" + self.tokenizer.decode(tokens)
        return text, parse_turn(text)

    def _run_calls(self, running: list[Episode]) -> None:
        """Take the results that are there, give up on calls that take too long, start calls while threads are free."""
        calls = [(episode, episode.call) for episode in running if episode.call]
        free = (self.tool_threads or 0) - sum(episode.result is not None for episode, _ in calls)
        for episode, call in calls:
            if self.tool_threads is None:
                episode.call_started = time.monotonic()
                self._finish_call(episode, call, run_tool(episode.tools, call["name"], call["arguments"]))
            elif episode.result is None:
                if free > 0:
                    free -= 1
                    episode.call_started = time.monotonic()
                    episode.result = ToolCall(episode.tools, call["name"], call["arguments"], self.tool_seconds)
            elif episode.result.done():
                self._finish_call(episode, call, episode.result.result())       # raises what stops the run: ConfigError

    def _finish_call(self, episode: Episode, call: dict, result: ToolResult) -> None:
        episode.call = episode.result = None                  # the result of a thread that still runs is dropped
        self.guard.add(f"{call['name']} {result.error}" if result.error in FAULTS else None)
        seen = observe(result, self.agent.notices.results, self.tokenizer, self.agent.max_observation_tokens)
        self._show(episode, seen.text, seen.error, time.monotonic() - episode.call_started)

    def _show(self, episode: Episode, text: str, error: str | None, seconds: float = 0.0) -> None:
        """Show the observation of the newest turn; the next step() starts the next turn."""
        shown, episode.forced_by = self._fit(episode, text)
        episode.add_observation(shown, error, seconds)
        self.watch("observation", episode)

    def _fit(self, episode: Episode, observation: str) -> tuple[str, str | None]:
        """(the text to show, the limit that makes the next turn the last one, or None). The text has its notice."""
        notices = self.agent.notices
        used, size = len(episode.stream.ids), self._observation_tokens(observation)
        left = self.agent.max_context - used - self.last_tokens
        if len(episode.turns) + 1 == episode.max_turns:
            shown = notices.with_notice(observation, notices.last_turn)
            if self._observation_tokens(shown) <= left:
                return shown, "max_steps"
        elif size + self.notice_tokens + self.turn_tokens <= left and used + size <= self.answer_from:
            return observation, None
        shown = notices.with_notice(observation, notices.context)
        return (shown if self._observation_tokens(shown) <= left else notices.context), "token_limit"

    def _context_is_full(self, episode: Episode) -> None:
        """An endpoint took less than max_context tokens. The newest observation, which the model has not seen, gives
        way to the notice, and the next turn is the last one. If that is too long as well, the rollout ends."""
        turn, notice = episode.turns[-1], self.agent.notices.context
        if turn.observation == notice:
            self._cut(episode, "token_limit_no_answer")
            return
        episode.writing, episode.forced_by = False, "token_limit"
        episode.stream.take_back_observation()
        episode.add_observation(notice, turn.tool_error, turn.tool_seconds)
        self.watch("observation", episode)

    def _observation_tokens(self, text: str) -> int:
        return len(observation_ids(self.tokenizer, text))

    def _end(self, episode: Episode, termination: str | None = None, error: str | None = None) -> None:
        """Make the record. Without a given termination, the last turn and the notices decide."""
        cut_off = termination in ("error", "token_limit_no_answer")     # the run failed, or an endpoint did not write
        if termination is None and episode.turns[-1].kind == "answer":
            termination = f"answered_{episode.forced_by}" if episode.forced_by else "answered"
        elif termination is None:
            termination = "token_limit_no_answer" if episode.forced_by == "token_limit" else "max_steps"
        episode.end(termination, error, self.system, cut_off)
        self.watch("end", episode)

    def _cut(self, episode: Episode, termination: str, error: str | None = None) -> None:
        """End a rollout where it is. The partial turn is its last one; it may be blank. The result of a tool that still
        runs is dropped, because the rollout has ended."""
        if episode.stream.awaits_turn:
            if episode.writing:
                self.writer.cut(episode)
            text, parsed = self._parse(episode)
            episode.end_turn(text, parsed, self.writer.samples, last=True)
            self.watch("turn", episode)
        self._end(episode, termination, error)
