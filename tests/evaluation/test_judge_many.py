"""Many verdicts at a time, and the guard that stops a run whose judge cannot be relied on."""

import threading
import time

import pytest

from minvenus.evaluation.judge import JudgeUnreliable
from tests.evaluation.local_judge import CAPITAL, chat, drip, grading, judge_at, planted, says  # noqa: F401
from tests.tools.servers import serve

pytestmark = pytest.mark.usefixtures("planted")



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
        verdicts = judge_at(server, monkeypatch, threads=4).verdicts(pairs)
    assert [v.correct for v in verdicts] == [n % 12 % 5 == 0 for n in range(36)] + [True, False]
    assert len(server.seen) == 12                                   # the same answer is judged once ...
    assert verdicts[0] == verdicts[12] == verdicts[24]              # ... and the same for all
    assert 2 <= most[0] <= 4


def test_threads_that_ask_the_same_at_the_same_time_all_see_one_verdict(monkeypatch, tmp_path):
    lock, count = threading.Lock(), [0]

    def moody(handler):
        with lock:
            count[0] += 1
            word = ("yes", "no")[count[0] % 2]
        time.sleep(0.05)
        handler.reply(chat(f"correct: {word}"))

    with serve(moody) as server:
        judge = judge_at(server, monkeypatch, cache=tmp_path / "v.sqlite")
        found = []
        threads = [threading.Thread(target=lambda: found.append(judge.verdict(CAPITAL, "Milan").word)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_no_pairs_are_no_verdicts(monkeypatch):
    with serve(says("correct: no")) as server:
        assert judge_at(server, monkeypatch).verdicts([]) == []


# ------------------------------------------------------------------------------------------------------------------ guard


def test_a_dead_judge_stops_a_batch_at_once_and_the_rest_is_not_asked(monkeypatch):
    with serve(lambda h: h.reply("down", status=400)) as server:
        judge = judge_at(server, monkeypatch, threads=2, window=10, limit=0.3)
        with pytest.raises(JudgeUnreliable, match="status 400"):
            judge.verdicts([(CAPITAL, f"city {n}") for n in range(200)])
        time.sleep(0.2)
        assert len(server.seen) < 20


def test_answers_that_need_no_judge_do_not_hide_that_it_is_dead(monkeypatch):
    with serve(says("?")) as server:
        judge = judge_at(server, monkeypatch, threads=1, window=10, limit=0.3)
        with pytest.raises(JudgeUnreliable, match="4 of the last 4"):
            for n in range(4):
                for answer in ("Rome", "", "Rome", "", f"city {n}"):
                    judge.verdict(CAPITAL, answer)


def test_an_error_does_not_wait_for_a_slow_reply(monkeypatch):
    with grading({"slow": drip, "quick": lambda h: h.reply("no", status=400)}.get) as server:
        judge = judge_at(server, monkeypatch, threads=2, limit=0.0, read_seconds=10.0)
        began = time.monotonic()
        with pytest.raises(JudgeUnreliable):
            judge.verdicts([(CAPITAL, "slow"), (CAPITAL, "quick")])
        assert time.monotonic() - began < 3.0
