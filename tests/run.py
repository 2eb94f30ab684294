"""Run the whole test suite in several processes, two at a time:

    python -m tests.run [arguments for pytest]

Triton's interpreter and its compiler cannot share a process, so the tests of the kernels need
three; the pretended GPU changes torch, so it has one of its own. The others are cut into parts that
start longest first. The output of a part is shown whole when it ends. The exit code is 0 if every
part passed; Ctrl-C ends all of them.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parent
AT_ONCE = 2
NEITHER = ("-m", "not interpret and not compile and not gpu")
PARTS = {  # name -> patterns of paths below tests/, longest first
    "training": ["train", "test_train*.py"],
    "engine": ["engine", "model", "kernels"],
    "evaluation": ["evaluation", "report", "experiments", "sft", "test_eval*.py"],
}
LONGEST = ("training", "all others")  # these start first


def commands(more: list[str]) -> dict[str, list[str]]:
    """Name of a part -> its command. Tests that no part names are in "all others", so that none is
    forgotten."""
    arguments, named = {}, []
    for name, patterns in PARTS.items():
        paths = [str(path) for pattern in patterns for path in sorted(TESTS.glob(pattern))]
        arguments[name] = [*paths, *NEITHER]
        named += paths
    ignored = [f"--ignore={path}" for path in named]
    arguments["all others"] = [str(TESTS), *ignored, *NEITHER]
    arguments["compiled kernels"] = [str(TESTS / "kernels"), "-m", "compile", "-s"]
    arguments["pretended GPU"] = [str(TESTS / "gpu"), "-m", "gpu", "-s"]
    arguments["interpreted kernels"] = [str(TESTS / "kernels"), "-m", "interpret"]

    order = sorted(arguments, key=lambda name: name not in LONGEST)
    return {name: [sys.executable, "-m", "pytest", *arguments[name], *more] for name in order}


def run(name: str, command: list[str], running: list[subprocess.Popen]) -> tuple[int, str]:
    """The exit code and the output of a part, which leads a group of processes of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if name == "interpreted kernels":
        environment["TRITON_INTERPRET"] = "1"
    if name == "pretended GPU":  # some machines announce AMX on which bfloat16 products die
        environment |= {"MINVENUS_PRETEND_GPU": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=TESTS.parent,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    running.append(process)
    output, _ = process.communicate()
    return process.returncode, output


def main(more: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    start, failed, running = time.monotonic(), [], []
    pool = ThreadPoolExecutor(AT_ONCE)
    parts = {pool.submit(run, *part, running): part[0] for part in commands(more).items()}
    try:
        for part in as_completed(parts):
            code, output = part.result()
            if code:
                failed.append(parts[part])
            outcome = "FAILED" if code else "passed"
            print(f"{parts[part]}: {outcome}, {time.monotonic() - start:.0f} s after the start")
            print(output, flush=True)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return 130
    outcome = f"FAILED: {', '.join(failed)}" if failed else "all parts passed"
    print(f"{outcome} {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
