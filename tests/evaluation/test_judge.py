"""The judge against servers on 127.0.0.1: what is asked, what is kept, what stays unknown, and where the key goes."""

import json
import traceback

import pytest

from minvenus.config import ConfigError
from minvenus.evaluation.judge import Judge, Verdict
from minvenus.tools.base import TooManyFailures
from minvenus.types import Question
from tests.evaluation.local_judge import CAPITAL, KEY, case_of, drip, judge_at, planted, says, yes_to  # noqa: F401
from tests.tools.servers import serve

pytestmark = pytest.mark.usefixtures("planted")


# ------------------------------------------------------------------------------------------------------------- verdicts


def test_a_verdict_is_asked_for_with_question_answer_and_every_alias(monkeypatch):
    with yes_to({"The city of Rome"}) as server:
        judge = judge_at(server, monkeypatch)
        right, wrong = judge.verdict(CAPITAL, "  The city of Rome\n"), judge.verdict(CAPITAL, "Milan")
    assert (right.correct, right.by) == (True, "judge") and "compared" in right.note
    assert wrong.correct is False
    method, path, headers, body = server.seen[0]
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    assert json.loads(body)["model"] == "grader-1" and json.loads(body)["temperature"] == 0
    assert case_of(body) == {"question": CAPITAL.text, "response": "The city of Rome",
                                       "accepted_answers": ["Rome", "Roma", "Urbs"]}


def test_equal_and_empty_answers_are_not_asked_about_and_all_others_are(monkeypatch):
    with serve(says("correct: no")) as server:
        judge = judge_at(server, monkeypatch)
        for answer, right, by in (("Rome", True, "equality"), (" Urbs \n", True, "equality"), ("", False, "empty"),
                                  (" \n", False, "empty"), (None, False, "empty")):
            assert judge.verdict(CAPITAL, answer) == Verdict(right, by)
        assert server.seen == []
        assert [judge.verdict(CAPITAL, answer).by for answer in (CAPITAL.answers[1], "rome", "Rome.")] == ["judge"] * 3


BROKEN = {                # tests/tools/test_endpoint.py has more ways to fail
    "error": (lambda h: h.reply("down", status=500), 3, "status 500: down"),
    "bad request": (lambda h: h.reply("too long", status=400), 1, "status 400"),
    "refused key": (lambda h: h.reply(f"bad key {KEY}", status=401), 1, "check JUDGE_API_KEY"),
    "slow": (drip, 3, "in time"),
    "nonsense": (says("I like trains."), 1, "I like trains."),
    "empty text": (says(""), 1, "no verdict"),
    "no text": (lambda h: h.reply({"choices": [{"message": {"content": None}}]}), 1, "sent no 'content'"),
    "no choices": (lambda h: h.reply({"choices": []}), 1, "sent no 'content'"),
    "error object": (lambda h: h.reply({"error": {"message": "correct: yes"}}), 1, "JSON object of results"),
    "page": (lambda h: h.reply("<html>correct: yes</html>"), 1, "JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_judge_that_fails_is_unknown_never_kept_and_asked_again_only_where_that_helps(monkeypatch, tmp_path, case):
    answer, requests, reason = BROKEN[case]
    file = tmp_path / "verdicts.sqlite"
    with serve(answer) as server:
        verdict = judge_at(server, monkeypatch, cache=file).verdict(CAPITAL, "Milan")
        assert (verdict.correct, verdict.by) == (None, "judge")
        assert reason in verdict.note and len(server.seen) == requests
    with serve(says("correct: yes")) as server:                     # the failure of one evening is forgotten
        assert judge_at(server, monkeypatch, cache=file).verdict(CAPITAL, "Milan").correct


# ---------------------------------------------------------------------------------------------------------------- cache


def test_a_verdict_is_kept_across_runs_and_another_model_question_truth_or_answer_is_asked_anew(monkeypatch, tmp_path):
    file = tmp_path / "verdicts.sqlite"
    with yes_to({"Italy's Rome"}) as server:
        first = judge_at(server, monkeypatch, cache=file).verdict(CAPITAL, "Italy's Rome")
        judge = judge_at(server, monkeypatch, cache=file)
        again = judge.verdict(Question("other id", CAPITAL.text, CAPITAL.answers), "Italy's Rome ")
        assert (again.correct, again.by, again.note) == (True, "cache", first.note) and len(server.seen) == 1
        assert judge.verdict(CAPITAL, "Milan").by == "judge"
        assert judge.verdict(Question("q1", "And of Lombardy?", CAPITAL.answers), "Italy's Rome").by == "judge"
        assert judge.verdict(Question("q1", CAPITAL.text, ["Rome"]), "Italy's Rome").by == "judge"
        monkeypatch.setenv("JUDGE_MODEL", "grader-2")
        assert judge_at(server, monkeypatch, cache=file).verdict(CAPITAL, "Italy's Rome").by == "judge"
    assert len(server.seen) == 5 and [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_long_reply_with_half_a_surrogate_pair_is_kept_in_part(monkeypatch, tmp_path):
    with serve(says("\ud83d correct: yes " + "so " * 9000)) as server:
        judge = judge_at(server, monkeypatch, cache=tmp_path / "verdicts.sqlite")
        found = [judge.verdict(CAPITAL, "R\udc00me") for _ in range(2)]
    assert [verdict.by for verdict in found] == ["judge", "cache"] and len(found[0].note) == len(found[1].note) == 4000


# ----------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(("variable", "value"), [("JUDGE_BASE_URL", ""), ("JUDGE_MODEL", " ")])
def test_a_wrong_environment_is_an_error_before_anything_is_asked_that_names_the_variable(monkeypatch, variable, value):
    monkeypatch.setenv("JUDGE_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=variable):
        Judge("verdicts.sqlite")


def test_the_key_is_in_no_verdict_no_file_no_repr_and_no_error_even_if_the_judge_repeats_it(monkeypatch, tmp_path):
    file = tmp_path / "verdicts.sqlite"
    with serve(says(f"Authorization: Bearer {KEY}\ncorrect: yes")) as server:
        judge = judge_at(server, monkeypatch, cache=file)
        assert KEY not in repr(judge.verdict(CAPITAL, "Milan")) + repr(vars(judge)) + repr(judge)
    with serve(says(f"Bearer {KEY}")) as server:
        judge = judge_at(server, monkeypatch, cache=file, limit=0.0)
        with pytest.raises(TooManyFailures) as caught:
            judge.verdict(CAPITAL, "Turin")
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown and KEY.encode() not in file.read_bytes()


def test_the_key_is_read_at_the_moment_of_the_call(monkeypatch):
    with serve(says("correct: no")) as server:
        judge = judge_at(server, monkeypatch)
        monkeypatch.delenv("JUDGE_API_KEY")                         # a local server needs none
        judge.verdict(CAPITAL, "Milan")
    assert "Authorization" not in server.seen[0][2]
