"""Calls in daemon threads, with the standard library's Future.

Not a ThreadPoolExecutor: it joins its threads when the interpreter exits, so one tool that hangs would keep the process
alive for ever. A daemon thread dies with the process. A caller that no longer wants a result drops the future.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future


def in_thread(name: str, function: Callable, *arguments) -> Future:
    """Call the function in a thread of its own; the future gets its result, or the exception that it raised."""
    future: Future = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future
