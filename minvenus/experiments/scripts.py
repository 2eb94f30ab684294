"""Runs the project's own scripts, each in a process of its own with one thread, as a reader would from a terminal.

They have sessions of their own, so that Ctrl-C reaches only us: we ask them once to finish their step and save, and
wait.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from minvenus.files import latest_checkpoint

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY = 0.1                  # seconds


class ScriptFailed(RuntimeError):
    """A script ended with an error, or before its last step."""


def run(script: str, *flags: object) -> None:
    """Show the command and run it. Its failure is an error."""
    print(f"\n$ python {script} {' '.join(map(str, flags))}", flush=True)
    run_all(script, {script: flags})


def train(script: str, out: Path, steps: int, *flags: object) -> Path:
    """Run a training script to its end, and return the folder of the trained model."""
    run(script, "--out", out, "--steps", steps, *flags)
    return trained(out, steps)


def trained(run_folder: Path, steps: int) -> Path:
    """The model of a run that has made all its steps. A run that was stopped has exit code 0, too."""
    newest = latest_checkpoint(run_folder)
    if newest is None or steps_done(run_folder) < steps:
        raise ScriptFailed(f"{run_folder} was stopped before step {steps}; the same command goes on there")
    return newest / "model"


def steps_done(run_folder: Path) -> int:
    newest = latest_checkpoint(run_folder)
    return 0 if newest is None else int(newest.name.removeprefix("step-"))


def run_all(script: str, jobs: dict[str, tuple], at_once: int = 1, logs: Path | None = None,
            finished: Callable[[str], None] = lambda name: None) -> None:
    """Run a script once for each job, a name and flags, at most `at_once` at a time. `finished` is called with the name
    of each one that ends well. A failure stops the others after their current step. With `logs`, what a job prints is
    appended to LOGS/NAME/log.txt instead of shown."""
    waiting = list(jobs)
    running: dict[str, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = start(script, jobs[name], logs and logs / name / "log.txt")
            time.sleep(LOOK_EVERY)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                if code:
                    where = f"; its last lines are in {logs / name / 'log.txt'}" if logs else ""
                    raise ScriptFailed(f"{name} ended with exit code {code}{where}")
                finished(name)
    finally:
        stop(list(running.values()))


def start(script: str, flags: tuple, log: Path | None) -> subprocess.Popen:
    # One thread each: two processes of a tiny model are faster side by side than one with two threads.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / script), *map(str, flags)]
    if log is None:
        return subprocess.Popen(command, env=environment, start_new_session=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)


def stop(processes: list[subprocess.Popen]) -> None:
    """Those that still run finish their step and save; on a second Ctrl-C all end at once."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
            process.wait()
        raise
