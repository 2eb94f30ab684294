"""The terminal of a long run: one progress line, text tables, Ctrl-C as a request to stop, and errors in one line."""

import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from minvenus.config import ConfigError


class Progress:
    """One line on a terminal, renewed in place; elsewhere a line for the first step and for every tenth of the run."""

    def __init__(self, name: str, start: int, steps: int, out=None):
        self.name, self.first, self.steps, self.out = name, start, steps, out or sys.stderr
        self.live = self.out.isatty()
        self.began = time.monotonic()

    def show(self, step: int, metrics: dict, tokens_per_second: float | None = None) -> None:
        """After `step` steps. Counts are left out: the line has to be short."""
        done, left = step - self.first, self.steps - step
        if not self.live and left and done > 1 and step % max(1, self.steps // 10):
            return
        seconds_left = (time.monotonic() - self.began) / done * left
        numbers = "  ".join(f"{key} {value:.4g}" for key, value in metrics.items() if isinstance(value, float))
        speed = f"{tokens_per_second:,.0f} tokens/s  " if tokens_per_second is not None else ""
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
def stop_on_signals(once_more: bool = True) -> Iterator[list[int]]:
    """`with stop_on_signals() as stop:` the list is empty until Ctrl-C, SIGTERM or SIGHUP has come; look at it between
    steps. With `once_more` a second signal raises KeyboardInterrupt. Further ones do nothing, so that what is there can
    be saved. For the main thread only."""
    stop: list[int] = []

    def handler(number, frame):
        stop.append(number)
        words = b"after this step; once more to stop at once" if once_more else b"and saving"
        if len(stop) == 1:
            with suppress(OSError):              # print could fail: the signal may come in the middle of another print
                os.write(sys.stderr.fileno(), b"\nstopping " + words + b"\n")
        if len(stop) == 2 and once_more:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handler)
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def one_line_errors(script: str) -> Iterator[None]:
    """What the user can mend ends the program with one line: settings, files, tools that fail. A bug shows its
    traceback. Exit code 2, or 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")             # a terminal may know fewer characters than the web
    try:
        yield
    except KeyboardInterrupt as stopped:
        why = str(stopped) or "stopped at once; the same command goes on from what was saved"
        end(f"\n{script}: {why}", 130)
    except (ConfigError, OSError) as error:
        end(f"{script}: {error}", 2)


def end(line: str, code: int) -> NoReturn:
    """Exit with a last line. Where the reader of the output is gone (`| head -1`), the rest of it goes nowhere."""
    with suppress(BrokenPipeError):
        print(line, file=sys.stderr)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
