"""The loop of an evaluation: what runs sample, how many are open at once, and that no run that has ended is lost."""

import json

import pytest

from minvenus.agent.record import rollout_from_json, rollout_to_json
from minvenus.evaluation.questions import QuestionSource
from minvenus.evaluation.results import collect as collect_runs
from minvenus.evaluation.results import open_results
from minvenus.settings import EvalConfig
from minvenus.tools.base import FailureGuard, ToolError, TooManyFailures
from minvenus.types import Question
from tests.agent.scripted import QUIET, Tools, answer, budget, ids_of, loop_for, policy_for, random_policy, run, search

QUESTIONS = [Question(f"q{i}", f"Pet of {name}?", ["cat"]) for i, name in enumerate(("Bob", "Eve", "Tom", "Ida"))]


def collect(folder, policy, missing, concurrency, limits=None, tools=Tools, guard=None):
    """The rollouts of all runs that were saved, by question and number."""
    source = QuestionSource(QUESTIONS, [], "", tools_for=lambda question: tools(), max_turns=lambda question: 8,
                            visits=None, immediate=True)
    with open_results(EvalConfig(out=str(folder)), {}) as results, loop_for(policy, limits, QUIET, guard=guard) as loop:
        collect_runs(loop, source, missing, concurrency, results, stop=[])
    return saved(folder)


def saved(folder):
    lines = [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]
    return {(line["id"], line["run"]): rollout_from_json(line) for line in lines}


def runs(count):
    return [(question, run) for run in range(count) for question in QUESTIONS]


def is_empty(policy):
    return policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_no_more_runs_than_allowed_are_open_at_once_all_are_saved_none_stays_open(concurrency, tmp_path):
    def script(name, turn, attempt):
        return search(f"{name} {turn}") if turn < len(name) % 3 else answer(name)
    policy, most = policy_for(script), []
    step = policy.step
    policy.step = lambda: most.append(len(policy.engine.scheduler.sequences)) or step()
    found = collect(tmp_path, policy, runs(3), concurrency)
    assert max(most) == min(concurrency, 12) and len(found) == 12
    assert {rollout.termination for rollout in found.values()} == {"answered"} and is_empty(policy)


def test_what_a_run_samples_depends_on_seed_question_and_number_alone(tmp_path):
    def tokens(name, concurrency, missing, seed=0):
        found = collect(tmp_path / name, random_policy(seed=seed), missing, concurrency, limits=budget(2, 400, 9))
        return {key: rollout.tokens for key, rollout in found.items()}
    whole = runs(3)
    alone = tokens("alone", 1, whole)
    assert len({tuple(t) for t in alone.values()}) == 12
    assert tokens("three", 3, whole) == alone == tokens("reversed", 8, whole[::-1])
    part = [(question.id, run) for question, run in whole[3:6]]
    assert tokens("part", 4, whole[3:6]) == {key: alone[key] for key in part}
    assert tokens("seed", 4, whole[:2], seed=1) != tokens("same", 4, whole[:2])


def test_the_first_run_is_the_rollout_that_infer_makes(tmp_path):
    limits = budget(3, 400, 9)
    single = run(random_policy(), limits, notices=QUIET, questions=[QUESTIONS[0]], max_turns=8)
    found = collect(tmp_path, random_policy(), [(QUESTIONS[0], 0)], 1, limits=limits)["q0", 0]
    timing = ("elapsed_seconds", "turns")
    assert {k: v for k, v in rollout_to_json(found).items() if k not in timing} == {
        k: v for k, v in rollout_to_json(single).items() if k not in timing}


def test_when_tools_stop_the_evaluation_the_runs_that_have_ended_are_saved(tmp_path):
    def broken(*_):
        raise ToolError("http", "down")
    policy = policy_for(lambda name, turn, _: answer() if "q0" in name else search(f"{name} {turn}"))
    with pytest.raises(TooManyFailures, match="4 of the last 4 tool calls failed"):
        collect(tmp_path, policy, runs(1), 4, tools=lambda: Tools(search=broken), guard=FailureGuard(window=6))
    assert [*saved(tmp_path)] == [("q0", 0)] and is_empty(policy)


def test_a_run_that_ends_in_the_very_step_that_stops_the_evaluation_is_saved(tmp_path):
    """The turns of both runs are equally long, so they end in the same step: an answer, and a call that fails."""
    def broken(*_):
        raise ToolError("http", "down")
    long_answer = next(text for n in range(200) if len(ids_of(text := answer("cat", "a" * n))) == len(ids_of(search())))
    policy = policy_for(lambda name, turn, _: long_answer if "q0" in name else search())
    with pytest.raises(TooManyFailures):
        collect(tmp_path, policy, runs(1)[:2], 2, tools=lambda: Tools(search=broken), guard=FailureGuard(limit=0.0))
    assert [*saved(tmp_path)] == [("q0", 0)] and saved(tmp_path)["q0", 0].termination == "answered"
