"""Several processes that train together, forked from a test as torchrun would start them: so they have what the test
has changed in this process, a mutant too, and no second of importing."""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch._dynamo  # this and fsdp once, here: every process would need seconds for them
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401

from minvenus.console import one_line_errors
from minvenus.train.parallel import processes

SECONDS = 60


def start_ranks(count: int, function: Callable, folder: Path) -> list[int]:
    """Fork `count` processes that call function(); returns their ids. The result of rank r, or its traceback, goes to
    `folder`/r, what it prints to r.out."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=SECONDS))
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            code = run_rank(rank, count, store.port, function, folder)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    start_ranks.stores.append(store)           # for as long as the processes need it
    return children


start_ranks.stores = []


def run_rank(rank: int, count: int, port: int, function: Callable, folder: Path) -> int:
    signal.setitimer(signal.ITIMER_REAL, 0)
    printed = os.open(folder / f"{rank}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__          # pytest's own would keep what is printed
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "localhost",
                   "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    code = 0
    try:
        with one_line_errors("script.py"), processes():
            (folder / str(rank)).write_bytes(pickle.dumps(function()))
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    return code


def wait_for(children: list[int]) -> list[int]:
    """The exit codes. Processes that take too long are killed."""
    deadline, codes = time.monotonic() + SECONDS, {}
    try:
        while len(codes) < len(children):
            for child in children:
                if child not in codes:
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if ended:
                        codes[child] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                pytest.fail("the processes wait for each other")
            time.sleep(0.005)
    finally:
        for child in children:
            if child not in codes:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return [codes[child] for child in children]


def ranks_that_end(count: int, function: Callable) -> tuple[list[int], list[str]]:
    """The exit codes of processes that call function() as a script does, and what each has printed."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        codes = wait_for(start_ranks(count, function, folder))
        return codes, [(folder / f"{rank}.out").read_text() for rank in range(count)]


def on_ranks(count: int, function: Callable) -> list:
    """The results of function() on every rank."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        codes = wait_for(start_ranks(count, function, folder))
        printed = "\n".join(f"rank {rank}: {(folder / f'{rank}.out').read_text()}" for rank in range(count))
        assert codes == [0] * count, printed
        return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(count)]
