"""infer.py as its users meet it: what it prints, what it saves however it ends, and how it
refuses."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import eval as evaluation
import infer
from minvenus.agent import show
from minvenus.agent.load import resolved
from minvenus.agent.record import rollout_from_json
from minvenus.config import ModelConfig, read_json
from minvenus.engine import Engine
from minvenus.files import claimed
from minvenus.flags import parse_flags
from minvenus.settings import AgentConfig, EvalConfig, InferConfig
from minvenus.text.tokenizer import TINY
from minvenus.tools.toyweb import ToyWeb
from tests.agent.scripted import Tools, answer, search, visit
from tests.agent.test_remote import after_one_turn, hang, scripted
from tests.scripts import exit_code
from tests.tools.servers import serve

ROOT = Path(__file__).resolve().parents[1]
KEY = "sk-planted-9876543210"


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("POLICY_API_KEY", KEY)
    monkeypatch.setattr("minvenus.agent.remote.PATIENT_ATTEMPTS", 1)
    monkeypatch.chdir(tmp_path)


def solver():
    """A server that answers test-1 of the toy web, and what it should answer."""
    case = ToyWeb(0).case("test-1")
    first, second = case.path
    goals = [f"own {first}", f"{case.relations[1]} {second}"]
    turns = [
        search(goals[0]),
        visit(case.pages[first].url, goal=goals[0]),
        search(goals[1], "Find."),
        visit(case.pages[second].url, goal=goals[1]),
    ]
    return scripted(*turns, answer(case.question.answers[0], "I know enough.")), case


def run(argv):
    return exit_code(infer.main, InferConfig, argv)


def at(server):
    return ["--api-base", f"{server.url}/v1", "--api-model", "venus", "--model", str(TINY)]


def saved(folder="runs/infer"):
    return rollout_from_json(read_json(f"{folder}/trajectory.json"))


# ------------------------------------------------------------------------- what it prints and saves


def test_with_no_flags_the_tiny_model_tries_a_toy_question():
    done = subprocess.run(
        [sys.executable, str(ROOT / "infer.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # not every character can be printed
    assert done.returncode == 0 and done.stderr == ""
    assert "random weights" in done.stdout and ToyWeb(0).case("test-1").question.text in done.stdout
    assert (
        "`make demo` trains it" in done.stdout
        and "test-1 of the toy web, since no --question" in done.stdout
    )
    assert "turn 1" in done.stdout and "ended      max_steps (5 turns" in done.stdout
    assert len(saved().turns) == 5 and any(saved().sampled)
    again = parse_flags(InferConfig, ["--config", "runs/infer/run.json"])
    assert again == InferConfig(agent=resolved(AgentConfig()))


def test_a_live_tool_that_hangs_is_not_waited_for(monkeypatch):
    release = threading.Event()

    def make_tools(spec):
        return Tools(search=lambda queries: str(release.wait(5)))

    monkeypatch.setattr(infer, "make_tools", make_tools)
    with serve(scripted(search(), answer())) as server:
        own = "--tools live --question Why? --tool-seconds 0.1"
        assert run([*at(server), *own.split()]) == 0
    release.set()
    assert [turn.tool_error for turn in saved().turns] == ["timeout", None]


def test_the_turns_are_shown_in_order_and_the_key_nowhere(tmp_path, capsys):
    reply, case = solver()
    with serve(reply) as server:
        assert run([*at(server), "--out", "kept"]) == 0
        assert KEY in str(server.seen)
    shown = capsys.readouterr()
    right = case.question.answers[0]
    places = [
        shown.out.index(words)
        for words in (
            f"question   {case.question.text}\n           (the pets of {case.path[0]} and of ",
            "turn 1",
            f'search   {{"query": ["own {case.path[0]}"]}}',
            f"({case.path[0]}: pet {case.pages[case.path[0]].pet}, ",
            "turn 5",
            f"answer     {right}\n           (the {case.pages[case.path[0]].pet}, the ",
            "ended      answered",
            f"expected   {right}\n           (the ",
            "kept/trajectory.json",
        )
    ]
    assert places == sorted(places)
    assert saved("kept").termination.startswith("answered")
    written = "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
    )
    assert KEY not in shown.out + shown.err + written


def test_json_is_all_that_is_printed(capsys):
    reply, case = solver()
    with serve(reply) as server:
        assert run([*at(server), "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (
        shown.err == ""
        and record["prediction"] == case.question.answers[0]
        and len(shown.out.splitlines()) == 1
    )
    assert rollout_from_json(record) == saved()


def test_a_folder_of_documents_and_a_prompt_of_ones_own(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bob.md").write_text("# Bob\nBob keeps a cat.")
    (tmp_path / "prompt.txt").write_text("Be brief.")
    with serve(scripted(search("Bob"), visit("bob.md"), answer("cat"))) as server:
        own = "--tools folder:docs --question Pet? --system-prompt prompt.txt --no-prompt-ids"
        assert run([*at(server), *own.split()]) == 0
        assert "Be brief." in json.loads(server.seen[-1][3])["prompt"]
    shown = capsys.readouterr().out
    assert "Bob keeps a cat." in shown and "toy web" not in shown and "expected" not in shown
    assert saved().system == "Be brief."


def test_a_question_of_another_toy_web(capsys):
    case = ToyWeb(5, asks="last").case("train-3")
    own = "--question train-3 --question-seed 5 --asks last --max-turns 2".split()
    with serve(scripted(search())) as server:
        assert run([*at(server), *own]) == 0
    shown = capsys.readouterr().out
    assert f"question   {case.question.text}\n" in shown and "since no" not in shown
    assert "ended      max_steps (2 turns" in shown
    assert f"expected   {case.question.answers[0]}\n" in shown


# -------------------------------------------------------------------- whatever ends it, it is saved


def start(server, program=(str(ROOT / "infer.py"),)):
    """infer.py as a process of its own, whose policy is at the server."""
    return subprocess.Popen(
        [sys.executable, *program, *at(server)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_signals_one_after_the_other_end_a_process_and_its_turns_are_saved():
    reached = threading.Event()

    def silent(handler):
        reached.set()
        hang(handler)

    with serve(after_one_turn(silent)) as server:
        process = start(server)
        assert reached.wait(100)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 130 and errors.endswith("infer.py: stopped by the user\n")
    assert [turn.kind for turn in saved().turns] == [
        "search",
        "none",
    ] and saved().error == "stopped by the user"


SIGNALS_WHILE_SAVING = """
import os, runpy, signal, sys
real, calls = os.fsync, []
def fsync(handle):
    calls.append(handle)
    if len(calls) == 2:  # the first is of run.json
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]:
            os.kill(os.getpid(), number)
    real(handle)
