"""The folder of an evaluation: what a line holds, that a torn one is dropped, and that other settings are refused."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation import results as module
from minvenus.evaluation.aggregate import result_of
from minvenus.evaluation.judge import Verdict
from minvenus.evaluation.questions import Entry
from minvenus.evaluation.results import default_folder, model_fingerprint, open_results, read_results
from minvenus.settings import AgentConfig, EvalConfig
from tests.agent.scripted import BROKEN, QUESTION, Tools, answer, budget, run, search, visit

YES, NO, UNKNOWN = Verdict(True, "em"), Verdict(False, "unfinished"), Verdict(None, "judge", "no reply")
ENTRY = Entry(QUESTION, "web", 2)
CONFIG = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5))
FINGERPRINTS = {"questions": "q1", "system_prompt": "s1", "model": "m1"}
SCRIPTS = {
    "answered": ([search(), visit(), answer()], YES),
    "malformed": ([BROKEN, search(), BROKEN, answer()], YES),
    "never answered": ([search()], NO),
    "failing tools": ([search(), visit("nowhere"), answer()], UNKNOWN),
}


def rollout_of(turns):
    def fails(*_):
        raise TimeoutError
    return run(turns, budget(4), Tools(visit=fails) if "nowhere" in str(turns) else Tools())


def opened(folder, config=CONFIG, fingerprints=FINGERPRINTS, graded_by="exact match"):
    return open_results(folder, config, fingerprints, graded_by)


def refused(folder, words, *settings, **more):
    with pytest.raises(ConfigError, match=words), opened(folder, *settings, **more):
        pass


def add(results, number, verdict=YES, turns=None):
    results.add(ENTRY, number, rollout_of(turns or [search(), answer()]), verdict)


@pytest.fixture
def folder(tmp_path):
    """With one run in it."""
    with opened(tmp_path / "e") as results:
        add(results, 0)
    return tmp_path / "e"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_line_gives_the_numbers_of_its_rollout_and_the_rollout_itself(name, tmp_path):
    turns, verdict = SCRIPTS[name]
    rollout = rollout_of(turns)
    with opened(tmp_path) as results:
        results.add(ENTRY, 3, rollout, verdict)
    [added] = results.results.values()
    [line] = [json.loads(text) for text in results.path.read_text().splitlines()]
    f1 = 1.0 if rollout.termination.startswith("answered") else 0.0
    assert added == result_of(rollout, 3, verdict.correct, hops=2, source="web", f1=f1, note=verdict.note)
    assert [result for result, _ in read_results(results.path)] == [added] and rollout_from_json(line) == rollout


def test_the_answer_of_a_run_that_was_cut_does_not_count(tmp_path):
    cut = replace(rollout_of([search(), answer()]), termination="timeout")
    with opened(tmp_path) as results:
        results.add(ENTRY, 0, cut, NO)
        assert results.results["q", 0].f1 == 0.0
        assert [item.answer for item in results.ungraded(everything=True).values()] == [None]


def test_the_default_folder_follows_from_what_may_not_change():
    usual = default_folder(CONFIG, FINGERPRINTS)
    assert default_folder(replace(CONFIG, runs=4, score="f1", limit=3), FINGERPRINTS) == usual
    others = [default_folder(replace(CONFIG, hops=1), FINGERPRINTS),
              default_folder(replace(CONFIG, agent=replace(CONFIG.agent, seed=8)), FINGERPRINTS),
              default_folder(CONFIG, FINGERPRINTS | {"model": "m2"})]
    assert len({usual, *others}) == 4


@pytest.mark.parametrize("torn", [b"{", b'{"format": "minvenus rollout 1"', b"x" * 200_000])
def test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte(folder, torn):
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with opened(folder) as results:
        assert [*results.results] == [("q", 0)] and path.read_bytes() == whole
        add(results, 1)
    assert path.read_bytes().startswith(whole) and len(list(read_results(path))) == 2
    path.write_bytes(torn)
    with opened(folder, replace(CONFIG, agent=AgentConfig())) as results:
        assert not results.results and path.read_bytes() == b"", "nothing is left that other settings could contradict"


# ------------------------------------------------------------------------------------------------------- other settings

# Every field of the settings with another value, and what happens when an evaluation is continued with it: it "may"
# change, the "content" of the file counts and not its name, "grading" is compared line by line, or it is refused.
OTHER = {
    "limit": (3, "may"), "runs": (2, "may"), "concurrency": (2, "may"), "pages": (9, "may"),
    "api_base": ("http://other", "may"), "compare": (("a", "b"), "may"), "xray": ("file", "may"),
    "group": ("g", "may"), "answer": ("a", "may"), "json": (True, "may"), "out": ("o", "may"),
    "redo_failed": (True, "may"), "regrade": (True, "may"),
    "questions": ("other.jsonl", "content"), "model": ("other", "content"), "system_prompt": ("other.txt", "content"),
    "score": ("f1", "grading"), "f1_at_least": (0.9, "grading"), "judge": (True, "grading"),
    "hops": (2, "refused"), "slack": (2, "refused"), "tools": ("live", "refused"), "api_model": ("other", "refused"),
    "max_turns": (9, "refused"), "max_context": (999, "refused"), "max_new_tokens": (9, "refused"),
    "max_observation_tokens": (99, "refused"), "time_limit": (9.0, "refused"), "tool_seconds": (9.0, "refused"),
    "temperature": (0.9, "refused"), "top_p": (0.9, "refused"), "top_k": (9, "refused"),
    "presence_penalty": (0.9, "refused"), "retries": (9, "refused"), "seed": (8, "refused"),
    "device": ("cpu", "refused"),
}
AGENT = dict.fromkeys(field.name for field in fields(AgentConfig))
ALL = AGENT | dict.fromkeys(field.name for field in fields(EvalConfig) if field.name != "agent")


@pytest.mark.parametrize("name", ALL)
def test_a_changed_setting_is_refused_unless_the_list_says_that_it_may_change(tmp_path, name):
    value, expected = OTHER[name]
    from_file = {"questions": "q.jsonl"} if name in ("tools", "questions") else {}
    before = EvalConfig(agent=AgentConfig(seed=7, temperature=0.5, api_base="http://here", api_model="m",
                                          tools="folder:docs" if from_file else "toyweb"),
                        xray="page" if name in ("group", "answer") else None, **from_file)
    change = {"agent": replace(before.agent, **{name: value})} if name in AGENT else {name: value}
    after = replace(before, **change)
    with opened(tmp_path, before) as results:
        add(results, 0)
    data = results.path.read_bytes()
    if expected == "refused":
        refused(tmp_path, rf"other settings: {name} was .*, is .*\. Use the same, or another --out", after)
        after = before
    with opened(tmp_path, after) as results:
        assert len(results.results) == 1
    assert results.path.read_bytes() == data


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_files_count_by_their_content(folder, name):
    words = f"other settings: {name} was '{FINGERPRINTS[name]}', is 'new'"
    refused(folder, words, fingerprints=FINGERPRINTS | {name: "new"})


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
    f1 = "word F1 of at least 0.5"
    refused(folder, f"were graded by exact match, not by {f1}: --regrade", graded_by=f1)
    again = replace(CONFIG, regrade=True)
    before = (folder / "results.jsonl").read_bytes()
    with opened(folder, again, graded_by=f1) as results:
        [key] = results.ungraded(everything=True)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
            patch.setattr(module, "as_bytes", lambda line: (_ for _ in ()).throw(OSError("full")))
            results.set_verdicts({key: NO})
        assert (folder / "results.jsonl").read_bytes() == before, "a process that dies here has changed nothing"
    refused(folder, "graded by exact match", graded_by=f1)
    with opened(folder, again, graded_by=f1) as results:
        results.set_verdicts({key: NO})
    with opened(folder, graded_by=f1) as results:
        assert [(r.correct, r.graded_by) for r in results.results.values()] == [(False, f1)]


def test_two_processes_cannot_have_the_same_folder_and_results_need_their_settings(folder):
    with opened(folder):
        refused(folder, "another process is evaluating into")
    (folder / "run.json").unlink()
    refused(folder, r"run\.json does not exist")


# -------------------------------------------------------------------------------------------------------- changed lines


def test_failed_runs_are_removed_and_unknown_ones_get_their_verdict(folder):
    with opened(folder) as results:
        add(results, 1, UNKNOWN)
        failed = replace(rollout_of([search()]), termination="error", error="the endpoint is down")
        results.add(ENTRY, 2, failed, NO)
        results.remove_failed()
        assert [*results.results] == [("q", 0), ("q", 1)]
        [(key, item)] = results.ungraded().items()
        assert key == ("q", 1) and item == (QUESTION, "cat")
        results.set_verdicts({key: Verdict(False, "judge")})
        assert [r.correct for r in results.results.values()] == [True, False] and not results.ungraded()
        add(results, 3, NO, [search(), search("cats")])
        assert [item.answer for item in results.ungraded(everything=True).values()] == ["cat", "cat", None]
    assert {path.name for path in folder.iterdir()} == {".lock", "run.json", "results.jsonl"}


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
