"""Many runs on one policy, so many at once: as soon as one has ended the next begins.

The turn loop is that of agent/rollout.py, fed here with one episode after another, and what has ended is handed out and
forgotten: memory grows with the runs at once, not with all of them. What a run samples follows from the seed, its question and
its number; with whom it shared the steps of the engine changes its log-probs in their last bits only, because sums in batches of
another size are rounded differently.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minvenus.agent.episode import Episode, Limits
from minvenus.agent.prompt import Notices
from minvenus.agent.rollout import RolloutLoop
from minvenus.evaluation.task import Job
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolCounters
from minvenus.types import Question, Rollout


@dataclass(frozen=True)
class Stage:
    """What all runs share."""

    policy: object                                 # see agent/policy.py
    tokenizer: Tokenizer
    limits: Limits
    system: str
    notices: Notices
    tools_for: Callable[[Question], object]
    max_turns: Callable[[Question], int]


def play(stage: Stage, jobs: list[Job], at_once: int, stop: object = False,
         counters: ToolCounters | None = None) -> Iterator[list[tuple[Job, Rollout]]]:
    """After every step of the loop, the runs that have ended with it. Once `stop` is true no other begins, and those that are
    open are dropped."""
    waiting, playing = deque(jobs), dict[Episode, Job]()
    with RolloutLoop(stage.policy, stage.tokenizer, stage.limits, system=stage.system, notices=stage.notices,
                     counters=counters) as loop:
        while (waiting or playing) and not stop:
            while waiting and len(playing) < at_once:
                job = waiting.popleft()
                question = job.entry.question
                [episode] = loop.add(question, stage.tools_for, name=job.name, max_turns=stage.max_turns(question))
                playing[episode] = job
            yield [(playing.pop(episode), episode.rollout) for episode in loop.step()]
