"""eval.py as its users meet it: what it prints and saves, how it goes on after a kill, and how it refuses."""

import base64
import hashlib
import json
import os
import random
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
from minvenus.config import ConfigError, ModelConfig
from minvenus.evaluation import collect, results
from minvenus.evaluation.judge import Judge
from minvenus.flags import load_config
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import newest_model
from minvenus.settings import AgentConfig, EvalConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher
from minvenus.tools.toyweb_lessons import lessons as taught
from tests.agent.scripted import TOKENIZER, all_threads_end, answer, policy_for, search, visit
from tests.agent.test_remote import complete, scripted
from tests.evaluation.local_judge import QUICK, grading
from tests.tools.servers import serve
from tests.train.test_crash import ended, fork

ROOT = Path(__file__).resolve().parents[1]
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
SHORT = EvalConfig(limit=6, runs=2, agent=AgentConfig(temperature=1.0, max_new_tokens=6), concurrency=3, hops=1, out="e")     # 12 runs of a second


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in (*PROXIES, "SERPER_API_KEY", "JUDGE_BASE_URL", "JUDGE_MODEL", "JUDGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POLICY_API_KEY", "sk-planted-0123456789")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)          # what a kill leaves does not depend on it
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lines(folder="e") -> dict:
    """What is in the file, by question and run, without timings; log-probs apart, because their last bits follow from who else
    was in a batch."""
    found = {}
    for text in (Path(folder) / "results.jsonl").read_text().splitlines():
        line = json.loads(text)
        del line["elapsed_seconds"]
        for turn in line["turns"]:
            del turn["seconds"], turn["tool_seconds"]
        logprobs = line.pop("logprobs")
        assert (line["id"], line["run"]) not in found, "no run twice"
        found[line["id"], line["run"]] = line, logprobs
    return found


def squeezed(text: str) -> str:
    """Without the blanks that align the columns of a table."""
    return re.sub(" +", " ", text)


def same(found: dict, whole: dict) -> None:
    assert {key: line for key, (line, _) in found.items()} == {key: line for key, (line, _) in whole.items()}
    for key, (_, logprobs) in whole.items():
        assert found[key][1] == pytest.approx(logprobs, abs=1e-5)


# -------------------------------------------------------------------------------------------------------- killed and resumed


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


@pytest.mark.parametrize("number", [1, 5, 12])
def test_killed_in_the_middle_of_a_line_it_drops_the_torn_one_and_makes_that_run_again(number, monkeypatch):
    evaluation.main(replace(SHORT, out="whole"))
    count, real = iter(range(1, 100)), results.as_bytes

    def die():
        def torn(line):
            if next(count) == number:
                with Path("e/results.jsonl").open("ab") as file:
                    file.write(real(line)[:1000])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(line)
        monkeypatch.setattr(results, "as_bytes", torn)
        evaluation.main(SHORT)
    assert ended(fork(die)) == -signal.SIGKILL
    data = Path("e/results.jsonl").read_bytes()
    assert data.count(b"\n") == number - 1 and not data.endswith(b"\n")
    evaluation.main(SHORT)
    same(lines(), lines("whole"))


