"""eval.py as its users meet it: what it prints and saves, how it refuses, and that it goes on where
it was: after a kill at any moment, after Ctrl-C, with more runs; never with other files."""

import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import eval as evaluation
from minvenus.agent.prompt import TOYWEB
from minvenus.config import ModelConfig
from minvenus.evaluation import judge, results
from minvenus.evaluation.judge import Judge
from minvenus.flags import parse_flags
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.report.xray import write_page
from minvenus.settings import AgentConfig, EvalConfig
from minvenus.sft import __main__ as cleaning
from minvenus.sft.__main__ import CleanConfig
from minvenus.sft.dataset import load
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations
from tests.agent.scripted import TOKENIZER, answer, policy_for, search
from tests.agent.test_remote import complete, scripted
from tests.evaluation.local_judge import QUICK, grading
from tests.scripts import exit_code
from tests.tools.servers import serve

ROOT = Path(__file__).resolve().parents[1]
FORK = multiprocessing.get_context("fork")
SAMPLED = AgentConfig(temperature=1.0, max_new_tokens=60)
SCRIPTED = EvalConfig(limit=8, runs=2, agent=SAMPLED, out="e")
SHORT = replace(SCRIPTED, limit=6, agent=replace(SAMPLED, max_new_tokens=6), concurrency=3, hops=1)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("POLICY_API_KEY", "sk-planted-0123456789")
    monkeypatch.chdir(tmp_path)
    # what a kill leaves does not depend on it
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(flags: str) -> int:
    """The exit code of eval.py."""
    return exit_code(evaluation.main, EvalConfig, flags.split())


def lines(folder="e", again=False) -> dict:
    """(log-probs, the rest of the line without timings) by question and run; log-probs depend a
    little on the batch."""
    found = {}
    for text in (Path(folder) / "results.jsonl").read_text().splitlines():
        line = json.loads(text)
        del line["elapsed_seconds"]
        for turn in line["turns"]:
            del turn["seconds"], turn["tool_seconds"]
        assert again or (line["id"], line["run"]) not in found, "no run twice"
        found[line["id"], line["run"]] = line.pop("logprobs"), line
    return found


def has(text: str, *parts: str) -> None:
    """Whether a text has these parts; the blanks that align a table do not count."""
    text = re.sub(" +", " ", text)
    for part in parts:
        assert part in text, (part, text)


def printed_json(capsys) -> dict:
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def write_documents():
    Path("docs").mkdir()
    Path("docs/bob.md").write_text("# Bob\nBob keeps a cat.")
    rows = [
        {"question": f"Pet of Bob {i}?", "answer": "cat", "source": source}
        for i, source in enumerate("abab")
    ]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))


def at(server, more=""):
    """Flags for a file of questions at an endpoint with documents."""
    return (
        f"--api-base {server.url}/v1 --api-model venus --model {TINY} --no-prompt-ids "
        f"--tools folder:docs --questions q.jsonl --out e --temperature 0.5 {more}"
    )


def expert_with_faults():
    """The expert's turns by question, in which some runs go wrong in the same way every time."""
    turns = {}
    for i, messages in enumerate(demonstrations(ToyWeb(0), 8, Teacher(), split="test")):
        turns[f"test-{i}"] = [m["content"].removeprefix("<think>\n") for m in messages[2::2]]

    def script(name, turn, attempt):
        question, _, number = name.split("/")[1].partition(" run ")
        if question == "test-2":
            return search(f"nothing {turn}")  # never answers
        if question == "test-5" and number == "1":
            return answer("pets none")  # at once, and wrong
        return turns[question][min(turn, len(turns[question]) - 1)]

    return script


@pytest.fixture
def follow(monkeypatch):
    """follow(script): from now on every run follows it."""

    def follow(script):
        monkeypatch.setattr(
            "minvenus.agent.load.local_writer", lambda *_: (policy_for(script), "a script")
        )

    follow(expert_with_faults())
    return follow


