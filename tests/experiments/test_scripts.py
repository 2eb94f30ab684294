"""Running the scripts: a failure is an error, Ctrl-C lets them save; the command line."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import __main__ as entry
from minvenus.experiments import compare, demo

# Says that it is ready, waits to be asked to stop, and saves. "fails" fails as soon as another one
# is ready.
TRAIN = """
import pathlib, signal, sys, time
here, kind = pathlib.Path(sys.argv[2]), sys.argv[4]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
here.with_suffix(".ready").touch()
until = time.monotonic() + 60
while time.monotonic() < until and not asked:
    if kind == "fails" and len(list(here.parent.glob("*.ready"))) == 2:
        sys.exit("an hour of work\\nout of luck")
    time.sleep(0.01)
time.sleep(0.1)
here.with_suffix(".saved").write_text(str(len(asked)))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Scripts are those of a folder of the test."""
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    monkeypatch.setattr(compare, "LOOK_EVERY", 0.01)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_script_runs_with_its_flags_and_one_thread_and_its_command_is_shown(folder, capfd):
    (folder / "eval.py").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'], flush=True)"
    )
    compare.run("eval.py", limit=3, max_turns=None, compare=(Path("a"), Path("b")))
    command, seen = capfd.readouterr().out.strip().splitlines()
    flags = ["--limit", "3", "--max-turns", "none", "--compare", "a", "b"]
    assert command == f"$ python eval.py {' '.join(flags)}" and seen == f"{flags} 1"
    assert list(compare.run_all("eval.py", {"new": {"seed": 4}}, logs=folder, threads=3)) == ["new"]
    assert (folder / "new" / "log.txt").read_text() == "['--seed', '4'] 3\n"


@pytest.mark.parametrize("command", ["compare", "demo"])
def test_an_installed_package_has_no_scripts_and_says_in_one_line_what_to_do(
    command, folder, capsys
):
    with pytest.raises(SystemExit) as end:
        entry.main([command, "--out", str(folder / "out")])
    errors = capsys.readouterr().err
    assert end.value.code == 2 and errors.count("\n") == 1
    assert errors.startswith(f"{command}: {folder} has no train_sft.py") and "clone" in errors


def test_a_failure_says_the_last_line_of_its_log_lets_the_others_save_and_starts_no_more(folder):
    kinds = {"a": "waits", "b": "fails", "c": "waits"}
    jobs = {name: {"here": folder / name, "kind": kind} for name, kind in kinds.items()}
    with pytest.raises(ConfigError, match=r"^b ended with exit code 1: out of luck$"):
        list(compare.run_all("train.py", jobs, 2, folder))
    assert (folder / "a.saved").exists() and not (folder / "c.ready").exists()
    (folder / "eval.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(ConfigError, match=r"^eval.py ended with exit code 3$"):
        compare.run("eval.py")


def test_at_most_so_many_run_at_the_same_time_and_in_their_order(folder):
    (folder / "job.py").write_text(
        "import pathlib, sys, time\nhere = pathlib.Path(sys.argv[2])\n"
        "(here / sys.argv[4]).touch()\nprint(len(list(here.glob('*'))))\n"
        "time.sleep(0.05)\n(here / sys.argv[4]).unlink()\n"
    )
    (folder / "here").mkdir()
    names = [f"j{i}" for i in range(5)]
    jobs = {name: {"here": folder / "here", "name": name} for name in names}
    assert sorted(compare.run_all("job.py", jobs, 2, folder)) == names
    assert max(int((folder / name / "log.txt").read_text()) for name in names) <= 2
    assert list(compare.run_all("job.py", jobs, 1, folder)) == names


def test_ctrl_c_asks_every_running_script_once_and_waits_until_they_have_saved(folder):
    def press():
        until = time.monotonic() + 60
        while len(list(folder.glob("*.ready"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    jobs = {name: {"here": folder / name, "kind": "waits"} for name in "abc"}
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(compare.run_all("train.py", jobs, 2))
    thread.join(60)
    assert [(folder / f"{name}.saved").read_text() for name in "ab"] == ["1", "1"]
    assert not (folder / "c.ready").exists(), "those that wait are not started any more"


# ------------------------------------------------------------------------------- the command line


def test_a_command_prints_what_it_returns_and_ends_with_one_line_if_a_user_can_mend_it(
    monkeypatch, capsys
):
    def run(config):
        if config.batch == 4:
            raise ConfigError("eval.py ended")
        return f"batch {config.batch}"

    def refused(*argv):
        with pytest.raises(SystemExit) as ended:
            entry.main([*argv])
        return ended.value.code

    monkeypatch.setattr(demo, "main", run)
    entry.main(["demo", "--batch", "3"])
    assert capsys.readouterr().out == "batch 3\n"
    assert refused("demo", "--batch", "4") == 2
    assert capsys.readouterr().err == "demo: eval.py ended\n"
    assert refused("demo", "--bach", "3") == 2
    assert "did you mean --batch" in capsys.readouterr().err
