"""The turn loop: many rollouts at once on one policy, the same for training, evaluation and inference.

    write a turn -> parse it -> an answer: the rollout ends
                             -> a call: run the tool, show the result, write the next turn
                             -> neither: show what is wrong with it, write the next turn

    with RolloutLoop(policy, tokenizer, limits, system=..., notices=...) as loop:
        episodes = loop.add(question, tools_for, n=8)
        loop.run()                                  # or step() after step(), with more add() in between
        rollouts = [episode.rollout for episode in episodes]

    R = max_turn_tokens + 1    tokens of a turn: what may be sampled, and the im_end of a turn that was cut
    L                          those that are kept free for the last turn: R, or less if last_turn_tokens says so
    N                          tokens of the context notice, shown as an observation

A turn that is not the last starts only where R + N + L tokens are left. So whatever it writes, the notice and a last
turn still fit: every rollout that meets the context limit gets a chance to answer, and none is ever longer than
max_context. If an observation leaves less, or leads beyond answer_from, the next turn is the last, and the context
notice says so: after the observation if both and L fit, else in its place. Before the last turn that max_turns allows,
another notice is shown. With notices.replace, a notice always takes the observation's place.

Rollouts that the cache has no room for wait until others have ended (admission.py): what is sampled stays the same.

The loop has one thread and needs no lock: between two steps of the policy it polls the futures of tool calls and the
time limits. Without tool_threads tools run in the loop's own thread, and a run is reproducible to the last bit. With
threads, the time that tools take decides which rollouts share a step of the engine, and a batch of another size gives
log-probs that differ in their last bits.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from minvenus.agent.admission import Admission
from minvenus.agent.episode import Episode, Limits
from minvenus.agent.prompt import Notices
from minvenus.agent.protocol import ParsedTurn, is_well_formed, parse_turn, retry_reason
from minvenus.config import ConfigError
from minvenus.text.chat import Stream, observation_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FAULTS, FailureGuard, ToolError, ToolResult, cap_text, filled, in_thread, run_tool
from minvenus.tools.endpoint import is_too_long
from minvenus.types import Question, Rollout, Turn

IDLE_SECONDS = 0.005               # between two looks at futures and clocks while nothing is computed here


class RolloutLoop:
    """Rollouts of one policy.

    system, notices   what the model is told besides the question
    guard             raises TooManyFailures when too many tool calls fail
    watch             is called as watch(event, episode): "turn" after a turn was added, "observation" after its
                      observation was, "discarded" after an attempt was thrown away, "end" when episode.rollout is set
    score             is called with rollouts that have ended, while their sequences are open (admission.py)
    """

    def __init__(self, policy, tokenizer: Tokenizer, limits: Limits, *, system: str, notices: Notices,
                 guard: FailureGuard | None = None, watch: Callable | None = None,
                 score: Callable[[list[Episode]], None] | None = None):
        if policy.max_context is not None and limits.max_context > policy.max_context:
            raise ConfigError(f"max_context {limits.max_context} is more than the {policy.max_context} tokens that the "
                              "model and the cache have room for: lower it, or raise the number of pages")
        self.policy, self.tokenizer, self.limits = policy, tokenizer, limits
        self.system, self.notices = system, notices
        self.guard = guard or FailureGuard()
        self.watch = watch or (lambda event, episode: None)
        self.admission = Admission(policy, limits.max_context, score)
        self.turn_tokens = limits.max_turn_tokens + 1                          # R
        self.last_tokens = min(self.turn_tokens, (limits.last_turn_tokens or limits.max_turn_tokens) + 1)      # L
        self.notice_tokens = self._observation_tokens(notices.context)         # N

    def __enter__(self) -> "RolloutLoop":
        return self

    def __exit__(self, *_) -> None:
        """Close all sequences and forget all rollouts. Results of tools that still run are dropped."""
        self.admission.close_all()

    @property
    def running(self) -> list[Episode]:
        return [episode for episode in self.admission.open if episode.rollout is None]

    def add(self, question: Question, tools_for: Callable[[Question], object], n: int = 1, *, name: str | None = None,
            step: int | None = None, max_turns: int | None = None) -> list[Episode]:
        """n rollouts of a question on one shared prompt, each with the tools of `tools_for`. They start with the
        next step(), or when there is room. The engine's seed, `step`, `name` (default: the question's id) and the
        number in the group decide what is sampled, so a name must not come twice in a step."""
        max_turns = max_turns or self.limits.max_turns
        group = [Episode(question, tools_for(question), Stream(self.tokenizer, self.system, question.text), max_turns,
                         name or question.id, number, step) for number in range(n)]
        prompt = len(group[0].stream.ids)
        reserve = self.notice_tokens + self.last_tokens if max_turns > 1 else 0
        needed = prompt + self.turn_tokens + reserve
        if needed > self.limits.max_context:
            raise ConfigError(f"question {question.id!r}: with its prompt of {prompt} tokens max_context must be at "
                              f"least {needed}, not {self.limits.max_context} (the server may have room for no more);"
                              " or allow fewer tokens per turn")
        self.admission.waiting += group
        self.admission.open_waiting()
        return group

    def step(self) -> list[Episode]:
        """Advance every rollout a little; returns those that ended."""
        self.admission.open_waiting()
        running = self.running
        for episode in running:                               # write
            if episode.stream.awaits_turn and not episode.writing:
                room = self.limits.max_context - len(episode.stream.ids) - 1
                self.policy.start(episode, min(self.limits.max_turn_tokens, room))
                episode.writing, episode.turn_started = True, time.monotonic()
        busy = self.policy.step()
        for episode in running:                               # parse
            if episode.writing:
                busy |= self._read_turn(episode)
        if not busy:
            time.sleep(IDLE_SECONDS)
        self._run_calls(running)                              # run tools, show their results
        for episode in running:
            if episode.rollout is None and time.monotonic() - episode.started >= self.limits.time_limit:
                self._cut(episode, "timeout")
        self.admission.make_room()
        return [episode for episode in running if episode.rollout]

    def run(self, stop: object = False) -> None:
        """Step until all rollouts have ended. Once `stop` is true, every rollout is cut where it is."""
        while self.running or self.admission.waiting:
            self.step()
            if stop:
                self.cut_all("stopped by the user")

    def score_ended(self) -> None:
        """Score the rollouts that have ended and are not scored yet, and close them."""
        self.admission.close_ended()

    def cut_all(self, error: str) -> None:
        """End every rollout where it is, with termination "error"; one that waits, before its first turn."""
        waiting, self.admission.waiting = self.admission.waiting, []
        for episode in [*self.running, *waiting]:
            self._cut(episode, "error", error)

    # ------------------------------------------------- a turn that was written: parse it, run its call, show the result

    def _read_turn(self, episode: Episode) -> bool:
        """Handle a turn once it is written: discard it, or add it and end, run its call, or show the error."""
        try:
            output = self.policy.output(episode)
        except ToolError as error:                            # only an endpoint raises it
            if is_too_long(error) and episode.turns:
                self._context_is_full(episode)
            else:
                self._cut(episode, "error", str(error))
            return True
        if output is None:
            return False
        episode.writing = False
        tokens, logprobs = output
        text, parsed = self._parse(tokens)
        problem = retry_reason(text, parsed, episode.turns)
        if problem and len(episode.discarded) < self.limits.retries:
            episode.discarded.append(problem)                 # the next step() starts another attempt
            self.watch("discarded", episode)
            return True
        last = parsed.kind == "answer" or episode.forced_by is not None or episode.max_turns == 1
        self._add_turn(episode, tokens, logprobs, text, parsed, last)
        most = self.limits.max_malformed                      # 0 = any number
        if last:
            self._end(episode)
        elif parsed.call:
            episode.call = parsed.call                        # _run_calls() runs it and shows the result
        elif most and [turn.kind for turn in episode.turns[-most:]] == ["none"] * most:
            self._end(episode, "malformed")
        else:
            message = filled(self.notices.malformed, error=parsed.error or "")
            self._show(episode, message, "bad_arguments" if parsed.tool else None)
        return True

    def _parse(self, tokens: list[int]) -> tuple[str, ParsedTurn]:
        """A turn as the parser wants it: with the <think> of the generation prompt, without the id that ended it."""
        text = "<think>\n" + self.tokenizer.decode([i for i in tokens if i not in self.tokenizer.stop_ids])
        return text, parse_turn(text)

    def _add_turn(self, episode: Episode, tokens: list[int], logprobs: list[float] | None, text: str,
                  parsed: ParsedTurn, last: bool) -> None:
        """Append what the policy wrote. A call in the last turn is not run, so that turn is no search and no visit."""
        if not tokens:                                        # nothing was written: a blank turn, closed
            tokens, logprobs = [self.tokenizer.im_end], None
        start, end = episode.stream.add_turn(tokens, sampled=logprobs is not None)
        episode.logprobs += logprobs or []
        call = None if last else parsed.call
        kind = parsed.kind if call or parsed.kind == "answer" else "none"
        seconds = time.monotonic() - episode.turn_started
        episode.turns.append(Turn(kind, start, end, text, call, discarded=episode.discarded, seconds=seconds))
        episode.discarded = []
        self.watch("turn", episode)

    def _run_calls(self, running: list[Episode]) -> None:
        """Take the results that are there, give up on calls that take too long, start calls while threads are free."""
        calls = [(episode, episode.call) for episode in running if episode.call]
        free = (self.limits.tool_threads or 0) - sum(episode.result is not None for episode, _ in calls)
        for episode, call in calls:
            if self.limits.tool_threads is None:
                episode.call_started = time.monotonic()
                self._finish_call(episode, call, self._run_tool(episode.tools, call))
            elif episode.result is None:
                if free > 0:
                    free -= 1
                    episode.call_started = time.monotonic()
                    episode.result = in_thread(f"tool {call['name']}", self._run_tool, episode.tools, call)
            elif episode.result.done():
                self._finish_call(episode, call, episode.result.result())       # raises what stops the run: ConfigError
            elif time.monotonic() - episode.call_started >= self.limits.tool_seconds:
                late = f"{call['name']} did not return within {self.limits.tool_seconds:g} seconds"
                message = filled(self.notices.results.failed_call, error=late)
                self._finish_call(episode, call, ToolResult(message, "timeout"))

    def _run_tool(self, tools: object, call: dict) -> ToolResult:
        """The tool's result, cut to its limit of tokens. Runs in a thread, so it changes nothing of the loop."""
        result = run_tool(tools, call["name"], call["arguments"], self.notices.results)
        return ToolResult(cap_text(result.text, self.tokenizer, self.limits.max_observation_tokens), result.error)

    def _finish_call(self, episode: Episode, call: dict, result: ToolResult) -> None:
        episode.call = episode.result = None                  # the result of a thread that still runs is dropped
        self.guard.add(f"{call['name']} {result.error}" if result.error in FAULTS else None)
        self._show(episode, result.text, result.error, time.monotonic() - episode.call_started)

    def _show(self, episode: Episode, text: str, error: str | None, seconds: float = 0.0) -> None:
        """Append the observation of the newest turn; the next step() starts the next turn."""
        shown, episode.forced_by = self._fit(episode, text)
        episode.stream.add_observation(shown)
        episode.turns[-1] = replace(episode.turns[-1], observation=shown, tool_error=error, tool_seconds=seconds)
        self.watch("observation", episode)

    def _fit(self, episode: Episode, observation: str) -> tuple[str, str | None]:
        """(the text to show, the limit that makes the next turn the last one, or None). The text has its notice."""
        used, size = len(episode.stream.ids), self._observation_tokens(observation)
        left = self.limits.max_context - used - self.last_tokens
        if len(episode.turns) + 1 == episode.max_turns:
            shown = self._with_notice(observation, self.notices.last_turn)
            if self._observation_tokens(shown) <= left:
                return shown, "max_steps"
        elif size + self.notice_tokens + self.turn_tokens <= left and used + size <= self.limits.answer_from:
            return observation, None
        shown = self._with_notice(observation, self.notices.context)
        return (shown if self._observation_tokens(shown) <= left else self.notices.context), "token_limit"

    def _with_notice(self, observation: str, notice: str) -> str:
        return notice if self.notices.replace else f"{observation}\n\n{notice}"

    def _context_is_full(self, episode: Episode) -> None:
        """An endpoint took less than max_context tokens. The newest observation, which the model has not seen, gives
        way to the notice, and the next turn is the last one. If that is too long as well, the rollout ends."""
        if episode.turns[-1].observation == self.notices.context:
            self._cut(episode, "token_limit_no_answer")
            return
        episode.writing, episode.forced_by = False, "token_limit"
        episode.stream.take_back_observation()
        episode.stream.add_observation(self.notices.context)
        episode.turns[-1] = replace(episode.turns[-1], observation=self.notices.context)
        self.watch("observation", episode)

    def _observation_tokens(self, text: str) -> int:
        return len(observation_ids(self.tokenizer, text))

    def _end(self, episode: Episode, termination: str | None = None, error: str | None = None) -> None:
        """Make the record. Without a given termination, the newest turn and the notices decide. Where the run failed
        or an endpoint refused to write the last turn, that turn does not count as malformed."""
        last = episode.turns[-1]
        cut_off = last if termination in ("error", "token_limit_no_answer") else None
        if termination is None and last.kind == "answer":
            termination = f"answered_{episode.forced_by}" if episode.forced_by else "answered"
        elif termination is None:
            termination = "token_limit_no_answer" if episode.forced_by == "token_limit" else "max_steps"
        turns = [replace(turn, malformed=turn is not cut_off and not is_well_formed(turn.text, final=turn is last))
                 for turn in episode.turns]
        own = iter(episode.logprobs)
        logprobs = [next(own) if sampled else None for sampled in episode.stream.sampled]
        episode.rollout = Rollout(episode.question, episode.stream.ids, episode.stream.sampled, logprobs, turns,
                                  termination, self.system, error, seconds=time.monotonic() - episode.started)
        self.watch("end", episode)

    def _cut(self, episode: Episode, termination: str, error: str | None = None) -> None:
        """End a rollout where it is. The partial turn is its last one; it may be blank. The result of a tool that still
        runs is dropped, because the rollout has ended."""
        if episode.stream.awaits_turn:
            tokens, logprobs = self.policy.cut(episode) if episode.writing else ([], None)
            episode.writing = False
            self._add_turn(episode, tokens, logprobs, *self._parse(tokens), last=True)
        self._end(episode, termination, error)