def test_the_report_counts_what_the_runs_did(follow, capsys):
    summary = evaluation.main(SCRIPTED)
    assert (summary["questions"], summary["runs"]) == (8, 16)
    assert (summary["accuracy"]["value"], summary["pass_at_k"]["2"]["value"]) == (13 / 16, 7 / 8)
    by_hops = {"1-hop": 1.0, "2-hop": 3 / 4, "3-hop": 1 / 2, "4-hop": 1.0}
    assert {source: part["value"] for source, part in summary["by_source"].items()} == by_hops
    # without a turn to spare, every run that goes all the way answers in its last turn
    assert summary["terminations"] == {"answered": 1, "answered_max_steps": 13, "max_steps": 2}
    assert summary["browse"]["correct"] == 0.5 and summary["browse"]["wrong"] == 0.0
    assert summary["tool_errors"] == {"empty": 12}, "six searches of each run that never answers"
    assert 13 / 16 < summary["means"]["f1"] < 14 / 16
    shown = capsys.readouterr()
    has(shown.out, "8 questions, runs of each: 2", "\ngraded by exact match", "\nin e\n")
    has(shown.out, "right pages 81.2 % of the path visited")  # 13 runs to the end, 3 of no page
    has(shown.err, "e: 0 of 16 runs there already", "a script", "; graded by exact match\n")
    has(shown.err, "eval 16/16 0:00 left exact match 0.8125")
    assert json.loads(Path("e/report.json").read_text()) == summary
    line = lines()["test-5", 1][1]
    assert line["exact_match"] is False and line["prediction"] == "pets none"
    assert {"questions", "system_prompt", "model"} <= line["settings"].keys()
    assert parse_flags(EvalConfig, ["--config", "e/run.json"]).out == "e"


def test_two_evaluations_are_compared_as_they_were_graded(follow, capsys):
    config = replace(SCRIPTED, runs=1)
    evaluation.main(replace(config, out="good"))
    follow(lambda name, turn, attempt: answer("pets none"))
    evaluation.main(replace(config, out="em"))
    evaluation.main(replace(config, out="f1", score="f1"))
    capsys.readouterr()
    assert run("--compare em good/results.jsonl") == 0
    has(capsys.readouterr().out, " A em B good/results.jsonl\n", "B - A: +87.5 points")
    for names, words in (
        ("f1 em", "A was graded by word F1 of at least 0.5, B by exact match"),
        ("good nowhere/e", "nowhere/report.json does not exist"),
    ):
        assert run(f"--compare {names}") == 2 and words in capsys.readouterr().err


def test_a_question_of_an_evaluation_becomes_an_x_ray_page(follow, capsys, monkeypatch):
    evaluation.main(replace(SCRIPTED, limit=4))
    scorers = []
    monkeypatch.setattr(
        evaluation, "write_page", lambda *call: scorers.append(call[-1]) or write_page(*call)
    )
    page = Path("runs/xray/e-results.html")
    flags = "--xray e/results.jsonl"
    assert run(f"{flags} --group test-3") == 0
    assert f"X-ray of e/results.jsonl: {page}" in capsys.readouterr().out
    assert not list(Path("e").glob("*.html")), "nothing is written beside the file"
    assert ToyWeb(0).case("test-3").question.text in page.read_text()
    save_model("toy")
    capsys.readouterr()
    assert run(f"{flags} --group test-3 --model toy --out scored.html --json") == 0
    assert printed_json(capsys) == {"page": "scored.html"}
    has(Path("scored.html").read_text(), "according to", ">toy<")
    assert scorers[-1].recipe.lead_in == TOYWEB.lead_in, "as the model has learned to answer"
    for more, words in (
        ("--group test-9", "has no group test-9"),
        ("--answer cat", "none has been trained"),
    ):
        assert run(f"{flags} {more}") == 2 and words in capsys.readouterr().err


def save_model(folder, seed=0):
    files = Tokenizer.tiny().files | TOYWEB.files
    model = Qwen3(ModelConfig.preset("tiny"), seed=seed)
    weights.save(model, Path(folder), tokenizer_files=files)


def test_the_results_of_an_evaluation_can_be_cleaned_for_training(follow):
    evaluation.main(SCRIPTED)
    stats = cleaning.run(CleanConfig("e", "clean.jsonl", correct="exact_match", prompt_mode="row"))
    assert stats["rows"]["source"] == 16 and stats["rows"]["final_resampled"] == 13
    assert stats["drop_reasons"] == {"not_answered": 2, "answer_not_correct": 1}
    records = map(json.loads, Path("clean.jsonl").read_text().splitlines())
    assert len(load(records, TOKENIZER, 9999)[0]) == 13


# ------------------------------------------------------------------------- files, endpoints, judges


def endpoint(turns):
    """A server that answers with "cat" or fails, turn by turn."""
    replies = iter(turns)
    return serve(
        lambda h: complete(h, answer("cat")) if next(replies) else h.reply("no", status=400)
    )


