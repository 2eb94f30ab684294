"""Runs one after another, so many at once: what they sample, what is left behind, and how they end early."""

import pytest

from minvenus.agent.episode import Episode
from minvenus.agent.record import rollout_to_json
from minvenus.config import ConfigError
from minvenus.evaluation.play import Stage, play
from minvenus.evaluation.questions import Entry
from minvenus.evaluation.task import Job, jobs
from minvenus.tools.base import ToolCounters, ToolError, ToolErrorRate
from minvenus.types import Question
from tests.agent.scripted import QUIET, SYSTEM, TOKENIZER, Tools, answer, budget, policy_for, random_policy, run, search

ENTRIES = [Entry(Question(f"q{i}", f"Pet of {name}?", ["cat"])) for i, name in enumerate(("Bob", "Eve", "Tom", "Ida"))]


def stage(policy, limits=None, tools=Tools, max_turns=8):
    return Stage(policy, TOKENIZER, limits or budget(), SYSTEM, QUIET, lambda question: tools(), lambda question: max_turns)


def played(*arguments, **options):
    return {job.key: rollout for ended in play(*arguments, **options) for job, rollout in ended}


def test_all_first_runs_come_before_all_second_ones_and_the_first_has_the_name_that_infer_uses():
    listed = jobs(ENTRIES[:2], 2)
    assert [job.key for job in listed] == [("q0", 0), ("q1", 0), ("q0", 1), ("q1", 1)]
    assert [job.name for job in listed] == ["q0", "q1", "q0 run 1", "q1 run 1"]


@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_no_more_than_allowed_play_at_once_all_come_out_and_nothing_stays(at_once):
    policy, most = policy_for(lambda name, turn, attempt: search(f"{name} {turn}") if turn < len(name) % 3 else answer(name)), 0
    found = {}
    for ended in play(stage(policy), jobs(ENTRIES, 3), at_once):
        most = max(most, len(policy.engine.scheduler.sequences) + len(ended))
        found |= {job.key: rollout for job, rollout in ended}
    assert most == min(at_once, 12) and len(found) == 12
    assert {r.termination for r in found.values()} == {"answered"}
    assert policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


def test_what_a_run_samples_depends_on_seed_question_and_number_alone():
    def tokens(at_once, wanted, seed=0):
        own = stage(random_policy(seed=seed), budget(2, 400, 9), max_turns=2)
        return {key: rollout.tokens for key, rollout in played(own, wanted, at_once).items()}
    whole = jobs(ENTRIES, 2)
    alone = tokens(1, whole)
    assert len({tuple(t) for t in alone.values()}) == 8
    assert tokens(3, whole) == alone == tokens(8, whole[::-1])
    assert tokens(4, whole[3:6]) == {job.key: alone[job.key] for job in whole[3:6]}, "resumed elsewhere"
    assert tokens(4, whole[:2], seed=1) != tokens(4, whole[:2])


def test_the_first_run_is_the_rollout_that_the_loop_makes_by_itself():
    limits = budget(3, 400, 9)
    single = run(random_policy(), limits, notices=QUIET, questions=[ENTRIES[0].question], max_turns=8)
    found = played(stage(random_policy(), limits), [Job(ENTRIES[0], 0)], 1)["q0", 0]
    timing = ("elapsed_seconds", "turns")
    assert {k: v for k, v in rollout_to_json(found).items() if k not in timing} == {
        k: v for k, v in rollout_to_json(single).items() if k not in timing}


def test_once_asked_to_stop_nothing_begins_and_open_runs_are_dropped():
    class Stop:
        asked = False

        def __bool__(self):
            return self.asked
    stop, policy, ended = Stop(), policy_for([search(), answer()]), []
    for found in play(stage(policy), jobs(ENTRIES, 5), 4, stop):
        ended += found
        stop.asked = len(ended) >= 4
    assert 4 <= len(ended) < 20 and policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


def test_too_many_failing_tools_stop_all_runs_with_the_reason_and_leave_nothing_open():
    def broken(*_):
        raise ToolError("http", "down")
    policy = policy_for(lambda name, turn, attempt: search(f"{name} {turn}"))
    with pytest.raises(ToolErrorRate, match="4 of the last 4 tool calls failed"):
        played(stage(policy, tools=lambda: Tools(search=broken)), jobs(ENTRIES, 2), 4, counters=ToolCounters(window=6))
    assert policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


def test_a_question_that_cannot_fit_and_a_context_beyond_the_cache_are_refused():
    with pytest.raises(ConfigError, match="max_context must be at least"):
        played(stage(random_policy(), budget(3, 40, 9)), jobs(ENTRIES, 1), 2)
    with pytest.raises(ConfigError, match="room for"):
        played(stage(random_policy(), budget(3, 40_000, 9)), jobs(ENTRIES, 1), 2)


def test_a_run_out_of_time_ends_as_a_timeout_while_others_go_on(monkeypatch):
    kept = Episode.out_of_time.fget
    late = property(lambda self: self.question.id == "q1" and bool(self.turns) or kept(self))
    monkeypatch.setattr(Episode, "out_of_time", late)
    found = played(stage(policy_for([search(), answer()])), jobs(ENTRIES, 1), 4)
    assert [found[f"q{i}", 0].termination for i in range(4)] == ["answered", "timeout", "answered", "answered"]
