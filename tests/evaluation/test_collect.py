"""Whatever ends an evaluation early, what had ended before is in the file."""

import threading

import pytest

from minvenus.evaluation.collect import collect
from minvenus.evaluation.grade import Grader
from minvenus.evaluation.judge import Verdict
from minvenus.evaluation.results import Results
from minvenus.evaluation.task import jobs
from minvenus.tools.base import ToolCounters, ToolError, ToolErrorRate
from tests.agent.scripted import Tools, answer, policy_for, search
from tests.evaluation.test_play import ENTRIES, stage


class Slow:
    """A judge that answers when it is let."""

    threads = 1

    def __init__(self):
        self.release = threading.Event()

    def verdict(self, question, answer):
        self.release.wait(5)
        return Verdict("yes", "judge")

    def close(self):
        pass


def test_runs_that_still_wait_for_the_judge_are_kept_when_tools_stop_the_evaluation(tmp_path, monkeypatch):
    def broken(*_):
        raise ToolError("http", "down")
    monkeypatch.setattr("minvenus.agent.rollout.ToolCounters", lambda: ToolCounters(window=6))
    judge, policy = Slow(), policy_for(lambda name, turn, _: answer() if "q0" in name else search(f"{name} {turn}"))
    grader = Grader("em", judge=judge)
    with Results(tmp_path, {}) as results, pytest.raises(ToolErrorRate):
        collect(stage(policy, tools=lambda: Tools(search=broken)), jobs(ENTRIES, 1), 4, 0, results, grader, [], False)
    judge.release.set()
    grader.close()
    [run] = results.runs.values()
    assert (run.question, run.correct, run.note) == ("q0", None, "stopped before the judge had answered")


def test_verdicts_that_come_after_the_last_run_are_waited_for(tmp_path):
    judge, policy = Slow(), policy_for([answer()])
    threading.Timer(0.3, judge.release.set).start()
    grader = Grader("em", judge=judge)
    with Results(tmp_path, {}) as results:
        assert collect(stage(policy), jobs(ENTRIES, 1), 4, 0, results, grader, [], False)
    grader.close()
    assert [run.correct for run in results.runs.values()] == [True] * 4
