"""One step of supervised fine-tuning: what enters the loss, and that packing, order and
recomputation change nothing."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import save_on_cpu

from minvenus.model import qwen3
from minvenus.sft.dataset import Example
from minvenus.train.optim import adamw, optimizer_step
from minvenus.train.pack import fill_packs, make_packs, pack_logprobs
from minvenus.train.settings import SFTConfig
from minvenus.train.sft import learning_rate, sft_losses, sft_step, validation_loss
from tests.train.runs import SMALL, examples, gradients, lively_model, parameters

BATCH = examples(10)
REDUCTIONS = ("trajectory-mean", "token-mean")


def config_for(budget=10_000, reduction="trajectory-mean") -> SFTConfig:
    return SFTConfig(max_tokens=1, pack_tokens=budget, reduction=reduction, device="cpu")


@cache
def budget_for(packs):
    """The largest token budget for which the batch needs so many packs, in whatever order."""
    lengths = [len(e) for e in BATCH]
    return next(
        budget for budget in range(sum(lengths), 0, -1) if len(fill_packs(lengths, budget)) == packs
    )


def gradient(batch, budget, reduction="trajectory-mean", recompute=False, offload=False):
    model = lively_model()
    model.model.recompute, model.model.offload = recompute, offload
    for loss in sft_losses(model, batch, config_for(budget, reduction)):
        loss.backward()
    return gradients(model)


def one_step(batch, budget, reduction="trajectory-mean"):
    model = lively_model()
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    return sft_step(model, optimizer, batch, 1e-4, config_for(budget, reduction))


# ----------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_numbers_of_a_step_are_those_of_plain_forwards(reduction):
    """A row per trajectory, all logits, the definition of cross-entropy; the gradient is that of
    the loss."""
    model = lively_model()
    losses = []
    for e in BATCH:
        logp = model(e.tokens.long()[None])[0].log_softmax(-1)  # [L, V]; row k predicts token k + 1
        trained = [k for k in range(1, len(e)) if e.sampled[k]]
        losses.append(torch.stack([-logp[k - 1, e.tokens[k]] for k in trained]))
    loss = torch.cat(losses).mean()
    if reduction == "trajectory-mean":
        loss = torch.stack([loss.mean() for loss in losses]).mean()
    loss.backward()
    assert one_step(BATCH, 10_000, reduction) == {
        "loss": pytest.approx(loss.item(), rel=1e-5),
        "grad_norm": pytest.approx(gradients(model).norm().item(), rel=1e-5),
        "learning_rate": 1e-4,
        "tokens": sum(map(len, BATCH)),
        "trained_tokens": sum(map(len, losses)),
    }
    found = validation_loss(model, BATCH, config_for(budget_for(3), reduction))
    assert found == pytest.approx(loss.item(), rel=1e-5)


@given(st.sampled_from(BATCH), st.data())
def test_an_observation_is_read_and_not_trained(e, data):
    """With another token at k the log-probs before it stay, its own if it is trained aside; those
    after it change."""
    model, k = lively_model(), data.draw(st.integers(1, len(e) - 2))
    tokens = e.tokens.clone()
    tokens[k] = (tokens[k] + 1) % 700
    [old], [new] = (make_packs([Example(t, e.sampled)], 10_000) for t in (e.tokens, tokens))
    with torch.no_grad():
        changed = pack_logprobs(model, old) != pack_logprobs(model, new)
    positions = old.sources + 1
    assert not changed[positions < k].any() and changed[positions > k].any()
    assert changed[positions == k].tolist() == [True] * int(e.sampled[k])


# ----------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_one_two_or_five_packs_give_the_same_step(reduction):
    """The same gradient, to 1e-6 of its norm."""
    numbers, slope = one_step(BATCH, 10_000, reduction), gradient(BATCH, 10_000, reduction)
    for packs in (2, 5):
        assert (gradient(BATCH, budget_for(packs), reduction) - slope).norm() < 1e-6 * slope.norm()
        again = one_step(BATCH, budget_for(packs), reduction)
        assert again["loss"] == pytest.approx(numbers["loss"], rel=1e-6)
        assert again["grad_norm"] == pytest.approx(numbers["grad_norm"], rel=1e-5)


def test_recomputing_layers_and_keeping_their_inputs_in_host_memory_change_no_bit_of_a_gradient():
    plain = gradient(BATCH, budget_for(2))
    assert torch.equal(plain, gradient(BATCH, budget_for(2), recompute=True))
    assert torch.equal(plain, gradient(BATCH, budget_for(2), recompute=True, offload=True))


def test_only_the_inputs_of_the_layers_go_to_host_memory(monkeypatch):
    """Neither the rotation, which would go once for each layer, nor anything of the head."""
    copied = []

    class Recorded(save_on_cpu):
        def __init__(self, pin_memory):
            super().__init__(pin_memory=pin_memory)
            pack = self.pack_hook
            self.pack_hook = lambda tensor: copied.append(tensor) or pack(tensor)

    monkeypatch.setattr(qwen3, "save_on_cpu", Recorded)
    gradient(BATCH, 10_000, recompute=True, offload=True)
    hidden = [tensor for tensor in copied if tensor.is_floating_point() and tensor.numel()]
    tokens = sum(map(len, BATCH))
    assert [list(x.shape) for x in hidden] == [
        [tokens, SMALL.hidden_size]
    ] * SMALL.num_hidden_layers
    assert sum(x.numel() for x in copied if not x.is_floating_point()) <= tokens, "rows of a layer"


def test_a_step_starts_from_no_gradient():
    """Two steps with a rate of zero see the same gradient; left-over gradients would double its
    norm."""
    model = lively_model()
    optimizer = adamw(model, (0.9, 0.95), 0.0)
    norms = [sft_step(model, optimizer, BATCH, 0.0, config_for())["grad_norm"] for _ in range(2)]
    assert norms[0] == norms[1] > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_a_gradient_a_step_shrinks_all_parameters_by_rate_times_weight_decay():
    model = lively_model()
    before = parameters(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer_step(model, adamw(model, (0.9, 0.95), 0.5), 0.1, 1.0)
    torch.testing.assert_close(parameters(model), 0.95 * before)


# -------------------------------------------------------------------------------- the learning rate


def test_warm_up_and_cosine_worked_by_hand():
    """Six steps, two of warm-up: half, all; then (1 + cos(pi k / 4)) / 2 for k = 0 1 2 3."""
    rates = [learning_rate(step, 6, 2.0, 2) for step in range(1, 7)]
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)])
    assert [learning_rate(step, 2, 3.0, 2) for step in (1, 2)] == [1.5, 3.0]
    assert learning_rate(1, 1, 3.0, 0) == 3.0
