"""A progress bar on standard error: one line that moves on a terminal, a plain line now and then in a log."""

import sys
import time


class Progress:
    """Progress over a known number of bytes."""

    def __init__(self, total: int, stream=None):
        self.total = max(total, 1)
        self.stream = stream or sys.stderr
        self.moving = self.stream.isatty()
        self.started = time.monotonic()
        self.shown = self.started

    def update(self, done: int, rows: int, kept: int) -> None:
        now = time.monotonic()
        if now - self.shown >= (0.1 if self.moving else 10.0):
            self.shown = now
            self.show(done, rows, kept)

    def show(self, done: int, rows: int, kept: int) -> None:
        seconds = max(time.monotonic() - self.started, 1e-9)
        share = min(done / self.total, 1.0)
        left = seconds * (1 - share) / share if share else 0.0
        text = f"{share:4.0%}  {rows:,} rows, {kept:,} kept  {done / 1e6 / seconds:.1f} MB/s  {left:.0f} s left"
        if self.moving:
            bar = "#" * int(30 * share)
            print(f"\r[{bar:<30}] {text}\x1b[K", end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)

    def finish(self, done: int, rows: int, kept: int) -> None:
        self.show(done, rows, kept)
        if self.moving:
            print(file=self.stream, flush=True)