def test_what_is_there_is_not_run_again_and_more_runs_or_questions_can_be_added(monkeypatch):
    evaluation.main(replace(SHORT, limit=4, runs=1))
    first = Path("e/results.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "load_policy", lambda *_: pytest.fail("no model is needed to show a finished evaluation"))
        assert evaluation.main(replace(SHORT, limit=4, runs=1)).runs == 4
        assert evaluation.main(replace(SHORT, limit=3, runs=1)).runs == 3, "fewer are a part of what is there"
    assert evaluation.main(SHORT).runs == 12 and Path("e/results.jsonl").read_text().startswith(first)


def test_ctrl_c_keeps_what_has_ended_and_the_same_command_goes_on():
    argv = ["--limit", "60", "--temperature", "1", "--concurrency", "2", "--out", "e"]
    process = subprocess.Popen([sys.executable, str(ROOT / "eval.py"), *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    until = time.monotonic() + 180
    while not Path("e/results.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    count = len(lines())
    assert process.returncode == 130 and "Traceback" not in errors and 1 <= count < 60
    assert f"stopped: {count} of 60 runs are in e/results.jsonl" in errors and "accuracy 0" in errors


# ------------------------------------------------------------------------------------------------------- a scripted evaluation


def lessons(count=8):
    """The expert's turns by question, and a script in which some runs go wrong in the same way every time."""
    turns = {lesson.question_id: [m["content"].removeprefix("<think>\n") for m in lesson.messages if m["role"] == "assistant"]
             for lesson in taught(ToyWeb(0), count, Teacher(), split="test")}

    def script(name, turn, attempt):
        question, _, number = name.split("/")[1].partition(" run ")
        own = turns[question]
        if question == "test-2":
            return search(f"nothing {turn}")                                          # never answers
        if question == "test-5" and number == "1":
            return answer("pets none")                                                # at once, and wrong
        return own[min(turn, len(own) - 1)]
    return script


def with_script(monkeypatch, script=None):
    monkeypatch.setattr(evaluation, "load_policy", lambda *_: (policy_for(script or lessons()), TOKENIZER, "a script"))


def test_the_report_counts_what_the_runs_did(monkeypatch, capsys):
    with_script(monkeypatch)
    summary = evaluation.main(EvalConfig(limit=8, runs=2, agent=AgentConfig(temperature=1.0, max_new_tokens=60), out="e", published=True))
    assert (summary.questions, summary.runs, summary.accuracy.value) == (8, 16, 13 / 16)
    assert [summary.pass_any[k].value for k in (1, 2)] == [7 / 8, 7 / 8] and summary.avg == 13 / 16
    assert {hops: part.value for hops, part in summary.by_hops.items()} == {1: 1.0, 2: 3 / 4, 3: 1 / 2, 4: 1.0}
    # without a turn to spare, every run that goes all the way answers in the turn that is announced as the last
    assert summary.terminations == {"answered": 1, "answered_max_steps": 13, "max_steps": 2}
    assert {one.question for one in summary.unfinished} == {"test-2"}
    assert summary.browse["correct"].macro == summary.browse["correct"].pooled == 0.5
    assert summary.browse["wrong"].macro == 0.0 and summary.browse["wrong"].skipped == 1
    shown = capsys.readouterr()
    for words in ("model a script", "8 questions, 2 runs each", "graded by exact match", "81.2 %", "pass@2 unbiased",
                  "4 hops", "2 without an answer", "DR-Venus-4B-RL", "report and runs in e"):
        assert words in squeezed(shown.out), (words, shown.out)
    assert "eval 16/16" in shown.err and "accuracy 0.8125" in shown.err
    saved = json.loads(Path("e/report.json").read_text())
    assert saved["accuracy"]["value"] == 13 / 16 and saved["by_hops"]["3"]["value"] == 0.5
    line = lines()["test-5", 1][0]
    assert line["correct"] is False and line["verdict"]["by"] == "em" and 0 < line["f1"] < 1 and line["prediction"] == "pets none"
    assert evaluation.resolved(load_config(EvalConfig, "e/run.json")).out == "e"


def test_json_is_all_that_goes_to_standard_output(monkeypatch, capsys):
    with_script(monkeypatch)
    assert evaluation.run(["--limit", "2", "--max-new-tokens", "60", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["accuracy"]["value"] == 1.0


def test_another_score_is_another_grading_of_the_same_runs(monkeypatch, capsys):
    with_script(monkeypatch)
    flags = ["--limit", "8", "--runs", "2", "--temperature", "1", "--max-new-tokens", "60"]
    assert evaluation.run(flags) == 0
    monkeypatch.setattr(evaluation, "load_policy", lambda *_: pytest.fail("nothing is to be run"))
    by_f1 = [*flags, "--score", "f1", "--f1-at-least", "0.2"]
    assert evaluation.run(by_f1) == 2 and "graded by exact match, not by word F1 of at least 0.2: --regrade" in capsys.readouterr().err
    assert evaluation.run([*by_f1, "--regrade", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["value"] == 14 / 16, "pets none shares a word with the answer"
    assert evaluation.run(by_f1) == 0 and "graded by word F1 of at least 0.2" in squeezed(capsys.readouterr().out)


def test_two_evaluations_are_compared_question_by_question(monkeypatch, capsys):
    config = EvalConfig(limit=8, agent=AgentConfig(max_new_tokens=60), out="good")
    with_script(monkeypatch)
    evaluation.main(config)
    with_script(monkeypatch, lambda name, turn, attempt: answer("pets none"))
    evaluation.main(replace(config, out="bad"))
    assert evaluation.run(["--compare", "bad", "good/results.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "B - A: +87.5 points" in shown and "paired over 8 questions, 7 better and 0 worse" in shown and "A bad" in shown
    assert evaluation.run(["--compare", "bad", "good", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"]["value"] == 7 / 8
    evaluation.main(replace(config, agent=replace(config.agent, seed=1), out="other"))
    evaluation.main(replace(config, out="by f1", score="f1", f1_at_least=0.2))
    for name, words in (("other", "is another one in good than in other"), ("nowhere", "nowhere does not exist"),
                        ("by f1", "good was graded by exact match, by f1 by word F1 of at least 0.2: they cannot be compared")):
        assert evaluation.run(["--compare", "good", name]) == 2 and words in capsys.readouterr().err


def test_a_question_of_an_evaluation_becomes_an_x_ray_page(monkeypatch, capsys):
    with_script(monkeypatch)
    evaluation.main(EvalConfig(limit=4, runs=2, agent=AgentConfig(temperature=1.0, max_new_tokens=60), out="e"))
    assert evaluation.run(["--xray", "e/results.jsonl", "--group", "test-3"]) == 0
    assert "X-ray of e/results.jsonl: e/results.html" in capsys.readouterr().out
    page = Path("e/results.html").read_text()
    assert page.startswith("<!doctype html>") and ToyWeb(0).case("test-3").question.text in page
    weights.save(Qwen3(ModelConfig.preset("tiny")), Path("toy"), tokenizer_files=Tokenizer.tiny().files)
    assert evaluation.run(["--xray", "e/results.jsonl", "--group", "test-3", "--model", "toy", "--out", "scored.html"]) == 0
    assert "according to" in Path("scored.html").read_text()
    for argv, words in ((["--group", "test-9"], "has no group test-9"), (["--answer", "cat"], "none has been trained")):
        assert evaluation.run(["--xray", "e/results.jsonl", *argv]) == 2 and words in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------- files, endpoints, judges


def write_documents():
    Path("docs").mkdir()
    Path("docs/bob.md").write_text("# Bob\nBob keeps a cat.")
    questions = [{"question": f"Pet of Bob {i}?", "answer": ["cat"], "source": "ab"[i % 2]} for i in range(4)]
    Path("q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))


def at(server, *more):
    return ["--api-base", f"{server.url}/v1", "--api-model", "venus", "--tools", "folder:docs", "--questions", "q.jsonl",
            "--out", "e", "--temperature", "0.5", *more]


@pytest.mark.parametrize("changed", ("questions", "system_prompt"))
def test_what_a_file_holds_counts_and_not_its_name_when_an_evaluation_goes_on(changed, capsys):
    write_documents()
    Path("prompt.txt").write_text("Answer.")
    with serve(scripted(answer("cat"))) as server:
        flags = at(server, "--system-prompt", "prompt.txt")
        assert evaluation.run(flags) == 0 and evaluation.run(flags) == 0
        if changed == "questions":
            Path("q.jsonl").write_text(Path("q.jsonl").read_text().replace("Bob 3", "Bob 4"))
        else:
            Path("prompt.txt").write_text("Answer!")
        assert evaluation.run(flags) == 2
    assert f"other settings: {changed} was" in capsys.readouterr().err


def test_a_file_of_questions_at_an_endpoint_with_documents(capsys):
    write_documents()
    with serve(scripted(search("Bob"), visit("bob.md"), answer("Cat."))) as server:
        assert evaluation.run(at(server, "--runs", "2")) == 0
    shown = squeezed(capsys.readouterr().out)
    assert "venus at http" in shown and "100.0 % [51.0, 100.0] of 8" in shown and "\n a " in shown and "pass@2 any" in shown
    assert "browse, correct 0.500 mean, 0.500 pooled" in shown
    assert len(lines()) == 8 and all_threads_end()


def test_an_endpoint_that_fails_stops_the_evaluation_and_its_failures_can_be_made_again(capsys, monkeypatch):
    monkeypatch.setattr(collect, "FAILURES", 2)
    write_documents()
    good = iter([True] + [False] * 50)
    with serve(lambda h: complete(h, answer("cat")) if next(good) else h.reply("no", status=400)) as server:
        assert evaluation.run(at(server, "--concurrency", "1")) == 2
    errors = capsys.readouterr().err
    assert "2 of the last 2 runs failed" in errors and "2 times: the completion endpoint answered with HTTP status 400" in errors
    assert "--redo-failed makes them again" in errors
    assert sorted(line["termination"] for line, _ in lines().values()) == ["answered", "error", "error"]
    with serve(scripted(answer("cat"))) as server:                  # at another address: the model's name counts, not that
        assert evaluation.run(at(server, "--json")) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["accuracy"]["value"] == 2 / 4 and summary["failed"][1]["note"].startswith("the completion endpoint")
        assert evaluation.run(at(server, "--redo-failed", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"]["value"] == 1.0 and len(lines()) == 4


def encrypted(text, canary):
    key = hashlib.sha256(canary.encode()).digest()
    return base64.b64encode(bytes(b ^ key[i % 32] for i, b in enumerate(text.encode()))).decode()


def test_browsecomp_is_decrypted_and_asked(capsys):
    write_documents()
    Path("bc.csv").write_text(f"problem,answer,canary\n{encrypted('Whose pet?', 'c1')},{encrypted('cat', 'c1')},c1\n")
    with serve(scripted(answer("cat"))) as server:
        assert evaluation.run([*at(server), "--questions", "bc.csv", "--json"]) == 0
        assert "Whose pet?" in json.loads(server.seen[0][3])["prompt"]
    assert json.loads(capsys.readouterr().out)["accuracy"]["value"] == 1.0


def test_a_judge_decides_and_an_unknown_verdict_is_shown_and_asked_for_again(monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "Judge", lambda cache: Judge(cache, **QUICK, limit=1.0))
    monkeypatch.setenv("JUDGE_MODEL", "grader-1")
    write_documents()

    def reply(handler):
        asked = [text for text in range(4) if f"Bob {text}?" in json.loads(handler.server.seen[-1][3])["prompt"]][-1]
        complete(handler, answer(f"the cat {asked}"))

    def verdict(said):
        return "no" if "0" in said else "perhaps" if "3" in said else "yes"
    with serve(reply) as server, grading(verdict) as judge:
        monkeypatch.setenv("JUDGE_BASE_URL", judge.url + "/v1")
        assert evaluation.run(at(server, "--judge", "--concurrency", "1")) == 0
        shown = capsys.readouterr()
        assert "graded by the judge grader-1" in squeezed(shown.out) and "66.7 %" in shown.out
        assert "of 3, 1 unknown; unknown verdicts all wrong 50.0 %, all right 75.0 %" in shown.out
        assert "unknown 1" in shown.err
        asked = len(judge.seen)
    with serve(reply) as server, grading(lambda said: "yes") as judge:
        monkeypatch.setenv("JUDGE_BASE_URL", judge.url + "/v1")
        assert evaluation.run(at(server, "--judge", "--json")) == 0
        assert len(judge.seen) == 1 and server.seen == [] and asked == 4, "the known ones are not asked for again"
    assert json.loads(capsys.readouterr().out)["accuracy"]["value"] == 3 / 4


def test_a_judge_that_cannot_be_relied_on_stops_the_evaluation_and_no_run_is_lost(monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "Judge", lambda cache: Judge(cache, **QUICK, window=4, limit=0.25))
    monkeypatch.setenv("JUDGE_MODEL", "grader-1")
    write_documents()
    with serve(scripted(answer("a cat"))) as server, grading(lambda said: "perhaps") as judge:
        monkeypatch.setenv("JUDGE_BASE_URL", judge.url + "/v1")
        assert evaluation.run(at(server, "--judge", "--concurrency", "1")) == 2
    assert "verdicts of the judge failed" in capsys.readouterr().err
    found = [line for line, _ in lines().values()]
    assert 2 <= len(found) <= 4 and all(line["correct"] is None and line["prediction"] == "a cat" for line in found)


# -------------------------------------------------------------------------------------------------------- defaults, refusals


def test_with_no_flags_the_newest_model_is_asked_the_toy_webs_test_questions(monkeypatch):
    folder = Path("runs/sft/checkpoints/step-00000007")
    weights.save(Qwen3(ModelConfig.preset("tiny"), seed=1), folder / "model", tokenizer_files=Tokenizer.tiny().files)
    (folder / "state.json").write_text("{}")
    Path("runs/sft/latest").write_text(folder.name + "\n")
    config = evaluation.resolved(EvalConfig())
    assert (config.agent.model, config.limit, config.runs, config.agent.temperature) == (str(folder / "model"), 128, 1, 0.0)
    deeper = Path("runs/demo/igpo/checkpoints/step-00000003")                  # as the demo has it, and newer
    (deeper / "model").mkdir(parents=True)
    (deeper / "state.json").write_text("{}")
    pointer = Path("runs/demo/igpo/latest")
    pointer.write_text(deeper.name + "\n")
    os.utime(pointer, (2e9, 2e9))
    assert newest_model() == deeper / "model"
    os.utime(pointer, (1e9, 1e9))
    assert newest_model() == folder / "model"
    assert evaluation.main(EvalConfig(limit=2, agent=AgentConfig(max_new_tokens=4))).runs == 2
    [made] = Path("runs/eval").iterdir()
    assert made.name.startswith("sft-step-00000007-")
    weights.save(Qwen3(ModelConfig.preset("tiny"), seed=2), folder / "model", tokenizer_files=Tokenizer.tiny().files)
    assert evaluation.main(EvalConfig(limit=2, agent=AgentConfig(max_new_tokens=4))).runs == 2
    assert len(list(Path("runs/eval").iterdir())) == 2, "other weights under the same name are another evaluation"
    with pytest.raises(ConfigError, match="other settings: model was"):
        evaluation.main(EvalConfig(limit=2, agent=AgentConfig(max_new_tokens=4), out=str(made)))


def test_a_changed_setting_is_refused_with_what_differs(capsys):
    evaluation.main(replace(SHORT, limit=1, runs=1))
    flags = ["--limit", "1", "--hops", "1", "--out", "e", "--max-new-tokens", "6"]
    assert evaluation.run([*flags, "--temperature", "0.5", "--max-turns", "2"]) == 2
    errors = capsys.readouterr().err
    assert "max_turns was None, is 2; temperature was 1.0, is 0.5. Use the same, or another --out" in errors
    assert evaluation.run([*flags, "--temperature", "1"]) == 0


@pytest.mark.parametrize(("argv", "words"), [
    (["--model", "nowhere"], "nowhere is not a folder"),
    (["--tools", "telepathy", "--questions", "q.jsonl"], "tools must be one of"),
    (["--tools", "folder:docs", "--questions", "none.jsonl"], "none.jsonl does not exist"),
    (["--limit", "100000"], "the toy web has"), (["--runs", "2"], "2 runs with temperature 0 would all be the same"),
    (["--judge"], "JUDGE_BASE_URL"), (["--system-prompt", "nowhere.txt"], "cannot be read from nowhere.txt"),
])
def test_what_cannot_work_is_one_clear_line_and_exit_code_2(argv, words, capsys):
    write_documents()
    assert evaluation.run(argv) == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.startswith("eval.py: ") and errors.count("\n") == 1
    assert not list(Path().glob("runs/eval/*/results.jsonl"))


def test_an_internal_error_keeps_its_traceback(monkeypatch):
    """One line is for what a user can put right; a bug of ours must be found."""
    monkeypatch.setattr(evaluation, "summarise", lambda results: [][0])
    with pytest.raises(IndexError):
        evaluation.run(["--limit", "1", "--max-new-tokens", "4"])
    monkeypatch.setattr(evaluation, "load_policy", lambda *_: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        evaluation.run(["--limit", "2", "--max-new-tokens", "4"])


@pytest.mark.parametrize(("argv", "words"), [
    (["--questions", "q.jsonl"], "the toy web answers its own questions only"),
    (["--tools", "live"], "needs a file of questions"),
    (["--runs", "0"], "runs must be at least 1"), (["--score", "f1", "--f1-at-least", "0"], "must be above 0 and at most 1"),
    (["--judge", "--score", "f1"], "--judge decides alone"), (["--compare", "a"], "expected 2 arguments"),
    (["--answer", "cat"], "belong to --xray"), (["--temprature", "1"], "did you mean --temperature"),
    (["--tools", "live", "--questions", "q.jsonl", "--hops", "2"], "of the toy web"), (["--api-base", "http://x"], "both"),
])
def test_impossible_flags_are_refused_with_exit_code_2(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        evaluation.run(argv)
    assert caught.value.code == 2 and words in capsys.readouterr().err
