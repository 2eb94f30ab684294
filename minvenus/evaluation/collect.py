"""Run, grade, keep: from jobs to lines of a results file. Whatever ends this early, all runs that have ended are in the file."""

from collections import deque

from minvenus.evaluation.aggregate import Run
from minvenus.evaluation.bar import Bar
from minvenus.evaluation.grade import Grader, grade_all
from minvenus.evaluation.play import Stage, play
from minvenus.evaluation.results import Results, graded, key_of, line_of, paper_of_rollout
from minvenus.evaluation.task import Job

FAILURES = 5              # so many runs in a row that ended in an error: it is not the questions


class PolicyFails(RuntimeError):
    """Run after run ends in an error; the message has the last one."""


def put_right(results: Results, grader: Grader, redo_failed: bool, regrade: bool) -> None:
    """Before anything is run: take out failed runs if that is asked for, and grade what has no verdict, or everything."""
    if redo_failed:
        results.rewrite(lambda line: None if line["termination"] == "error" else line)
    ungraded = results.papers(lambda run: regrade or run.correct is None)
    if ungraded:
        verdicts = grade_all(grader, ungraded)
        results.rewrite(lambda line: line | graded(verdicts[key_of(line)]) if key_of(line) in verdicts else line)


def collect(stage: Stage, todo: list[Job], at_once: int, seed: int, results: Results, grader: Grader, done: list[Run],
            stop: object) -> bool:
    """Whether all of them were made: not if `stop` became true first. `done` are the runs that were there before."""
    bar, errors = Bar(len(done) + len(todo), done), deque[str | None](maxlen=FAILURES)

    def keep(found) -> None:
        for (job, rollout), verdict in found:
            bar.count(results.add(line_of(job, rollout, verdict, seed)))
            errors.append(rollout.error)
        bar.show(min(at_once, bar.total - bar.done))

    try:
        for ended in play(stage, todo, at_once, stop):
            for job, rollout in ended:
                grader.add((job, rollout), paper_of_rollout(rollout))
            keep(grader.ready())
            if grader.failure or (all(errors) and len(errors) == FAILURES):
                break
        while grader.pending and not (stop or grader.failure):
            keep(grader.ready(wait=0.1))
    finally:
        keep([*grader.ready(), *grader.give_up()])
        bar.end()
    if grader.failure:
        raise grader.failure
    if bar.done < bar.total and not stop:
        raise PolicyFails(f"{FAILURES} runs in a row ended in an error, the last with: {errors[-1]}. They are kept as failed; "
                          "--redo-failed makes them again")
    return bar.done == bar.total
