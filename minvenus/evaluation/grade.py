"""Verdicts on finished runs: exact match or F1 at once, or a judge's in threads of their own, while the runs go on.

    ended without an answer                       no, by "unfinished", whoever grades
    em                                            yes if the answer has the words of an accepted one, in order
    f1                                            yes if its word F1 reaches the threshold
    judge                                         yes, no, or unknown (see judge.py)

A judge that cannot be relied on any more stops the evaluation, but first the runs that it failed on are handed out, with the
verdict unknown: nothing that was run is lost. What a run is, is not known here: `key` is anything.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, Literal, TypeVar

from minvenus.evaluation.answers import exact_match, f1
from minvenus.evaluation.judge import Judge, JudgeUnreliable, Verdict
from minvenus.types import Question

K = TypeVar("K")
UNASKED = Verdict("unknown", "judge", "stopped before the judge had answered")


@dataclass(frozen=True)
class Paper:
    """What there is to grade."""

    question: Question
    answer: str | None
    finished: bool


def grade_words(paper: Paper, score: Literal["em", "f1"], at_least: float) -> Verdict:
    if not paper.finished:
        return Verdict("no", "unfinished")
    if score == "em":
        right = exact_match(paper.answer, paper.question.answers) == 1.0
    else:
        right = f1(paper.answer, paper.question.answers) >= at_least
    return Verdict("yes" if right else "no", score)


class Grader(Generic[K]):
    """`add` papers, and take the verdicts from `ready`, in the order in which they come. Methods belong to one thread."""

    def __init__(self, score: Literal["em", "f1"], at_least: float = 0.5, judge: Judge | None = None):
        self.score, self.at_least, self.judge = score, at_least, judge
        self.pending: dict[int, K] = {}                       # papers at the judge
        self.failure: BaseException | None = None             # why no other verdict will come
        self._todo: SimpleQueue[tuple[int, Paper] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, Verdict | BaseException]] = SimpleQueue()
        self._number = 0
        count = judge.threads if judge else 0
        self._threads = [threading.Thread(target=self._work, name="judge", daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def add(self, key: K, paper: Paper) -> None:
        self._number += 1
        self.pending[self._number] = key
        if self.judge is None or not paper.finished:
            self._done.put((self._number, grade_words(paper, self.score, self.at_least)))
        else:
            self._todo.put((self._number, paper))

    def ready(self, wait: float = 0.0) -> list[tuple[K, Verdict]]:
        """All that has come; waits so long for the first. After a failure: all that was added, what has no verdict as unknown."""
        found: list[tuple[K, Verdict]] = []
        try:
            found.append(self._take(wait if self.pending else 0.0))
            while True:
                found.append(self._take(0.0))
        except Empty:
            return found + self.give_up() if self.failure else found

    def give_up(self) -> list[tuple[K, Verdict]]:
        """Nobody waits any longer: the rest, with the verdict unknown."""
        left, self.pending = list(self.pending.values()), {}
        return [(key, UNASKED) for key in left]

    def close(self) -> None:
        """End the threads. One that waits for a slow reply ends after it, or with the process."""
        with suppress(Empty):
            while True:
                self._todo.get_nowait()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(0.2)
        if self.judge and not any(thread.is_alive() for thread in self._threads):
            self.judge.close()

    def _take(self, wait: float) -> tuple[K, Verdict]:
        number, verdict = self._done.get(timeout=wait) if wait else self._done.get_nowait()
        if number not in self.pending:                        # given up
            raise Empty
        if isinstance(verdict, BaseException):
            self.failure = self.failure or verdict
            why = str(verdict)[:500] if isinstance(verdict, JudgeUnreliable) else "the judge could not be asked"
            verdict = Verdict("unknown", "judge", why)
        return self.pending.pop(number), verdict

    def _work(self) -> None:
        assert self.judge is not None
        while (given := self._todo.get()) is not None:
            number, paper = given
            try:
                self._done.put((number, self.judge.verdict(paper.question, paper.answer)))
            except BaseException as error:                    # raised again by whoever looks at `failure`
                self._done.put((number, error))


def grade_all(grader: Grader[K], papers: list[tuple[K, Paper]]) -> dict[K, Verdict]:
    """The verdicts of all papers; raises what stopped the judge."""
    for key, paper in papers:
        grader.add(key, paper)
    found: dict[K, Verdict] = {}
    while grader.pending:
        found.update(grader.ready(wait=0.1))
        if grader.failure:
            raise grader.failure
    return found
