"""Runs that train adapters: what changes, what is saved, how they go on, their reference, two
processes."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import train_igpo
import train_sft
from minvenus.config import ConfigError
from minvenus.files import latest_checkpoint, read_jsonl
from minvenus.igpo.loss import LossConfig
from minvenus.model import weights
from minvenus.model.lora import adapters, plain_weight, switched_off
from minvenus.model.precision import engine_model
from minvenus.train.checkpoint import load_reference, load_start
from minvenus.train.parallel import shard, whole
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.train.sft import sft_step, validation_loss
from tests.train.igpo_runs import (
    MIXED,
    first_step,
    learned,
    row_logprobs,
    small_igpo,
    with_gate,
    write_model,
)
from tests.train.ranks import on_ranks
from tests.train.runs import TINY, content, examples, signalled, small_config, write_inputs
from tests.train.test_parallel import adapted_model, difference, model_of, watched_optimizer

SETTINGS = SFTConfig(max_tokens=400, pack_tokens=400, clip=1e9, device="cpu")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def trained_model(run) -> Path:
    return latest_checkpoint(run) / "model"


def test_sft_changes_adapters_only_and_saves_them_merged_and_goes_on_to_the_same_bytes(
    inputs, tmp_path, capsys, monkeypatch
):
    config = small_config(inputs, tmp_path / "run", lora_rank=2, learning_rate=4e-2)
    train_sft.main(config)
    assert "15,168 parameters on cpu, 512 of them trained\n" in capsys.readouterr().out
    start, merged = weights.load(inputs["model"]), weights.load(trained_model(config.out))
    same = {
        name
        for name, tensor in merged.state_dict().items()
        if torch.equal(tensor, start.get_parameter(name))
    }
    assert same == {name for name in start.state_dict() if "norm" in name or "embed" in name}
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["validation_loss"] < rows[0]["before_validation_loss"] - 0.02
    stopped = replace(config, out=str(tmp_path / "stopped"))
    with monkeypatch.context() as patch:
        signalled(patch, train_sft, "sft_step", [signal.SIGTERM], at_step=2)
        train_sft.main(stopped)
    assert len(read_jsonl(tmp_path / "stopped" / "metrics.jsonl")) == 2
    train_sft.main(stopped)
    assert content(stopped.out) == content(config.out) and any(
        "adapter" in name for name in content(config.out)
    )


def test_an_adapter_goes_on_only_with_the_weights_that_it_was_trained_beside(inputs, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(inputs["model"], start)
    config = small_config(inputs, tmp_path / "run", lora_rank=2, steps=1, model=str(start))
    train_sft.main(config)
    other = weights.load(start)
    other.model.layers[0].mlp.up_proj.weight.data.mul_(1.5)
    shutil.rmtree(start)
    weights.save(other, start, TINY.files)
    with pytest.raises(
        ConfigError, match="was made with other data, another prompt, start model or judge"
    ):
        train_sft.main(config)


# --------------------------------------------------------------------------------------------- IGPO


def test_the_reference_is_the_model_itself_with_its_adapters_switched_off(model, monkeypatch):
    config = small_igpo(model, lora_rank=2, kl_coef=0.1)
    policy, _ = load_start(config)
    assert load_reference(config, policy) is policy, "no second copy"
    assert load_reference(replace(config, loss=LossConfig(kl_coef=0.0)), policy) is None
    step = first_step(config, MIXED)
    for adapter in adapters(step.model).values():
        adapter.lora_B.data.fill_(0.03)
    start = weights.load(model)
    with torch.no_grad(), switched_off(step.model):
        ours, theirs = (row_logprobs(each, step.rows) for each in (step.model, start))
    assert all(map(torch.equal, ours, theirs))
    numbers = first_step(config, MIXED).update()
    assert numbers["kl"] == 0.0, "the policy is the reference before its first step"
    with_gate(monkeypatch, 100.0)
    assert step.update()["kl"] > 0, "it compares with the start, not with the model as it is"


def test_a_tiny_run_learns_and_engine_and_trainer_agree_in_every_step(tmp_path):
    config = IGPOConfig(
        out=str(tmp_path),
        steps=3,
        questions=4,
        hops=1,
        lora_rank=8,
        learning_rate=3e-3,
        device="cpu",
        evaluate_questions=0,
        rollouts_every=1,
    )
    train_igpo.main(config)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["updates"] for row in rows] == [1, 1, 1]
    assert all(row["logprob_gap_mean"] < 1e-5 for row in rows), (
        "merged in the engine, unmerged in the trainer"
    )
    assert rows[0]["kl"] == 0.0 < rows[-1]["kl"] and learned(tmp_path, 3) > 0.5


# ------------------------------------------------------------------------------------ two processes


def adapted_numbers(recompute: bool = False):
    """(loss, gradient of the adapters, loss of the base, merged weights, what the engine has) of
    one step."""
    model = shard(adapted_model())
    model.model.recompute = recompute
    optimizer, seen = watched_optimizer(model)
    loss = sft_step(model, optimizer, examples(5), 0.0, SETTINGS)["loss"]
    with switched_off(model):
        base = validation_loss(model, examples(2), SETTINGS)
    names = [name for name in model.state_dict() if name.endswith(".weight")]
    merged = torch.cat([whole(plain_weight(model, name)).flatten() for name in names])
    copy = engine_model(model)
    assert copy is not model and not adapters(copy)
    return loss, seen[0], base, merged, torch.cat([p.flatten() for p in copy.state_dict().values()])


def test_adapters_in_two_processes_have_the_gradient_of_one():
    loss, gradient, base, merged, engine = adapted_numbers()
    plain = validation_loss(model_of(), examples(2), SETTINGS)
    assert base == pytest.approx(plain, rel=1e-6), "switched off it is the base"
    for other in on_ranks(2, lambda: adapted_numbers(recompute=True)):
        assert (other[0], other[2]) == pytest.approx((loss, base), rel=1e-5)
        assert difference(other[1], gradient) < 1e-5
        assert difference(other[3], merged) < 1e-6 and difference(other[4], engine) < 1e-6
        assert torch.equal(other[3], other[4]), "the engine has the merged weights"
