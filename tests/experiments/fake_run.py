"""Stands in for train_igpo.py in tests of the comparison: writes what a run of so many steps leaves behind, in no time.

Files in the folder above the run's say how: `fail`, `wait` and `short` name runs that end with an error, wait to be
stopped, or end one step early; `order.txt` gets a line when a run starts and when it ends.
"""

import json
import signal
import sys
import time
from pathlib import Path


def main(flags: list[str]) -> int:
    given = dict(zip(flags[::2], flags[1::2], strict=False))
    folder, steps = Path(given["--out"]), int(given["--steps"])
    above, name = folder.parent, folder.name
    note(above, f"start {name}")
    if name in listed(above / "fail"):
        wait_until(lambda: listed(above / "order.txt") >= {f"ready {other}" for other in listed(above / "wait")})
        print("out of luck")
        return 3
    if name in listed(above / "wait"):
        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        note(above, f"ready {name}")
        wait_until(lambda: bool(asked))
        steps = 1
    finish(folder, steps - (name in listed(above / "short")))
    note(above, f"end {name}")
    return 0


def wait_until(happened, seconds: float = 60.0) -> None:
    """A process that a failed test forgot must not live for ever."""
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)


def note(above: Path, line: str) -> None:
    with (above / "order.txt").open("a") as file:
        file.write(line + "\n")


def listed(path: Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


def finish(folder: Path, steps: int) -> None:
    """Accuracy is 0.01 at the start, at the end a hundredth for each letter of the folder's name."""
    start = {"before_test_exact_match": 0.01, "before_test_right_pages": 0.5}
    end = {"test_exact_match": len(folder.name) / 100, "test_right_pages": 0.75, "test_turns": 8.0}
    (folder / "metrics.jsonl").write_text(f"{json.dumps({'step': 1} | start)}\n{json.dumps({'step': steps} | end)}\n")
    checkpoint = folder / "checkpoints" / f"step-{steps:08d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "state.json").write_text("{}")
    (folder / "latest").write_text(checkpoint.name + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
