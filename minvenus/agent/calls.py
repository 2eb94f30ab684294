"""Tool calls beside the loop: each in a thread of its own, at most so many at once, each with a deadline.

A call that is not back in time is answered with a typed timeout, and whatever it brings later is dropped. No thread can be killed
in Python, so one that never comes back stays until the process ends: it is a daemon, holds no place among the calls at once,
cannot keep the process alive, and `close` counts it in a warning. Tools that keep a deadline of their own (the live web) end soon
after, so nothing is left of them.

With `at_once` 0 a call runs at once in the caller's thread, without a deadline: for tools that cannot hang, such as the toy web.
Then a run is reproducible to the last bit; with threads, the time that tools take decides which rollouts share a step of the
engine, and sums in batches of another size differ in their last bits.

All methods belong to the loop's thread; only `_work` runs elsewhere.
"""

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from minvenus.tools.base import ToolResult, failed

GRACE = 1.0          # seconds that `close` waits for calls that nobody waits for any more


@dataclass(eq=False)
class Call:
    name: str                                       # of the tool
    run: Callable[[], ToolResult]
    answer: Callable[["ToolResult | BaseException", float], None]    # (result, seconds); called in the loop's thread
    started: float = 0.0


class Calls:
    """`post(task)` hands a task to the loop's thread, from any other."""

    def __init__(self, at_once: int, seconds: float, post: Callable[[Callable[[], None]], None]):
        self.at_once, self.seconds, self.post = at_once, seconds, post
        self.waiting: deque[Call] = deque()
        self.running: dict[Call, threading.Thread] = {}
        self.abandoned: list[threading.Thread] = []

    def submit(self, call: Call) -> None:
        if self.at_once == 0:
            call.started = time.monotonic()
            result = call.run()
            call.answer(result, time.monotonic() - call.started)
        else:
            self.waiting.append(call)
            self._start()

    def drop(self, call: Call) -> None:
        """Nobody waits for it any more."""
        if call in self.running:
            self.abandoned.append(self.running.pop(call))
        elif call in self.waiting:
            self.waiting.remove(call)

    def check_deadlines(self) -> None:
        now = time.monotonic()
        for call in [c for c in self.running if now >= c.started + self.seconds]:
            self.drop(call)
            call.answer(failed("timeout", f"{call.name} did not return within {self.seconds:g} seconds"), now - call.started)
        self._start()

    def close(self) -> None:
        self.waiting.clear()
        until = time.monotonic() + GRACE
        threads = [*self.abandoned, *self.running.values()]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        hung = sum(thread.is_alive() for thread in threads)
        self.running, self.abandoned = {}, []
        if hung:
            warnings.warn(f"{hung} tool calls are still running, though nobody waits for them any more; their threads end with "
                          "this process at the latest", stacklevel=2)

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.at_once:
            call = self.waiting.popleft()
            call.started = time.monotonic()
            self.running[call] = threading.Thread(target=self._work, args=(call,), name=f"tool {call.name}", daemon=True)
            self.running[call].start()

    def _work(self, call: Call) -> None:
        try:
            result: ToolResult | BaseException = call.run()
        except BaseException as error:              # the loop raises it again: a run that is set up wrongly must stop
            result = error
        self.post(lambda: self._finish(call, result))

    def _finish(self, call: Call, result: ToolResult | BaseException) -> None:
        thread = self.running.pop(call, None)
        if thread is not None:
            thread.join()                           # it has nothing left to do
            call.answer(result, time.monotonic() - call.started)
            self._start()
