"""train_sft.py as its users meet it: what it writes and says, how it stops and goes on, and how it refuses."""

import json
import os
import runpy
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import train_sft
from minvenus.config import ConfigError
from minvenus.files import read_jsonl
from minvenus.model import weights
from minvenus.settings import SFT_PRESETS, SFTConfig
from minvenus.sft.dataset import encode
from minvenus.train import update
from minvenus.train.optim import learning_rate
from tests.train.runs import TINY, content, demonstrations, one_thread, small_config, write_inputs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def single_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """A run of three steps that was never stopped."""
    run = tmp_path_factory.mktemp("whole")
    train_sft.main(small_config(inputs, run))
    return content(run)


def command(config: SFTConfig, *more: str) -> int:
    """`python train_sft.py` in this process; returns its exit code."""
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in asdict(config).items()
             if not isinstance(value, bool)]
    before, sys.argv = sys.argv, ["train_sft.py", *flags, *more]
    try:
        runpy.run_path(str(ROOT / "train_sft.py"), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before


# --------------------------------------------------------------------------------------------------- a run as a whole


def test_a_run_says_where_the_model_is_and_what_to_run_next_and_the_model_loads(inputs, tmp_path, capsys):
    config = small_config(inputs, tmp_path / "run")
    folder = train_sft.main(config)
    out, err = capsys.readouterr()
    assert "8 trajectories" in out and "2 held out, 6 trained on" in out
    assert f"all of them in {tmp_path / 'run' / 'run.json'}" in out
    assert f"model       {folder}" in out
    assert f"next        python infer.py --model {folder} --tools live --question" in out
    assert "sft 1/3" in err and "sft 3/3" in err and "tokens/s" in err and "left" in err and "loss" in err
    weights.load(folder)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert SFTConfig(**json.loads((tmp_path / "run" / "run.json").read_text())) == config


def test_every_step_has_its_metrics_and_counters_follow_from_the_data(inputs, tmp_path):
    config = small_config(inputs, tmp_path)
    train_sft.main(config)
    rows, timing = (read_jsonl(tmp_path / name) for name in ("metrics.jsonl", "timing.jsonl"))
    assert [row["step"] for row in rows] == [row["step"] for row in timing] == [1, 2, 3]
    assert [row["learning_rate"] for row in rows] == [learning_rate(step, 3, 1e-2, 0) for step in (1, 2, 3)]
    assert [row["epoch"] for row in rows] == [0.5, 1.0, 1.5]
    assert [row["tokens_seen"] for row in rows] == [sum(r["tokens"] for r in rows[:n]) for n in (1, 2, 3)]
    assert ["validation_loss" in row for row in rows] == [False, True, True], "every second step, and the last"
    assert rows[2]["loss"] < rows[0]["loss"]
    assert "before_validation_loss" in rows[0]
    assert all(row["seconds"] > 0 and row["update_tokens_per_second"] > 0 for row in timing)


def test_two_runs_are_the_same_bytes_and_another_seed_trains_in_another_order(inputs, whole, tmp_path):
    for seed in (0, 1):
        train_sft.main(small_config(inputs, tmp_path / str(seed), seed=seed))
        assert (content(tmp_path / str(seed)) == whole) == (seed == 0)


def test_held_out_trajectories_are_never_trained_on(inputs, tmp_path, monkeypatch):
    """Two of the eight records are held out; a copy of one of them stands among the others, as resampling leaves
    them."""
    records = demonstrations(8)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in [records[7], *records]))
    trained, held_out = set(), []

    def watch(model, optimizer, examples, *rest):
        trained.update(tuple(e.tokens.tolist()) for e in examples)
        return update.sft_step(model, optimizer, examples, *rest)

    def watch_validation(model, examples, *rest):
        held_out.append({tuple(e.tokens.tolist()) for e in examples})
        return update.validation_loss(model, examples, *rest)

    monkeypatch.setattr(train_sft, "sft_step", watch)
    monkeypatch.setattr(train_sft, "validation_loss", watch_validation)
    train_sft.main(small_config(inputs, tmp_path / "run", data=str(data)))
    assert len(trained) == 6 and len(held_out) == 3 and len(held_out[0]) == 2
    assert not trained & held_out[0]


def test_over_long_trajectories_are_dropped_with_their_number(inputs, tmp_path, capsys):
    records = demonstrations(6, hops=(1, 2))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    short = len(encode(records[0], TINY))
    train_sft.main(small_config(inputs, tmp_path / "run", data=str(data), max_tokens=short, validation=0, steps=1))
    assert "3 trajectories" in (out := capsys.readouterr().out) and "3 dropped because they are too long" in out
    assert command(small_config(inputs, tmp_path / "none", data=str(data), max_tokens=short - 1, validation=0)) == 2
    assert "6 dropped because they are too long" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- stopping and going on


