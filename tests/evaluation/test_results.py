"""The folder of an evaluation: what a line holds, that a torn one is dropped, and that other settings are refused."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation import results as module
from minvenus.evaluation.results import fixed_settings, model_fingerprint, open_results, read_results
from minvenus.settings import AgentConfig, EvalConfig
from minvenus.types import TERMINATIONS
from tests.agent.scripted import BROKEN, QUESTION, Tools, answer, budget, run, search, visit

CONFIG = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5))
FINGERPRINTS = {"questions": "q1", "system_prompt": "s1", "model": "m1"}


def rollout_of(*turns, **more):
    def fails(*_):
        raise TimeoutError
    rollout = run(list(turns), budget(4), Tools(visit=fails))
    return replace(rollout, question=replace(QUESTION, source="web"), **more)


def opened(folder, config=CONFIG, fingerprints=FINGERPRINTS):
    return open_results(replace(config, out=str(folder)), fingerprints)


def refused(folder, words, *settings):
    with pytest.raises(ConfigError, match=words), opened(folder, *settings):
        pass


@pytest.fixture
def folder(tmp_path):
    """With one run in it."""
    with opened(tmp_path / "e") as results:
        results.add(0, rollout_of(search(), answer()))
    return tmp_path / "e"


@pytest.mark.parametrize(("turns", "numbers", "correct"), [
    ([search(), visit(), answer()], (3, 0, 1, 1), True), ([BROKEN, search(), BROKEN, answer()], (4, 2, 1, 0), True),
    ([search()], (4, 1, 3, 0), False), ([search(), answer("a dog")], (2, 0, 1, 0), False)])
def test_a_line_gives_the_numbers_of_its_rollout_and_the_rollout_itself(turns, numbers, correct, tmp_path):
    rollout = rollout_of(*turns)
    with opened(tmp_path) as results:
        results.add(3, rollout)
    [added] = results.runs.values()
    [line] = [json.loads(text) for text in results.path.read_text().splitlines()]
    assert [*read_results(results.path)] == [added]
    assert replace(rollout_from_json(line), question=rollout.question) == rollout
    found = added.numbers
    assert tuple(found[name] for name in ("turns", "malformed", "searches", "visits")) == numbers
    assert (found["tokens"], found["seconds"], found["f1"]) == (len(rollout.tokens), rollout.seconds, float(correct))
    assert found["written"] == sum(turn.end - turn.start for turn in rollout.turns)
    assert (added.question, added.run, added.source, added.text) == (QUESTION.id, 3, "web", QUESTION.text)
    assert (added.correct, line["correct"], line["graded_by"]) == (correct, correct, "exact match")
    assert added.tool_errors == ["http"] * added.numbers["visits"]


def test_the_answer_of_a_run_that_was_cut_does_not_count(tmp_path):
    with opened(tmp_path) as results:
        results.add(0, rollout_of(search(), answer(), termination="timeout"))
        results.grade(everything=True)
        assert results.runs["q", 0].correct is False and results.runs["q", 0].numbers["f1"] == 0.0


def test_a_run_counts_once_its_line_and_the_name_of_its_file_are_on_the_disk(tmp_path, monkeypatch):
    on_disk = {}
    with opened(tmp_path) as results:
        monkeypatch.setattr(module, "sync", lambda path: on_disk.update(
            {path: path.read_bytes() if path.is_file() else [*results.runs]}))
        results.add(0, rollout_of(answer()))
    assert on_disk == {results.path: results.path.read_bytes(), tmp_path: []}


@pytest.mark.parametrize("torn", [b'{"format": "minvenus rollout 1"', b"x" * 200_000])
def test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte(folder, torn):
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(list(read_results(path))) == 1, "as another process may see it while a line is written"
    with opened(folder) as results:
        assert [*results.runs] == [("q", 0)] and path.read_bytes() == whole
        results.add(1, rollout_of(answer()))
    assert path.read_bytes().startswith(whole) and len(list(read_results(path))) == 2
    path.write_bytes(torn)
    with opened(folder, replace(CONFIG, agent=AgentConfig())) as results:
        assert not results.runs and path.read_bytes() == b"", "nothing is left that other settings could contradict"


# ------------------------------------------------------------------------------------------------------- other settings

FIXED = {"hops", "slack", "tools", "api_model", "max_turns", "max_context", "max_new_tokens", "max_observation_tokens",
         "time_limit", "tool_seconds", "temperature", "top_p", "top_k", "presence_penalty", "retries", "seed", "device",
         "max_malformed", "like", "question_seed"}


def test_all_settings_that_change_what_a_run_does_are_fixed_and_files_count_by_their_content():
    assert fixed_settings(CONFIG, FINGERPRINTS).keys() == FIXED | FINGERPRINTS.keys()


@pytest.mark.parametrize(("name", "config", "fingerprints"), [
    ("hops", replace(CONFIG, hops=2), FINGERPRINTS),
    ("seed", replace(CONFIG, agent=AgentConfig(seed=8, temperature=0.5)), FINGERPRINTS),
    ("max_turns", replace(CONFIG, agent=AgentConfig(seed=7, temperature=0.5, max_turns=9)), FINGERPRINTS),
    ("model", CONFIG, FINGERPRINTS | {"model": "m2"}),
])
def test_a_fixed_setting_with_another_value_is_refused(folder, name, config, fingerprints):
    refused(folder, rf"other settings: {name} was .*, is .*\. Use the same, or another --out", config, fingerprints)


def test_a_models_fingerprint_follows_the_content_of_its_files_and_nothing_else(tmp_path, monkeypatch):
    def write(folder, tensors):
        (tmp_path / folder).mkdir()
        files = {"a.safetensors": tensors, "b.safetensors": b"b", "config.json": b"{}", "notes.txt": b"?"}
        for name, content in files.items():
            (tmp_path / folder / name).write_bytes(content)
        return str(tmp_path / folder)
    one, same, other = write("one", b"12"), write("same", b"12"), write("other", b"13")
    first = model_fingerprint(one)
    (tmp_path / "same" / "notes.txt").write_bytes(b"!")
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: reversed(sorted(real(self, pattern))))
    assert model_fingerprint(same) == first != model_fingerprint(other)
    files = [f"{one}/a.safetensors", f"{other}/a.safetensors", "/nowhere"]
    assert len(set(map(model_fingerprint, files))) == 3, "a tokenizer's file, for a served model"


def test_only_runs_that_ended_in_an_error_are_made_again(tmp_path):
    """A run that found no answer in its time is wrong: to make it again would be a second chance."""
    with opened(tmp_path) as results:
        for number, end in enumerate(TERMINATIONS):
            results.add(number, rollout_of(search(), answer(), termination=end))
    with opened(tmp_path, replace(CONFIG, redo_failed=True)) as results:
        assert [result.termination for result in results.runs.values()] == [
            end for end in TERMINATIONS if end != "error"]


def test_a_process_that_dies_while_it_grades_again_has_changed_nothing(folder, monkeypatch):
    before = (folder / "results.jsonl").read_bytes()
    monkeypatch.setattr(module, "as_bytes", Mock(side_effect=OSError("full")))
    with opened(folder, replace(CONFIG, score="f1", regrade=True)) as results, pytest.raises(OSError, match="full"):
        results.grade(everything=True)
    assert (folder / "results.jsonl").read_bytes() == before


def test_verdicts_that_are_asked_for_again_are_few_or_many_beside_those_that_are_known(tmp_path):
    """Else six unknown ones among thousands would stop every later command."""
    with opened(tmp_path) as results:
        for number in range(3):
            results.add(number, rollout_of(answer()))
        results.grader = Mock(guard=Mock(window=2), verdicts=lambda pairs: [])
        results.grade()
    assert results.grader.guard.window == 3


def test_two_processes_cannot_have_the_same_folder(folder):
    with opened(folder):
        refused(folder, "another process is evaluating into")


@pytest.mark.parametrize(("change", "words"), [
    (lambda data: b"\n" + data, "line 1 is not a finished run"),
    (lambda data: data + b"[]\n", "line 2 is not a finished run"), (lambda data: data + data, "is there twice"),
    (lambda data: data.replace(b'"turns"', b'"tunes"'), "line 1 is not a finished run"),
    (lambda data: data + b"[" * 100_000 + b"\n", "line 2 is not a finished run"),
    (lambda data: data.replace(b'"termination": "answered"', b'"termination": "tired"'), "termination must be one")])
def test_a_damaged_file_is_one_clear_error(folder, change, words):
    path = folder / "results.jsonl"
    path.write_bytes(change(path.read_bytes()))
    refused(folder, words)
