"""Gradients of the loss: finite differences, masks, constants, micro-batches, and inputs at the edge of the number
range."""

import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minvenus.igpo.loss import igpo_loss
from tests.igpo import oracle
from tests.igpo.strategies import Tokens, token_batches
from tests.igpo.test_loss import aggregations, loss_and_gradient, settings_of_the_loss, tensors


def far_from_kinks(batch: Tokens, options) -> bool:
    """Whether no token sits where the loss has a corner, which no difference quotient can follow."""
    for b, row in enumerate(batch.mask):
        for k, keep in enumerate(row):
            ratio = math.exp(batch.logp[b][k] - batch.old[b][k])
            x = batch.ref[b][k] - batch.logp[b][k]
            corners = [
                ratio - 1 + options["clip_low"],
                ratio - 1 - options["clip_high"],
                ratio - (options["dual_clip"] or 99.0),
                math.exp(x) - x - 11,
            ]
            if keep and min(map(abs, corners)) < 1e-4:
                return False
    return True


@given(token_batches(max_rows=3, max_length=4), settings_of_the_loss, aggregations)
def test_gradient_equals_finite_differences_of_the_definition(batch, options, how):
    assume(far_from_kinks(batch, options))
    _, gradient = loss_and_gradient(batch, aggregate=how, **options)
    h = 1e-6
    for b in range(len(batch.mask)):
        for k in range(len(batch.mask[b])):
            sides = []
            for step in (h, -h):
                moved = [
                    [x + step if (i, j) == (b, k) else x for j, x in enumerate(row)] for i, row in enumerate(batch.logp)
                ]
                sides.append(
                    oracle.loss(moved, batch.old, batch.ref, batch.advantages, batch.mask, how=how, **options)[0]
                )
            assert gradient[b, k].item() == pytest.approx((sides[0] - sides[1]) / (2 * h), rel=1e-5, abs=1e-7)


@given(token_batches(), settings_of_the_loss, aggregations)
def test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs(batch, options, how):
    """Invariant 7: they are constants, even when they come with a graph behind them."""
    logp, old, ref, advantages, mask = tensors(batch)
    graph = torch.ones((), dtype=torch.float64, requires_grad=True)
    constants = [x * graph for x in (old, ref, advantages)]
    loss, _ = igpo_loss(logp, *constants, mask, aggregate=how, **options)
    through, = torch.autograd.grad(loss, graph, retain_graph=True, allow_unused=True)
    assert through is None or through.item() == 0.0
    loss.backward()
    assert torch.equal(logp.grad, loss_and_gradient(batch, aggregate=how, **options)[1])


# --------------------------------------------------------------------------------------------------------------- masks


@given(token_batches(), settings_of_the_loss, aggregations, st.integers(0, 2**32 - 1))
def test_masked_positions_may_hold_anything_and_change_nothing(batch, options, how, seed):
    """Invariant 41, and more than it asks: also NaN and infinity. Their gradient is exactly zero."""
    rng = random.Random(seed)
    garbage = (math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0)
    fill = lambda x: [[v if keep else rng.choice(garbage) for v, keep in zip(row, m, strict=True)]  # noqa: E731
                      for row, m in zip(x, batch.mask, strict=True)]
    poisoned = Tokens(fill(batch.logp), fill(batch.old), fill(batch.ref), fill(batch.advantages), batch.mask)
    loss, gradient = loss_and_gradient(batch, aggregate=how, **options)
    poisoned_loss, poisoned_gradient = loss_and_gradient(poisoned, aggregate=how, **options)
    assert poisoned_loss == loss
    assert torch.equal(poisoned_gradient, gradient)
    assert (poisoned_gradient[~torch.tensor(batch.mask)] == 0).all()


@given(token_batches(), settings_of_the_loss, aggregations)
def test_a_row_without_a_single_trained_token_influences_nothing(batch, options, how):
    """Invariant 37: padding rows are not counted as sequences."""
    length = len(batch.mask[0])
    numbers = ([[9.0] * length, *x] for x in (batch.logp, batch.old, batch.ref, batch.advantages))
    padded = Tokens(*numbers, [[False] * length, *batch.mask])
    loss, gradient = loss_and_gradient(batch, aggregate=how, **options)
    padded_loss, padded_gradient = loss_and_gradient(padded, aggregate=how, **options)
    assert padded_loss == pytest.approx(loss, abs=1e-14)
    assert torch.allclose(padded_gradient[1:], gradient, atol=1e-15)
    assert (padded_gradient[0] == 0).all()


