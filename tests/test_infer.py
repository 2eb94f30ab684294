"""infer.py as its users meet it: what it prints, what it saves however it ends, and how it refuses."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import infer
from minvenus.agent.record import load_rollout, rollout_from_json
from minvenus.config import ModelConfig
from minvenus.flags import load_config
from minvenus.settings import AgentConfig, InferConfig
from minvenus.tools.base import failed
from minvenus.tools.toyweb import ToyWeb
from tests.agent.scripted import answer, search, visit
from tests.agent.test_remote import complete, hang, scripted, turn_number
from tests.tools.servers import serve

ROOT = Path(__file__).resolve().parents[1]
KEY = "sk-planted-9876543210"
SAVED = "runs/infer/trajectory.json"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    for name in (*proxies, "SERPER_API_KEY", "SERPER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POLICY_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)


def solver():
    """A server that answers test-1 of the toy web, and what it should answer."""
    case = ToyWeb(0).case("test-1")
    first, second = case.path
    goals = [f"own {first}", f"{case.relations[0]} {second}"]
    turns = [search(goals[0]), visit(case.pages[first].url, goal=goals[0]), search(goals[1], "Find."),
             visit(case.pages[second].url, goal=goals[1])]
    return scripted(*turns, answer(case.question.answers[0], "I know enough.")), case


def command(*argv):
    return [sys.executable, str(ROOT / "infer.py"), *argv]


def at(server):
    return ["--api-base", f"{server.url}/v1", "--api-model", "venus"]


# --------------------------------------------------------------------------------------------- what it prints and saves


def test_with_no_flags_the_tiny_model_tries_a_toy_question_in_plain_lines():
    done = subprocess.run(command(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == ""
    assert "random weights" in done.stdout and ToyWeb(0).case("test-1").question.text in done.stdout
    assert "\033" not in done.stdout and "turn 1" in done.stdout and "ended      max_steps (5 turns" in done.stdout
    rollout = load_rollout(SAVED)
    assert len(rollout.turns) == 5 and rollout.trainable
    assert load_config(InferConfig, "runs/infer/run.json") == InferConfig(agent=AgentConfig().resolved())


def test_the_turns_are_shown_in_order_and_the_key_nowhere(tmp_path, capsys):
    reply, case = solver()
    with serve(reply) as server:
        assert infer.run([*at(server), "--save", "kept/one.json"]) == 0
        assert KEY in str(server.seen)
    shown = capsys.readouterr()
    first = case.path[0]
    wanted = ["question   " + case.question.text, "turn 1", "thought  Start.", f'search   "own {first}"', "result",
              f'visit    "{case.pages[first].url}"  for: own {first}', f"own {case.pages[first].pet}",
              "turn 5", "I know enough.", f"answer     {case.question.answers[0]}", "ended      answered", "expected",
              "kept/one.json"]
    place = -1
    for words in wanted:
        assert shown.out.find(words, place + 1) > place, (words, shown.out)
        place = shown.out.find(words, place + 1)
    rollout = load_rollout("kept/one.json")
    assert rollout == load_rollout(SAVED) and rollout.termination.startswith("answered")
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert KEY not in shown.out + shown.err + written


def test_json_is_all_that_is_printed(capsys):
    reply, case = solver()
    with serve(reply) as server:
        assert infer.run([*at(server), "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert shown.err == "" and record["prediction"] == case.question.answers[0] and len(shown.out.splitlines()) == 1
    assert rollout_from_json(record) == load_rollout(SAVED)


def test_a_folder_of_documents_and_a_prompt_of_ones_own(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bob.md").write_text("# Bob\nBob keeps a cat.")
    (tmp_path / "prompt.txt").write_text("Be brief.")
    with serve(scripted(search("Bob"), visit("bob.md"), answer("cat"))) as server:
        own = ["--tools", "folder:docs", "--question", "Bob's pet?", "--system-prompt", "prompt.txt"]
        assert infer.run([*at(server), *own]) == 0
        assert "Be brief." in json.loads(server.seen[0][3])["prompt"]
    assert "Bob keeps a cat." in capsys.readouterr().out
    assert load_rollout(SAVED).system == "Be brief."


def test_the_same_seed_writes_the_same_and_another_seed_something_else():
    def tokens(seed):
        agent = AgentConfig(max_new_tokens=6, temperature=1.0, seed=seed)
        return infer.main(InferConfig(question="test-0", agent=agent)).tokens
    assert tokens(1) == tokens(1) != tokens(2)


# ---------------------------------------------------------------------------------------- whatever ends it, it is saved


def test_ctrl_c_saves_what_there_is():
    def reply(handler):
        complete(handler, search("own")) if turn_number(handler) == 0 else hang(handler)
    with serve(reply) as server:
        process = subprocess.Popen(command(*at(server), "--save", "part.json"), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 200
        while len(server.seen) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in errors
    rollout = load_rollout("part.json")
    assert rollout.error == "stopped by the user" and [t.kind for t in rollout.turns] == ["search", "none"]
    assert "stopped by the user" in shown


@pytest.mark.parametrize("fault", [ValueError("a bug"), KeyError("a bug")])
def test_a_bug_keeps_its_traceback_and_the_turns_before_it_are_saved(fault, monkeypatch):
    def broken(*_):
        raise fault
    monkeypatch.setattr("minvenus.agent.rollout.cap_text", broken)
    reply, _ = solver()
    with serve(reply) as server, pytest.raises(type(fault), match="a bug"):
        infer.run(at(server))
    rollout = load_rollout(SAVED)
    assert (rollout.termination, [turn.kind for turn in rollout.turns]) == ("error", ["search"])
    assert "a bug" in rollout.error


def test_tools_that_keep_failing_end_the_run_with_one_line_and_its_turns_are_saved(monkeypatch, capsys):
    monkeypatch.setattr("minvenus.agent.rollout.run_tool", lambda *_: failed("http", "down"))
    with serve(lambda h: complete(h, search(f"Bob {turn_number(h)}"))) as server:
        assert infer.run([*at(server), "--max-turns", "60"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("infer.py: 26 of the last 26 tool calls failed") and errors.count("\n") == 1
    rollout = load_rollout(SAVED)
    assert len(rollout.turns) == 26 and rollout.termination == "error" and "26 of the last 26" in rollout.error


def test_a_reader_that_goes_away_loses_nothing():
    reply, _ = solver()
    with serve(reply) as server:
        process = subprocess.Popen(command(*at(server)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert any(line.startswith("turn 1") for line in process.stdout)
        process.stdout.close()
        process.wait(timeout=200)
        assert "Traceback" not in process.stderr.read()
    assert len(load_rollout(SAVED).turns) >= 1


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("argv", "words"), [
    (["--model", "nowhere"], "nowhere is not a folder"),
    (["--tools", "live", "--question", "Who?"], "live search needs SERPER_API_KEY"),
    (["--tools", "folder:nowhere", "--question", "Who?"], "nowhere is not a folder"),
    (["--tools", "replay:nothing.db", "--question", "Who?"], "there is no recording nothing.db"),
    (["--tools", "telepathy"], "tools must be one of toyweb"),
    (["--question", "Who?"], "the toy web answers its own questions only"),
    (["--system-prompt", "nowhere.txt"], "cannot be read from nowhere.txt"),
    (["--api-base", "http://127.0.0.1:9/v1", "--api-model", "m"], "the completion endpoint cannot be reached"),
    (["--api-base", "venus", "--api-model", "m"], "--api-base must begin with http"),
    (["--max-context", "100"], "max_context must be at least"),
])
def test_what_cannot_work_is_one_clear_line_and_exit_code_2(argv, words, capsys):
    assert infer.run(argv) == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.startswith("infer.py: ") and errors.count("\n") == 1 and KEY not in errors


@pytest.mark.parametrize(("argv", "words"), [
    (["--max-new-tokens", "0"], "at least 1"), (["--temprature", "1"], "did you mean --temperature"),
    (["--api-model", "m"], "both --api-base and --api-model"), (["--temperature", "0", "--retries", "2"], "the same"),
])
def test_impossible_flags_are_refused_with_exit_code_2(argv, words, capsys):
    with pytest.raises(SystemExit) as caught:
        infer.run(argv)
    assert caught.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [
    ("model", "holds neither model.safetensors"), ("tokenizer", "does not exist")])
def test_a_broken_checkpoint_is_one_line_and_exit_code_2(name, words, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    endpoint = ["--api-base", "http://127.0.0.1:9/v1", "--api-model", "m"] if name == "tokenizer" else []
    assert infer.run(["--model", "model", *endpoint]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and words in shown.err
