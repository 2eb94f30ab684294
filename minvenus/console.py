"""The terminal of a long run: one progress line, a curve at the end, and Ctrl-C as a request to stop."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

BLOCKS = "▁▂▃▄▅▆▇█"


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
    """7 s, 1:05, 2:03:04"""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def curve(values: list[float], width: int = 60) -> str:
    """Values as a line of blocks, lowest to highest; each block is the mean of its share of them."""
    if not values:
        return ""
    width = min(width, len(values))
    parts = [values[len(values) * i // width:len(values) * (i + 1) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means) + f"  {means[0]:.3g} -> {means[-1]:.3g}"


def table(rows: Sequence[Sequence[str]], left: bool = False) -> str:
    """Rows of cells as lines of text: the first column left-aligned, the others right-aligned unless `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        for cell, width in zip(row[1:], widths[1:], strict=True):
            cells.append(cell.ljust(width) if left else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


class StopRequest:
    """True once Ctrl-C or SIGTERM has come."""

    def __init__(self) -> None:
        self.made = False

    def __bool__(self) -> bool:
        return self.made


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """`with stop_on_signals() as stop:` look at `stop` between steps. A second signal raises KeyboardInterrupt. For the
    main thread only."""
    stop = StopRequest()

    def handler(number, frame):
        if stop:
            raise KeyboardInterrupt
        stop.made = True
        with suppress(OSError):                  # print could fail: the signal may come in the middle of another print
            os.write(2, b"\nstopping after this step; once more to stop at once\n")

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)
