"""How far an evaluation is, how accurate so far and how long it will take: a line that renews itself on a terminal, plain lines
now and then elsewhere."""

import shutil
import sys
import time

from minvenus.console import clock
from minvenus.evaluation.aggregate import Run

WIDTH = 24
EVERY = 0.1                           # seconds between two renewals


class Bar:
    """`total` runs are wanted, these are there already."""

    def __init__(self, total: int, runs: list[Run], out=None):
        self.total, self.first, self.out = total, len(runs), out or sys.stderr
        self.done = self.right = self.unknown = 0
        for run in runs:
            self.count(run)
        self.live = self.out.isatty()
        self.began = self.shown = time.monotonic()
        self.told = self.done

    def count(self, run: Run) -> None:
        self.done += 1
        self.right += run.correct is True
        self.unknown += run.correct is None

    def show(self, playing: int = 0) -> None:
        """As often as one likes; `playing` runs are under way."""
        now = time.monotonic()
        if self.live and (now - self.shown >= EVERY or self.done == self.total):
            self.shown = now
            line = self.line(playing)[:shutil.get_terminal_size().columns - 1]         # one that wraps could not be renewed
            print(f"\r\033[K{line}", end="", file=self.out, flush=True)
        elif not self.live and self.done > self.told and (
                self.told == self.first or self.done == self.total or self.done - self.told >= self.total / 10):
            self.told = self.done
            print(self.line(playing), file=self.out, flush=True)

    def line(self, playing: int) -> str:
        bar = "#" * (WIDTH * self.done // self.total)
        known = self.done - self.unknown
        accuracy = f"accuracy {100 * self.right / known:.1f} %" if known else "accuracy –"
        unknown = f" ({self.unknown} without a verdict)" if self.unknown else ""
        new = self.done - self.first
        left = clock((time.monotonic() - self.began) / new * (self.total - self.done)) + " left" if new else "–"
        under_way = f"  {playing} under way" if playing else ""
        return f"eval [{bar:<{WIDTH}}] {self.done}/{self.total}  {accuracy}{unknown}  {left}{under_way}"

    def end(self) -> None:
        """What is printed next starts on a line of its own."""
        if self.live:
            print(file=self.out, flush=True)
