"""Runs in two processes from their start to their end: checkpoints, signals, failures,
torchrun itself."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

import train_igpo
import train_sft
from minvenus import setup
from minvenus.evaluation import questions as question_files
from minvenus.files import claimed, latest_checkpoint, read_jsonl
from minvenus.tools.base import TooManyFailures
from minvenus.train import parallel
from minvenus.train.parallel import rank
from tests.train.igpo_runs import small_igpo, small_web
from tests.train.ranks import on_ranks, ranks_that_end
from tests.train.runs import ROOT, content, signalled, small_config, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def igpo(out, **changes):
    return small_igpo("tiny-base", out, max_turn_tokens=48, evaluate_questions=0, **changes)


def stop_rank_1(script, update: str) -> None:
    """In this process, for the rest of its life: SIGTERM comes to rank 1 during its first step."""
    if rank() == 1:
        signalled(
            ExitStack().enter_context(pytest.MonkeyPatch.context()),
            script,
            update,
            [signal.SIGTERM],
        )


def losses(run) -> list[float]:
    return [row["loss"] for row in read_jsonl(run / "metrics.jsonl")]


# -------------------------------------------------------------------------- checkpoints and signals


def test_a_signal_to_one_rank_stops_all_and_resumed_in_two_or_one_the_run_ends_as_if_never_stopped(
    inputs, tmp_path
):
    """Saved by two, loaded by two: to the last bit. Saved by two and loaded by one, or the other
    way: to rounding."""
    one, two, stopped = tmp_path / "one", tmp_path / "two", tmp_path / "stopped"
    config = small_config(inputs, one, save_every=10, evaluate_every=1)

    def whole_run_and_one_that_is_stopped():
        train_sft.main(replace(config, out=str(two)))
        stop_rank_1(train_sft, "sft_step")
        train_sft.main(replace(config, out=str(stopped)))

    train_sft.main(config)
    on_ranks(2, whole_run_and_one_that_is_stopped)
    assert losses(two) == pytest.approx(losses(one), rel=1e-5) and len(losses(one)) == 3
    assert latest_checkpoint(stopped).name == "step-00000001" and losses(stopped) == losses(two)[:1]

    by_one = shutil.copytree(stopped, tmp_path / "two then one")
    with pytest.MonkeyPatch.context() as patch:
        signalled(patch, train_sft, "sft_step", [signal.SIGTERM])
        train_sft.main(replace(config, out=str(tmp_path / "one then two")))
    train_sft.main(replace(config, out=str(by_one)))

    def go_on():
        train_sft.main(replace(config, out=str(stopped)))
        train_sft.main(replace(config, out=str(tmp_path / "one then two")))

    on_ranks(2, go_on)
    assert content(stopped) == content(two)
    for run in (by_one, tmp_path / "one then two"):
        assert losses(run) == pytest.approx(losses(one), rel=1e-5)
        assert content(run).keys() == content(one).keys(), "the same files, whoever wrote them"


# ----------------------------------------------------------------------------------------- failures


def test_a_rank_that_fails_alone_ends_the_other_and_only_its_own_error_is_shown(
    inputs, tmp_path, monkeypatch
):
    """In an update: the other waits for it in a collective, so they can save no checkpoint
    together."""
    monkeypatch.setattr(parallel, "FAILURE_WAIT", timedelta(seconds=1))
    config = small_config(inputs, tmp_path / "run", save_every=10)
    sft_step, steps = train_sft.sft_step, []

    def failing(*arguments):
        steps.append(1)
        if rank() == 1 and len(steps) == 2:
            raise RuntimeError("a broken rank")
        return sft_step(*arguments)

    monkeypatch.setattr(train_sft, "sft_step", failing)

    codes, printed, _ = ranks_that_end(2, lambda: train_sft.main(config))
    assert 0 not in codes and "a broken rank" in printed[1] and "Traceback" not in printed[0]
    assert latest_checkpoint(config.out) is None and len(losses(tmp_path / "run")) == 1


class Judge:
    """Fails when it is asked for the second time; writes down who asks."""

    name = "a judge"

    def __init__(self, kind, folder):
        self.asked = folder / "asked"

    def grade(self, questions, answers):
        with self.asked.open("a") as file:
            file.write(f"{rank()} {len(questions)}\n")
        if self.asked.read_text().count("\n") == 2:
            raise TooManyFailures("6 of 50 verdicts of the judge failed")
        return [float(i % 2 == 0) for i, _ in enumerate(answers)]

    def close(self):
        pass


@pytest.mark.parametrize("judge", [False, True])
def test_tools_of_one_rank_or_a_judge_that_fail_stop_all_with_the_last_whole_step(
    judge, tmp_path, monkeypatch
):
    config = igpo(tmp_path / "run", steps=3, save_every=10, judge=judge)
    real = train_igpo.rollouts

    def failing(loop, source, step, group_size):
        if rank() == 1 and step == 2 and not judge:
            raise TooManyFailures("7 of 9 tool calls failed")
        return real(loop, source, step, group_size)

    monkeypatch.setattr(question_files, "ToyWeb", lambda *_, **__: small_web(0, 0, 0))
    monkeypatch.setattr(train_igpo, "rollouts", failing)
    if judge:
        monkeypatch.setattr(setup, "make_grader", Judge)
    codes, printed, _ = ranks_that_end(2, lambda: train_igpo.main(config))
    words = (
        "6 of 50 verdicts of the judge failed"
        if judge
        else "script.py: rank 1: 7 of 9 tool calls failed"
    )
    assert codes == [2, 2] and printed[1] == "" and printed[0].rstrip().endswith(words)
    assert latest_checkpoint(config.out).name == "step-00000001"
    assert not judge or (tmp_path / "run" / "asked").read_text() == "0 4\n0 4\n", (
        "all four rollouts, by rank 0"
    )


def test_a_second_run_in_the_folder_is_refused_once(inputs, tmp_path):
    config = small_config(inputs, tmp_path / "run")
    with claimed(config.out, "training"):
        codes, printed, _ = ranks_that_end(2, lambda: train_sft.main(config))
    assert codes == [2, 2] and "another process is training" in printed[0] and printed[1] == ""


# ----------------------------------------------------------------------------------------- torchrun


def test_torchrun_starts_a_run_whose_first_process_alone_speaks(inputs, tmp_path):
    flags = [f"--{key}={value}" for key, value in inputs.items()]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "train_sft.py",
        *flags,
        f"--out={tmp_path / 'run'}",
        "--steps=1",
        "--batch=3",
        "--validation=2",
        "--device=cpu",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        len(re.findall("^model ", done.stdout, re.MULTILINE)) == 2
        and done.stdout.count("start       step 0") == 1
    )
    assert len(losses(tmp_path / "run")) == 1 and latest_checkpoint(tmp_path / "run")
