"""Run the whole test suite in several processes, two at a time: python -m tests.run [arguments for pytest]

Triton's interpreter and its compiler cannot share a process, so the tests of the kernels need three. The others are cut
into parts that start longest first. The output of a part is shown whole when it ends. The exit code is 0 if every part
passed; Ctrl-C ends all of them.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

TESTS = Path(__file__).resolve().parent
AT_ONCE = 2
NEITHER = ("-m", "not interpret and not compile")
PARTS = {                                     # name -> patterns of paths below tests/, longest first
    "training": ["train", "test_train*.py"],
    "mutants": ["mutants"],
    "engine": ["engine", "model", "kernels"],
    "evaluation": ["evaluation", "report", "experiments", "sft", "test_eval*.py"],
}


def commands(more: list[str]) -> dict[str, list[str]]:
    """name of a part -> its command. Tests that no part names are in the last one, so that none is forgotten."""
    python = [sys.executable, "-m", "pytest"]
    paths = {}
    for name, patterns in PARTS.items():
        paths[name] = [str(path) for pattern in patterns for path in sorted(TESTS.glob(pattern))]
    found = {"compiled kernels": [*python, str(TESTS / "kernels"), "-m", "compile", "-s", *more]}
    for name, own in paths.items():
        found[name] = [*python, *own, *NEITHER, *more]
    found["interpreted kernels"] = [*python, str(TESTS / "kernels"), "-m", "interpret", *more]
    ignored = [f"--ignore={path}" for own in paths.values() for path in own]
    found["all others"] = [*python, str(TESTS), *ignored, *NEITHER, *more]
    return found


class Suite:
    """The parts that wait, those that run, and how the others ended."""

    def __init__(self, more: list[str]):
        self.waiting: SimpleQueue = SimpleQueue()
        for part in commands(more).items():
            self.waiting.put(part)
        self.running: set[subprocess.Popen] = set()
        self.failed: list[str] = []
        self.stopped = False
        self.printing = threading.Lock()

    def work(self) -> None:
        """Run one part after the other until none is left."""
        while not self.stopped:
            try:
                name, command = self.waiting.get_nowait()
            except Empty:
                return
            self.run(name, command)

    def run(self, name: str, command: list[str]) -> None:
        interpret = {"TRITON_INTERPRET": "1"} if name == "interpreted kernels" else {}
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        start = time.monotonic()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=TESTS.parent,
                                       env=os.environ | one_thread | interpret, start_new_session=True)
            self.running.add(process)
            code = process.wait()
            self.running.discard(process)
            log.seek(0)
            with self.printing:
                print(f"{name}: {'passed' if code == 0 else 'FAILED'} after {time.monotonic() - start:.0f} s")
                print(log.read(), flush=True)
        if code:
            self.failed.append(name)

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to every running part and the processes that it has started."""
        self.stopped = True
        for process in [*self.running]:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def main(more: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.monotonic()
    suite = Suite(more)
    workers = [threading.Thread(target=suite.work, daemon=True) for _ in range(AT_ONCE)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        suite.stop(signal.SIGINT)
        for worker in workers:
            worker.join(timeout=10)
        suite.stop(signal.SIGKILL)
        return 130
    failed = f"FAILED: {', '.join(suite.failed)}" if suite.failed else "all parts passed"
    print(f"{failed}, {time.monotonic() - start:.0f} s")
    return 1 if suite.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
