"""Many runs on one policy, so many at once: as soon as one has ended the next begins.

The turn loop is that of agent/rollout.py, fed here with one episode after another, and what has ended is handed out and
forgotten: memory grows with the runs at once, not with all of them. What a run samples follows from the seed, its question and
its number; with whom it shared the steps of the engine changes its log-probs in their last bits only, because sums in batches of
another size are rounded differently.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minvenus.agent.episode import Budget, Episode, size_of
from minvenus.agent.prompt import Notices
from minvenus.agent.rollout import Loop, check_settings
from minvenus.evaluation.task import Job
from minvenus.text.chat import Stream
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolCounters
from minvenus.types import Question, Rollout


@dataclass(frozen=True)
class Stage:
    """What all runs share."""

    policy: object                                 # see agent/policy.py
    tokenizer: Tokenizer
    budget: Budget
    system: str
    notices: Notices
    tools_for: Callable[[Question], object]
    max_turns: Callable[[Question], int]


def play(stage: Stage, jobs: list[Job], at_once: int, stop: object = False,
         counters: ToolCounters | None = None) -> Iterator[list[tuple[Job, Rollout]]]:
    """After every step of the loop, the runs that have ended with it. Once `stop` is true no other begins, and those that are
    open are dropped."""
    check_settings(stage.policy, stage.budget, training=False)
    loop = Loop(stage.policy, stage.budget, counters or ToolCounters(), lambda *_: None, stop, keep_open=False)
    notice_size = size_of(stage.tokenizer, stage.notices.context)
    waiting, playing = deque(jobs), dict[Episode, Job]()
    try:
        while (waiting or playing) and not stop:
            while waiting and len(playing) < at_once:
                job = waiting.popleft()
                playing[begin(loop, stage, job, notice_size)] = job
            advance(loop, list(playing))
            ended = [episode for episode in playing if episode in loop.ended]
            yield [(playing.pop(episode), take(loop, episode)) for episode in ended]
    finally:
        loop.close()


def begin(loop: Loop, stage: Stage, job: Job, notice_size: int) -> Episode:
    question = job.entry.question
    stream = Stream(stage.tokenizer, stage.system, question.text)
    episode = Episode(question, stream, stage.tools_for(question), stage.system, stage.budget, stage.notices, notice_size,
                      stage.max_turns(question))
    [[loop.handles[episode]]] = loop.policy.open([stream.ids], 1, [job.name])
    loop.number[episode] = job.run
    loop.start_turn(episode)
    return episode


def advance(loop: Loop, episodes: list[Episode]) -> None:
    """One step of the policy, and whatever tools and clocks have to say."""
    busy = loop.policy.step()
    loop.do_tasks(wait=not busy)
    loop.calls.check_deadlines()
    for episode in episodes:
        if episode not in loop.ended and episode.seconds_left() <= 0:
            loop.end_now(episode, "timeout")


def take(loop: Loop, episode: Episode) -> Rollout:
    del loop.number[episode]
    return loop.ended.pop(episode)
