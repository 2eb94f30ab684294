"""Several processes that train together, forked from a test as torchrun would start them: so they
have what the test has changed in this process, a mutant too, and no second of importing."""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch._dynamo  # this and fsdp once, here: every process would need seconds for them
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401

from minvenus.console import one_line_errors
from minvenus.train.parallel import processes

SECONDS = 60


def ranks_that_end(count: int, function: Callable) -> tuple[list[int], list[str], list[bytes]]:
    """Of processes that call function() as a script does: exit codes, what each has printed, and
    its pickled result. Those that take too long are killed."""
    store = dist.TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=SECONDS)
    )
    codes: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as made:
        printed, results = (
            [Path(made) / f"{rank}.{kind}" for rank in range(count)] for kind in ("out", "result")
        )
        children = [
            fork(rank, count, store.port, function, printed[rank], results[rank])
            for rank in range(count)
        ]
        deadline = time.monotonic() + SECONDS
        try:
            while len(codes) < count:
                for child in set(children) - codes.keys():
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if ended:
                        codes[child] = os.waitstatus_to_exitcode(status)
                if time.monotonic() > deadline:
                    pytest.fail("the processes wait for each other")
                time.sleep(0.005)
        finally:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)  # it is there until it is waited for
                os.waitpid(child, 0)
        return (
            [codes[child] for child in children],
            [path.read_text() for path in printed],
            [path.read_bytes() for path in results if path.exists()],
        )


def fork(rank: int, count: int, port: int, function: Callable, printed: Path, result: Path) -> int:
    """Start a process; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        out = os.open(printed, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = (
            sys.__stdout__,
            sys.__stderr__,
        )  # pytest's own would keep what is printed
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_PORT": str(port),
            "MASTER_ADDR": "localhost",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "test",
        }
        with one_line_errors("script.py"), processes():
            result.write_bytes(pickle.dumps(function()))
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def on_ranks(count: int, function: Callable) -> list:
    """The results of function() on every rank."""
    codes, printed, results = ranks_that_end(count, function)
    assert codes == [0] * count, "\n".join(
        f"rank {rank}: {text}" for rank, text in enumerate(printed)
    )
    return [pickle.loads(result) for result in results]
