"""The precision of a device, the engine's copy, the gate on log-probs, and whole runs as on a GPU:
bfloat16 products and engine, forced on the CPU."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from minvenus.engine import Engine
from minvenus.files import read_jsonl
from minvenus.model import qwen3
from minvenus.model.precision import PRECISION, engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example
from minvenus.train.optim import Diverged, adamw
from minvenus.train.pack import EMPTY, make_packs, pack_logprobs
from minvenus.train.settings import IGPOConfig, SFTConfig
from minvenus.train.update import check_gap
from tests.train.igpo_runs import (
    MIXED,
    first_step,
    learned,
    small_igpo,
    with_gate,
    with_recipe,
    write_model,
)
from tests.train.runs import ROOT, SMALL, made_up_update, parameters


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setitem(PRECISION, "cpu", PRECISION["cuda"])


# -------------------------------------------------------------------------------- the engine's copy


def test_as_on_a_gpu_the_engine_has_a_bfloat16_copy_that_follows_the_master_weights(as_on_a_gpu):
    model = Qwen3(SMALL, seed=1)
    engine = Engine(engine_model(model), pages=4, page_size=16)
    copy, master = engine.runner.model, parameters(model)
    assert {p.dtype for p in copy.parameters()} == {
        torch.bfloat16
    } and engine.runner.k_pages.dtype == torch.bfloat16
    assert not any(p.requires_grad for p in copy.parameters())
    assert torch.equal(parameters(copy), master.bfloat16())
    places = [p.data_ptr() for p in copy.parameters()]

    made_up_update(model, adamw(model, (0.9, 0.95), 0.01), 1)
    assert torch.equal(parameters(copy), master.bfloat16()), "stale until it is told"
    engine.load_weights(model)
    assert torch.equal(parameters(copy), parameters(model).bfloat16()) and not torch.equal(
        parameters(model), master
    )
    assert [p.data_ptr() for p in copy.parameters()] == places, "in place"
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_copied_weights_drop_what_was_computed_with_the_old_ones():
    model = Qwen3(SMALL, seed=1)
    engine = Engine(engine_model(model), pages=8, page_size=16)
    before = engine.score([5] * 40, [[7, 8]])
    made_up_update(model, adamw(model, (0.9, 0.95), 0.01), 1)
    engine.load_weights(model)
    assert (
        engine.score([5] * 40, [[7, 8]])
        == Engine(model, pages=8, page_size=16).score([5] * 40, [[7, 8]])
        != before
    )


def test_pages_take_no_memory_between_freeing_and_the_next_step(monkeypatch):
    """Nor does torch keep it for tensors of the update, between which new pages had no room."""
    engine = Engine(Qwen3(SMALL, seed=1).requires_grad_(False), pages=8, page_size=16)
    runner, held = engine.runner, []
    pages = lambda: (runner.k_pages, runner.v_pages, runner.decode_cache)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(pages()))
    before = engine.score([5] * 40, [[7, 8]])
    engine.free_pages()
    assert pages() == (None, None, None) and held == [pages()]
    assert engine.pool.used == 0 and engine.score([5] * 40, [[7, 8]]) == before


# ----------------------------------------------------------------------------------------- the gate


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_igpo(write_model(tmp_path_factory.mktemp("model")))


def shifted(rows, by: list[float]):
    """The rows as if the engine had stored log-probs that differ by so much in each."""
    pairs = zip(rows, by, strict=True)
    return [replace(row, old_logprobs=row.old_logprobs + shift) for row, shift in pairs]


@pytest.mark.parametrize("by, passes", [(0.5e-4, True), (2e-4, False)])
def test_the_gate_is_on_the_mean_gap(config, by, passes):
    step = first_step(config, MIXED)
    before = parameters(step.model)
    tokens = sum(row.example.trained for row in step.rows)
    words = f"differ by {by:g} in the mean of {tokens} tokens before .* more than 0.0001"
    with nullcontext() if passes else pytest.raises(Diverged, match=words):
        gap = step.update(shifted(step.rows, [by] * 4))["logprob_gap_mean"]
        assert gap == pytest.approx(by, rel=0.05)
    assert torch.equal(parameters(step.model), before) != passes


@pytest.mark.parametrize(("tokens", "gap"), [(25, 0.04), (100, 0.03), (10_000, 0.021)])
def test_as_on_a_gpu_the_bound_is_wider_for_few_tokens(as_on_a_gpu, tokens, gap):
    """0.02 + 0.1 / sqrt(n), with n the tokens that the mean is over."""
    rows = [SimpleNamespace(example=SimpleNamespace(trained=n)) for n in (tokens - 10, 10)]
    model = Qwen3(SMALL)
    check_gap(model, rows, gap - 1e-6)
    with pytest.raises(Diverged, match=f"mean of {tokens} tokens .* more than {gap:g}:"):
        check_gap(model, rows, gap + 1e-6)


def test_the_bound_is_for_the_tokens_that_ran_not_for_those_without_a_signal(config, monkeypatch):
    """Only outcomes are rewarded, so two of the four rollouts do not run."""
    step = first_step(with_recipe(config, use_gain=False), MIXED)
    ran = sum(row.example.trained for row in step.rows if row.has_signal)
    assert 0 < ran < 0.9 * sum(row.example.trained for row in step.rows)
    wider = replace(PRECISION["cpu"], spread=0.05 * ran**0.5)  # 0.0001 + 0.05 where they run
    monkeypatch.setitem(PRECISION, "cpu", wider)
    assert step.update(shifted(step.rows, [0.05] * 4))["updates"] == 1


@pytest.mark.parametrize("pack_tokens", [512, 4096])
def test_the_mean_gap_is_over_the_tokens_of_all_packs_and_a_larger_one_is_logged_and_stops_nothing(
    config, pack_tokens, monkeypatch
):
    with_gate(monkeypatch, 0.035)
    step = first_step(replace(config, pack_tokens=pack_tokens), MIXED)
    by = [0.01, 0.02, 0.03, 0.04]
    counts = [row.example.trained for row in step.rows]
    mean = sum(shift * count for shift, count in zip(by, counts, strict=True)) / sum(counts)
    numbers = step.update(shifted(step.rows, by))
    assert numbers["logprob_gap_mean"] == pytest.approx(mean, rel=1e-3)
    assert numbers["logprob_gap"] == pytest.approx(0.04, rel=0.01)


# ----------------------------------------------------------------------------- what a GPU waits for


def test_forward_and_backward_read_nothing_back_from_the_device(monkeypatch):
    """On the meta device there is nothing to read: every length must come from the host."""
    longest = []

    def attention(q, k, v, cu_seqlens, max_seqlen):
        assert cu_seqlens.device == q.device
        longest.append(max_seqlen)
        return q * 1.0

    monkeypatch.setitem(PRECISION, "meta", PRECISION["cpu"])
    # autocast does not know the device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(qwen3, "attention", attention)
    with torch.device("meta"):
        model = Qwen3(SMALL)
    examples = [Example(torch.arange(n).int(), torch.arange(n) > 4) for n in (9, 7)]
    for batch in (examples, examples[1:]):
        [pack] = make_packs(batch, 100)
        pack_logprobs(model, pack, entropy=True)[0].sum().backward()
    pack_logprobs(model, EMPTY).sum().backward()
    assert longest == [9, 7, 1]


def test_adamw_is_one_kernel_on_a_gpu():
    class OnGPU(torch.nn.Parameter):
        is_cuda = True

    for kind, fused in ((torch.nn.Parameter, False), (OnGPU, True)):
        trained = SimpleNamespace(parameters=lambda kind=kind: [kind(torch.ones(2))])
        assert adamw(trained, (0.9, 0.95), 0.01).defaults["fused"] == fused


@pytest.mark.parametrize("recompute", [False, True])
def test_layers_are_checkpointed_only_where_a_gradient_is_needed(monkeypatch, recompute):
    calls = []
    monkeypatch.setattr(
        qwen3, "checkpoint", lambda layer, *rest, **_: calls.append(layer) or layer(*rest)
    )
    model = Qwen3(SMALL)
    model.model.recompute = recompute
    Engine(model, pages=4, page_size=16).score([5] * 9, [[7, 8]])
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert not calls
    model(torch.tensor([[1, 2, 3]]))
    assert len(calls) == recompute * SMALL.num_hidden_layers


# --------------------------------------------------------------------------- whole runs as on a GPU


AS_ON_A_GPU = """
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import Recipe
from minvenus.model.precision import PRECISION
from minvenus.train.settings import IGPOConfig, SFTConfig
import train_igpo, train_sft
PRECISION["cpu"] = PRECISION["cuda"]
train_igpo.main({igpo})
train_igpo.main({resumed})
train_sft.main({sft})
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three steps of IGPO (the last one resumed) and of SFT. In a process of its own, because some
    virtual machines announce matrix instructions for bfloat16 that they cannot run."""
    folder = tmp_path_factory.mktemp("runs")
    igpo = IGPOConfig(
        out=str(folder / "igpo"),
        steps=2,
        questions=4,
        hops=1,
        rollouts_every=1,
        evaluate_questions=0,
        device="cpu",
    )
    sft = SFTConfig(
        out=str(folder / "sft"), steps=3, demonstrations=40, validation=8, batch=4, device="cpu"
    )
    program = AS_ON_A_GPU.format(igpo=igpo, resumed=replace(igpo, steps=3), sft=sft)
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_both_stages_learn_as_on_a_gpu_and_igpo_passes_the_gate_in_every_step(runs):
    rows = read_jsonl(runs / "igpo" / "metrics.jsonl")
    assert [row["updates"] for row in rows] == [1, 1, 1]
    for row in rows:
        assert 1e-4 < row["logprob_gap_mean"] < 0.02 == PRECISION["cuda"].mean_gap, (
            "bfloat16, and one model"
        )
        assert row["logprob_gap_mean"] < row["logprob_gap"] and 0 <= row["kl"] < 0.1
    assert learned(runs / "igpo", 3) > 0.5
    rows = read_jsonl(runs / "sft" / "metrics.jsonl")
    assert rows[-1]["validation_loss"] < rows[0]["before_validation_loss"] - 0.01
