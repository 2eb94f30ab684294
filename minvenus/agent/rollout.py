"""The turn loop: one for training and inference, many rollouts at once on one policy.

    write a turn -> parse it -> an answer: the end
                             -> a call: run the tool in a thread, show what it returns, write the next turn
                             -> neither: show what is wrong with it, write the next turn

The loop has one thread. The policy advances all turns that are being written; tool threads and remote policies hand what they
have to a queue of tasks, which are done here, between two steps. So nothing below needs a lock, and while one rollout waits for
its tool the others go on. A rollout can end at any moment: what there is of its present turn is its last turn.

Limits are the business of episode.py, deadlines of tools that of calls.py. Rewards are unknown here.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import NamedTuple

from minvenus.agent.calls import Call, Calls
from minvenus.agent.episode import Budget, Episode, objection, size_of, turn_text
from minvenus.agent.policy import Written
from minvenus.agent.prompt import SYSTEM_PROMPT, Notices
from minvenus.agent.protocol import ALLOWED_ARGS, ParsedTurn, parse_turn
from minvenus.config import ConfigError
from minvenus.text.chat import Stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolCounters, ToolResult, cap_text, run_tool
from minvenus.tools.cassette import call_key
from minvenus.types import Question, Rollout

WAIT = 0.02                        # seconds between two looks at the clocks while there is nothing to compute

# watch(rollout number, what, value): "text" (str, a piece of a turn), "discarded" (str, why an attempt was), "turn" and
# "observation" (the Turn, once it is written and once it is answered), "end" (the Rollout)
Watch = Callable[[int, str, object], None]


class Finished(NamedTuple):
    rollout: Rollout
    handle: object                 # still open; of an EnginePolicy, `handle.sequence` holds the pages of the whole rollout


def rollouts(*arguments, **options) -> list[list[Rollout]]:
    """As `open_rollouts`, but each sequence is closed when its rollout ends: the rollouts of every question."""
    with open_rollouts(*arguments, **options, keep_open=False) as finished_Q_G:
        return [[finished.rollout for finished in group] for group in finished_Q_G]


@contextmanager
def open_rollouts(policy, tokenizer: Tokenizer, questions: list[Question], tools_for: Callable[[Question], object],
                  budget: Budget, *, n: int = 1, names: list[str] | None = None, training: bool = False, keep_open: bool = True,
                  system: str = SYSTEM_PROMPT, notices: Notices | None = None,
                  max_turns: Callable[[Question], int] | None = None, counters: ToolCounters | None = None,
                  watch: Watch | None = None, stop: object = False) -> Iterator[list[list[Finished]]]:
    """Make n rollouts of every question; inside the `with` their sequences are open, to be scored.

    tools_for   gives a rollout its own tool set
    names       of the questions, for the sampling: the same name and seed give the same rollouts (default: their ids)
    training    refuse whatever would make log-probs wrong
    max_turns   a limit for each question, instead of the budget's
    counters    count tool calls and errors there; raises when too many fail
    stop        once it is true, every rollout ends where it is, with termination "error"
    """
    names = [question.id for question in questions] if names is None else names
    if n < 1 or not questions or len(set(names)) != len(questions):
        raise ValueError(f"need at least one question, each with a name of its own, and one rollout of each; got n = {n} and "
                         f"names {names}")
    check_settings(policy, budget, training)
    loop = Loop(policy, budget, counters or ToolCounters(), watch or (lambda *_: None), stop, keep_open)
    notices = notices or Notices()
    try:
        streams_Q_G = [[Stream(tokenizer, system, question.text) for _ in range(n)] for question in questions]
        notice_size = size_of(tokenizer, notices.context)
        episodes_Q_G = [[Episode(question, stream, tools_for(question), system, budget, notices, notice_size,
                                 max_turns(question) if max_turns else budget.max_turns) for stream in streams]
                        for question, streams in zip(questions, streams_Q_G, strict=True)]
        handles_Q_G = policy.open([streams[0].ids for streams in streams_Q_G], n, names)
        loop.run([e for group in episodes_Q_G for e in group], [h for group in handles_Q_G for h in group])
        yield [[Finished(loop.ended[e], h) for e, h in zip(*group, strict=True)]
               for group in zip(episodes_Q_G, handles_Q_G, strict=True)]
    finally:
        loop.close()


def check_settings(policy, budget: Budget, training: bool) -> None:
    if policy.room is not None and budget.max_context > policy.room:
        raise ConfigError(f"max_context {budget.max_context} is more than the {policy.room} tokens that the model's positions "
                          "and the cache's pages have room for: lower it, or raise the number of pages")
    if training:
        policy.check_trainable()
        if budget.retries:
            raise ConfigError(f"retries {budget.retries}: for inference only, because a turn chosen among attempts is no sample "
                              "of the policy")


class Loop:
    def __init__(self, policy, budget: Budget, counters: ToolCounters, watch: Watch, stop: object, keep_open: bool):
        self.policy, self.budget, self.counters, self.watch, self.stop = policy, budget, counters, watch, stop
        self.keep_open = keep_open
        self.tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.calls = Calls(budget.tool_threads, budget.tool_seconds, self.tasks.put)
        self.number: dict[Episode, int] = {}                    # all episodes
        self.handles: dict[Episode, object] = {}                # all that are open in the policy
        self.writing: dict[Episode, object] = {}                # whose turn is being written, and that turn's mark
        self.calling: dict[Episode, Call] = {}                  # whose tool runs
        self.ended: dict[Episode, Rollout] = {}

    def run(self, episodes: list[Episode], handles: list) -> None:
        self.number = {episode: i for i, episode in enumerate(episodes)}
        self.handles = dict(zip(episodes, handles, strict=True))
        for episode in episodes:
            episode.started = time.monotonic()
            self.start_turn(episode)
        while len(self.ended) < len(episodes):
            busy = self.policy.step()
            self.do_tasks(wait=not busy)
            self.calls.check_deadlines()
            for episode in [e for e in episodes if e not in self.ended]:
                if self.stop:
                    self.end_now(episode, "error", "stopped by the user")
                elif episode.seconds_left() <= 0:
                    self.end_now(episode, "timeout")

    def do_tasks(self, wait: bool) -> None:
        """All that other threads have handed over; if there is nothing else to do, wait for it a moment."""
        try:
            self.tasks.get(timeout=WAIT if wait and self.tasks.empty() else 0.0)()
            while True:
                self.tasks.get_nowait()()
        except Empty:
            return

    def close(self) -> None:
        self.calls.close()
        for handle in self.handles.values():
            self.policy.close(handle)
        self.handles = {}

    # ---------------------------------------------------------------------------------------------------------- one turn

    def start_turn(self, episode: Episode) -> None:
        mark = self.writing[episode] = object()
        episode.turn_started = time.monotonic()

        def take(what):
            """In the loop's thread. Of a turn that was cut, what comes late is dropped."""
            if self.writing.get(episode) is mark:
                self.take(episode, what)

        self.policy.start(self.handles[episode], episode.stream.ids, self.budget.max_turn_tokens,
                          lambda what: self.tasks.put(lambda: take(what)))

    def take(self, episode: Episode, what: str | Written | BaseException) -> None:
        if isinstance(what, str):
            self.tell(episode, "text", what)
        elif isinstance(what, BaseException):
            raise what
        else:
            del self.writing[episode]
            self.read_turn(episode, what)

    def read_turn(self, episode: Episode, written: Written) -> None:
        """Keep the turn or throw it away; then end the rollout, run the tool, or say what is wrong."""
        text = turn_text(episode.tokenizer, written.tokens)
        parsed = parse_turn(text)
        reason = None if written.error else objection(text, parsed, episode.executed)
        if reason and len(episode.discarded) < self.budget.retries:
            episode.discarded.append(reason)
            self.tell(episode, "discarded", reason)
            self.start_turn(episode)
            return
        self.keep_turn(episode, written, text, parsed)
        if written.error:
            self.end(episode, "error", written.error)
        elif parsed.kind == "answer" or episode.last:
            self.end(episode, episode.termination(parsed.kind == "answer"))
        elif parsed.tool is not None and parsed.arguments is not None:
            self.call_tool(episode, parsed.tool, parsed.arguments)
        else:
            self.refuse_turn(episode, parsed)

    def keep_turn(self, episode: Episode, written: Written, text: str, parsed: ParsedTurn) -> None:
        episode.add_turn(written, text, parsed)
        self.tell(episode, "turn", episode.turns[-1])

    def refuse_turn(self, episode: Episode, parsed: ParsedTurn) -> None:
        """A readable call that no tool would take counts as a call with an error; what cannot be read is no call at all."""
        text = episode.notices.malformed.replace("{error}", parsed.error or "")
        kind = None
        if parsed.tool is not None:
            kind = "bad_arguments" if parsed.tool in ALLOWED_ARGS else "unknown_tool"
            self.counters.add(parsed.tool, ToolResult(text, kind))
        self.observe(episode, text, kind, 0.0)

    def call_tool(self, episode: Episode, name: str, arguments: dict) -> None:
        episode.executed.add(call_key(name, arguments))

        def run() -> ToolResult:
            result = run_tool(episode.tools, name, arguments)
            return ToolResult(cap_text(result.text, lambda text: len(episode.tokenizer.encode_untrusted(text)),
                                       self.budget.max_observation_tokens), result.error)

        def answer(result: ToolResult | BaseException, seconds: float) -> None:
            del self.calling[episode]
            if isinstance(result, BaseException):
                raise result
            self.counters.add(name, result)
            self.observe(episode, result.text, result.error, seconds)

        self.calling[episode] = call = Call(name, run, answer)
        self.calls.submit(call)

    def observe(self, episode: Episode, text: str, error: str | None, seconds: float) -> None:
        episode.add_observation(text, error, seconds)
        self.tell(episode, "observation", episode.turns[-1])
        self.start_turn(episode)

    # -------------------------------------------------------------------------------------------------------- the end of one

    def end_now(self, episode: Episode, termination: str, error: str | None = None) -> None:
        if episode in self.calling:
            self.calls.drop(self.calling.pop(episode))
        else:
            del self.writing[episode]
            written = self.policy.cut(self.handles[episode])
            text = turn_text(episode.tokenizer, written.tokens)
            episode.last = episode.last or "max_steps"           # whatever it wrote, nothing is run any more
            self.keep_turn(episode, written, text, parse_turn(text))
        self.end(episode, termination, error)

    def end(self, episode: Episode, termination: str, error: str | None = None) -> None:
        self.ended[episode] = episode.rollout(termination, error)
        if not self.keep_open:
            self.policy.close(self.handles.pop(episode))
        self.tell(episode, "end", self.ended[episode])

    def tell(self, episode: Episode, what: str, value: object) -> None:
        self.watch(self.number[episode], what, value)
