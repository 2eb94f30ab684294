"""Ctrl-C and SIGTERM as a wish: the loop finishes its step, saves and ends. A second one ends at once."""

import os
import signal
from contextlib import contextmanager, suppress


class Stop:
    """True once somebody asked for the end."""

    def __init__(self):
        self.asked = False

    def __bool__(self):
        return self.asked


@contextmanager
def stop_on_signals():
    """`with stop_on_signals() as stop:` and look at `stop` between steps. Only the main thread may use it."""
    stop = Stop()

    def ask(number, frame):
        if stop:
            raise KeyboardInterrupt
        stop.asked = True
        with suppress(OSError):                  # print could fail: the signal may have come in the middle of another print
            os.write(2, b"\nstopping after this step; once more to stop at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
