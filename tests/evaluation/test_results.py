"""The folder of an evaluation: what a line holds, that a torn one is dropped, and that other settings are refused."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation import results as module
from minvenus.evaluation.judge import Verdict
from minvenus.evaluation.results import default_folder, fixed_settings, model_fingerprint, open_results, read_results
from minvenus.settings import AgentConfig, EvalConfig
from tests.agent.scripted import BROKEN, QUESTION, Tools, answer, budget, run, search, visit

CONFIG = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5))
FINGERPRINTS = {"questions": "q1", "system_prompt": "s1", "model": "m1"}
BY_F1 = replace(CONFIG, score="f1", f1_at_least=0.9)


def rollout_of(*turns, **more):
    def fails(*_):
        raise TimeoutError
    rollout = run(list(turns), budget(4), Tools(visit=fails))
    return replace(rollout, question=replace(QUESTION, source="web"), **more)


class FakeJudge:
    """A judge that always says the same."""

    graded_by, said = "the judge", Verdict(None)

    def __init__(self, cache):
        self.close = lambda: None

    def verdicts(self, pairs):
        return [self.said for _ in pairs]


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


def test_the_default_folder_follows_from_what_may_not_change():
    def folder(config=CONFIG, **changed):
        return default_folder(config, fixed_settings(config, FINGERPRINTS | changed))
    assert folder(replace(CONFIG, runs=4, score="f1", limit=3)) == folder()
    others = folder(replace(CONFIG, hops=1)), folder(replace(CONFIG, agent=AgentConfig())), folder(model="m2")
    assert len({folder(), *others}) == 4


@pytest.mark.parametrize("torn", [b'{"format": "minvenus rollout 1"', b"x" * 200_000])
def test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte(folder, torn):
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with opened(folder) as results:
        assert [*results.runs] == [("q", 0)] and path.read_bytes() == whole
        results.add(1, rollout_of(answer()))
    assert path.read_bytes().startswith(whole) and len(list(read_results(path))) == 2
    path.write_bytes(torn)
    with opened(folder, replace(CONFIG, agent=AgentConfig())) as results:
        assert not results.runs and path.read_bytes() == b"", "nothing is left that other settings could contradict"


# ------------------------------------------------------------------------------------------------------- other settings

# Every field of the settings with another value. Files and models count by their content, gradings by each line.
REFUSED = {
    "hops": 2, "slack": 2, "tools": "live", "api_model": "other", "max_turns": 9, "max_context": 999,
    "max_new_tokens": 9, "max_observation_tokens": 99, "time_limit": 9.0, "tool_seconds": 9.0, "temperature": 0.9,
    "top_p": 0.9, "top_k": 9, "presence_penalty": 0.9, "retries": 9, "seed": 8, "device": "cpu"}
MAY_CHANGE = {
    "limit": 3, "runs": 2, "concurrency": 2, "pages": 9, "api_base": "http://other", "compare": ("a", "b"),
    "xray": "file", "group": "g", "answer": "a", "json": True, "out": "o", "redo_failed": True, "regrade": True,
    "questions": "other.jsonl", "model": "other", "system_prompt": "other.txt", "score": "f1", "f1_at_least": 0.9,
    "judge": True}
AGENT = [field.name for field in fields(AgentConfig)]


@pytest.mark.parametrize("name", AGENT + [field.name for field in fields(EvalConfig) if field.name != "agent"])
def test_a_changed_setting_is_refused_unless_the_list_says_that_it_may_change(tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "Judge", FakeJudge)
    value = (REFUSED | MAY_CHANGE)[name]
    from_file = {"questions": "q.jsonl"} if name in ("tools", "questions") else {}
    before = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5, api_base="http://here", api_model="m",
                                          tools="folder:docs" if from_file else "toyweb"),
                        regrade=True, xray="page" if name in ("group", "answer") else None, **from_file)
    after = replace(before, **{"agent": replace(before.agent, **{name: value})} if name in AGENT else {name: value})
    with opened(tmp_path, before) as results:
        results.add(0, rollout_of(answer()))
    if name in REFUSED:
        refused(tmp_path, rf"other settings: {name} was .*, is .*\. Use the same, or another --out", after)
    else:
        with opened(tmp_path, after) as results:
            assert len(results.runs) == 1


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_files_count_by_their_content(folder, name):
    words = f"other settings: {name} was '{FINGERPRINTS[name]}', is 'new'"
    refused(folder, words, CONFIG, FINGERPRINTS | {name: "new"})


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


def test_another_grading_needs_regrade_and_a_file_has_one_way_of_grading(folder, monkeypatch):
    words = "were graded by exact match, not by word F1 of at least 0.9: --regrade"
    refused(folder, words, BY_F1)
    again = replace(BY_F1, regrade=True)
    before = (folder / "results.jsonl").read_bytes()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(module, "as_bytes", lambda line: (_ for _ in ()).throw(OSError("full")))
        with opened(folder, again):
            pass
    assert (folder / "results.jsonl").read_bytes() == before, "a process that dies here has changed nothing"
    refused(folder, words, BY_F1)
    with opened(folder, again):
        pass
    with opened(folder, BY_F1) as results:
        assert [(r.correct, r.graded_by) for r in results.runs.values()] == [(True, "word F1 of at least 0.9")]


def test_two_processes_cannot_have_the_same_folder(folder):
    with opened(folder):
        refused(folder, "another process is evaluating into")


# -------------------------------------------------------------------------------------------------------- changed lines


def test_failed_runs_are_removed(folder):
    with opened(folder) as results:
        results.add(1, rollout_of(search(), termination="error", error="the endpoint is down"))
        assert [result.note for result in results.runs.values()] == ["", "the endpoint is down"]
        results.remove_failed()
        assert [*results.runs] == [("q", 0)] and len(list(read_results(results.path))) == 1
    assert {path.name for path in folder.iterdir()} == {".lock", "run.json", "results.jsonl"}


def test_a_run_is_saved_before_it_is_judged_and_an_unknown_verdict_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Judge", FakeJudge)

    def verdicts(said, *new):
        """What is known before and after the judge has said something about the runs without a verdict."""
        monkeypatch.setattr(FakeJudge, "said", said)
        with opened(tmp_path, replace(CONFIG, judge=True)) as results:
            for run in new:
                results.add(run, rollout_of(answer()))
            before = [(r.correct, r.note) for r in results.runs.values()]
            results.grade()
            return before, [(r.correct, r.note) for r in results.runs.values()]
    waits = (None, "not judged yet")
    assert verdicts(Verdict(True), 0) == ([waits], [(True, "")])
    assert verdicts(Verdict(None, "no reply"), 1) == ([(True, ""), waits], [(True, ""), (None, "no reply")])
    assert verdicts(Verdict(False)) == ([(True, ""), (None, "no reply")], [(True, ""), (False, "")])


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
