"""The numbers of a run, one JSON line per step.

    RUN/metrics.jsonl   what the same config and seed give again, byte for byte
    RUN/timing.jsonl    seconds and tokens per second: what they do not

A line is written whole or, if the process dies in the middle of it, dropped when the run goes on. A resumed run first cuts both
files back to the checkpoint's step, so that they end as those of a run that was never stopped.
"""

import json
import math
import os
import time
from pathlib import Path

from minvenus.config import ConfigError
from minvenus.files import sync

NAMES = ("metrics.jsonl", "timing.jsonl")


class Metrics:
    def __init__(self, run, step: int = 0):
        """Append to the files of a run that goes on after `step` steps."""
        self.run = Path(run)
        self.run.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            cut_back(self.run / name, step)

    def log(self, step: int, metrics: dict, timing: dict) -> None:
        for name, values in zip(NAMES, (metrics, timing), strict=True):
            bad = [f"{key} {value}" for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
            if bad:
                raise ValueError(f"step {step}: {', '.join(bad)} is not a finite number")
            write(self.run / name, "a", json.dumps({"step": step, **values}) + "\n")

    def sync(self) -> None:
        """Before a checkpoint: its step's lines must be on the disk no later than itself."""
        for name in NAMES:
            if (self.run / name).exists():               # not before the first step has ended
                sync(self.run / name)


class Phases:
    """Where the seconds of a step went: each lap belongs to the phase that it is called with."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tokens: dict[str, int] = {}             # tokens that ran through a model
        self._mark = time.perf_counter()

    def lap(self, phase: str, tokens: int = 0) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._mark
        self._mark = now
        if tokens:
            self.tokens[phase] = self.tokens.get(phase, 0) + tokens

    def timing(self) -> dict[str, float]:
        """Seconds of every phase, and tokens per second of those that ran any; the last two are over all of these."""
        told = {f"{phase}_seconds": seconds for phase, seconds in self.seconds.items()}
        told |= {f"{phase}_tokens_per_second": tokens / self.seconds[phase] for phase, tokens in self.tokens.items()}
        busy = sum(self.seconds[phase] for phase in self.tokens)
        return told | {"seconds": sum(self.seconds.values()),
                       "tokens_per_second": sum(self.tokens.values()) / busy if busy else 0.0}


def write(path: Path, mode: str, text: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None       # a full disk does not say whose file it was


def read(path) -> list[dict]:
    """The complete lines of a metrics file."""
    return [row for _, row in lines(Path(path))]


def lines(path: Path) -> list[tuple[str, dict]]:
    """Each complete line as it stands, and what it says. What follows the last line end was cut off while it was written."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        return [(line + "\n", json.loads(line)) for line in whole]
    except ValueError as error:
        raise ConfigError(f"{path} has a line that is not JSON ({error}): repair or remove the file") from None


def cut_back(path: Path, step: int) -> None:
    """Keep the lines of the first `step` steps."""
    if not path.exists():
        return
    beside = path.with_name(f".{path.name}")
    write(beside, "w", "".join(line for line, row in lines(path) if row["step"] <= step))
    sync(beside)
    os.replace(beside, path)
