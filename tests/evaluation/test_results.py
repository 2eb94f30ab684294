"""The folder of an evaluation: what a line holds, that other settings are refused, that no run that
has ended is lost; and the loop that makes the runs: what they sample, how many are open at once."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation import results as module
from minvenus.evaluation.answers import WordGrader
from minvenus.evaluation.questions import QuestionSource
from minvenus.evaluation.results import default_folder, fixed_settings, graded, open_results
from minvenus.settings import AgentConfig, EvalConfig
from minvenus.tools.base import FailureGuard, ToolError, TooManyFailures
from minvenus.types import TERMINATIONS, Question
from tests.agent.scripted import (
    BROKEN,
    QUESTION,
    QUIET,
    Tools,
    answer,
    budget,
    loop_for,
    policy_for,
    random_policy,
    run,
    search,
    visit,
)

CONFIG = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5))
FINGERPRINTS = {"questions": "q1", "system_prompt": "s1", "model": "m1"}
ASKED = replace(QUESTION, answers=["hound", "cat"], source="web")  # any of its truths is right
# two right pages, of which a rollout of these tests opens one
SOURCE = SimpleNamespace(visits=lambda _: ([[["right"], ["wrong"]]], [2]))
QUESTIONS = [Question(f"q{i}", f"Pet {i}?", ["cat"]) for i in range(4)]


def rollout_of(*turns, **more):
    def fails(*_):
        raise TimeoutError

    rollout = run(list(turns), budget(4), Tools(visit=fails))
    return replace(rollout, question=ASKED, **more)


def opened(folder, config=CONFIG, fingerprints=FINGERPRINTS):
    return open_results(replace(config, out=str(folder)), SOURCE, fingerprints)


def lines_of(folder):
    return [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]


def refused(folder, words, *settings):
    with pytest.raises(ConfigError, match=words), opened(folder, *settings):
        pass


@pytest.fixture
def folder(tmp_path):
    """With one run in it."""
    with opened(tmp_path / "e") as results:
        results.add(0, rollout_of(search(), answer()))
    return tmp_path / "e"


@pytest.mark.parametrize(
    ("turns", "numbers", "correct", "f1"),
    [
        ([BROKEN, search(), visit(), answer()], (4, 1, 1, 1, 1 / 2), True, 1),
        ([search()], (4, 1, 3, 0, 0), False, 0),
        ([answer("a cat")], (1, 0, 0, 0, None), False, 2 / 3),
    ],
)
def test_a_line_gives_the_numbers_of_its_rollout_and_the_rollout_itself(
    turns, numbers, correct, f1, tmp_path
):
    rollout = rollout_of(*turns)
    with opened(tmp_path) as results:
        added = results.add(3, rollout)
    [line] = lines_of(tmp_path)
    with opened(tmp_path) as again:
        assert again.runs == results.runs == {(QUESTION.id, 3): added}
    assert replace(rollout_from_json(line), question=rollout.question) == rollout
    names = "turns malformed searches visits browse tokens seconds exact_match f1 right_pages"
    expected = (*numbers, len(rollout.tokens), rollout.seconds, correct, f1, 0.5)
    assert tuple(added.numbers.get(name) for name in names.split()) == expected
    assert (added.question, added.run, line["exact_match"]) == (ASKED, 3, correct)
    assert added.tool_errors == ["http"] * numbers[3], "visits fail"


def test_a_run_counts_once_its_line_and_the_name_of_its_file_are_on_the_disk(tmp_path, monkeypatch):
    synced = []

    def sync(path):
        synced.append(path)
        assert not results.runs and len(lines_of(tmp_path)) == 1

    monkeypatch.setattr(module, "sync", sync)
    with opened(tmp_path) as results:
        results.add(0, rollout_of(answer()))
    assert synced == [results.path, tmp_path]


@pytest.mark.parametrize("torn", [b'{"format": "minvenus rollout 1"', b"x" * 200_000])
def test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte(folder, torn):
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with opened(folder) as results:
        assert [*results.runs] == [("q", 0)] and path.read_bytes() == whole
        results.add(1, rollout_of(answer()))
    assert path.read_bytes().startswith(whole) and len(lines_of(folder)) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data + b"[]\n", "line 2: not a JSON object"),
        (lambda data: data + data.replace(b'"run"', b'"r"'), "line 2 is not a finished run"),
        (lambda data: data + b"[" * 100_000 + b"\n", "line 2: not JSON"),
        (lambda data: data.replace(b'"answered"', b'"tired"'), "termination must be one"),
        (lambda data: data.replace(b'"settings"', b'"other"'), "other settings: .* was None"),
    ],
)
def test_a_damaged_file_is_one_clear_error(folder, change, words):
    path = folder / "results.jsonl"
    path.write_bytes(change(path.read_bytes()))
    refused(folder, words)


# ----------------------------------------------------------------------------------- other settings

FIXED = """hops slack tools api_model max_turns max_context max_new_tokens max_observation_tokens
    time_limit tool_seconds temperature top_p top_k presence_penalty retries seed device
    max_malformed like question_seed asks""".split()


def test_all_settings_that_change_what_a_run_does_are_fixed_and_files_count_by_their_content():
    assert fixed_settings(CONFIG, FINGERPRINTS).keys() == {*FIXED, *FINGERPRINTS}


@pytest.mark.parametrize(
    ("name", "config", "fingerprints"),
    [
        ("hops", replace(CONFIG, hops=2), FINGERPRINTS),
        ("seed", replace(CONFIG, agent=replace(CONFIG.agent, seed=8)), FINGERPRINTS),
        ("model", CONFIG, FINGERPRINTS | {"model": "m2"}),
    ],
)
def test_a_fixed_setting_with_another_value_is_refused(folder, name, config, fingerprints):
    words = rf"other settings: {name} was .*, is .*\. Use the same, or another --out"
    refused(folder, words, config, fingerprints)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ({"model": "runs/igpo/checkpoints/step-00000080/model"}, "igpo-step-00000080"),
        ({"api_model": "org/venus 4B", "api_base": "http://x", "model": "."}, "org-venus-4B"),
    ],
)
def test_a_folder_has_the_name_of_the_model_and_a_digest_of_the_settings(agent, name):
    config = EvalConfig(agent=AgentConfig(**agent))
    settings = [{"seed": 1, "hops": 2}, {"hops": 2, "seed": 1}, {"seed": 2}]
    first, same, other = (default_folder(config, each).name for each in settings)
    assert first[:-8] == other[:-8] == f"{name}-" and first == same != other


def test_two_processes_cannot_have_the_same_folder(folder):
    with opened(folder):
        refused(folder, "another process is evaluating into")


# ---------------------------------------------------------------------- grades, and runs made again


def answered(folder, *answers):
    """The results of runs with these answers."""
    with opened(folder) as results:
        return [results.add(i, rollout_of(answer(text))) for i, text in enumerate(answers)]


def test_the_answer_of_a_run_that_was_cut_does_not_count(tmp_path):
    with opened(tmp_path) as results:
        result = results.add(0, rollout_of(search(), answer(), termination="timeout"))
    assert result.answer is None and result.numbers["f1"] == result.numbers["exact_match"] == 0.0


def test_grades_become_verdicts_and_an_unknown_one_has_its_reason(tmp_path):
    grades = {"cat": 1.0, "a dog": None, "Bob": 0.0}
    judge = SimpleNamespace(
        grade=lambda questions, answers: list(map(grades.get, answers)),
        notes={(ASKED.text, "a dog"): "no reply"},
    )
    runs = answered(tmp_path, *grades)
    verdicts = [(result.correct, result.note) for result in graded(runs, judge)]
    assert verdicts == [(True, ""), (None, "no reply"), (False, "")]


def test_by_f1_an_answer_that_shares_half_of_its_words_is_right(tmp_path):
    # F1 2/3, 1/2, 2/5, 0
    runs = answered(tmp_path, "the cat", "a big cat", "a cat and dog", "a dog")
    verdicts = [result.correct for result in graded(runs, WordGrader("f1"))]
    assert verdicts == [True, True, False, False]


def test_only_runs_that_ended_in_an_error_are_made_again_and_the_newest_line_counts(tmp_path):
    """A run that found no answer in its time is wrong: to make it again would be a second
    chance."""
    runs = [(QUESTION, number) for number, _ in enumerate(TERMINATIONS)]
    with opened(tmp_path) as results:
        for number, end in enumerate(TERMINATIONS):
            results.add(number, rollout_of(search(), answer(), termination=end))
        assert results.missing(runs) == []
    lines = results.path.read_bytes()
    redo = replace(CONFIG, redo_failed=True)
    with opened(tmp_path, redo) as results:
        [(_, number)] = results.missing(runs)
        assert TERMINATIONS[number] == "error"
        results.add(number, rollout_of(answer()))
    assert results.path.read_bytes().startswith(lines), "no line is lost"
    with opened(tmp_path, redo) as results:
        assert results.missing(runs) == [] and results.runs["q", number].termination == "answered"


# ----------------------------------------------------------------------------------------- the loop


def collect(folder, policy, missing, concurrency, limits=None, tools=None, guard=None):
    """The rollouts of all runs that were saved, by question and number."""
    source = QuestionSource(QUESTIONS, tools=tools or Tools(), turn_limit=8)
    with opened(folder) as results, loop_for(policy, limits, QUIET, guard=guard) as loop:
        module.make_runs(loop, source, missing, concurrency, results, stop=[])
    return saved(folder)


def saved(folder):
    return {(line["id"], line["run"]): rollout_from_json(line) for line in lines_of(folder)}


def runs(count):
    return [(question, run) for run in range(count) for question in QUESTIONS]


def is_empty(policy):
    return policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_no_more_runs_than_allowed_are_open_at_once_all_are_saved_none_stays_open(
    concurrency, tmp_path
):
    def script(name, turn, attempt):
        most.append(len(policy.engine.scheduler.sequences))
        return search(f"{name} {turn}") if turn < len(name) % 3 else answer(name)

    policy, most = policy_for(script), []
    found = collect(tmp_path, policy, runs(3), concurrency)
    assert max(most) == min(concurrency, 12) and len(found) == 12
    assert {rollout.termination for rollout in found.values()} == {"answered"} and is_empty(policy)


def test_what_a_run_samples_depends_on_seed_question_and_number_alone(tmp_path):
    def tokens(name, concurrency, missing, seed=0):
        limits = budget(2, 400, 9)
        found = collect(tmp_path / name, random_policy(seed=seed), missing, concurrency, limits)
        return {key: rollout.tokens for key, rollout in found.items()}

    whole = runs(3)
    alone = tokens("alone", 1, whole)
    assert len({tuple(t) for t in alone.values()}) == 12
    assert tokens("three", 3, whole) == alone == tokens("reversed", 8, whole[::-1])
    part = tokens("part", 4, whole[3:6])
    assert len(part) == 3 and part == {key: alone[key] for key in part}
    other = tokens("seed", 4, whole[:2], seed=1)
    assert other != {key: alone[key] for key in other}


def test_the_first_run_is_the_rollout_that_infer_makes(tmp_path):
    limits = budget(3, 400, 9)
    single = run(random_policy(), limits, notices=QUIET, questions=[QUESTIONS[0]], max_turns=8)
    [saved] = collect(tmp_path, random_policy(), [(QUESTIONS[0], 0)], 1, limits=limits).values()
    assert (saved.tokens, saved.logprobs) == (single.tokens, single.logprobs)
    assert saved.termination == single.termination


def test_a_line_that_did_not_fit_the_disk_is_dropped_and_the_others_are_saved(
    tmp_path, monkeypatch
):
    def full(path):
        monkeypatch.setattr(module, "sync", lambda _: None)
        os.truncate(path, path.stat().st_size - 9)
        raise OSError("no space left")

    monkeypatch.setattr(module, "sync", full)
    with pytest.raises(OSError, match="no space left"):
        collect(tmp_path, policy_for(lambda *_: answer()), runs(1)[:2], 2)
    assert [*saved(tmp_path)] == [("q1", 0)], "it ended in the same step"


def test_when_tools_stop_the_evaluation_the_runs_that_have_ended_are_saved(tmp_path):
    def broken(*_):
        raise ToolError("http", "down")

    policy = policy_for(lambda name, turn, _: answer() if "q0" in name else search())
    tools, guard = Tools(search=broken), FailureGuard(limit=0.0)
    with pytest.raises(TooManyFailures, match="tool calls failed"):
        collect(tmp_path, policy, runs(1)[:2], 2, tools=tools, guard=guard)
    assert [*saved(tmp_path)] == [("q0", 0)] and is_empty(policy)
