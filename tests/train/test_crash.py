"""A run that dies at any moment, or whose disk fills up, goes on and ends as if nothing had
happened, to the last bit.

Children are forks of this process (importing torch anew takes seconds). An audit hook sees every
change that Python makes below the run's folder just before it is made. The writing of tensor files
has no audit event; the child counts it itself, also when half a file is written."""

import errno
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import save_file

from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.model import weights
from minvenus.report.saved import load_batch
from minvenus.train import checkpoint
from tests.train.igpo_runs import MIXED, script_runs, small_igpo, write_model
from tests.train.runs import command, content, made_up_run, small_config, write_inputs


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
        (10, 0, "File too large: '{run}/run.json'"),
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


# ------------------------------------------------------------------- the scripts, at random moments


def computing_seconds(pid: int) -> float:
    """What a child has had of the processor: how busy the machine is does not matter then."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def kill_after(pid: int, seconds: float) -> int:
    """Kill a child once it has computed for so long; returns how it ended."""
    while (
        computing_seconds(pid) < seconds
        and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    ):
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    return ended(pid)


@pytest.mark.parametrize("script", ["train_sft.py", "train_igpo.py"])
def test_a_script_killed_at_random_moments_loses_one_step_at_most_and_no_bit(
    script, config, tmp_path, monkeypatch
):
    """Three runs, each killed twice."""
    if script == "train_igpo.py":
        config = small_igpo(
            write_model(tmp_path / "model"), kl_coef=0.001, evaluate_every=2, rollouts_every=2
        )
        script_runs(monkeypatch, config, MIXED)
    assert (
        command(script, replace(config, out=str(tmp_path / "whole"))) == 0
    )  # here, so that no child warms up
    pid = fork(lambda: command(script, replace(config, out=str(tmp_path / "timed"))))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seconds, dice = computing_seconds(pid), random.Random(0)
    assert ended(pid) == 0
    for number in range(3):
        run = tmp_path / str(number)
        mine = replace(config, out=str(run))
        for _ in range(2):
            assert kill_after(fork(partial(command, script, mine)), dice.uniform(0, seconds)) in (
                0,
                -signal.SIGKILL,
            )
            newest = latest_checkpoint(run)
            steps = len(read_jsonl(run / "metrics.jsonl"))  # that had ended
            assert steps - (int(newest.name.removeprefix("step-")) if newest else 0) in (0, 1)
        assert command(script, mine) == 0 and content(run) == content(tmp_path / "whole")
        rollouts = sorted((run / "rollouts").glob("*.jsonl"))
        assert len(rollouts) == (3 if script == "train_igpo.py" else 0)
        for path in rollouts:
            assert (
                load_batch(path).credit
                == load_batch(tmp_path / "whole" / "rollouts" / path.name).credit
            )
