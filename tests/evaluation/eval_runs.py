"""For the tests of eval.py: a clean environment, documents with questions, and its files as the tests compare them."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

import eval as evaluation
from minvenus.settings import EvalConfig
from minvenus.text.tokenizer import TINY
from tests.scripts import exit_code


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("POLICY_API_KEY", "sk-planted-0123456789")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)          # what a kill leaves does not depend on it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(argv: list[str]) -> int:
    """The exit code of eval.py."""
    return exit_code(evaluation.main, EvalConfig, argv)


def lines(folder="e") -> dict:
    """(log-probs, the rest of the line without timings) by question and run; log-probs depend a little on the batch."""
    found = {}
    for text in (Path(folder) / "results.jsonl").read_text().splitlines():
        line = json.loads(text)
        del line["elapsed_seconds"]
        for turn in line["turns"]:
            del turn["seconds"], turn["tool_seconds"]
        assert (line["id"], line["run"]) not in found, "no run twice"
        found[line["id"], line["run"]] = line.pop("logprobs"), line
    return found


def squeezed(text: str) -> str:
    """Without the blanks that align the columns of a table."""
    return re.sub(" +", " ", text)


def printed_json(capsys) -> dict:
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def write_documents():
    Path("docs").mkdir()
    Path("docs/bob.md").write_text("# Bob\nBob keeps a cat.")
    questions = [{"question": f"Pet of Bob {i}?", "answer": ["cat"], "source": "ab"[i % 2]} for i in range(4)]
    Path("q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))


def at(server, *more):
    return ["--api-base", f"{server.url}/v1", "--api-model", "venus", "--model", str(TINY), "--no-prompt-ids",
            "--tools", "folder:docs", "--questions", "q.jsonl", "--out", "e", "--temperature", "0.5", *more]
