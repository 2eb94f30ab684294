"""Running the project's own scripts, each in a process of its own and with one thread, as a reader would from a terminal.

They have sessions of their own, so that Ctrl-C reaches only us: we ask them once to finish their step and save, and wait.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.files import latest_checkpoint

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
    process = subprocess.Popen(command(script, *flags), env=environment(), stdout=subprocess.DEVNULL if quiet else None,
                               start_new_session=True)
    try:
        code = process.wait()
    finally:
        stop([process])
    if code:
        raise RuntimeError(f"{script} ended with exit code {code}")


def stop(processes: list[subprocess.Popen]) -> None:
    """Those that still run finish their step and save; asked again, all end at once."""
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


def train(script: str, out: Path, steps: int, *flags: object) -> Path:
    """Run a training script to its end, and return the folder of the trained model."""
    run(script, "--out", out, "--steps", steps, *flags)
    check_finished(out, steps)
    return model_of(out)


def check_finished(run_folder: Path, steps: int) -> None:
    """A run that somebody else has stopped ends as well as one that is done."""
    if steps_done(run_folder) < steps:
        raise RuntimeError(f"{run_folder} was stopped after step {steps_done(run_folder)} of {steps}; the same command goes on "
                           "from there")


def model_of(run_folder) -> Path:
    """The model of a run's latest checkpoint."""
    newest = latest_checkpoint(Path(run_folder))
    if newest is None:
        raise ConfigError(f"{run_folder} holds no checkpoint")
    return newest / "model"


def steps_done(run_folder) -> int:
    newest = latest_checkpoint(Path(run_folder))
    return 0 if newest is None else int(newest.name.removeprefix("step-"))
