"""Running the project's own scripts, each in a process of its own and with one thread, as a reader would from a terminal."""

import os
import subprocess
import sys
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.train.checkpoint import latest

ROOT = Path(__file__).resolve().parents[2]


def command(script: str, *flags: object) -> list[str]:
    return [sys.executable, str(ROOT / script), *map(str, flags)]


def environment() -> dict[str, str]:
    """One thread each: two processes of a tiny model are faster side by side than one with two threads."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run(script: str, *flags: object, quiet: bool = False) -> None:
    """Show the command and run it; its failure is ours."""
    if not quiet:
        print(f"\n$ python {script} {' '.join(map(str, flags))}", flush=True)
    done = subprocess.run(command(script, *flags), env=environment(), stdout=subprocess.DEVNULL if quiet else None, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} ended with exit code {done.returncode}")


def model_of(run_folder) -> Path:
    """The model of a run's latest checkpoint."""
    newest = latest(Path(run_folder))
    if newest is None:
        raise ConfigError(f"{run_folder} holds no checkpoint")
    return newest / "model"


def steps_done(run_folder) -> int:
    newest = latest(Path(run_folder))
    return 0 if newest is None else int(newest.name.removeprefix("step-"))
