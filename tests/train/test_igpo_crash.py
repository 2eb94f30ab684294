"""train_igpo.py killed at random moments, one after the other: it goes on, loses one step at most and ends to the last bit as a
run that was never stopped. Children are forks of this process, as in test_crash.py."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

import train_igpo
from minvenus.files import latest_checkpoint
from minvenus.report.saved import load_batch, path_of
from minvenus.train import metrics
from tests.train.igpo_runs import MIXED, script_runs, small_igpo, write_model
from tests.train.runs import content
from tests.train.test_crash import ended, fork

KILLS = 10


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)          # what is there after a kill does not depend on it
    config = small_igpo(write_model(tmp_path / "model"), kl_coef=0.001, evaluate_every=2, rollouts_every=2)
    script_runs(monkeypatch, config, MIXED)
    return config


def computing_seconds(pid: int) -> float:
    """What a child has had of the processor; how busy the machine is does not matter then."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def kill_after(pid: int, seconds: float) -> None:
    while computing_seconds(pid) < seconds and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)


def test_a_run_killed_at_ten_random_moments_loses_one_step_at_most_and_no_bit(config, tmp_path):
    train_igpo.main(replace(config, out=str(tmp_path / "whole")))         # here, so that no child has to warm up
    pid = fork(lambda: train_igpo.main(replace(config, out=str(tmp_path / "timed"))))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seconds = computing_seconds(pid)
    assert ended(pid) == 0
    run, dice, killed = tmp_path / "killed", random.Random(0), 0
    config = replace(config, out=str(run))
    while killed < KILLS:
        pid = fork(lambda: train_igpo.main(config))
        kill_after(pid, dice.uniform(0, 0.8 * seconds))
        code = ended(pid)
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        newest = latest_checkpoint(run)
        done = len(metrics.read(run / "metrics.jsonl"))            # the steps that had ended
        assert done - (int(newest.name.removeprefix("step-")) if newest else 0) in (0, 1)
        if done > 1 and killed < KILLS:
            shutil.rmtree(run)                                     # or most kills would meet a run that has ended
    train_igpo.main(config)
    assert content(run) == content(tmp_path / "whole")
    for step in (1, 2, 3):
        assert load_batch(path_of(run, step)).credit == load_batch(path_of(tmp_path / "whole", step)).credit
    assert all(path.name.startswith("step-") for path in (run / "rollouts").iterdir()), "no half-written file is left"
