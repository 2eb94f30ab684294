"""One IGPO run in miniature: exact to the bit, engine and trainer agree, GRPO is the same code without gains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train_igpo
from minvenus.config import ConfigError, Recipe
from minvenus.train import checkpoint, metrics
from minvenus.train.igpo_config import IGPOConfig

TINY = IGPOConfig(steps=2, questions=2, group=2, hops=1, max_turn_tokens=12, max_context=192, pages=256, evaluate_every=9,
                  evaluate_questions=2, save_every=1)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def files(run) -> dict[str, bytes]:
    folder = checkpoint.latest(run)
    return {name: Path(path).read_bytes() for name, path in (
        ("metrics", Path(run) / "metrics.jsonl"), ("model", folder / "model" / "model.safetensors"),
        ("optimizer", folder / "optimizer.safetensors"))}


def test_the_same_seed_gives_the_same_bytes_and_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch):
    train_igpo.main(replace(TINY, out=str(tmp_path / "whole")))
    saved = checkpoint.save

    def save_and_die(run, step, *rest):
        saved(run, step, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            train_igpo.main(replace(TINY, out=str(tmp_path / "halves")))
    train_igpo.main(replace(TINY, out=str(tmp_path / "halves")))
    assert files(tmp_path / "whole") == files(tmp_path / "halves")


def test_before_the_first_update_every_ratio_is_one_and_stored_log_probs_are_the_trainers(tmp_path):
    train_igpo.main(replace(TINY, steps=1, out=str(tmp_path)))
    [row] = metrics.read(tmp_path / "metrics.jsonl")
    assert row["logprob_gap"] < 1e-5
    assert row["ratio_min"] == pytest.approx(1.0, abs=1e-5) and row["ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_a_batch_without_any_signal_is_reported_and_costs_no_update(tmp_path):
    """Random weights: every rollout of every group fails in the same way."""
    config = replace(TINY, steps=1, kl_coef=0.0, recipe=Recipe(use_gain=False), out=str(tmp_path))
    before = train_igpo.Job(config).model.state_dict()
    folder = train_igpo.main(config)
    [row] = metrics.read(tmp_path / "metrics.jsonl")
    assert row["groups_without_any_signal"] == 1.0 and row["updates"] == 0
    after = train_igpo.weights.load(folder).state_dict()
    assert all(after[name].equal(before[name]) for name in before)


def test_a_run_that_is_there_is_not_overwritten(tmp_path):
    train_igpo.main(replace(TINY, steps=1, out=str(tmp_path)))
    with pytest.raises(ConfigError, match="holds a run already"):
        train_igpo.main(replace(TINY, steps=1, out=str(tmp_path), resume="never"))