def test_an_endpoint_that_fails_stops_the_evaluation_and_its_failures_can_be_made_again(
    capsys, monkeypatch
):
    monkeypatch.setattr(results, "FAILURES", 2)
    write_documents()
    with endpoint([True] + [False] * 50) as server:
        assert run(at(server, "--concurrency 1 --json")) == 2
    shown = capsys.readouterr()
    assert shown.out == "", "a report for machines is whole or not there"
    has(shown.err, "2 of the last 2 runs (--redo-failed makes them again) failed")
    has(shown.err, "2 times: the completion endpoint answered with HTTP status 400")
    endings = sorted(line["termination"] for _, line in lines().values())
    assert endings == ["answered", "error", "error"]
    with serve(scripted(answer("cat"))) as server:  # the model's name counts, not its address
        assert run(at(server, "--json")) == 0
        summary = printed_json(capsys)
        assert summary["accuracy"]["value"] == 2 / 4 and summary["terminations"]["error"] == 2
        assert summary["malformed"] == 0.0, "the endpoint's error is no format error"
        assert "run 0: the completion endpoint" in summary["problems"][1]
        assert run(at(server, "--redo-failed --json")) == 0
    assert printed_json(capsys)["accuracy"]["value"] == 1.0 and len(lines(again=True)) == 4


def test_failures_that_do_not_follow_each_other_do_not_stop_an_evaluation(capsys):
    """Six of eight runs fail, four in a row: it would take five."""
    write_documents()
    answered = [False, False, False, False, True, False, False, True]
    with endpoint(answered) as server:
        assert run(at(server, "--runs 2 --concurrency 1 --json")) == 0
    summary = printed_json(capsys)
    assert summary["terminations"] == {"answered": 2, "error": 6}
    assert summary["accuracy"]["value"] == 2 / 8, "a failed run is no right one"


@pytest.fixture
def judge_is(monkeypatch):
    """judge_is(server, limit): from now on this server is the judge."""

    def judge_is(server, limit=1.0):
        monkeypatch.setattr(
            judge, "Judge", lambda cache: Judge(cache, **QUICK, window=4, limit=limit)
        )
        monkeypatch.setenv("JUDGE_MODEL", "grader-1")
        monkeypatch.setenv("JUDGE_BASE_URL", server.url + "/v1")

    return judge_is


def test_a_judge_decides_whatever_was_graded_before_and_unknown_verdicts_are_asked_for_again(
    judge_is, capsys, monkeypatch
):
    write_documents()

    def reply(handler):
        complete(handler, answer(f"the cat {re.findall(rb'Bob (.)', handler.body)[-1].decode()}"))

    def verdict(text):
        return "no" if "0" in text else "perhaps" if "3" in text else "yes"

    with serve(reply) as server, grading(verdict) as grader:
        judge_is(grader)
        assert run(at(server, "--concurrency 1")) == 0
        assert "0.0 % [0.0, 49.0] of 4" in capsys.readouterr().out
        requests, runs = len(server.seen), Path("e/results.jsonl").read_bytes()
        assert run(at(server, "--judge")) == 0
        shown = capsys.readouterr()
        has(shown.out, "graded by the judge grader-1", "accuracy 66.7 %", "of 3, 1 unknown\n")
        has(shown.out, "no verdict in the judge's reply 'reasoning: ")
        has(shown.err, "asking the judge about answers")
        assert len(grader.seen) == 4 and len(server.seen) == requests, "the runs are not made again"
    with serve(reply) as server, grading(lambda text: "yes") as grader:
        judge_is(grader)
        assert run(at(server, "--judge --json")) == 0
        assert len(grader.seen) == 1 and server.seen == [], "the known ones are not asked for again"
        assert printed_json(capsys)["accuracy"]["value"] == 3 / 4
    monkeypatch.delenv("JUDGE_MODEL")
    assert run("--compare e e --json") == 0, "a comparison needs no judge"
    assert printed_json(capsys)["a"]["accuracy"]["value"] == 3 / 4
    assert Path("e/results.jsonl").read_bytes() == runs, "no line changes"


# ------------------------------------------------------------------------------- defaults, refusals


