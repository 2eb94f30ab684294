"""Runs the project's own scripts, each in a process of its own with one thread, as a reader would from a terminal.

They have sessions of their own, so that Ctrl-C reaches only us: we ask them once to finish their step and save, and
wait. A training script that is started again goes on where it was, and one that has made all its steps ends at once.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.console import Progress
from minvenus.files import latest_checkpoint, step_name

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY = 0.1                  # seconds


def run(script: str, *flags: object) -> None:
    """Show the command and run it. Its failure is an error."""
    print(f"\n$ python {script} {' '.join(map(str, flags))}", flush=True)
    list(run_all(script, {script: flags}))


def train(script: str, out: Path, steps: int, *flags: object) -> Path:
    """Run a training script to its end, and return the folder of the trained model."""
    run(script, "--out", out, "--steps", steps, *flags)
    return trained(out, steps)


def trained(run_folder: Path, steps: int) -> Path:
    """The model of a run that has made all its steps. A run that was stopped has exit code 0, too."""
    newest = latest_checkpoint(run_folder)
    if newest is None or newest.name < step_name(steps):
        raise ConfigError(f"{run_folder} was stopped before step {steps}; the same command goes on there")
    return newest / "model"


def train_all(label: str, script: str, folder: Path, steps: int, jobs: dict[str, tuple], at_once: int) -> list[Path]:
    """Run a training script to its end for each job, into FOLDER/NAME, and return the folders of the models."""
    flags = {name: ("--out", folder / name, "--steps", steps, *more) for name, more in jobs.items()}
    progress = Progress(label, 0, len(jobs))
    for done, name in enumerate(run_all(script, flags, at_once, folder), start=1):
        trained(folder / name, steps)
        progress.show(done, {})
    return [trained(folder / name, steps) for name in jobs]


def run_all(script: str, jobs: dict[str, tuple], at_once: int = 1, logs: Path | None = None) -> Iterator[str]:
    """Run a script once for each job, a name and flags, at most `at_once` at a time. Yields the name of each one that
    has ended well. After a failure or Ctrl-C the others finish their step and save. With `logs`, what a job prints is
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
                if code := running.pop(name).returncode:
                    last = (logs / name / "log.txt").read_text().splitlines()[-1:] if logs else []
                    raise ConfigError(": ".join([f"{name} ended with exit code {code}", *last]))
                yield name
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def start(script: str, flags: tuple, log: Path | None) -> subprocess.Popen:
    # One thread each: two processes of a tiny model are faster side by side than one with two threads.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / script), *map(str, flags)]
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") if log else nullcontext() as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
