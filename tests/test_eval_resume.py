"""eval.py goes on where it was: after a kill at any moment, after Ctrl-C, with more runs; never with other files."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import eval as evaluation
from minvenus.settings import AgentConfig, EvalConfig
from tests.agent.scripted import answer
from tests.agent.test_remote import scripted
from tests.evaluation.eval_runs import at, environment, lines, run, write_documents  # noqa: F401
from tests.tools.servers import serve
from tests.train.test_crash import ended, fork

ROOT = Path(__file__).resolve().parents[1]
SHORT = EvalConfig(limit=6, runs=2, agent=AgentConfig(temperature=1.0, max_new_tokens=6), concurrency=3, hops=1,
                   out="e")


def same(found: dict, whole: dict) -> None:
    assert {key: line for key, (_, line) in found.items()} == {key: line for key, (_, line) in whole.items()}
    for key, (logprobs, _) in whole.items():
        assert found[key][0] == pytest.approx(logprobs, abs=1e-5)


def test_killed_at_any_moment_it_goes_on_and_ends_with_the_same_file():
    evaluation.main(replace(SHORT, out="whole"))
    whole, rng, kills = lines("whole"), random.Random(7), 0
    for trial in range(3):
        config = replace(SHORT, out=f"killed {trial}", concurrency=rng.choice((1, 3, 12)))
        for attempt in range(40):
            pid = fork(lambda config=config: evaluation.main(config))
            until = time.monotonic() + rng.uniform(0.01, 0.1) * 1.3 ** attempt
            while time.monotonic() < until and not (gone := os.waitpid(pid, os.WNOHANG)[0]):
                time.sleep(0.005)
            if gone:
                break
            os.kill(pid, signal.SIGKILL)
            kills += ended(pid) == -signal.SIGKILL
        evaluation.main(config)
        same(lines(config.out), whole)
        assert json.loads(Path(config.out, "report.json").read_text())["runs"] == 12
    assert kills >= 3, kills


def test_what_is_there_is_not_run_again_and_more_runs_or_questions_can_be_added(monkeypatch):
    evaluation.main(replace(SHORT, limit=4, runs=1))
    first = Path("e/results.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "load_loop", lambda *_: pytest.fail("a finished evaluation needs no model"))
        assert evaluation.main(replace(SHORT, limit=4, runs=1))["runs"] == 4
        assert evaluation.main(replace(SHORT, limit=3, runs=1))["runs"] == 3, "fewer are a part of what is there"
    assert evaluation.main(replace(SHORT, concurrency=1))["runs"] == 12
    assert Path("e/results.jsonl").read_text().startswith(first)
    order = [run for _, run in lines()]
    assert order == sorted(order), "all first runs come before all second ones"


def test_ctrl_c_keeps_what_has_ended_and_the_same_command_goes_on():
    argv = ["--limit", "60", "--temperature", "1", "--concurrency", "2", "--out", "e"]
    process = subprocess.Popen([sys.executable, str(ROOT / "eval.py"), *argv], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 180
    while not Path("e/results.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    count = len(lines())
    assert process.returncode == 130 and "Traceback" not in errors and 1 <= count < 60
    assert f"stopped: {count} of 60 runs are in e/results.jsonl" in errors and "accuracy 0" in errors


def test_what_a_file_holds_counts_and_not_its_name_when_an_evaluation_goes_on(capsys):
    write_documents()
    for name, text in (("prompt.txt", "Answer."), ("same.txt", "Answer."), ("other.txt", "Answer!")):
        Path(name).write_text(text)
    with serve(scripted(answer("cat"))) as server:
        flags = at(server, "--system-prompt")
        assert run([*flags, "prompt.txt", "--limit", "2"]) == 0
        assert [run([*flags, name]) for name in ("prompt.txt", "same.txt", "other.txt")] == [0, 0, 2]
        assert "other settings: system_prompt was" in capsys.readouterr().err
        Path("q.jsonl").write_text(Path("q.jsonl").read_text().replace("Bob 3", "Bob 4"))
        assert run([*flags, "same.txt"]) == 2 and "other settings: questions was" in capsys.readouterr().err