def test_the_toy_web_is_asked_more_at_once_and_not_whole():
    toy = evaluation.resolved(EvalConfig())
    assert (toy.limit, toy.concurrency, toy.runs, toy.agent.temperature) == (128, 64, 1, 0.0)
    four = replace(toy, agent=replace(toy.agent, max_turns=4))
    assert [evaluation.questions_of(each).turn_limit for each in (toy, four)] == [None, 4]
    agent = AgentConfig(tools="live")
    live = evaluation.resolved(EvalConfig(questions="q.jsonl", agent=agent))
    assert (live.limit, live.concurrency) == (None, 8)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model nowhere", "nowhere does not exist"),
        ("--out trained", "trained holds a training run"),
        ("--judge", "the judge endpoint needs JUDGE_BASE_URL and JUDGE_MODEL in the environment"),
        ("--runs 2", "2 runs with temperature 0 would all be the same"),
    ],
)
def test_what_cannot_work_is_one_clear_line_and_exit_code_2(flags, words, capsys):
    write_documents()
    Path("trained", "checkpoints").mkdir(parents=True)
    assert run(flags) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert not list(Path().glob("runs/eval/*/results.jsonl"))


# ----------------------------------------------------------------------------------------- resuming


def calls_of_loop(config, last=-1) -> int:
    """Evaluate, and die before this call or return of a function since the runs began: unlike a
    time, that does not depend on the machine. Returns the number of all."""
    events = itertools.count()

    def count(*_):
        if next(events) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def make_runs(*arguments):
        sys.setprofile(count)
        results.make_runs(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "make_runs", make_runs)
        evaluation.main(config)
    sys.setprofile(None)
    return next(events)


@pytest.mark.parametrize("concurrency", [1, 3, 12])
def test_killed_at_any_moment_it_goes_on_and_ends_with_the_same_file(concurrency):
    config = replace(SHORT, concurrency=concurrency)
    total, ends = calls_of_loop(replace(config, out="whole")), []
    for part in (0.3, 0.6, 0.97):
        process = FORK.Process(target=calls_of_loop, args=(config, int(part * total)))
        process.start()
        process.join()
        ends.append(process.exitcode)
    assert ends[:2] == [-signal.SIGKILL] * 2, "the third needs less, where runs were saved"
    evaluation.main(config)
    whole = lines("whole").items()
    assert lines() == {run: (pytest.approx(p, abs=1e-5), line) for run, (p, line) in whole}
    assert json.loads(Path("e/report.json").read_text())["runs"] == 12


def test_what_is_there_is_not_run_again_and_more_runs_or_questions_can_be_added(
    monkeypatch, capsys
):
    evaluation.main(replace(SHORT, limit=4, runs=1))
    first = Path("e/results.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "load_loop", lambda *_: pytest.fail("no model is needed"))
        for limit in (4, 3):  # fewer are a part of what is there
            assert evaluation.main(replace(SHORT, limit=limit, runs=1))["runs"] == limit
    assert evaluation.main(replace(SHORT, concurrency=1))["runs"] == 12
    has(capsys.readouterr().err, "e: 0 of 4 runs there already", "e: 4 of 12 runs", "eval 8/8")
    assert Path("e/results.jsonl").read_text().startswith(first)
    order = [run for _, run in lines()]
    assert order == sorted(order), "all first runs come before all second ones"


def test_ctrl_c_keeps_what_has_ended_and_the_same_command_goes_on():
    flags = "--limit 60 --temperature 1 --concurrency 2 --out e"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "eval.py"), *flags.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 180
    while not Path("e/results.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    count = len(lines())
    assert process.returncode == 130 and "Traceback" not in errors and 1 <= count < 60
    assert f"stopped: {count} of 60 runs are in e/results.jsonl" in errors
    assert "exact match 0" in errors


def test_what_files_and_services_hold_counts_and_not_their_names(monkeypatch):
    write_documents()
    monkeypatch.setenv("SERPER_BASE_URL", "http://127.0.0.1:9")
    for name, text in {"prompt": "Answer.", "same": "Answer.", "other": "Answer!"}.items():
        Path(name).write_text(text)
    save_model("toy", 1)

    def fingerprints(prompt="prompt"):
        agent = AgentConfig(model="toy", tools="live", system_prompt=prompt)
        config = evaluation.resolved(EvalConfig(questions="q.jsonl", agent=agent))
        return evaluation.fingerprints(config, evaluation.questions_of(config))

    before = fingerprints()

    def changed(prompt="prompt"):
        after = fingerprints(prompt)
        return [name for name in before if before[name] != after[name]]

    assert changed("same") == [] and changed("other") == ["system_prompt"]
    save_model("toy", 2)
    assert changed() == ["model"]
    monkeypatch.setenv("EXTRACT_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("EXTRACT_MODEL", "reader-1")
    assert changed() == ["model", "services"]
    Path("q.jsonl").write_text(Path("q.jsonl").read_text().replace("Bob 3", "Bob 4"))
    assert changed() == ["questions", "model", "services"]