os.fsync = fsync
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_signals_that_arrive_while_the_file_is_written_do_not_lose_it():
    with serve(solver()[0]) as server:
        process = start(server, program=("-c", SIGNALS_WHILE_SAVING, str(ROOT / "infer.py")))
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 0 and errors == "\nstopping and saving\n"
    assert saved().termination.startswith("answered") and len(saved().turns) == 5


def test_wherever_the_output_breaks_the_turns_so_far_are_saved(monkeypatch, tmp_path):
    reply, _ = solver()
    lines = []

    def broken_print(line, **_):
        lines.append(line)
        if len(lines) > good:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(show, "print", broken_print, raising=False)
    counts = []
    with serve(reply) as server:
        for good in range(16):
            lines.clear()
            assert run([*at(server), "--out", f"out-{good}"]) == 2
            rollout = saved(f"out-{good}")
            assert rollout.termination == "error" and "Broken pipe" in rollout.error
            counts.append(len(rollout.turns))
    assert counts == sorted(counts) and len(set(counts)) > 1


def test_a_model_that_fails_in_the_middle_of_a_turn_keeps_its_turns(monkeypatch):
    real, steps = Engine.step, []

    def step(self):
        steps.append(1)
        if len(steps) == 30:
            raise MemoryError
        return real(self)

    monkeypatch.setattr(Engine, "step", step)
    with pytest.raises(MemoryError):
        run(["--max-new-tokens", "20", "--max-turns", "5"])
    assert (
        len(saved().turns) == 2 and any(saved().sampled) and saved().error == "MemoryError"
    )


# ----------------------------------------------------------------------------------------- refusals


ENDPOINT = f"--api-base http://127.0.0.1:9/v1 --api-model m --model {TINY} --json"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model nowhere", "nowhere does not exist"),
        ("--model empty", "must hold either model.safetensors or"),
        ("--tools replay:nothing.db --question Who?", "nothing.db is no recording"),
        (f"--tools folder:{ROOT}/docs", "docs needs a --question"),
        ("--question Who?", "its own questions only, from test-0 to test-255, not 'Who?'"),
        ("--system-prompt nowhere.txt", "cannot be read from nowhere.txt"),
        (ENDPOINT, "the completion endpoint cannot be reached"),
        ("--max-context 100", "tokens max_context must be at least"),
    ],
)
def test_what_cannot_work_is_one_clear_line_and_exit_code_2(
    flags, words, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("minvenus.tools.endpoint.BACKOFF", 0.01)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    assert run(flags.split()) == 2
    errors = capsys.readouterr().err
    assert (
        words in errors
        and errors.startswith("script.py: ")
        and errors.count("\n") == 1
        and KEY not in errors
    )


def test_a_second_process_in_the_same_folder_is_refused(capsys):
    with claimed("runs/infer", "answering"):
        assert run([]) == 2
    assert "another process is answering into runs/infer" in capsys.readouterr().err


def test_the_folder_of_a_training_run_keeps_its_settings(capsys):
    Path("runs/igpo/checkpoints").mkdir(parents=True)
    assert run(["--out", "runs/igpo"]) == 2
    assert "runs/igpo holds a training run" in capsys.readouterr().err
    assert not Path("runs/igpo/run.json").exists()


@pytest.mark.parametrize(
    "base", ["venus", f"http://me:{KEY}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?key={KEY}"]
)
def test_an_address_with_a_password_is_refused_and_neither_shown_nor_saved(base, capsys, tmp_path):
    argv = ["--api-base", base, "--api-model", "m", "--model", str(TINY)]
    for main, settings in ((infer.main, InferConfig), (evaluation.main, EvalConfig)):
        assert exit_code(main, settings, argv) == 2
        shown = capsys.readouterr()
        assert "--api-base must begin with http" in shown.err and "POLICY_API_KEY" in shown.err
        assert KEY not in shown.err + shown.out and not (tmp_path / "runs").exists()
