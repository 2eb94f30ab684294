"""Running the scripts: a failure is ours, Ctrl-C lets them save, and every command of the demo is one that they understand."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import __main__ as entry
from minvenus.experiments import demo, scripts
from minvenus.experiments.demo import DemoConfig
from minvenus.flags import parse_flags
from minvenus.settings import EvalConfig, IGPOConfig, InferConfig, SFTConfig

# says that it is ready, waits to be asked to stop, and saves
PATIENT = """
import pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
pathlib.Path(sys.argv[1], "ready").touch()
until = time.monotonic() + 60
while not asked and time.monotonic() < until: time.sleep(0.01)
time.sleep(0.3)
pathlib.Path(sys.argv[1], "saved").write_text(str(len(asked)))
"""
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], "asked").touch())
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(60)
"""


def stands_for(monkeypatch, code, *arguments):
    monkeypatch.setattr(scripts, "command", lambda script, *flags: [sys.executable, "-c", code, *map(str, arguments)])


def press_ctrl_c_when(*paths: Path) -> threading.Thread:
    def press():
        for path in paths:
            while not path.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


def checkpoint(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (run / "latest").write_text(folder.name + "\n")
    return folder


def test_a_command_is_this_python_and_a_script_of_the_repository_with_one_thread():
    python, script, *flags = scripts.command("eval.py", "--limit", 3, "--out", Path("a"))
    assert python == sys.executable and Path(script).is_file() and flags == ["--limit", "3", "--out", "a"]
    assert scripts.environment()["OMP_NUM_THREADS"] == "1" and scripts.environment()["PATH"] == os.environ["PATH"]


def test_a_script_that_fails_is_an_error_with_its_name_and_code(monkeypatch, capfd):
    stands_for(monkeypatch, "import sys; print('shown'); sys.exit(3)")
    with pytest.raises(RuntimeError, match=r"eval.py ended with exit code 3"):
        scripts.run("eval.py", "--limit", 3)
    assert capfd.readouterr().out.strip() == "$ python eval.py --limit 3\nshown"
    with pytest.raises(RuntimeError):
        scripts.run("eval.py", quiet=True)
    assert capfd.readouterr().out == ""


def test_ctrl_c_asks_the_script_once_and_waits_until_it_has_saved(monkeypatch, tmp_path):
    stands_for(monkeypatch, PATIENT, tmp_path)
    thread = press_ctrl_c_when(tmp_path / "ready")
    with pytest.raises(KeyboardInterrupt):
        scripts.run("train_sft.py", quiet=True)
    thread.join()
    assert (tmp_path / "saved").read_text() == "1"


def test_a_second_ctrl_c_ends_a_script_that_does_not_listen(monkeypatch, tmp_path):
    stands_for(monkeypatch, STUBBORN, tmp_path)
    thread = press_ctrl_c_when(tmp_path / "ready", tmp_path / "asked")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        scripts.run("train_sft.py", quiet=True)
    thread.join()
    assert time.monotonic() - began < 30


def test_the_model_of_a_run_is_that_of_its_latest_checkpoint(tmp_path):
    assert scripts.steps_done(tmp_path) == 0
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        scripts.model_of(tmp_path)
    checkpoint(tmp_path, 50)
    newest = checkpoint(tmp_path, 120)
    assert scripts.model_of(tmp_path) == newest / "model" and scripts.steps_done(tmp_path) == 120


def test_a_training_that_somebody_stopped_is_not_taken_for_a_finished_one(monkeypatch, tmp_path):
    stands_for(monkeypatch, "")
    folder = checkpoint(tmp_path, 50)
    assert scripts.train("train_sft.py", tmp_path, 50) == folder / "model"
    with pytest.raises(RuntimeError, match="was stopped after step 50 of 51; the same command goes on"):
        scripts.train("train_sft.py", tmp_path, 51)


# ---------------------------------------------------------------------------------------------------------------------- the demo


def test_every_command_of_the_demo_is_understood_and_goes_from_stage_to_stage(monkeypatch, tmp_path):
    """Each flag is read by the script's own settings; each stage starts from the model of the one before."""
    configs = {"train_sft.py": SFTConfig, "train_igpo.py": IGPOConfig, "eval.py": EvalConfig, "infer.py": InferConfig}
    seen = []

    def run(script, *flags, quiet=False):
        seen.append((script, parse_flags(configs[script], [str(flag) for flag in flags])))

    def train(script, out, steps, *flags):
        run(script, "--out", out, "--steps", steps, *flags)
        (out / "model").mkdir(parents=True)
        (out / "model" / "config.json").write_text("{}")
        return out / "model"

    for name, stand_in in (("run", run), ("train", train), ("write_run_page", lambda folder: folder / "report.html")):
        monkeypatch.setattr(demo, name, stand_in)
    monkeypatch.setattr(demo.audit, "main", lambda config: seen.append(("audit", config)))
    for name in ("SFT", "IGPO"):                                   # what eval.py would have written
        (tmp_path / "eval" / name).mkdir(parents=True)
        (tmp_path / "eval" / name / "report.json").write_text('{"by_hops": {}, "malformed": 0.0}')
    told = demo.main(DemoConfig(out=str(tmp_path), sft_steps=5, igpo_steps=3, questions=7))
    assert [script for script, _ in seen] == ["train_sft.py", "train_igpo.py", *["eval.py"] * 3, "audit", "infer.py"]
    sft, igpo, before, after, compared, audited, asked = (config for _, config in seen)
    assert sft.model == "tiny-base" and sft.steps == 5 and igpo.steps == 3 and igpo.model == before.agent.model == f"{sft.out}/model"
    assert after.agent.model == asked.agent.model == f"{igpo.out}/model" and audited.run == igpo.out and str(igpo.out) in told
    assert (before.limit, before.agent.seed, before.slack) == (after.limit, after.agent.seed, after.slack) == (7, 1, 0)
    assert igpo.hops is None and not igpo.recipe.center_gain and igpo.seed != sft.seed, "other questions than were demonstrated"
    assert before.agent.temperature == after.agent.temperature == 1.0
    assert list(compared.compare) == [before.out, after.out] and before.out != after.out


# --------------------------------------------------------------------------------------------------------------- the command line


def test_an_unknown_command_is_told_the_known_ones(capsys):
    for argv in ([], ["train"]):
        assert entry.main(argv) == 2
        assert "base | audit | demo | compare" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code", "words"), [
    (ConfigError("no such thing"), 2, "demo: no such thing\n"), (RuntimeError("eval.py ended"), 2, "demo: eval.py ended\n"),
    (OSError("disk full"), 2, "demo: disk full\n"),
    (KeyboardInterrupt(), 130, "\ndemo: stopped; the same command goes on from there\n")])
def test_whatever_goes_wrong_is_one_line_and_an_exit_code(error, code, words, monkeypatch, capsys):
    def fail(config):
        raise error
    monkeypatch.setitem(entry.COMMANDS, "demo", (DemoConfig, fail))
    assert entry.main(["demo", "--seed", "3"]) == code
    assert capsys.readouterr().err == words


def test_what_a_command_returns_is_printed_and_unknown_flags_are_errors(monkeypatch, capsys):
    monkeypatch.setitem(entry.COMMANDS, "demo", (DemoConfig, lambda config: f"seed {config.seed}"))
    assert entry.main(["demo", "--seed", "3"]) == 0 and capsys.readouterr().out == "seed 3\n"
    with pytest.raises(SystemExit) as caught:
        entry.main(["demo", "--sed", "3"])
    assert caught.value.code == 2 and "did you mean --seed" in capsys.readouterr().err
