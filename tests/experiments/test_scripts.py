"""Running the scripts: a failure is an error, Ctrl-C lets them save; the command line of the experiments."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import __main__ as entry
from minvenus.experiments import scripts
from minvenus.experiments.demo import DemoConfig
from minvenus.experiments.scripts import ScriptFailed

# Says that it is ready, waits to be asked to stop, and saves. "stubborn" never stops; "fails" fails as soon as another
# one is ready.
TRAIN = """
import pathlib, signal, sys, time
here, kind = pathlib.Path(sys.argv[1]), sys.argv[2]
asked = []
def ask(*_):
    asked.append(1)
    here.with_suffix(".asked").touch()
signal.signal(signal.SIGTERM, ask)
here.with_suffix(".ready").touch()
until = time.monotonic() + 60
while time.monotonic() < until and not (asked and kind != "stubborn"):
    if kind == "fails" and len(list(here.parent.glob("*.ready"))) == 2:
        sys.exit("out of luck")
    time.sleep(0.01)
time.sleep(0.1)
here.with_suffix(".saved").write_text(str(len(asked)))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Scripts are those of a folder of the test."""
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    monkeypatch.setattr(scripts, "LOOK_EVERY", 0.01)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def press_ctrl_c_when(*several: list[Path]) -> threading.Thread:
    """One Ctrl-C for each list, as soon as all of its files are there; gives up after a minute."""
    def press():
        until = time.monotonic() + 60
        for paths in several:
            while not all(path.exists() for path in paths) and time.monotonic() < until:
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


def test_a_script_runs_with_its_flags_and_one_thread_and_its_command_is_shown(folder, capfd):
    (folder / "eval.py").write_text("import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'], flush=True)")
    scripts.run("eval.py", "--limit", 3, "--out", Path("a"))
    assert capfd.readouterr().out == "\n$ python eval.py --limit 3 --out a\n['--limit', '3', '--out', 'a'] 1\n"
    scripts.run_all("eval.py", {"new": ("--seed", 4)}, logs=folder)
    assert (folder / "new" / "log.txt").read_text() == "['--seed', '4'] 1\n"


def test_a_failure_names_the_log_lets_the_others_save_and_starts_no_more(folder):
    kinds = {"a": "waits", "b": "fails", "c": "waits"}
    with pytest.raises(ScriptFailed, match=f"b ended with exit code 1; its last lines are in {folder}/b/log.txt"):
        scripts.run_all("train.py", {name: (folder / name, kind) for name, kind in kinds.items()}, 2, folder)
    assert (folder / "b" / "log.txt").read_text() == "out of luck\n"
    assert (folder / "a.saved").exists() and not (folder / "c.ready").exists()
    (folder / "eval.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(ScriptFailed, match=r"^eval.py ended with exit code 3$"):
        scripts.run("eval.py")


def test_at_most_so_many_run_at_the_same_time_and_in_their_order(folder):
    (folder / "job.py").write_text(
        "import pathlib, sys, time\nhere = pathlib.Path(sys.argv[1])\n(here / sys.argv[2]).touch()\n"
        "print(len(list(here.glob('*'))))\ntime.sleep(0.05)\n(here / sys.argv[2]).unlink()\n")
    (folder / "here").mkdir()
    ended = []
    names = [f"j{i}" for i in range(5)]
    jobs = {name: (folder / "here", name) for name in names}
    scripts.run_all("job.py", jobs, 2, folder, ended.append)
    assert sorted(ended) == names and max(int((folder / name / "log.txt").read_text()) for name in names) <= 2
    scripts.run_all("job.py", jobs, 1, folder, ended.append)
    assert ended[5:] == names


def test_ctrl_c_asks_every_running_script_once_and_waits_until_they_have_saved(folder):
    thread = press_ctrl_c_when([folder / "a.ready", folder / "b.ready"])
    with pytest.raises(KeyboardInterrupt):
        scripts.run_all("train.py", {name: (folder / name, "waits") for name in "abc"}, 2)
    thread.join(60)
    assert [(folder / f"{name}.saved").read_text() for name in "ab"] == ["1", "1"]
    assert not (folder / "c.ready").exists(), "those that wait are not started any more"


def test_a_second_ctrl_c_ends_a_script_that_does_not_listen(folder):
    thread = press_ctrl_c_when([folder / "x.ready"], [folder / "x.asked"])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        scripts.run("train.py", folder / "x", "stubborn")
    thread.join(60)
    assert time.monotonic() - began < 30


def test_a_training_that_somebody_stopped_is_not_taken_for_a_finished_one(folder):
    (folder / "train_sft.py").write_text("")
    with pytest.raises(ScriptFailed, match="was stopped before step 50"):
        scripts.train("train_sft.py", folder, 50)
    checkpoint(folder, 20)
    newest = checkpoint(folder, 50)
    assert scripts.train("train_sft.py", folder, 50) == newest / "model"
    with pytest.raises(ScriptFailed, match="was stopped before step 51; the same command goes on"):
        scripts.train("train_sft.py", folder, 51)


# ----------------------------------------------------------------------------------------------------- the command line


def test_an_unknown_command_is_told_the_known_ones(capsys):
    for argv in ([], ["train"]):
        assert entry.main(argv) == 2
        assert "demo | compare | lab | audit | base" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code", "words"), [
    (ConfigError("no such thing"), 2, "demo: no such thing\n"),
    (ScriptFailed("eval.py ended"), 2, "demo: eval.py ended\n"),
    (OSError("disk full"), 2, "demo: disk full\n"),
    (KeyboardInterrupt(), 130, "\ndemo: stopped; given again, demo and compare go on and the others start again\n")])
def test_what_a_user_can_mend_is_one_line_and_an_exit_code(error, code, words, monkeypatch, capsys):
    monkeypatch.setitem(entry.COMMANDS, "demo", (DemoConfig, raising(error)))
    assert entry.main(["demo", "--batch", "3"]) == code
    assert capsys.readouterr().err == words


def test_an_internal_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setitem(entry.COMMANDS, "demo", (DemoConfig, raising(ValueError("shapes differ"))))
    with pytest.raises(ValueError, match="shapes differ"):
        entry.main(["demo"])


def raising(error):
    def fail(config):
        raise error
    return fail


def test_what_a_command_returns_is_printed_and_unknown_flags_are_errors(monkeypatch, capsys):
    monkeypatch.setitem(entry.COMMANDS, "demo", (DemoConfig, lambda config: f"batch {config.batch}"))
    assert entry.main(["demo", "--batch", "3"]) == 0 and capsys.readouterr().out == "batch 3\n"
    with pytest.raises(SystemExit) as caught:
        entry.main(["demo", "--bach", "3"])
    assert caught.value.code == 2 and "did you mean --batch" in capsys.readouterr().err
