"""A run that dies at any moment, or whose disk fills up, goes on and ends as if nothing had happened, to the last bit.

Children are forks of this process (importing torch anew takes seconds). An audit hook sees every change that Python makes below
the run's folder just before it is made: there the child kills itself, or finds the disk full. The writing of tensor files has no
audit event; the child counts it itself, also when half a file is written.
"""

import errno
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

import train_sft
from minvenus.model import weights
from minvenus.train import checkpoint
from tests.train.runs import content, small_config, write_inputs

STEPS = {"steps": 3, "save_every": 1}             # the third checkpoint is the first that removes one
FULL = "No space left on device"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(settings of the inputs, content of the run that was never stopped, a place for runs)"""
    folder = tmp_path_factory.mktemp("crash")
    inputs = write_inputs(folder)
    train_sft.main(small_config(inputs, folder / "whole", **STEPS))
    return inputs, content(folder / "whole"), folder


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """What is on the disk after a kill does not depend on fsync; only after a power cut it would."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def fork(work) -> int:
    """Run `work` in a child, silently; returns the child's process id. Its exit code is 0, or 3 with a traceback in stderr."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        for number in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid) -> int:
    """Exit code, or minus the signal that ended the process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Boundaries:
    """Calls `act(name)` at the given change of a folder, counted from 1, and from then on at every one if `stays`."""

    def __init__(self, folder, number, act, stays=False):
        self.folder, self.number, self.act, self.stays, self.count = str(folder), number, act, stays, 0
        sys.addaudithook(self.hook)
        checkpoint.save_file = weights.save_file = self.save_file

    def reached(self, name):
        self.count += 1
        if self.count == self.number or (self.stays and self.count > self.number):
            self.act(name)

    def hook(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            path, changes = arguments[0], True
        else:
            return
        relative = event in ("os.remove", "os.rmdir") and not os.path.isabs(path)          # rmtree's way to name what it removes
        if changes and (relative or str(path).startswith(self.folder)):
            self.reached(event)

    def save_file(self, tensors, path, **options):
        self.reached("tensor file")
        whole = Path(path).with_suffix(".part")
        save_file(tensors, whole, **options)
        content = whole.read_bytes()
        whole.unlink()
        Path(path).write_bytes(content[:len(content) // 2])
        self.reached("half a tensor file")
        Path(path).write_bytes(content)


def count_boundaries(lab, name) -> int:
    inputs, _, folder = lab

    def work():
        seen = Boundaries(folder / name, 0, None)
        train_sft.main(small_config(inputs, folder / name, **STEPS))
        (folder / "count").write_text(str(seen.count))

    assert ended(fork(work)) == 0
    return int((folder / "count").read_text())


def goes_on(lab, run, what) -> None:
    """The same command again ends with what the run that was never stopped has. A kill while the oldest checkpoint is removed may
    leave a part of it, which the next save would remove."""
    inputs, whole, _ = lab
    train_sft.main(small_config(inputs, run, **STEPS))
    assert content(run) == whole, what
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept[-2:] == ["step-00000002", "step-00000003"] and kept[:-2] in ([], ["step-00000001"]), what


def test_a_kill_at_any_change_of_the_disk_loses_nothing(lab):
    inputs, _, folder = lab
    total = count_boundaries(lab, "counted")
    assert total > 60, "three checkpoints are this many changes at least"
    for number in range(1, total + 1):
        run = folder / "killed"
        shutil.rmtree(run, ignore_errors=True)

        def work(run=run, number=number):
            Boundaries(run, number, lambda name: os.kill(os.getpid(), signal.SIGKILL))
            train_sft.main(small_config(inputs, run, **STEPS))

        assert ended(fork(work)) == -signal.SIGKILL
        goes_on(lab, run, f"killed at change {number} of {total}")


def test_kills_at_random_moments_one_after_the_other_lose_nothing(lab):
    inputs, _, folder = lab
    run, dice = folder / "random", random.Random(0)
    start = time.perf_counter()
    train_sft.main(small_config(inputs, folder / "timed", **STEPS))
    seconds = time.perf_counter() - start
    for _ in range(12):
        pid = fork(lambda: train_sft.main(small_config(inputs, run, **STEPS)))
        time.sleep(dice.uniform(0, 1.2 * seconds))
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) in (0, -signal.SIGKILL)
        if dice.random() < 0.3:
            shutil.rmtree(run, ignore_errors=True)             # or most kills would meet a run that has ended
    goes_on(lab, run, "killed at random moments")


def full(name):
    """A disk with no room: whatever needs some fails, removing and renaming do not."""
    if name == "half a tensor file":
        raise SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")       # as it tells of a failed write
    if name in ("open", "os.mkdir"):
        raise OSError(errno.ENOSPC, FULL)


def test_a_disk_that_fills_up_at_any_change_is_a_clear_error_and_loses_nothing(lab):
    inputs, _, folder = lab
    total = count_boundaries(lab, "counted again")
    seen = set()
    for number in range(1, total + 1, 3):                      # it stays full: the next change that needs room fails
        run, message = folder / "full", folder / "message"
        shutil.rmtree(run, ignore_errors=True)

        def work(run=run, number=number, message=message):
            hook = Boundaries(run, number, full, stays=True)
            try:
                train_sft.main(small_config(inputs, run, **STEPS))
                text = "ended well"
            except OSError as error:
                text = str(error)
            hook.number, hook.stays = 0, False
            message.write_text(text)

        assert ended(fork(work)) == 0
        text = message.read_text()
        seen.add(text.split(" could")[0] if "could" in text else text.split(":")[0])
        assert FULL in text or (text == "ended well" and number > total - 12), (number, text)      # the last changes only remove
        if "checkpoint" in text:
            assert "once the disk has room again the same command goes on from the latest" in text
        goes_on(lab, run, f"full from change {number} of {total}")
    assert {f"the checkpoint after step {n}" for n in (1, 2, 3)} <= seen


def test_a_write_that_really_fails_half_way_loses_nothing(lab):
    """A limit on the size of files, so that the tensor library itself runs into the error."""
    inputs, _, folder = lab
    run, message = folder / "limited", folder / "message"

    def work():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            train_sft.main(small_config(inputs, run, **STEPS))
        except OSError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            message.write_text(f"{type(error).__name__} {error}")

    assert ended(fork(work)) == 0
    text = message.read_text()
    assert text.startswith("SaveError the checkpoint after step 1 could not be written") and "File too large" in text
    assert not (run / "latest").exists() and os.listdir(run / "checkpoints") == []
    goes_on(lab, run, "limited")