def signalled(monkeypatch, numbers, at_step=0):
    """The signals arrive in the middle of a step."""
    calls = []

    def step(*arguments):
        calls.append(1)
        if len(calls) == at_step + 1:
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*arguments)

    real = update.sft_step
    for module in (update, train_sft):
        monkeypatch.setattr(module, "sft_step", step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_exits_0_and_the_next_call_goes_on(number, inputs, whole, tmp_path,
                                                                                monkeypatch, capfd):
    config = small_config(inputs, tmp_path, save_every=100)
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        signalled(patch, [number], at_step=1)
        assert command(config) == 0
    out, err = capfd.readouterr()
    assert "stopped after step 2 of 3; the same command goes on from there" in out and "stopping after this step" in err
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert command(config) == 0
    out = capfd.readouterr().out
    assert f"start       {tmp_path}/checkpoints/step-00000002" in out and "next        python" in out
    assert content(tmp_path) == whole


def test_a_signal_in_the_last_step_just_ends_the_run(inputs, whole, tmp_path, monkeypatch, capfd):
    signalled(monkeypatch, [signal.SIGINT], at_step=2)
    assert command(small_config(inputs, tmp_path)) == 0
    out = capfd.readouterr().out
    assert "stopped after" not in out and "next        python" in out and content(tmp_path) == whole


def test_a_second_signal_stops_at_once_and_the_run_goes_on_from_its_last_checkpoint(inputs, whole, tmp_path,
                                                                                    monkeypatch, capfd):
    config = small_config(inputs, tmp_path)
    with monkeypatch.context() as patch:
        signalled(patch, [signal.SIGINT, signal.SIGINT], at_step=1)
        assert command(config) == 130
    assert "stopped at once; the same command goes on from the last checkpoint" in capfd.readouterr().err
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert command(config) == 0 and content(tmp_path) == whole


def test_a_run_that_has_ended_is_not_trained_again(inputs, tmp_path, capsys):
    config = small_config(inputs, tmp_path)
    folder = train_sft.main(config)
    before = content(tmp_path)
    capsys.readouterr()
    with pytest.raises(ConfigError, match="holds a run already"):
        train_sft.main(replace(config, resume="never"))
    assert train_sft.main(config) == folder and content(tmp_path) == before
    assert "next        python" in capsys.readouterr().out


def test_where_a_run_was_interrupted_changes_no_bit(inputs, whole, tmp_path, monkeypatch):
    """However often: once after every step."""
    config = small_config(inputs, tmp_path, save_every=100)
    for _ in range(3):
        with monkeypatch.context() as patch:
            signalled(patch, [signal.SIGTERM])
            train_sft.main(config)
    assert content(tmp_path) == whole


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("flags", "words"), [
    (["--steps", "0"], ["steps must be at least 1"]),
    (["--pack-tokens", "100"], ["pack_tokens 100 must hold a trajectory of max_tokens 400"]),
    (["--hops", "5"], ["hops must be 1, 2, 3 or 4"]),
    (["--warmup", "1.5"], ["warmup must be from 0 to 1"]),
    (["--learning-rate", "0"], ["learning_rate must be above 0"]),
    (["--validation", "-1"], ["validation must be at least 0"]),
    (["--validation", "8"], ["8 different trajectories are not enough to hold 8 out"]),
    (["--data", "nowhere.jsonl"], ["'toyweb' or a .jsonl file", "'nowhere.jsonl'"]),
    (["--model", "nowhere"], ["'tiny-base', 'tiny' or a folder with a config.json", "'nowhere'"]),
    (["--max-tokens", "5000", "--pack-tokens", "5000"], ["max_tokens is 5000", "4096 tokens"]),
    (["--replay", "1"], ["replay must be at least 0 and below 1, got 1.0"]),
    (["--lerning-rate", "1"], ["unknown flag --lerning-rate", "--learning-rate"]),
])
def test_a_wrong_command_line_is_one_message_and_exit_code_2(flags, words, inputs, tmp_path, capsys):
    assert command(small_config(inputs, tmp_path), *flags) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and "Traceback" not in err
    assert not (tmp_path / "latest").exists()


def test_data_that_is_not_clean_is_one_message(inputs, tmp_path, capsys):
    for line, words in (("{", "line 1 is no record: not JSON"),
                        ('{"messages": []}', "run python -m minvenus.sft on the file first")):
        (tmp_path / "data.jsonl").write_text(line + "\n")
        assert command(small_config(inputs, tmp_path / "run", data=str(tmp_path / "data.jsonl"))) == 2
        assert words in capsys.readouterr().err


def test_presets_are_valid_settings_and_one_epoch_of_the_release_is_585_steps():
    assert SFTConfig(**SFT_PRESETS["tiny"]) == SFTConfig()
    large = SFTConfig(**SFT_PRESETS["dr-venus-4b"])
    assert large.steps * large.batch <= 18_745 < (large.steps + 1) * large.batch and large.recompute


def test_recomputation_and_the_device_reach_the_model(inputs, tmp_path):
    model, _ = train_sft.prepare(small_config(inputs, tmp_path, recompute=True))
    assert model.model.recompute and model.head_weight.dtype == torch.float32
    with pytest.raises(ConfigError):
        train_sft.prepare(small_config(inputs, tmp_path, max_tokens=9000, pack_tokens=9000))
