"""Grading many answers: by words at once, by a judge in threads, and nothing is lost when the judge fails."""

import threading
import time

import pytest

from minvenus.evaluation.judge import GradeItem, Grader, Verdict
from minvenus.tools.base import TooManyFailures
from minvenus.types import Question
from tests.evaluation.local_judge import CAPITAL, chat, grading, judge_at, planted, says, yes_to  # noqa: F401
from tests.tools.servers import serve

pytestmark = pytest.mark.usefixtures("planted")
RIGHT, WRONG, OPEN = GradeItem(CAPITAL, "rome!"), GradeItem(CAPITAL, "Milan"), GradeItem(CAPITAL, None)


@pytest.mark.parametrize(("answer", "score", "at_least", "right"), [
    ("Rome", "em", 0.5, True), ("the city of Rome", "em", 0.5, False), ("the city of Rome", "f1", 0.4, True),   # 2/5
    ("the city of Rome", "f1", 0.41, False), ("", "em", 0.5, False), ("", "f1", 0.1, False), ("Roma", "em", 0.5, True)])
def test_words_by_hand(answer, score, at_least, right):
    [verdict] = Grader(score, at_least).grade_all({"x": GradeItem(CAPITAL, answer)}).values()
    assert (verdict.correct, verdict.by) == (right, score)


@pytest.mark.parametrize("take", [Grader.ready, Grader.give_up])
def test_without_a_judge_every_verdict_is_ready_at_once(take):
    grader = Grader("em")
    for key, item in enumerate((RIGHT, WRONG, OPEN)):
        grader.add(key, item)
    assert [(key, v.correct) for key, v in take(grader)] == [(0, True), (1, False), (2, False)]
    assert not grader.pending and grader.ready() == [] == grader.give_up()


def test_the_way_of_grading_is_named_with_all_that_decides_it(monkeypatch):
    with serve(says("correct: no")) as server:
        judge = judge_at(server, monkeypatch)
    graders = Grader("em"), Grader("f1", 0.5), Grader("f1", 0.25), Grader(judge=judge)
    assert [grader.graded_by for grader in graders] == [
        "exact match", "word F1 of at least 0.5", "word F1 of at least 0.25", "the judge grader-1"]


# --------------------------------------------------------------------------------------------------- a judge in threads


def test_a_judge_is_not_asked_about_unfinished_runs(monkeypatch):
    with yes_to(["rome!"]) as server:
        found = Grader("em", judge=judge_at(server, monkeypatch)).grade_all({"a": RIGHT, "b": WRONG, "c": OPEN})
    assert {key: (v.correct, v.by) for key, v in found.items()} == {
        "a": (True, "judge"), "b": (False, "judge"), "c": (False, "unfinished")} and len(server.seen) == 2


def test_many_are_judged_at_once_and_come_back_in_order(monkeypatch):
    inside, most, lock = [0], [0], threading.Lock()

    def grade(answer):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.02 * (int(answer) % 3))                        # they do not finish in order
        with lock:
            inside[0] -= 1
        return "yes" if int(answer) % 5 == 0 else "no"

    pairs = [(CAPITAL, str(n % 12)) for n in range(36)] + [(CAPITAL, "Rome"), (CAPITAL, None)]
    with grading(grade) as server:
        judge = judge_at(server, monkeypatch, threads=4)
        verdicts = judge.verdicts(pairs)
        assert judge.verdicts([]) == []
    assert [v.correct for v in verdicts] == [n % 12 % 5 == 0 for n in range(36)] + [True, False]
    assert len(server.seen) == 12                                   # the same answer is judged once ...
    assert verdicts[0] == verdicts[12] == verdicts[24]              # ... and the same for all
    assert 2 <= most[0] <= 4


def test_two_questions_of_one_text_with_different_truths_are_judged_apart(monkeypatch):
    """As "Who is the president?" of two years: neither the batch nor the equal answers may share a verdict."""
    def reply(handler):
        handler.reply(chat("correct: yes" if b"Ann" in handler.body else "correct: no"))

    first, second = (Question(name, "Who is the president?", [name]) for name in ("Ann", "Bob"))
    with serve(reply) as server:
        judge = judge_at(server, monkeypatch, threads=1)
        verdicts = judge.verdicts([(first, "Ms A."), (second, "Ms A."), (first, " Ms A. ")])
    assert [v.correct for v in verdicts] == [True, False, True] and len(server.seen) == 2


def test_threads_that_ask_the_same_at_the_same_time_all_see_one_verdict(monkeypatch, tmp_path):
    lock, count, all_asked = threading.Lock(), [0], threading.Barrier(4)

    def moody(handler):
        with lock:
            count[0] += 1
            word = ("yes", "no")[count[0] % 2]
        all_asked.wait(30)
        handler.reply(chat(f"correct: {word}"))

    with serve(moody) as server:
        judge = judge_at(server, monkeypatch, cache=tmp_path / "v.sqlite", threads=4, read_seconds=30.0)
        found = Grader(judge=judge).grade_all(dict.fromkeys(range(4), WRONG))
    assert len(server.seen) == 4 and len({v.correct for v in found.values()}) == 1


# ------------------------------------------------------------------------------------------ a judge that cannot be used


def test_a_judge_that_fails_hands_out_every_item_as_unknown_and_says_why(monkeypatch):
    with grading(lambda answer: "perhaps") as server:
        grader = Grader("em", judge=judge_at(server, monkeypatch, threads=1, window=4, limit=0.25))
        for i in range(6):
            grader.add(i, GradeItem(CAPITAL, f"Milan {i}"))
        found = []
        while grader.pending:
            found += grader.ready(seconds=1.0)
    assert sorted(key for key, _ in found) == [*range(6)] and all(v.correct is None for _, v in found)
    assert isinstance(grader.failure, TooManyFailures) and "cannot be relied on" in found[-1][1].note
    assert len(server.seen) == 2


def test_what_is_given_up_is_handed_out_once_and_late_verdicts_are_dropped():
    class Slow:
        threads, asked, release = 1, threading.Event(), threading.Event()

        def verdict(self, question, answer):
            self.asked.set()
            self.release.wait(30)
            return Verdict(True, "judge")
    grader = Grader("em", judge=Slow())
    grader.add("slow", RIGHT)
    grader.add("waiting", WRONG)
    assert grader.ready() == [] and Slow.asked.wait(30)
    assert [(key, v.correct) for key, v in grader.give_up()] == [("waiting", None), ("slow", None)]
    Slow.release.set()
    assert not grader.pending and grader.ready(seconds=1.0) == [] and grader.give_up() == []


def test_answers_that_need_no_judge_do_not_hide_that_it_is_dead(monkeypatch):
    with serve(says("?")) as server:
        judge = judge_at(server, monkeypatch, window=10, limit=0.3)
        with pytest.raises(TooManyFailures, match="4 of the last 4"):
            for answer in ("city 1", "Rome", "city 2", "", "city 3", "Rome", "city 4"):
                judge.verdict(CAPITAL, answer)


def test_an_error_does_not_wait_for_a_slow_reply(monkeypatch):
    release = threading.Event()

    def slow(handler):
        release.wait(60)
    with grading({"slow": slow, "quick": lambda h: h.reply("no", status=400)}.get) as server:
        judge = judge_at(server, monkeypatch, threads=2, limit=0.0, read_seconds=60.0, seconds=60.0)
        began = time.monotonic()
        with pytest.raises(TooManyFailures):
            judge.verdicts([(CAPITAL, "slow"), (CAPITAL, "quick")])
        assert time.monotonic() - began < 30.0
        release.set()
