"""A judge on 127.0.0.1 for the tests."""

import itertools
import json
import os
from contextlib import contextmanager

import pytest

from minvenus.evaluation.answers import ALIAS_MARK
from minvenus.evaluation.judge import Judge
from minvenus.types import Question
from tests.tools.servers import chat, serve

KEY = "planted-judge-key-48b1"
QUICK = {"seconds": 20.0, "read_seconds": 1.0}
CAPITAL = Question("q1", "What is the capital of Italy?", ["Rome", "Roma" + ALIAS_MARK + "Urbs"])
NUMBERS = itertools.count()


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """A key in the environment; judge_at sets the address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    monkeypatch.setenv("JUDGE_MODEL", "grader-1")
    monkeypatch.setenv("JUDGE_BASE_URL", "set by judge_at")


def says(text):
    return lambda handler: handler.reply(chat(text))


@contextmanager
def grading(grade):
    """A server whose reply is grade(answer): a word, or a function that writes to the handler."""

    def reply(handler):
        said = grade(case_of(handler.body)["response"])
        if callable(said):
            said(handler)
        else:
            handler.reply(chat(f"reasoning: compared\n**correct:** {said}"))

    with serve(reply) as server:
        yield server


def yes_to(right):
    return grading(lambda answer: "yes" if answer in right else "no")


def case_of(body: bytes) -> dict:
    content = json.loads(body)["messages"][0]["content"]
    return json.JSONDecoder().raw_decode(content[content.index("{") :])[0]


def judge_at(server, **options):
    os.environ["JUDGE_BASE_URL"] = server.url + "/v1/"
    return Judge(**QUICK | {"limit": 1.0, "cache": f"verdicts {next(NUMBERS)}.sqlite"} | options)


def graded(judge, answer, question=CAPITAL):
    """The grade of one answer."""
    [grade] = judge.grade([question], [answer])
    return grade
