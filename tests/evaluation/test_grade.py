"""Verdicts while runs go on: by words at once, by a judge in threads, and nothing lost when the judge fails."""

import threading

import pytest

from minvenus.evaluation.grade import Grader, Paper, grade_all, grade_words
from minvenus.evaluation.judge import JudgeUnreliable, Verdict
from tests.evaluation.local_judge import CAPITAL, grading, judge_at, planted, yes_to  # noqa: F401

RIGHT, WRONG, OPEN = Paper(CAPITAL, "rome!", True), Paper(CAPITAL, "Milan", True), Paper(CAPITAL, "Rome", False)


@pytest.mark.parametrize(("answer", "score", "at_least", "word"), [
    ("Rome", "em", 0.5, "yes"), ("the city of Rome", "em", 0.5, "no"), ("the city of Rome", "f1", 0.4, "yes"),     # F1 = 2/5
    ("the city of Rome", "f1", 0.41, "no"), (None, "em", 0.5, "no"), (None, "f1", 0.1, "no"), ("Roma", "em", 0.5, "yes")])
def test_words_by_hand(answer, score, at_least, word):
    verdict = grade_words(Paper(CAPITAL, answer, True), score, at_least)
    assert (verdict.word, verdict.by) == (word, score)


@pytest.mark.parametrize("score", ["em", "f1"])
def test_a_run_that_did_not_finish_is_wrong_whatever_it_wrote(score):
    assert grade_words(OPEN, score, 0.5).correct is False and grade_words(OPEN, score, 0.5).by == "unfinished"


def test_without_a_judge_every_verdict_is_ready_at_once():
    grader = Grader("em")
    for key, paper in enumerate((RIGHT, WRONG, OPEN)):
        grader.add(key, paper)
    assert [(key, v.correct) for key, v in grader.ready()] == [(0, True), (1, False), (2, False)]
    assert not grader.pending and grader.ready() == [] and threading.active_count() == 1


def test_a_judge_answers_beside_the_runs_and_is_not_asked_about_unfinished_ones(planted, monkeypatch):  # noqa: F811
    with yes_to(["rome!"]) as server:
        grader = Grader("em", judge=judge_at(server, monkeypatch))
        found = grade_all(grader, [("a", RIGHT), ("b", WRONG), ("c", OPEN)])
        grader.close()
    assert {key: v.correct for key, v in found.items()} == {"a": True, "b": False, "c": False}
    assert found["c"].by == "unfinished" and found["a"].by == "judge" and len(server.seen) == 2
    assert threading.active_count() == 1


def test_a_judge_that_fails_hands_out_every_paper_as_unknown_and_says_why(planted, monkeypatch):  # noqa: F811
    with grading(lambda answer: "perhaps") as server:
        grader = Grader("em", judge=judge_at(server, monkeypatch, threads=1, window=4, limit=0.25))
        for i in range(6):
            grader.add(i, Paper(CAPITAL, f"Milan {i}", True))
        found = []
        while grader.pending:
            found += grader.ready(wait=0.1)
        grader.close()
    assert sorted(key for key, _ in found) == [*range(6)] and all(v.correct is None for _, v in found)
    assert isinstance(grader.failure, JudgeUnreliable) and "cannot be relied on" in found[1][1].note
    assert found[-1][1].note == "stopped before the judge had answered"
    with grading(lambda answer: "perhaps") as server:
        grader = Grader("em", judge=judge_at(server, monkeypatch, window=4, limit=0.0))
        with pytest.raises(JudgeUnreliable):
            grade_all(grader, [(0, WRONG)])
        grader.close()


def test_what_is_given_up_is_handed_out_once_and_late_verdicts_are_dropped():
    class Slow:
        threads, asked, release = 1, threading.Event(), threading.Event()

        def verdict(self, question, answer):
            self.asked.set()
            self.release.wait(5)
            return Verdict("yes", "judge")

        def close(self):
            pass
    grader = Grader("em", judge=Slow())
    grader.add("slow", RIGHT)
    assert Slow.asked.wait(5) and grader.ready() == [] and [(key, v.word) for key, v in grader.give_up()] == [("slow", "unknown")]
    Slow.release.set()
    grader.close()
    assert not grader._done.empty(), "it came"
    assert grader.ready() == [] and grader.give_up() == []
