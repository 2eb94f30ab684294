"""A run that dies at any moment, or whose disk fills up, goes on and ends as if nothing had
happened, to the last bit.

Children are forks of this process (importing torch anew takes seconds). An audit hook sees every
change that Python makes below the run's folder just before it is made. The writing of tensor files
has no audit event; the child counts it itself, also when half a file is written."""

import errno
import itertools
import os
import resource
import shutil
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from minvenus.model import weights
from minvenus.train import checkpoint
from tests.train.runs import content, made_up_run, small_config, write_inputs


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Three steps with a checkpoint each: the third is the first that removes one. A run that was
    never stopped is in whole/."""
    folder = tmp_path_factory.mktemp("crash")
    config = small_config(write_inputs(folder), folder / "run", save_every=1)
    made_up_run(replace(config, out=str(folder / "whole")))
    return config


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """What is on the disk after a kill does not depend on fsync; only after a power cut it
    would."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def fork(work) -> int:
    """Run `work` in a child, silently; returns the child's process id. Its exit code is 0, or 3
    after an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            work()
        code = 0
    finally:
        os._exit(code)


def ended(pid) -> int:
    """Exit code, or minus the signal that ended the process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(work, folder) -> None:
    """Run `work` in a child, because an audit hook cannot be removed; its error is raised here."""

    def watched():
        try:
            work()
        except BaseException:
            (folder / "error").write_text(traceback.format_exc())
            raise

    assert ended(fork(watched)) == 0, (folder / "error").read_text()


class Boundaries:
    """Calls `act(event, path)` before every change of a folder."""

    def __init__(self, folder, act):
        self.folder, self.act = str(folder), act
        sys.addaudithook(self.hook)
        checkpoint.save_file = weights.save_file = self.save_file

    def hook(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            path, changes = arguments[0], True
        else:
            return
        relative = event in ("os.remove", "os.rmdir") and not os.path.isabs(
            path
        )  # so rmtree names what it removes
        if changes and (relative or str(path).startswith(self.folder)):
            self.act(event, path)

    def save_file(self, tensors, path, **options):
        self.act("tensor file", path)
        whole = Path(path).with_suffix(".part")
        save_file(tensors, whole, **options)
        written = whole.read_bytes()
        whole.unlink()
        Path(path).write_bytes(written[: len(written) // 2])
        self.act("half a tensor file", path)
        Path(path).write_bytes(written)


def goes_on(config, what) -> None:
    """The same command again ends with what the run that was never stopped has. A kill while the
    oldest checkpoint is removed may leave a part of it, which the next save would remove."""
    run = Path(config.out)
    made_up_run(config)
    assert content(run) == content(run.parent / "whole"), what
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept[-2:] == ["step-00000002", "step-00000003"] and kept[:-2] in (
        [],
        ["step-00000001"],
    ), what
    assert [path.name for path in run.glob(".*")] == [".lock"], what
    shutil.rmtree(run)


def test_a_kill_at_any_change_of_the_disk_loses_nothing(config):
    """A kill leaves what the folder holds just before the change: a copy is made there, and a run
    goes on from it."""
    run, copies = Path(config.out), Path(config.out).parent / "copies"
    copies.mkdir()

    def work():
        numbers = itertools.count(1)

        def copy(*_):
            target = copies / str(next(numbers))
            shutil.copytree(run, target) if run.exists() else target.mkdir()

        Boundaries(run, copy)
        made_up_run(config)

    in_child(work, copies.parent)
    shutil.rmtree(run)
    total = len(os.listdir(copies))
    assert total > 60, "three checkpoints are this many changes at least"
    for number in range(1, total + 1):
        (copies / str(number)).rename(run)
        goes_on(config, f"killed at change {number} of {total}")


def test_a_disk_that_fills_up_at_any_change_is_a_clear_error_and_loses_nothing(config):
    """It stays full: from a change on, whatever needs room fails. Removing and renaming need
    none."""

    def work():
        left = 0  # changes until the disk is full
        messages = ["full"]

        def change(event, path):
            nonlocal left
            left -= 1
            if left < 0 and event == "half a tensor file":  # as the library itself says it
                raise SafetensorError(
                    "Error while serializing: I/O error: No space left on device (os error 28)"
                )
            if left < 0 and event in ("open", "os.mkdir"):
                raise OSError(errno.ENOSPC, "No space left on device", path)

        Boundaries(config.out, change)
        while messages[-1]:  # until one run has room enough
            first = left = 2 * len(messages)
            messages.append("")
            try:
                made_up_run(config)
            except OSError as error:
                messages[-1] = str(error)
                assert "No space left on device" in str(error) and config.out in str(error)
            left = sys.maxsize
            goes_on(config, f"full from change {first} on")
        for step in (1, 2, 3):
            assert any(
                f"the checkpoint after step {step} could not be written" in text
                for text in messages
            )

    in_child(work, Path(config.out).parent)


@pytest.mark.parametrize(
    ("size", "step", "words"),
    [
        (10, 1, "File too large: '{run}/metrics.jsonl'"),
        (
            20_000,
            0,
            "the checkpoint after step 1 could not be written to {run}/checkpoints/step-00000001: ",
        ),
    ],
)
def test_a_write_that_really_fails_half_way_names_the_file_and_loses_nothing(
    size, step, words, config
):
    """A limit on the size of files, so that the system's or the tensor library's own error
    comes."""
    run, message = Path(config.out), Path(config.out).parent / "message"

    def work():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit(number):
            if number == step:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

        limit(0)
        try:
            made_up_run(config, during=limit)
        except OSError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            message.write_text(str(error))

    in_child(work, run.parent)
    assert words.format(run=run) in message.read_text() and "File too large" in message.read_text()
    assert not (run / "latest").exists() and not [*run.glob("checkpoints/*")]
    goes_on(config, "limited")
