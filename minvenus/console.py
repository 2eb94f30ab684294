"""The terminal of a long run: one progress line, text tables, Ctrl-C as a request to stop, and errors in one line."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from minvenus.config import ConfigError


class Progress:
    """One line on a terminal, renewed in place; elsewhere a line for the first step and for every tenth of the run."""

    def __init__(self, name: str, start: int, steps: int, out=None):
        self.name, self.first, self.steps, self.out = name, start, steps, out or sys.stderr
        self.live = self.out.isatty()
        self.began = time.monotonic()

    def show(self, step: int, metrics: dict, timing: dict | None = None) -> None:
        """After `step` steps. Counts are left out: the line has to be short."""
        done, left = step - self.first, self.steps - step
        if not self.live and left and done > 1 and step % max(1, self.steps // 10):
            return
        seconds_left = (time.monotonic() - self.began) / done * left
        numbers = "  ".join(f"{key} {value:.4g}" for key, value in metrics.items() if isinstance(value, float))
        speed = f"{timing['tokens_per_second']:,.0f} tokens/s  " if timing else ""
        line = f"{self.name} {step}/{self.steps}  {clock(seconds_left)} left  {speed}{numbers}"
        if self.live:                                        # a line that wraps could not be renewed
            line = f"\r\033[K{line[:shutil.get_terminal_size().columns - 1]}"
        print(line, end="" if self.live and left else "\n", file=self.out, flush=True)

    def end(self) -> None:
        """For a run that stops early: what is printed next starts on a line of its own."""
        if self.live:
            print(file=self.out, flush=True)


def clock(seconds: float) -> str:
    """0:07, 1:05, 2:03:04"""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def table(rows: Sequence[Sequence[str]], left: bool = False) -> str:
    """Rows of cells as lines of text: the first column left-aligned, the others right-aligned unless `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if left else cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join(lines)


@contextmanager
def stop_on_signals() -> Iterator[list[int]]:
    """`with stop_on_signals() as stop:` the list is empty until Ctrl-C or SIGTERM has come; look at it between steps.
    A second signal raises KeyboardInterrupt. For the main thread only."""
    stop: list[int] = []

    def handler(number, frame):
        if stop:
            raise KeyboardInterrupt
        stop.append(number)
        with suppress(OSError):                  # print could fail: the signal may come in the middle of another print
            os.write(2, b"\nstopping after this step; once more to stop at once\n")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def one_line_errors(script: str) -> Iterator[None]:
    """What the user can mend ends the program with one line: settings, files, tools that fail. A bug shows its
    traceback. Exit code 2, or 130 after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        why = str(stopped) or "stopped at once; the same command goes on from what was saved"
        print(f"\n{script}: {why}", file=sys.stderr)
        sys.exit(130)
    except (ConfigError, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(2)