@pytest.mark.parametrize("counts", [{}, {"step_sequences": 4, "step_tokens": 40}])
def test_a_batch_of_padding_only_has_loss_zero_and_gradient_zero(counts):
    batch = Tokens([[math.nan, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]], [[1.0, 1.0]], [[False, False]])
    loss, gradient = loss_and_gradient(batch, **counts)
    assert loss == 0
    assert (gradient == 0).all()


# ------------------------------------------------------------------------------------------------------- micro-batches


@given(token_batches(max_rows=7, some_tokens=True), settings_of_the_loss, aggregations, st.integers(0, 2**32 - 1))
def test_micro_batches_of_any_sizes_give_the_gradient_of_the_whole_step(batch, options, how, seed):
    """Rows are shuffled, cut anywhere, and cropped or padded to another length; the sums of losses and gradients are
    those of the whole step."""
    rng = random.Random(seed)
    counts = {"step_sequences": sum(any(m) for m in batch.mask), "step_tokens": sum(sum(m) for m in batch.mask)}
    whole_loss, whole = loss_and_gradient(batch, aggregate=how, **options)
    order = rng.sample(range(len(batch.mask)), len(batch.mask))
    total_loss, gradient = 0.0, torch.zeros_like(whole)
    while order:
        n = rng.randint(1, len(order))
        rows, order = order[:n], order[n:]
        padding = rng.randint(0, 2)
        part = [[x[i] + [0.0] * padding for i in rows] for x in (batch.logp, batch.old, batch.ref, batch.advantages)]
        part.append([batch.mask[i] + [False] * padding for i in rows])
        loss, g = loss_and_gradient(Tokens(*part), aggregate=how, **options, **counts)
        total_loss += loss
        gradient[rows] += g[:, :whole.shape[1]]
    assert total_loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    assert torch.allclose(gradient, whole, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------------------------------------------- the number range

extremes = st.sampled_from((0.0, -1.0, 20.0, 90.0, 1e30, -1e30, 3e38, -3e38, -1e-30))


@given(
    st.lists(
        st.tuples(extremes, extremes, extremes, st.sampled_from((0.0, 1.0, -1.0, 1e25, -1e25))), min_size=1, max_size=4
    ),
    settings_of_the_loss,
    aggregations,
)
def test_loss_and_gradient_are_finite_for_any_finite_float32_log_probs(tokens, options, how):
    """Differences of log-probs may overflow float32; advantages up to 1e25 leave room for the largest ratio, e^20."""
    logp, old, ref, advantages = (torch.tensor([column], dtype=torch.float32) for column in zip(*tokens, strict=True))
    logp.requires_grad_()
    loss, stats = igpo_loss(
        logp, old, ref, advantages, torch.ones_like(logp, dtype=torch.bool), aggregate=how, **options
    )
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(logp.grad).all()
    assert all(math.isfinite(v) for name, v in stats.items() if name != "approx_kl"), stats


def test_statistics_are_finite_too_when_log_probs_overflow():
    logp, old = torch.tensor([[0.0, 3e38]]), torch.tensor([[3e38, -3e38]])
    _, stats = igpo_loss(logp, old, None, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), kl_coef=0.0)
    assert all(math.isfinite(v) for v in stats.values()), stats


def test_the_ratio_is_cut_at_e_to_the_20():
    batch = Tokens([[0.0]], [[-1e30]], [[0.0]], [[-1.0]], [[True]])
    loss, gradient = loss_and_gradient(batch)
    assert loss == pytest.approx(math.exp(20.0))
    assert gradient.item() == 0.0


@given(token_batches(spread=0.1), aggregations)
def test_float32_agrees_with_float64(batch, how):
    single, double = (
        igpo_loss(*tensors(batch, dtype), aggregate=how)[0].item() for dtype in (torch.float32, torch.float64)
    )
    assert single == pytest.approx(double, rel=1e-5, abs=1e-5)
