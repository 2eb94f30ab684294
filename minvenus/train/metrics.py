"""The numbers of a run, one JSON line per step.

    RUN/metrics.jsonl   what the same config and seed give again, byte for byte
    RUN/timing.jsonl    seconds and tokens per second: what they do not

A line is written whole or, if the process dies in the middle of it, dropped when the run goes on. A resumed run first cuts both
files back to the checkpoint's step, so that they end as those of a run that was never stopped.
"""

import json
import math
import os
from pathlib import Path


class Metrics:
    def __init__(self, run, step: int = 0):
        """Append to the files of a run that goes on after `step` steps."""
        self.run = Path(run)
        self.run.mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "timing.jsonl"):
            cut_back(self.run / name, step)

    def log(self, step: int, metrics: dict, timing: dict) -> None:
        for name, values in (("metrics.jsonl", metrics), ("timing.jsonl", timing)):
            bad = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
            if bad:
                raise ValueError(f"step {step}: {', '.join(bad)} is not finite")
            line = json.dumps({"step": step, **values}) + "\n"
            with (self.run / name).open("a", encoding="utf-8") as file:
                file.write(line)


def read(path) -> list[dict]:
    """The complete lines of a metrics file."""
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]       # what follows the last line end was cut off while written
    return [json.loads(line) for line in lines]


def cut_back(path: Path, step: int) -> None:
    """Keep the lines of the first `step` steps."""
    if not path.exists():
        return
    kept = [row for row in read(path) if row["step"] < step]
    beside = path.with_name(f".{path.name}")
    beside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    os.replace(beside, path)
