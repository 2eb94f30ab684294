"""The loop of an evaluation: run, grade, save."""

from collections import Counter, deque

from minvenus.agent.episode import Episode
from minvenus.agent.rollout import RolloutLoop
from minvenus.console import Progress
from minvenus.evaluation.judge import GradeItem, Grader
from minvenus.evaluation.questions import Entry, QuestionSource
from minvenus.evaluation.results import ResultsFile, answer_of
from minvenus.tools.base import FailureGuard

FAILURES = 5              # so many runs in a row that ended in an error stop the evaluation


def collect(loop: RolloutLoop, source: QuestionSource, missing: list[tuple[Entry, int]], concurrency: int,
            results: ResultsFile, grader: Grader, stop: object) -> None:
    """Make the runs (question, number). Whatever ends this early, every run that has ended is saved. Once `stop` is
    true, no other run starts, and those that are open are dropped."""
    waiting = deque(missing)
    running: dict[Episode, tuple[Entry, int]] = {}
    guard = FailureGuard("runs (--redo-failed makes them again)", FAILURES, 1 - 1 / FAILURES)
    verdicts = Counter(result.correct for result in results.results.values())
    progress = Progress("eval", len(results.results), len(results.results) + len(missing))

    def save(graded) -> None:
        for (entry, run, rollout), verdict in graded:
            results.add(entry, run, rollout, verdict)
            verdicts[verdict.correct] += 1
            known = verdicts[True] + verdicts[False]
            numbers = {"accuracy": verdicts[True] / known} if known else {}
            if verdicts[None]:
                numbers["unknown"] = float(verdicts[None])
            progress.show(len(results.results), numbers)

    try:
        while (waiting or running or grader.pending) and not (stop or grader.failure):
            while waiting and len(running) < concurrency:
                entry, run = waiting.popleft()
                question = entry.question
                name = question.id if run == 0 else f"{question.id} run {run}"        # run 0 samples as infer.py does
                [episode] = loop.add(question, source.tools_for, name=name, max_turns=source.max_turns(question))
                running[episode] = entry, run
            errors = []
            for episode in loop.step() if running else []:
                rollout = episode.rollout
                assert rollout is not None
                grader.add((*running.pop(episode), rollout), GradeItem(rollout.question, answer_of(rollout)))
                errors.append(rollout.error)
            save(grader.ready(0.0 if running else 1.0))
            for error in errors:
                guard.add(error)
    finally:
        save(grader.give_up())
        progress.end()
    if grader.failure:
        raise grader.failure
