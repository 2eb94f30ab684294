"""The file of an evaluation: a line holds all that the report needs, a torn one is dropped, other settings are refused."""

import json

import pytest

from minvenus.agent.record import rollout_from_json
from minvenus.config import ConfigError
from minvenus.evaluation.aggregate import run_of
from minvenus.evaluation.judge import Verdict
from minvenus.evaluation.questions import Entry
from minvenus.evaluation.results import Results, drop_torn_line, line_of, read_lines, run_of_line
from minvenus.evaluation.task import Job
from minvenus.types import Rollout, Turn
from tests.agent.scripted import BROKEN, QUESTION, Tools, answer, budget, run, search, visit

YES, NO, UNKNOWN = Verdict("yes", "em"), Verdict("no", "unfinished"), Verdict("unknown", "judge", "no reply")
ENTRY = Entry(QUESTION, "web", 2)
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


def line(number=0, verdict=YES):
    return line_of(Job(ENTRY, number), rollout_of([search(), answer()]), verdict, seed=7)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_line_gives_the_same_numbers_as_its_rollout_and_the_rollout_itself(name):
    turns, verdict = SCRIPTS[name]
    rollout = rollout_of(turns)
    saved = json.loads(json.dumps(line_of(Job(ENTRY, 3), rollout, verdict, seed=7)))
    f1 = 1.0 if rollout.termination.startswith("answered") else 0.0
    assert run_of_line(saved) == run_of(rollout, 3, verdict.correct, 2, "web", f1, verdict.note)
    assert rollout_from_json(saved) == rollout
    assert (saved["run"], saved["seed"], saved["hops"], saved["source"], saved["correct"]) == (3, 7, 2, "web", verdict.correct)
    assert saved["f1"] == saved["em"] == f1


def test_a_call_that_nothing_came_back_from_is_no_call():
    turns = [Turn("search", 1, 2, "", {}, "x"), Turn("visit", 2, 3, "", {})]
    rollout = Rollout(QUESTION, [0] * 4, [False] * 4, [None] * 4, turns, "timeout")
    found = run_of_line(line_of(Job(ENTRY, 0), rollout, NO, seed=7))
    assert found == run_of(rollout, 0, False, 2, "web", 0.0) and (found.searches, found.visits) == (1, 0)


def test_runs_are_kept_counted_once_and_read_again(tmp_path):
    with Results(tmp_path / "e", {"seed": 0}) as results:
        first = results.add(line(0))
        results.add(line(1, UNKNOWN))
        with pytest.raises(ValueError, match="there already"):
            results.add(line(0))
    with Results(tmp_path / "e", {"seed": 0}) as results:
        assert [*results.runs] == [("q", 0), ("q", 1)] and results.runs["q", 0] == first
        assert results.runs["q", 1].correct is None and results.runs["q", 1].note == "no reply"


@pytest.mark.parametrize("torn", [b"{", b'{"format": "minvenus rollout 1"', b"x" * 200_000])
def test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte(tmp_path, torn):
    with Results(tmp_path, {}) as results:
        results.add(line(0))
    whole = results.path.read_bytes()
    results.path.write_bytes(whole + torn)
    with Results(tmp_path, {}) as results:
        assert [*results.runs] == [("q", 0)] and results.path.read_bytes() == whole
        results.add(line(1))
    assert len(list(read_lines(results.path))) == 2
    results.path.write_bytes(torn)
    assert not drop_torn_line(results.path) and results.path.read_bytes() == b""


def test_other_settings_are_refused_with_what_differs_and_nothing_is_changed(tmp_path):
    with Results(tmp_path, {"seed": 0, "score": "em", "tools": "toyweb"}) as results:
        results.add(line(0))
    with pytest.raises(ConfigError, match=r"other settings: seed was 0, is 1; tools was 'toyweb', is 'live'\. .*another --out"):
        Results(tmp_path, {"seed": 1, "score": "em", "tools": "live"})
    with pytest.raises(ConfigError, match=r"score was 'em', is 'f1'\. To go on, --regrade"):
        Results(tmp_path, {"seed": 0, "score": "f1", "tools": "toyweb"})
    with Results(tmp_path, {"seed": 0, "score": "em", "tools": "toyweb"}) as results:
        assert len(results.runs) == 1


def test_another_grading_counts_only_once_every_line_has_it(tmp_path):
    old, new = {"score": "em"}, {"score": "f1"}
    with Results(tmp_path, old) as results:
        results.add(line(0))
    with Results(tmp_path, new, regrade=True) as results:
        assert json.loads((tmp_path / "settings.json").read_text()) == old, "a process that dies here has changed nothing"
        results.settle(new)
    Results(tmp_path, new).held.close()


def test_two_processes_cannot_have_the_same_folder(tmp_path):
    with Results(tmp_path, {}), pytest.raises(ConfigError, match="another process is evaluating into"):
        Results(tmp_path, {})
    Results(tmp_path, {}).held.close()


def test_rewriting_changes_and_removes_lines(tmp_path):
    with Results(tmp_path, {}) as results:
        for number in range(3):
            results.add(line(number))
        results.rewrite(lambda one: None if one["run"] == 1 else one | {"correct": None if one["run"] else True})
        assert {run: r.correct for (_, run), r in results.runs.items()} == {0: True, 2: None}
        assert [key for key, _ in results.papers(lambda r: r.correct is None)] == [("q", 2)]
    assert not list(tmp_path.glob(".results*"))


@pytest.mark.parametrize(("change", "words"), [
    (lambda data: b"\n" + data, "line 1 is not a finished run"), (lambda data: data + b"[]\n", "line 2 is not a finished run"),
    (lambda data: data + data, "is there twice"), (lambda data: data.replace(b'"turns"', b'"tunes"'), "line 1 cannot be read"),
    (lambda data: data.replace(b'"termination": "answered"', b'"termination": "tired"'), "line 1 cannot be read")])
def test_a_damaged_file_is_one_clear_error(tmp_path, change, words):
    with Results(tmp_path, {}) as results:
        results.add(line(0))
    results.path.write_bytes(change(results.path.read_bytes()))
    with pytest.raises(ConfigError, match=words):
        Results(tmp_path, {})


def test_results_without_their_settings_are_refused(tmp_path):
    with Results(tmp_path, {}) as results:
        results.add(line(0))
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ConfigError, match=r"no settings\.json"):
        Results(tmp_path, {})
