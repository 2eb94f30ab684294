"""What a command shows on a terminal: a progress line, tables, errors in one line; and signals that
ask a run to stop."""

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

LONGEST = 4000                # characters of an error


class Progress:
    """One line on a terminal, renewed in place.

    Elsewhere a line for the first step and for every tenth of the run."""

    def __init__(self, name: str, start: int, steps: int, out=None):
        self.name = name
        self.start = start
        self.steps = steps
        self.out = out or sys.stderr
        self.live = self.out.isatty()
        self.began = time.monotonic()

    def show(self, step: int, metrics: dict, tokens_per_second: float | None = None) -> None:
        """After `step` steps. Counts are left out: the line has to be short."""
        done = step - self.start
        left = self.steps - step
        tenth = max(1, self.steps // 10)
        if not self.live and left and done > 1 and step % tenth:
            return

        seconds_left = (time.monotonic() - self.began) / done * left
        parts = [f"{self.name} {step}/{self.steps}", f"{clock(seconds_left)} left"]
        if tokens_per_second is not None:
            parts.append(f"{tokens_per_second:,.0f} tokens/s")
        parts += [f"{key} {x:.4g}" for key, x in metrics.items() if isinstance(x, float)]
        line = "  ".join(parts)
        if self.live:                            # a line that wraps could not be renewed
            columns = shutil.get_terminal_size().columns
            line = f"\r\033[K{line[:columns - 1]}"
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
    """Rows of cells as lines of text: the first column left-aligned, the others right-aligned
    unless `left`."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        align = str.ljust if left or i == 0 else str.rjust
        columns.append([align(cell, width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


@contextmanager
def stop_on_signals(once_more: bool = True) -> Iterator[list[int]]:
    """`with stop_on_signals() as stop:` the list is empty until Ctrl-C, SIGTERM or SIGHUP has come;
    look at it between steps.

    With `once_more` a second signal raises KeyboardInterrupt. Further ones do nothing, so that what
    is there can be saved. For the main thread only."""
    stop: list[int] = []
    words = b"after this step; once more to stop at once" if once_more else b"and saving"

    def handler(number, frame):
        stop.append(number)
        if len(stop) == 1:
            with suppress(OSError):              # not print: the signal may have come inside one
                os.write(sys.stderr.fileno(), b"\nstopping " + words + b"\n")
        if len(stop) == 2 and once_more:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        numbers.remove(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def one_line_errors(script: str) -> Iterator[None]:
    """Errors that the user can mend (settings, files, tools) end the program with one line.

    A bug shows its traceback. Exit code 2, or 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")     # a terminal may lack characters of the web
    try:
        yield
    except KeyboardInterrupt as stopped:
        why = str(stopped) or "stopped at once; the same command goes on from what was saved"
        exit_with(f"\n{script}: {why}", 130)
    except (ConfigError, OSError) as error:
        exit_with(f"{script}: {error}", 2)
    show_result()


def exit_with(line: str, code: int) -> NoReturn:
    """Exit with a last line. Of a very long one the middle is left out."""
    if len(line) > LONGEST:
        line = f"{line[:LONGEST // 2]} ... {line[-LONGEST // 2:]}"
    print(line, file=sys.stderr)
    show_result()
    sys.exit(code)


def show_result(text: str = "") -> None:
    """Print what a program has made, at its end.

    Where the reader of the output is gone (`| head -1`), the rest of it goes nowhere."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
