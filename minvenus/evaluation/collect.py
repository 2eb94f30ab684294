"""The loop of an evaluation: run, grade, save."""

from collections import deque
from statistics import fmean

from minvenus.agent.rollout import Episode, RolloutLoop
from minvenus.console import Progress
from minvenus.evaluation.questions import QuestionSource
from minvenus.evaluation.results import ResultsFile
from minvenus.tools.base import FailureGuard
from minvenus.types import Question

FAILURES = 5              # so many runs in a row that ended in an error stop the evaluation


def collect(loop: RolloutLoop, source: QuestionSource, missing: list[tuple[Question, int]], concurrency: int,
            results: ResultsFile, stop: object) -> None:
    """Make the runs (question, number). Whatever ends this early, every run that has ended is saved. Once `stop` is
    true, no other run starts, and those that are open are dropped."""
    waiting = deque(missing)
    running: dict[Episode, int] = {}                         # the number of the run
    guard = FailureGuard("runs (--redo-failed makes them again)", FAILURES, 1 - 1 / FAILURES)
    progress = Progress("eval", len(results.runs), len(results.runs) + len(missing))
    try:
        while (waiting or running) and not stop:
            while waiting and len(running) < concurrency:
                question, run = waiting.popleft()
                name = question.id if run == 0 else f"{question.id} run {run}"        # run 0 samples as infer.py does
                [episode] = loop.add(question, source.tools_for, name=name, max_turns=source.max_turns(question))
                running[episode] = run
            ended = loop.step()
            for episode in ended:
                results.add(running.pop(episode), episode.rollout)
            if ended:
                known = [float(result.correct) for result in results.runs.values() if result.correct is not None]
                progress.show(len(results.runs), {"accuracy": fmean(known)} if known else {})
            for episode in ended:
                guard.add(episode.rollout.error)
    finally:
        progress.end()
