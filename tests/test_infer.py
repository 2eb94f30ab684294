"""infer.py as its users meet it: what it prints on a terminal and elsewhere, what it saves, and how it refuses."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import infer
from minvenus.agent.policy import load_local, load_policy
from minvenus.agent.record import load_rollout, rollout_from_json
from minvenus.agent.show import Show, printable, shortened
from minvenus.config import ModelConfig
from minvenus.flags import load_config
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.settings import AgentConfig, InferConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import SYSTEM
from tests.agent.scripted import answer, search, visit
from tests.agent.test_remote import complete, hang, scripted, turn_number
from tests.tools.servers import serve

ROOT = Path(__file__).resolve().parents[1]
KEY = "sk-planted-9876543210"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in (*PROXIES, "NO_COLOR", "SERPER_API_KEY", "SERPER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POLICY_API_KEY", KEY)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)


def solver():
    """A server that answers test-1 of the toy web, and what it should answer."""
    case = ToyWeb(0).case("test-1")
    first, second = case.path
    goals = [f"own {case.path[0]}", f"{case.relations[0]} {case.path[1]}"]
    turns = [search(goals[0]), visit(case.pages[first].url, goal=goals[0]), search(goals[1], "Find."),
             visit(case.pages[second].url, goal=goals[1])]
    return scripted(*turns, answer(case.question.answers[0], "I know enough.")), case


def command(*argv):
    return [sys.executable, str(ROOT / "infer.py"), *argv]


def at(server):
    return ["--api-base", f"{server.url}/v1", "--api-model", "venus"]


def everything_in(folder) -> str:
    return "".join(path.read_text(errors="replace") for path in Path(folder).rglob("*") if path.is_file())


# ------------------------------------------------------------------------------------------------------------------ with no flags


def test_with_no_flags_the_tiny_model_tries_a_toy_question_in_plain_lines():
    done = subprocess.run(command(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert "random weights" in done.stdout and ToyWeb(0).case("test-1").question.text in done.stdout
    assert "\033" not in done.stdout and "turn 1" in done.stdout and "ended      max_steps (5 turns" in done.stdout
    rollout = load_rollout("runs/infer/trajectory.json")
    assert len(rollout.turns) == 5 and rollout.trainable
    assert load_config(InferConfig, "runs/infer/run.json") == InferConfig(agent=AgentConfig().resolved())


def test_the_newest_trained_model_is_taken_when_there_is_one():
    for seed, run in ((1, "old"), (2, "new")):
        folder = Path("runs", run, "checkpoints", "step-00000007")
        weights.save(Qwen3(ModelConfig.preset("tiny"), seed=seed), folder / "model", tokenizer_files=Tokenizer.tiny().files)
        (folder / "state.json").write_text("{}")
        Path("runs", run, "latest").write_text(folder.name + "\n")
        os.utime(Path("runs", run, "latest"), (seed, seed))
    model, _, source = load_local(AgentConfig().resolved())
    assert source.splitlines()[0] == "weights from runs/new/checkpoints/step-00000007/model"
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters, 2 layers" in source and "loaded in" in source
    assert model.head_weight.equal(Qwen3(ModelConfig.preset("tiny"), seed=2).head_weight)


def test_a_toy_checkpoint_named_by_its_folder_is_asked_as_it_was_taught(tmp_path):
    weights.save(Qwen3(ModelConfig.preset("tiny")), tmp_path / "toy", tokenizer_files=Tokenizer.tiny().files)
    config = InferConfig(agent=AgentConfig(model=str(tmp_path / "toy"), max_new_tokens=4))
    assert config.agent.tiny and infer.main(config).system == SYSTEM


def test_the_policy_samples_as_its_settings_say_and_stops_where_only_the_environment_writes():
    settings = {"temperature": 0.6, "top_k": 7, "top_p": 0.9, "presence_penalty": 1.5}
    policy, tokenizer, _ = load_policy(AgentConfig(**settings).resolved())
    assert {name: getattr(policy.sampling, name) for name in settings} == settings
    assert policy.sampling.stop_ids == (tokenizer.tool_response,) and policy.engine.width == tokenizer.size


def test_the_same_seed_writes_the_same_and_another_seed_something_else():
    def tokens(seed):
        agent = AgentConfig(max_new_tokens=6, temperature=1.0, seed=seed)
        return infer.main(InferConfig(question="test-0", agent=agent)).tokens

    assert tokens(1) == tokens(1) != tokens(2)


# ---------------------------------------------------------------------------------------------------- a whole research, as shown


def test_the_turns_are_shown_as_they_happen_in_plain_lines_and_the_key_nowhere(tmp_path):
    reply, case = solver()
    with serve(reply) as server:
        done = subprocess.run(command(*at(server), "--save", "kept/one.json"), capture_output=True, text=True, timeout=120)
        assert KEY in str(server.seen)
    assert done.returncode == 0, done.stderr
    wanted = ["question   " + case.question.text, "turn 1", "thought  Start.", f'search   "own {case.path[0]}"', "result",
              f'visit    "{case.pages[case.path[0]].url}"  for: own {case.path[0]}', f"own {case.pages[case.path[0]].pet}",
              "turn 5", "I know enough.", f"answer     {case.question.answers[0]}", "ended      answered", "expected",
              "kept/one.json"]
    place = -1
    for words in wanted:
        assert done.stdout.find(words, place + 1) > place, (words, done.stdout)
        place = done.stdout.find(words, place + 1)
    assert "\033" not in done.stdout
    rollout = load_rollout("kept/one.json")
    assert rollout == load_rollout("runs/infer/trajectory.json") and rollout.termination.startswith("answered")
    assert KEY not in done.stdout + done.stderr + everything_in(tmp_path)


def in_a_terminal(argv) -> str:
    """What the command writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(*argv), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:                    # how Linux says that the other side is closed
                block = b""
            if not block:
                break
            shown += block
        process.wait(60)
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def test_a_terminal_gets_colours():
    reply, case = solver()
    with serve(reply) as server:
        shown = in_a_terminal(at(server))
    assert f"\033[36m\"{case.pages[case.path[0]].url}\"  for: own {case.path[0]}" in shown and "\033[32manswered" in shown


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_none(variable, value, monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True
    plain, coloured = Terminal(), Terminal()
    Show(coloured).row("answer", "cat", "bold")
    monkeypatch.setenv(variable, value)
    Show(plain).row("answer", "cat", "bold")
    assert (plain.getvalue(), coloured.getvalue()) == ("answer     cat\n", "answer     \033[1mcat\033[0m\n")


def test_json_is_all_that_is_printed(capsys):
    reply, case = solver()
    with serve(reply) as server:
        assert infer.run([*at(server), "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert shown.err == "" and record["prediction"] == case.question.answers[0] and len(shown.out.splitlines()) == 1
    assert rollout_from_json(record) == load_rollout("runs/infer/trajectory.json")


def test_a_folder_of_documents_and_a_prompt_of_ones_own(capsys, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "bob.md").write_text("# Bob\nBob keeps a cat.")
    (tmp_path / "prompt.txt").write_text("Be brief.")
    with serve(scripted(search("Bob"), visit("bob.md"), answer("cat"))) as server:
        own = ["--tools", "folder:docs", "--question", "Bob's pet?", "--system-prompt", "prompt.txt"]
        assert infer.run([*at(server), *own]) == 0
        assert "Be brief." in json.loads(server.seen[0][3])["prompt"]
    assert "Bob keeps a cat." in capsys.readouterr().out
    assert load_rollout("runs/infer/trajectory.json").system == "Be brief."


def test_ctrl_c_saves_what_there_is():
    def reply(handler):
        complete(handler, search("own")) if turn_number(handler) == 0 else hang(handler)
    with serve(reply) as server:
        process = subprocess.Popen(command(*at(server), "--save", "part.json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        until = time.monotonic() + 60
        while len(server.seen) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors
    rollout = load_rollout("part.json")
    assert rollout.error == "stopped by the user" and [t.kind for t in rollout.turns] == ["search", "none"]
    assert "stopped by the user" in shown


# ----------------------------------------------------------------------------------------------------------------------- refusals


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


def test_a_broken_checkpoint_is_one_line_and_exit_code_2(tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    assert infer.run(["--model", "model"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "holds neither model.safetensors" in shown.err


# ---------------------------------------------------------------------------------------------------------------- what is printed


def test_control_characters_of_a_page_never_reach_the_terminal():
    assert printable("a\033[2Jb\x9b31m\rc\x07\n\td\ud83d") == "a[2Jb31mc\n    d\ufffd"


def test_a_long_observation_is_cut_to_a_few_lines_and_says_so():
    assert shortened("x" * 200 + "\n" + "\n".join("abcdefghi")).splitlines() == ["x" * 160 + " ...", *"abcde", "... 4 more lines"]


def test_characters_that_the_output_does_not_know_are_replaced():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Show(out).row("answer", "Zürich")
    assert out.buffer.getvalue() == b"answer     Z?rich\n"
