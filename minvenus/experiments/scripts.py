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
from dataclasses import dataclass
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.files import latest_checkpoint

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY = 0.1                  # seconds


class ScriptFailed(RuntimeError):
    """A script ended with an error, or before its last step."""


@dataclass(frozen=True)
class Job:
    """A script with its flags."""

    script: str
    flags: tuple
    log: Path | None = None       # a file to which everything that it prints is appended; None = the terminal
    quiet: bool = False           # only errors are printed

    def start(self) -> subprocess.Popen:
        # One thread each: two processes of a tiny model are faster side by side than one with two threads.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, str(ROOT / self.script), *map(str, self.flags)]
        if self.log is None:
            out = subprocess.DEVNULL if self.quiet else None
            return subprocess.Popen(command, env=environment, stdout=out, start_new_session=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def run_all(jobs: dict[str, Job], at_once: int = 1, finished: Callable[[str], None] = lambda name: None) -> None:
    """Run all jobs in their order, at most `at_once` at a time; `finished` is called with the name of each one that
    ends well. A failure stops the others after their current step."""
    waiting = list(jobs)
    running: dict[str, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = jobs[name].start()
            time.sleep(LOOK_EVERY)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                if code:
                    where = f"; its last lines are in {jobs[name].log}" if jobs[name].log else ""
                    raise ScriptFailed(f"{name} ended with exit code {code}{where}")
                finished(name)
    finally:
        stop(list(running.values()))


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


def run(script: str, *flags: object, quiet: bool = False) -> None:
    """Show the command and run it. Its failure is an error."""
    if not quiet:
        print(f"\n$ python {script} {' '.join(map(str, flags))}", flush=True)
    run_all({script: Job(script, flags, quiet=quiet)})


def train(script: str, out: Path, steps: int, *flags: object) -> Path:
    """Run a training script to its end, and return the folder of the trained model."""
    run(script, "--out", out, "--steps", steps, *flags)
    check_finished(out, steps)
    return model_of(out)


def check_finished(run_folder: Path, steps: int) -> None:
    """A run that was stopped has exit code 0, too."""
    done = steps_done(run_folder)
    if done < steps:
        raise ScriptFailed(f"{run_folder} was stopped after step {done} of {steps}; the same command goes on there")


def model_of(run_folder) -> Path:
    """The model of a run's latest checkpoint."""
    newest = latest_checkpoint(run_folder)
    if newest is None:
        raise ConfigError(f"{run_folder} holds no checkpoint")
    return newest / "model"


def steps_done(run_folder) -> int:
    newest = latest_checkpoint(run_folder)
    return 0 if newest is None else int(newest.name.removeprefix("step-"))
